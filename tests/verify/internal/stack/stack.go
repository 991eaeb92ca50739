// Package stack reads what a running stack says about itself: its outputs, which
// are all that the test cases know of it.
package stack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"gopkg.in/yaml.v3"
)

// Stack is a running stack.
type Stack struct {
	Project string // folder of the program
	Name    string

	ManagementCluster    ManagementCluster
	ManagementKubeconfig []byte
	// Mock says what stands in for the cards: "agent" or "hami".
	Mock    string
	Tenants []Tenant // by name
}

// ManagementCluster is the output of that name.
type ManagementCluster struct {
	Name    string `json:"name"`
	Node    string `json:"node"`    // its only node, and the name of its container
	Network string `json:"network"` // CIDR
	Pool    string `json:"pool"`    // "first-last"
}

// Tenant is an entry of the output "tenants", with its kubeconfig.
type Tenant struct {
	Name              string   `json:"-"`
	Kubeconfig        []byte   `json:"-"`
	Endpoint          string   `json:"endpoint"` // host:port
	KubernetesVersion string   `json:"kubernetesVersion"`
	PodCIDR           string   `json:"podCidr"`
	Replicas          int      `json:"replicas"`
	Workers           []Worker `json:"workers"`
	Quota             *Quota   `json:"quota"`
}

// Quota of the namespace "default"; 0 means not limited.
type Quota struct {
	GPUMemoryMiB int64 `json:"gpuMemory"`
	GPUCores     int64 `json:"gpuCores"`
}

// Worker is a node of a tenant.
type Worker struct {
	Node      string `json:"node"`
	Container string `json:"container"`
	Address   string `json:"address"`
	Cards     []Card `json:"cards"`
}

// Card is a mock card as it is registered: with scaling applied.
type Card struct {
	UUID      string `json:"uuid"`
	Type      string `json:"type"`
	MemoryMiB int64  `json:"memoryMiB"`
	Cores     int64  `json:"cores"`
	Slices    int64  `json:"slices"`
	Healthy   bool   `json:"healthy"`
}

// Read asks Pulumi for the outputs of a stack.
func Read(ctx context.Context, project, name string) (*Stack, error) {
	s := &Stack{Project: project, Name: name}
	said, err := s.pulumi(ctx, "stack", "output", "--json", "--show-secrets", "--stack", name)
	if err != nil {
		return nil, fmt.Errorf("the outputs of stack %s cannot be read: %w", name, err)
	}
	if err := s.decode(said); err != nil {
		return nil, fmt.Errorf("the outputs of stack %s: %w", name, err)
	}
	return s, nil
}

// decode takes the outputs over. It never quotes them: they hold secrets.
func (s *Stack) decode(outputs []byte) error {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(outputs, &raw); err != nil {
		return errors.New("they are no JSON object")
	}
	tenants := map[string]*Tenant{}
	var faults []error
	take := func(key string, into any) {
		if raw[key] == nil {
			faults = append(faults, fmt.Errorf("%q is missing: is the stack up? see `pulumi stack output`", key))
			return
		}
		if err := json.Unmarshal(raw[key], into); err != nil {
			faults = append(faults, fmt.Errorf("%q is not what this version of the project writes: run `make up` once", key))
		}
	}
	var kubeconfig string
	take("managementCluster", &s.ManagementCluster)
	take("managementKubeconfig", &kubeconfig)
	s.ManagementKubeconfig = []byte(kubeconfig)
	take("mock", &s.Mock)
	take("tenants", &tenants)
	for _, name := range slices.Sorted(maps.Keys(tenants)) {
		tenant := tenants[name]
		var kubeconfig string
		take(name+"-kubeconfig", &kubeconfig)
		tenant.Name, tenant.Kubeconfig = name, []byte(kubeconfig)
		s.Tenants = append(s.Tenants, *tenant)
	}
	return errors.Join(faults...)
}

// pulumi runs Pulumi's command in the project. Of a failure, what it wrote to
// stderr is in the error; what it wrote to stdout may be secret and is not.
func (s *Stack) pulumi(ctx context.Context, arguments ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, "pulumi", arguments...) //nolint:gosec // Pulumi's
	command.Dir = s.Project
	command.Env = append(os.Environ(), "PULUMI_SKIP_UPDATE_CHECK=true", "NO_COLOR=1")
	// Pulumi ends an update in good order when it is interrupted.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGINT) }
	command.WaitDelay = 2 * time.Minute
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("pulumi %s: %w\n%s", arguments[0], err, tail(stderr.String()+updates(arguments, stdout.String()), 20))
	}
	return stdout.Bytes(), nil
}

