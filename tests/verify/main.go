// Command verify runs the test cases against a running stack and tells what it
// saw. It reads all that it needs from the stack's outputs.
//
//	verify [--stack dev] [--disrupt] [--case TC-03,TC-05] [--tenant tenant-a] [--json FILE] [--junit FILE]
//
// Its exit status is 0 when no case failed, 1 when one did or when it could not
// run, 130 when it was interrupted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/cases"
	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/lab"
	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/report"
	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/stack"
)

var errFailed = errors.New("not everything is as it should be, see above")

func main() {
	// client-go would print each connection's end that it did not expect. What
	// matters of that, a case tells.
	utilruntime.ErrorHandlers = nil
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	forget := context.AfterFunc(ctx, func() {
		stop() // a second one ends this command as it ends any other
		fmt.Fprintln(os.Stderr, "verify: interrupted, and taking away what it made; once more: leave that to the next run")
	})
	err := run(ctx, os.Args[1:], os.Stdout)
	interrupted := !forget()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "verify:", err)
	}
	switch {
	case interrupted:
		os.Exit(130)
	case err != nil:
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string, out io.Writer) error {
	flags := flag.NewFlagSet("verify", flag.ContinueOnError)
	name := flags.String("stack", "dev", "the stack's `name`")
	project := flags.String("project", "../..", "the project's `folder`")
	disrupt := flags.Bool("disrupt", false, "run the cases that disturb the stack too")
	only := flags.String("case", "", "`IDs` of the cases to run, with commas between; all when empty")
	tenants := flags.String("tenant", "", "`names` of the tenants to run for, with commas between; all when empty")
	image := flags.String("image", "", "what the pods run, a `reference`: anything that does not end by itself; the project's own probe image when empty")
	patience := flags.Duration("patience", 90*time.Second, "how long to wait for what usually takes seconds")
	jsonFile := flags.String("json", "", "write the results there too, as JSON: a `file`")
	junitFile := flags.String("junit", "", "write the results there too, as JUnit's XML: a `file`")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	options := cases.Options{Image: *image, Disrupt: *disrupt, Only: list(*only), Tenants: list(*tenants), Patience: *patience}
	if err := options.Check(); err != nil {
		return err
	}
	folder, err := filepath.Abs(*project)
	if err != nil {
		return err
	}
	if options.Image == "" {
		if options.Image, err = stack.ProbeImage(folder); err != nil {
			return err
		}
	}
	outputs, err := stack.Read(ctx, folder, *name)
	if err != nil {
		return err
	}
	if len(outputs.Tenants) == 0 {
		return fmt.Errorf("stack %s has no tenants: there is nothing to verify", *name)
	}
	reached, err := lab.Open(outputs)
	if err != nil {
		return err
	}
	results := report.New(out)
	err = cases.Run(ctx, reached, options, results)
	results.Table(out)
	err = errors.Join(err, write(*jsonFile, results.JSON), write(*junitFile, func(to io.Writer) error { return results.JUnit(to, "gpu-tenants."+*name) }))
	if err == nil && !results.OK() {
		return errFailed
	}
	return err
}

func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// write writes a file through a function; "": none.
func write(path string, to func(io.Writer) error) error {
	if path == "" {
		return nil
	}
	file, err := os.Create(path) //nolint:gosec // the person's own
	if err != nil {
		return err
	}
	return errors.Join(to(file), file.Close())
}
