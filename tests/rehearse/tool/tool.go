// Package tool builds commands that are too heavy for a module of their users from
// their own Go modules under tools/, once, and keeps them in the project's cache.
package tool

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Tool is a command, and how it is built.
type Tool struct {
	Name    string
	Module  string // folder under tools/
	At      string // the module in it whose version the command has
	Package string
	// Flags for the linker, in which VERSION stands for the version.
	Flags   string
	Beside  string // a file of the module At that belongs beside the command; "": none
	Minutes int    // on two idle cores, with an empty build cache
}

// Bring returns the command's path, and builds it first if need be. Progress goes
// to log.
func (t Tool) Bring(ctx context.Context, repository string, log io.Writer) (string, error) {
	module := filepath.Join(repository, "tools", t.Module)
	version, err := t.ask(ctx, module, "{{.Version}}")
	if err != nil {
		return "", err
	}
	folder := filepath.Join(repository, ".cache", "tools", t.Module+"-"+version)
	target := filepath.Join(folder, t.Name)
	if _, err := os.Stat(target); err == nil {
		return target, nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // binaries
		return "", err
	}
	fmt.Fprintf(log, "%s %s: building it from its Go module, which takes about %d min on two cores; it is kept in %s.\n", t.Name, version, t.Minutes, folder)
	started := time.Now()
	// Under another name first: half a binary is none.
	partial := fmt.Sprintf("%s.%d", target, os.Getpid())
	if _, err := output(ctx, module, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w "+strings.ReplaceAll(t.Flags, "VERSION", version), "-o", partial, t.Package); err != nil {
		return "", err
	}
	if t.Beside != "" {
		source, err := t.ask(ctx, module, "{{.Dir}}")
		if err != nil {
			return "", err
		}
		content, err := os.ReadFile(filepath.Join(source, t.Beside))
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, filepath.Base(t.Beside)), content, 0o644) //nolint:gosec // nothing secret
		}
		if err != nil {
			return "", err
		}
	}
	if err := os.Rename(partial, target); err != nil {
		return "", err
	}
	fmt.Fprintf(log, "%s %s: built in %s.\n", t.Name, version, time.Since(started).Round(time.Second))
	return target, nil
}

// ask asks Go about the module whose version the binary has.
func (t Tool) ask(ctx context.Context, folder, what string) (string, error) {
	answer, err := output(ctx, folder, "go", "list", "-m", "-f", what, t.At)
	return strings.TrimSpace(answer), err
}

// output runs a command in a folder and returns what it printed.
func output(ctx context.Context, folder, name string, arguments ...string) (string, error) {
	command := exec.CommandContext(ctx, name, arguments...) //nolint:gosec // the project's own
	command.Dir = folder
	command.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("%s %s in %s: %w\n%s", name, strings.Join(arguments, " "), folder, err, stderr.String())
	}
	return stdout.String(), nil
}