// updates returns what an update showed, in which Pulumi hides secrets.
func updates(arguments []string, shown string) string {
	if arguments[0] == "up" {
		return shown
	}
	return ""
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Up brings the stack to its own configuration, or, when without is not empty,
// to a copy of it from which that tenant was taken out. The person's file is
// never written.
func (s *Stack) Up(ctx context.Context, without string) error {
	arguments := []string{"up", "--yes", "--skip-preview", "--non-interactive", "--stack", s.Name}
	if without != "" {
		folder, err := os.MkdirTemp("", "gpu-tenants-verify-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(folder)
		file := filepath.Join(folder, "Pulumi."+s.Name+".yaml")
		text, err := s.configurationWithout(without)
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return err
		}
		arguments = append(arguments, "--config-file", file)
	}
	_, err := s.pulumi(ctx, arguments...)
	return err
}

const tenantsKey = "gpu-tenants:tenants"

// configurationWithout is the stack's configuration less one tenant.
func (s *Stack) configurationWithout(tenant string) ([]byte, error) {
	path := filepath.Join(s.Project, "Pulumi."+s.Name+".yaml")
	file := map[string]any{}
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	config, _ := file["config"].(map[string]any)
	if config == nil {
		config = map[string]any{}
	}
	tenants, ok := config[tenantsKey].([]any)
	if !ok {
		if tenants, err = s.defaultTenants(); err != nil {
			return nil, err
		}
	}
	left := slices.DeleteFunc(slices.Clone(tenants), func(entry any) bool {
		fields, _ := entry.(map[string]any)
		return fields["name"] == tenant
	})
	if len(left) != len(tenants)-1 {
		return nil, fmt.Errorf("%s: %s names %d tenants called %s, not one", path, tenantsKey, len(tenants)-len(left), tenant)
	}
	config[tenantsKey] = left
	file["config"] = config
	return yaml.Marshal(file)
}

// defaultTenants are those of a stack that names none.
func (s *Stack) defaultTenants() ([]any, error) {
	path := filepath.Join(s.Project, "Pulumi.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	// Other keys of "config" have other forms; only this one is looked at.
	var file struct {
		Config map[string]yaml.Node `yaml:"config"`
	}
	var entry struct {
		Default []any `yaml:"default"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	node := file.Config["tenants"]
	if err := node.Decode(&entry); err != nil {
		return nil, fmt.Errorf("%s: config.tenants: %w", path, err)
	}
	return entry.Default, nil
}

// Totals of a node's cards, as the node is to advertise them. What an unhealthy
// card adds depends on what pods still hold of it, so memory and cores are
// bounds.
type Totals struct {
	Slices                         int64
	MemoryFrom, MemoryTo           int64 // MiB
	CoresFrom, CoresTo             int64 // percent of one card
	HealthyCards, LargestMemoryMiB int64
}

// Totals sums over the worker's cards.
func (w Worker) Totals() Totals {
	var t Totals
	for _, card := range w.Cards {
		t.MemoryTo += card.MemoryMiB
		t.CoresTo += card.Cores
		t.LargestMemoryMiB = max(t.LargestMemoryMiB, card.MemoryMiB)
		if card.Healthy {
			t.HealthyCards++
			t.Slices += card.Slices
			t.MemoryFrom += card.MemoryMiB
			t.CoresFrom += card.Cores
		}
	}
	return t
}

// ProbeImage is the image that the project's pins name for pods of this kind. A
// stack has it already, or its mirror does.
func ProbeImage(project string) (string, error) {
	path := filepath.Join(project, "stacks", "pins", "versions.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	var pins struct {
		Images struct {
			Probe string `yaml:"probe"`
		} `yaml:"images"`
	}
	if err := yaml.Unmarshal(text, &pins); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	if pins.Images.Probe == "" {
		return "", fmt.Errorf("%s names no images.probe", path)
	}
	return pins.Images.Probe, nil
}
