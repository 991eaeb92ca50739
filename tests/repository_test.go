package tests

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/gpu-tenants/gpu-tenants/stacks/config"
	"github.com/gpu-tenants/gpu-tenants/stacks/pins"
)

const pinsFile = "stacks/pins/versions.yaml"

// pinned returns every version, image, digest and commit that versions.yaml
// names, the longest first.
func pinned() []string {
	content, err := os.ReadFile("../" + pinsFile)
	if err != nil {
		panic(err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil {
		panic(err)
	}
	telling := regexp.MustCompile(`\d+\.\d+\.\d+|^[0-9a-f]{40}|@sha256:|:v?\d`)
	var found []string
	var walk func(*yaml.Node)
	walk = func(node *yaml.Node) {
		if node.Kind == yaml.ScalarNode && telling.MatchString(node.Value) && !strings.HasPrefix(node.Value, "http") {
			found = append(found, node.Value)
		}
		for _, child := range node.Content {
			walk(child)
		}
	}
	walk(&document)
	slices.SortFunc(found, func(a, b string) int { return len(b) - len(a) })
	return slices.Compact(found)
}

// tracked returns the files of the repository, or skips outside a checkout.
func tracked(t *testing.T) []string {
	t.Helper()
	output, err := exec.Command("git", "-C", "..", "ls-files", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Skip("this is not a git checkout")
	}
	return strings.Fields(string(output))
}

// Every version, image, digest and commit stands in one file.
func TestPinsStandInOnePlace(t *testing.T) {
	all := pinned()
	if len(all) < 15 {
		t.Fatalf("only %d pins were found in %s", len(all), pinsFile)
	}
	digest := regexp.MustCompile(`@sha256:[0-9a-f]{64}`)
	for _, file := range tracked(t) {
		if file == pinsFile || strings.HasSuffix(file, "go.mod") || strings.HasSuffix(file, "go.sum") {
			continue
		}
		content, err := os.ReadFile("../" + file)
		if err != nil {
			continue // deleted in the working tree
		}
		for i, line := range strings.Split(string(content), "\n") {
			for _, pin := range all {
				if at := strings.Index(line, pin); at >= 0 && !partOfLonger(line, at, len(pin)) {
					t.Errorf("%s:%d names %q, which belongs into %s alone", file, i+1, pin, pinsFile)
				}
			}
			if digest.MatchString(line) {
				t.Errorf("%s:%d names a digest, which belongs into %s", file, i+1, pinsFile)
			}
		}
	}
}

// partOfLonger says whether a match is the middle of another number.
func partOfLonger(line string, at, length int) bool {
	isPart := func(c byte) bool { return c >= '0' && c <= '9' || c == '.' }
	return at > 0 && isPart(line[at-1]) || at+length < len(line) && isPart(line[at+length]) && (line[at+length] != '.' || at+length+1 < len(line) && line[at+length+1] >= '0' && line[at+length+1] <= '9')
}

// The plugin that is asked for is the one that the SDK belongs to.
func TestPinsAgreeWithGoMod(t *testing.T) {
	content, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	all := pins.Load()
	for module, version := range map[string]string{
		"github.com/pulumi/pulumi/sdk/v3":            all.Tools.Pulumi,
		"github.com/pulumi/pulumi-kubernetes/sdk/v4": all.Pulumi.Kubernetes,
		"github.com/pulumi/pulumi-docker/sdk/v4":     all.Pulumi.Docker,
		"github.com/pulumi/pulumi-command/sdk":       all.Pulumi.Command,
		"github.com/pulumi/pulumi-random/sdk/v4":     all.Pulumi.Random,
	} {
		if !strings.Contains(string(content), module+" v"+version+"\n") {
			t.Errorf("go.mod has another version of %s than %s names: %s", module, pinsFile, version)
		}
	}
	kind, err := os.ReadFile("../tools/kind/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(kind), "sigs.k8s.io/kind v"+all.Tools.Kind) {
		t.Errorf("tools/kind/go.mod has another version of kind than %s names: %s", pinsFile, all.Tools.Kind)
	}
}

// `pulumi config` explains every key that the program reads, and no other.
func TestSchemaHasTheKeys(t *testing.T) {
	content, err := os.ReadFile("../Pulumi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var project struct {
		Config map[string]any `yaml:"config"`
	}
	if err := yaml.Unmarshal(content, &project); err != nil {
		t.Fatal(err)
	}
	delete(project.Config, "pulumi:disable-default-providers")
	if got, want := slices.Sorted(maps.Keys(project.Config)), config.Keys(); !slices.Equal(got, want) {
		t.Errorf("Pulumi.yaml has the keys %q, the program %q", got, want)
	}
	defaults := map[string]string{}
	for key, entry := range project.Config {
		if description, _ := entry.(map[string]any)["description"].(string); description == "" {
			t.Errorf("Pulumi.yaml does not describe %s", key)
		}
		standard, ok := entry.(map[string]any)["default"]
		if !ok {
			t.Errorf("Pulumi.yaml has no default for %s: Pulumi would demand it of every stack", key)
		}
		switch value := standard.(type) {
		case string:
			if value != "" {
				defaults[key] = value
			}
		default:
			text, err := json.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			defaults[key] = string(text)
		}
	}
	fromProject, err := config.Decode(defaults)
	if err != nil {
		t.Fatal(err)
	}
	own, err := config.Decode(nil)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := fmt.Sprintf("%+v", *fromProject), fmt.Sprintf("%+v", *own); a != b {
		t.Errorf("the defaults of Pulumi.yaml give\n%s\nand those of the program\n%s", a, b)
	}
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range config.Keys() {
		if !strings.Contains(string(readme), "`"+key+"`") {
			t.Errorf("README.md does not describe %s", key)
		}
	}
}

// The committed stack is the article's lab, as an empty one is.
func TestCommittedStackIsTheDefault(t *testing.T) {
	content, err := os.ReadFile("../Pulumi.dev.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var stack struct {
		Config map[string]any `yaml:"config"`
	}
	if err := yaml.Unmarshal(content, &stack); err != nil {
		t.Fatal(err)
	}
	written := labFrom(t, stack.Config["gpu-tenants:tenants"])
	if empty := labFrom(t, nil); written != empty {
		t.Errorf("Pulumi.dev.yaml gives\n%s\nand an empty stack\n%s", written, empty)
	}
}

// labFrom decodes a list of tenants, nil for none, and prints what it gives.
func labFrom(t *testing.T, tenants any) string {
	t.Helper()
	raw := map[string]string{}
	if tenants != nil {
		text, err := json.Marshal(tenants)
		if err != nil {
			t.Fatal(err)
		}
		raw["tenants"] = string(text)
	}
	cfg, err := config.Decode(raw)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%+v", cfg.Tenants)
}
