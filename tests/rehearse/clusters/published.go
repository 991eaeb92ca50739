package clusters

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/stage"
)

// published holds the checksums of the modules that Publish takes files from, in
// the form of a go.sum. They are in no go.mod: nothing of them is compiled.
//
//go:embed published.go.sum
var published string

// sumOf is the checksum of "module@version"; "" when it is not known.
func sumOf(module string) string {
	name, version, _ := strings.Cut(module, "@")
	for line := range strings.Lines(published) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == name && fields[1] == version {
			return fields[2]
		}
	}
	return ""
}

const metallb, certManager = "go.universe.tf/metallb", "github.com/cert-manager/cert-manager"

// Publish puts what real API servers can hold in the place of what stands for it
// in a folder that artifacts.Write has filled: MetalLB's manifest and
// cert-manager's CustomResourceDefinitions, from their Go modules at the versions
// of the project's pins. Those of Kamaji and Calico are in no module that a proxy
// serves.
func Publish(ctx context.Context, pins stage.Pins, folder string) error {
	names := pins.Names()
	source, err := download(ctx, metallb, pins.Artifacts["metallb"].Version)
	if err != nil {
		return err
	}
	manifest, err := os.ReadFile(filepath.Join(source, "config", "manifests", "metallb-native.yaml"))
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, names.MetalLB), manifest, 0o644) //nolint:gosec // nothing secret
	}
	if err != nil {
		return err
	}
	if source, err = download(ctx, certManager, pins.Artifacts["certManager"].Version); err != nil {
		return err
	}
	definitions, err := filepath.Glob(filepath.Join(source, "deploy", "crds", "*.yaml"))
	if err != nil {
		return err
	}
	path := filepath.Join(folder, names.CertManager)
	standIn, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	whole, err := withoutDefinitions(standIn)
	if err != nil {
		return err
	}
	for _, definition := range definitions {
		text, err := os.ReadFile(definition)
		if err != nil {
			return err
		}
		whole = append(append(whole, "---\n"...), text...)
	}
	return os.WriteFile(path, whole, 0o644) //nolint:gosec // nothing secret
}

// download brings a module into Go's cache and returns its folder there.
func download(ctx context.Context, module, version string) (string, error) {
	at := module + "@" + version
	// Outside of a module, so that none is changed. The checksum is held against
	// ours instead of the public database's.
	command := exec.CommandContext(ctx, "go", "mod", "download", "-json", at) //nolint:gosec // one of ours
	command.Dir = os.TempDir()
	command.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "GONOSUMDB="+module)
	said, err := command.Output()
	var got struct{ Dir, Sum, Error string }
	if jsonErr := json.Unmarshal(said, &got); jsonErr != nil || err != nil || got.Error != "" {
		return "", fmt.Errorf("go mod download %s: %w %s", at, errors.Join(err, jsonErr), got.Error)
	}
	if got.Sum != sumOf(at) {
		return "", fmt.Errorf("module %s has the checksum %s, and %q is expected: after a change of the version in stacks/pins/versions.yaml, put the new one into tests/rehearse/clusters/published.go.sum", at, got.Sum, sumOf(at))
	}
	return got.Dir, nil
}

// withoutDefinitions leaves the CustomResourceDefinitions out of a manifest.
func withoutDefinitions(manifest []byte) ([]byte, error) {
	var kept strings.Builder
	encoder := yaml.NewEncoder(&kept)
	decoder := yaml.NewDecoder(bytes.NewReader(manifest))
	for {
		var document map[string]any
		switch err := decoder.Decode(&document); {
		case errors.Is(err, io.EOF):
			return []byte(kept.String()), encoder.Close()
		case err != nil:
			return nil, err
		case len(document) == 0 || document["kind"] == "CustomResourceDefinition":
			continue
		}
		if err := encoder.Encode(document); err != nil {
			return nil, err
		}
	}
}
