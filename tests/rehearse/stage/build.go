package stage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/artifacts"
	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/tool"
)

// Built is what a stage needs, each the path of a binary.
type Built struct {
	Repository string // the project's folder
	Pins       Pins
	CLI        string // pulumi
	Program    string // the project's program
	Forward    string // stands in for docker, kind and what nodes have
}

// Pins is the part of the project's versions.yaml that is used.
type Pins struct {
	Tools struct {
		Pulumi string `yaml:"pulumi"`
		Kind   string `yaml:"kind"`
	} `yaml:"tools"`
	Pulumi     map[string]string `yaml:"pulumi"`
	Kubernetes struct {
		Default    string            `yaml:"default"`
		NodeImages map[string]string `yaml:"nodeImages"`
	} `yaml:"kubernetes"`
	Artifacts map[string]struct {
		File    string `yaml:"file"`
		Version string `yaml:"version"`
		Commit  string `yaml:"commit"`
	} `yaml:"artifacts"`
}

// Names are the artifacts' file names.
func (p Pins) Names() artifacts.Names {
	file := func(name string) string { return p.Artifacts[name].File }
	return artifacts.Names{CertManager: file("certManager"), MetalLB: file("metallb"), Calico: file("calico"), Kamaji: file("kamaji"), HAMi: file("hami")}
}

// ReadPins reads the project's versions.
func ReadPins(repository string) (Pins, error) {
	var pins Pins
	text, err := os.ReadFile(filepath.Join(repository, "stacks", "pins", "versions.yaml"))
	if err != nil {
		return pins, err
	}
	if err := yaml.Unmarshal(text, &pins); err != nil {
		return pins, fmt.Errorf("versions.yaml: %w", err)
	}
	return pins, nil
}

// Build brings what a stage needs: the program and the forwarder are compiled,
// Pulumi's command is taken from the PATH when it has the pinned version, and
// else built once from its Go module and kept. Progress goes to log.
func Build(ctx context.Context, repository, folder string, log io.Writer) (*Built, error) {
	b := &Built{Repository: repository, Program: filepath.Join(folder, "gpu-tenants"), Forward: filepath.Join(folder, "forward")}
	var err error
	if b.Pins, err = ReadPins(repository); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // binaries
		return nil, err
	}
	if b.CLI, err = cli(ctx, repository, b.Pins.Tools.Pulumi, log); err != nil {
		return nil, err
	}
	if _, err := os.Stat(b.Program); errors.Is(err, os.ErrNotExist) {
		fmt.Fprintln(log, "Building the program, which takes a minute or two on two cores when Go has it in no cache.")
	}
	err = errors.Join(
		goBuild(ctx, repository, b.Program, "."),
		goBuild(ctx, filepath.Join(repository, "tests", "rehearse"), b.Forward, "./forward"),
	)
	return b, err
}

// cli returns the path of Pulumi's command at a version.
func cli(ctx context.Context, repository, version string, log io.Writer) (string, error) {
	home := filepath.Join(repository, ".cache", "tools", "pulumi-home")
	if found, err := exec.LookPath("pulumi"); err == nil && hasVersion(ctx, found, home, version) {
		return filepath.Abs(found)
	}
	command := tool.Tool{
		Name: "pulumi", Module: "pulumi", At: "github.com/pulumi/pulumi/pkg/v3", Package: "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi", Minutes: 6,
		Flags: "-X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version=VERSION",
	}
	built, err := command.Bring(ctx, repository, log)
	if err != nil {
		return "", fmt.Errorf("pulumi %s is not on the PATH and could not be built: %w", version, err)
	}
	if !hasVersion(ctx, built, home, version) {
		return "", fmt.Errorf("tools/pulumi/go.mod builds another version than %s, which stacks/pins/versions.yaml names", version)
	}
	return built, nil
}

// hasVersion asks a pulumi for its version. It writes a log even of that, into home.
func hasVersion(ctx context.Context, path, home, version string) bool {
	command := exec.CommandContext(ctx, path, "version") //nolint:gosec // Pulumi's
	command.Env = append(os.Environ(), "PULUMI_SKIP_UPDATE_CHECK=true", "PULUMI_HOME="+home)
	output, err := command.Output()
	return err == nil && strings.TrimSpace(string(output)) == "v"+version
}

func goBuild(ctx context.Context, folder, target, what string, flags ...string) error {
	arguments := append([]string{"build", "-C", folder, "-buildvcs=false", "-o", target}, flags...)
	command := exec.CommandContext(ctx, "go", append(arguments, what)...) //nolint:gosec // the project's own
	command.Env = append(os.Environ(), "GOWORK=off")
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s in %s: %w\n%s", what, folder, err, output)
	}
	return nil
}
