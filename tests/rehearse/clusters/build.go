package clusters

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

// Binaries are the paths of what real clusters are made of.
type Binaries struct {
	APIServer, ControllerManager, Kubectl, Etcd, Provider string
}

// Folder is the environment variable that names a folder with the binaries ready
// in it. They are used as they are, of whatever version.
const Folder = "REHEARSE_BINARIES"

// binary is one of them, and how it is built.
type binary struct {
	name    string
	module  string // folder under tools/
	at      string // the module in it whose version the binary has
	what    string // the package
	flags   string // for the linker
	beside  string // a file of the module that belongs beside the binary
	minutes int    // on two idle cores, with an empty build cache
	target  *string
}

// Build brings the binaries: it builds each from its Go module once and keeps it
// in the project's cache. Progress goes to log. providerVersion is the version
// that the provider's binary calls itself.
func Build(ctx context.Context, repository, providerVersion string, log io.Writer) (*Binaries, error) {
	b := &Binaries{}
	const kubernetes, provider = "k8s.io/kubernetes", "github.com/pulumi/pulumi-kubernetes/provider/v4"
	// Without it they say v0.0.0, and clients take them for servers of long ago.
	const versioned = "-X k8s.io/component-base/version.gitVersion=VERSION"
	all := []binary{
		{name: "kube-apiserver", module: "kube", at: kubernetes, what: kubernetes + "/cmd/kube-apiserver", flags: versioned, minutes: 8, target: &b.APIServer},
		{name: "kube-controller-manager", module: "kube", at: kubernetes, what: kubernetes + "/cmd/kube-controller-manager", flags: versioned, minutes: 3, target: &b.ControllerManager},
		{name: "kubectl", module: "kube", at: kubernetes, what: kubernetes + "/cmd/kubectl", flags: versioned, minutes: 1, target: &b.Kubectl},
		{name: "etcd", module: "etcd", at: "go.etcd.io/etcd/server/v3", what: ".", minutes: 1, target: &b.Etcd},
		{name: "pulumi-resource-kubernetes", module: "pulumi-kubernetes", at: provider, what: ".", minutes: 12, target: &b.Provider,
			flags: fmt.Sprintf("-X %s/pkg/version.Version=%s", provider, providerVersion), beside: "cmd/pulumi-resource-kubernetes/schema.json"},
	}
	for _, one := range all {
		if folder := os.Getenv(Folder); folder != "" {
			*one.target = filepath.Join(folder, one.name)
			if _, err := os.Stat(*one.target); err != nil {
				return nil, fmt.Errorf("%s=%s: %w; unset it to have all binaries built from their Go modules", Folder, folder, err)
			}
			continue
		}
		if err := one.build(ctx, repository, log); err != nil {
			return nil, fmt.Errorf("%s could not be built: %w", one.name, err)
		}
	}
	return b, nil
}

func (b binary) build(ctx context.Context, repository string, log io.Writer) error {
	module := filepath.Join(repository, "tools", b.module)
	version, err := b.ask(ctx, module, "{{.Version}}")
	if err != nil {
		return err
	}
	folder := filepath.Join(repository, ".cache", "tools", b.module+"-"+version)
	*b.target = filepath.Join(folder, b.name)
	if _, err := os.Stat(*b.target); err == nil {
		return nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // binaries
		return err
	}
	fmt.Fprintf(log, "%s %s: building it from its Go module, which takes about %d min on two cores; it is kept in %s.\n", b.name, version, b.minutes, folder)
	started := time.Now()
	// Under another name first: half a binary is none.
	partial := fmt.Sprintf("%s.%d", *b.target, os.Getpid())
	if _, err := output(ctx, module, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w "+strings.ReplaceAll(b.flags, "VERSION", version), "-o", partial, b.what); err != nil {
		return err
	}
	if b.beside != "" {
		source, err := b.ask(ctx, module, "{{.Dir}}")
		if err != nil {
			return err
		}
		content, err := os.ReadFile(filepath.Join(source, b.beside))
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, filepath.Base(b.beside)), content, 0o644) //nolint:gosec // nothing secret
		}
		if err != nil {
			return err
		}
	}
	if err := os.Rename(partial, *b.target); err != nil {
		return err
	}
	fmt.Fprintf(log, "%s %s: built in %s.\n", b.name, version, time.Since(started).Round(time.Second))
	return nil
}

// ask asks Go about the module whose version the binary has.
func (b binary) ask(ctx context.Context, folder, what string) (string, error) {
	answer, err := output(ctx, folder, "go", "list", "-m", "-f", what, b.at)
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
