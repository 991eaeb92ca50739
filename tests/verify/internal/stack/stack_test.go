package stack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

const outputs = `{
  "managementCluster": {"name": "p-dev", "node": "p-dev-control-plane", "network": "10.1.0.0/20", "pool": "10.1.0.1-10.1.0.9"},
  "managementKubeconfig": "M", "mock": "agent", "a-kubeconfig": "A", "b-kubeconfig": "B",
  "tenants": {
    "b": {"endpoint": "10.1.0.2:6443", "kubernetesVersion": "v9.9.9", "podCidr": "10.2.0.0/16", "replicas": 1, "workers": []},
    "a": {"endpoint": "10.1.0.1:6443", "kubernetesVersion": "v9.9.9", "podCidr": "10.2.0.0/16", "replicas": 2,
          "quota": {"gpuMemory": 5, "gpuCores": 6},
          "workers": [{"node": "a-worker-0", "container": "p-dev-a-worker-0", "address": "10.1.0.20", "cards": [
            {"uuid": "GPU-1", "type": "T", "memoryMiB": 100, "cores": 100, "slices": 10, "healthy": true},
            {"uuid": "GPU-2", "type": "T", "memoryMiB": 300, "cores": 100, "slices": 10, "healthy": false}]}]}
  }}`

func TestDecode(t *testing.T) {
	var s Stack
	if err := s.decode([]byte(outputs)); err != nil {
		t.Fatal(err)
	}
	if len(s.Tenants) != 2 || s.Tenants[0].Name != "a" || string(s.Tenants[0].Kubeconfig) != "A" || string(s.Tenants[1].Kubeconfig) != "B" {
		t.Errorf("tenants %+v", s.Tenants)
	}
	if s.ManagementCluster.Node != "p-dev-control-plane" || string(s.ManagementKubeconfig) != "M" || s.Mock != "agent" {
		t.Errorf("stack %+v", s)
	}
	a := s.Tenants[0]
	if a.Quota == nil || a.Quota.GPUCores != 6 || a.Replicas != 2 || s.Tenants[1].Quota != nil {
		t.Errorf("tenant %+v", a)
	}
	want := Totals{Slices: 10, MemoryFrom: 100, MemoryTo: 400, CoresFrom: 100, CoresTo: 200, HealthyCards: 1, LargestMemoryMiB: 300}
	if got := a.Workers[0].Totals(); got != want {
		t.Errorf("totals %+v, not %+v", got, want)
	}
}

// TestDecodeFaults: all that is missing is named, and nothing is quoted.
func TestDecodeFaults(t *testing.T) {
	for name, test := range map[string]struct {
		outputs string
		want    []string
	}{
		"a stack that is not up": {`{}`, []string{"managementCluster", "managementKubeconfig", "mock", "tenants", "is the stack up"}},
		"no JSON":                {`secret`, []string{"no JSON"}},
		"another version's":      {`{"managementCluster": "secret", "managementKubeconfig": "secret", "mock": "agent", "tenants": {"a": {}}}`, []string{"managementCluster", "a-kubeconfig"}},
	} {
		var s Stack
		err := s.decode([]byte(test.outputs))
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %q", name, err, want)
			}
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %q quotes an output", name, err)
		}
	}
}

func TestConfigurationWithout(t *testing.T) {
	project := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(project, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := &Stack{Project: project, Name: "dev"}
	write("Pulumi.yaml", "config:\n  pulumi:disable-default-providers: ['*']\n  tenants:\n    default:\n      - {name: a, gpus: [A100x1]}\n      - {name: b}\n")
	left := func(tenant string) []any {
		t.Helper()
		text, err := s.configurationWithout(tenant)
		if err != nil {
			t.Fatal(err)
		}
		var file struct {
			Salt   string         `yaml:"encryptionsalt"`
			Config map[string]any `yaml:"config"`
		}
		if err := yaml.Unmarshal(text, &file); err != nil {
			t.Fatal(err)
		}
		if file.Config["gpu-tenants:mirror"] == nil && file.Salt != "" {
			t.Errorf("the rest of the configuration is lost: %s", text)
		}
		tenants, _ := file.Config[tenantsKey].([]any)
		return tenants
	}
	// No file of the stack, and one without the key: the project's default.
	for range 2 {
		if got := left("b"); len(got) != 1 || got[0].(map[string]any)["name"] != "a" || got[0].(map[string]any)["gpus"] == nil {
			t.Errorf("without b: %v", got)
		}
		write("Pulumi.dev.yaml", "encryptionsalt: x\nconfig:\n  gpu-tenants:mirror: m\n")
	}
	own := "encryptionsalt: x\nconfig:\n  gpu-tenants:mirror: m\n  gpu-tenants:tenants: [{name: red}, {name: blue, gpus: [L4x1]}]\n"
	write("Pulumi.dev.yaml", own)
	if got := left("red"); len(got) != 1 || got[0].(map[string]any)["name"] != "blue" {
		t.Errorf("without red: %v", got)
	}
	if _, err := s.configurationWithout("green"); err == nil || !strings.Contains(err.Error(), "green") {
		t.Errorf("a tenant that is not there: %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(project, "Pulumi.dev.yaml")); err != nil || string(text) != own {
		t.Errorf("the person's file was changed: %v\n%s", err, text)
	}
}

// TestProbeImage reads the project's own pins.
func TestProbeImage(t *testing.T) {
	image, err := ProbeImage(filepath.Join("..", "..", "..", ".."))
	if err != nil || !strings.Contains(image, ":") {
		t.Errorf("%q, %v", image, err)
	}
	if _, err := ProbeImage(t.TempDir()); err == nil {
		t.Error("a folder without pins has an image")
	}
}
