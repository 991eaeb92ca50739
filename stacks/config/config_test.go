package config_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/gpu-tenants/gpu-tenants/stacks/config"
	"github.com/gpu-tenants/gpu-tenants/stacks/pins"
)

// placeholders are the versions that fixtures name, so that they outlive the
// pins: no fixture holds a version of its own.
func placeholders() *strings.Replacer {
	pinned := pins.Load().Kubernetes
	return strings.NewReplacer(
		"{{default}}", pinned.Default,
		"{{bare}}", strings.TrimPrefix(pinned.Default, "v"),
		"{{older}}", olderVersion(),
		"{{noImage}}", fmt.Sprintf("v1.%d.999", pinned.MaximumMinor),
		"{{tooOld}}", fmt.Sprintf("v1.%d.0", pinned.MinimumMinor-1),
		"{{tooNew}}", fmt.Sprintf("v1.%d.0", pinned.MaximumMinor+1),
	)
}

// olderVersion is a version with a node image that is not the default.
func olderVersion() string {
	pinned := pins.Load().Kubernetes
	for _, version := range slices.Sorted(maps.Keys(pinned.NodeImages)) {
		if version != pinned.Default {
			return version
		}
	}
	panic("versions.yaml has one node image only; the fixtures need another")
}

// readFixture returns a stack's configuration as Pulumi hands it to the
// program: scalars as text, objects and lists as JSON.
func readFixture(t testing.TB, path string) (project map[string]string, text string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text = placeholders().Replace(string(content))
	return asPulumi(t, text), text
}

func asPulumi(t testing.TB, text string) map[string]string {
	t.Helper()
	var values map[string]yaml.Node
	if err := yaml.Unmarshal([]byte(text), &values); err != nil {
		t.Fatal(err)
	}
	project := map[string]string{}
	for key, value := range values {
		if value.Kind == yaml.ScalarNode {
			project[key] = value.Value
			continue
		}
		var structured any
		if err := value.Decode(&structured); err != nil {
			t.Fatal(err)
		}
		encoded, err := json.Marshal(structured)
		if err != nil {
			t.Fatal(err)
		}
		project[key] = string(encoded)
	}
	return project
}

func fixtures(t testing.TB, folder string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", folder, "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no fixtures in testdata/%s: %v", folder, err)
	}
	return paths
}

func fixtureName(path string) string {
	return strings.TrimSuffix(filepath.Base(path), ".yaml")
}

func mustDecode(t *testing.T, text string) *config.Config {
	t.Helper()
	decoded, err := config.Decode(asPulumi(t, placeholders().Replace(text)))
	if err != nil {
		t.Fatalf("%v\nin:\n%s", err, text)
	}
	return decoded
}

func faultsOf(t *testing.T, project map[string]string) config.Faults {
	t.Helper()
	decoded, err := config.Decode(project)
	var faults config.Faults
	if !errors.As(err, &faults) {
		t.Fatalf("the error is %v (%T), want Faults", err, err)
	}
	if decoded != nil {
		t.Error("a faulty configuration was returned beside the error")
	}
	return faults
}

// wantedFaults reads the `# want: path: part of the message` lines.
func wantedFaults(t *testing.T, text string) []config.Fault {
	t.Helper()
	var wanted []config.Fault
	for line := range strings.Lines(text) {
		want, found := strings.CutPrefix(strings.TrimSpace(line), "# want: ")
		if !found {
			continue
		}
		path, message, found := strings.Cut(want, ": ")
		if !found {
			t.Fatalf("%q is no `# want: path: message`", line)
		}
		wanted = append(wanted, config.Fault{Path: path, Message: message})
	}
	if len(wanted) == 0 {
		t.Fatal("the fixture says no `# want: path: message`")
	}
	return wanted
}

func TestInvalid(t *testing.T) {
	t.Parallel()
	for _, path := range fixtures(t, "invalid") {
		t.Run(fixtureName(path), func(t *testing.T) {
			t.Parallel()
			project, text := readFixture(t, path)
			faults, wanted := faultsOf(t, project), wantedFaults(t, text)
			matches := slices.EqualFunc(faults, wanted, func(fault, want config.Fault) bool {
				return fault.Path == want.Path && strings.Contains(fault.Message, want.Message)
			})
			if !matches {
				t.Errorf("got:\n%v\nwant:\n%v", faults, config.Faults(wanted))
			}
		})
	}
}

// TestAllFaultsAtOnce puts the faults of several fixtures into one stack.
func TestAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	project := asPulumi(t, `
tenants:
  - name: tenant-a
    gpu: [A100x1]
  - name: tenant-b
    gpus: [A1000, L4]
  - name: Tenant_C
    podCidr: 10.244.0.1/16
etcdReplicas: 2
mock: agnet
`)
	got := faultsOf(t, project).Error()
	want := `invalid configuration, nothing was changed:
  etcdReplicas: must be 1, 3 or 5, not 2: etcd needs a majority, to which an even member adds nothing
  mock: must be one of ["agent" "hami"], not "agnet"
  tenants[0].gpu: unknown key; did you mean "gpus"?
  tenants[1].gpus[0]: unknown GPU model "A1000"; did you mean "A100"? (known: ` + strings.Join(config.Models(), ", ") +
		`; for a card of your own write an object with model and memory)
  tenants[2].name: must be lower-case letters, digits and dashes, from a letter to a letter or digit, such as "tenant-a", not "Tenant_C"
  tenants[2].podCidr: 10.244.0.1/16 is an address inside a subnet; the subnet is 10.244.0.0/16`
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestFaultsInReadingOrder(t *testing.T) {
	t.Parallel()
	tenants := make([]string, 12)
	for i := range tenants {
		tenants[i] = "  - name: A"
	}
	faults := faultsOf(t, asPulumi(t, "tenants:\n"+strings.Join(tenants, "\n")))
	for i, fault := range faults {
		if want := "tenants[" + strconv.Itoa(i) + "].name"; fault.Path != want {
			t.Errorf("fault %d is at %s, want %s", i, fault.Path, want)
		}
	}
	if len(faults) != len(tenants) {
		t.Errorf("%d faults, want %d", len(faults), len(tenants))
	}
}

func TestValid(t *testing.T) {
	t.Parallel()
	for _, path := range fixtures(t, "valid") {
		t.Run(fixtureName(path), func(t *testing.T) {
			t.Parallel()
			project, text := readFixture(t, path)
			decoded, err := config.Decode(project)
			if err != nil {
				t.Fatal(err)
			}
			checkInvariants(t, decoded)
			for line := range strings.Lines(text) {
				if want, found := strings.CutPrefix(strings.TrimSpace(line), "# cards: "); found && want != cardTotals(decoded) {
					t.Errorf("cards are %q, want %q", cardTotals(decoded), want)
				}
			}
			checkOrderIndependence(t, project, decoded)
		})
	}
}

// cardTotals says how many cards each tenant's workers have, unhealthy ones
// after a dash: "tenant-a 2 1-1; tenant-b 0".
func cardTotals(c *config.Config) string {
	tenants := make([]string, len(c.Tenants))
	for i, tenant := range c.Tenants {
		tenants[i] = tenant.Name
		for _, worker := range tenant.Workers {
			healthy := 0
			for _, card := range worker.Cards {
				if card.Healthy {
					healthy++
				}
			}
			tenants[i] += " " + strconv.Itoa(healthy)
			if ill := len(worker.Cards) - healthy; ill > 0 {
				tenants[i] += "-" + strconv.Itoa(ill)
			}
		}
	}
	return strings.Join(tenants, "; ")
}

// checkOrderIndependence decodes with the tenants the other way round.
func checkOrderIndependence(t *testing.T, project map[string]string, want *config.Config) {
	t.Helper()
	var tenants []json.RawMessage
	if err := json.Unmarshal([]byte(project["tenants"]), &tenants); err != nil {
		return // the fixture says nothing of tenants
	}
	slices.Reverse(tenants)
	reversed, err := json.Marshal(tenants)
	if err != nil {
		t.Fatal(err)
	}
	permuted := maps.Clone(project)
	permuted["tenants"] = string(reversed)
	got, err := config.Decode(permuted)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the order of tenants matters:\n%+v\n%+v", got, want)
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	got, err := config.Decode(nil)
	if err != nil {
		t.Fatal(err)
	}
	version := pins.Load().Kubernetes.Default
	a100 := config.Card{Model: "A100", Type: "NVIDIA A100-SXM4-80GB", MemoryMiB: 81920, Cores: 100, Healthy: true}
	l4 := config.Card{Model: "L4", Type: "NVIDIA L4", MemoryMiB: 23034, Cores: 100, Healthy: true}
	tenant := func(name string, cards ...config.Card) config.Tenant {
		return config.Tenant{
			Name: name, KubernetesVersion: version, PodCIDR: "10.244.0.0/16", ControlPlaneReplicas: 1,
			Workers: []config.Worker{{Cards: cards}},
		}
	}
	want := &config.Config{
		Tenants:           []config.Tenant{tenant("tenant-a", a100), tenant("tenant-b", l4, l4)},
		KubernetesVersion: version,
		ServiceCIDR:       "10.96.0.0/16",
		EtcdReplicas:      1,
		SlicesPerCard:     10,
		MemoryScaling:     1,
		CoreScaling:       1,
		Mock:              config.DefaultMock,
		Preflight:         config.PreflightEnforce,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestNoTenants(t *testing.T) {
	t.Parallel()
	if tenants := mustDecode(t, "tenants: []").Tenants; len(tenants) != 0 {
		t.Errorf("an empty list gave %v", tenants)
	}
}

func TestEveryKey(t *testing.T) {
	t.Parallel()
	project, _ := readFixture(t, filepath.Join("testdata", "valid", "every-key.yaml"))
	if got := slices.Sorted(maps.Keys(project)); !slices.Equal(got, config.Keys()) {
		t.Errorf("every-key.yaml has %v, want %v", got, config.Keys())
	}
	got, err := config.Decode(project)
	if err != nil {
		t.Fatal(err)
	}
	version := olderVersion()
	card := config.Card{Model: "NPU-1", Type: "NVIDIA NPU-1", MemoryMiB: 1000, Cores: 50, Healthy: true}
	ill := card
	ill.Healthy = false
	want := &config.Config{
		Tenants: []config.Tenant{{
			Name: "blue", KubernetesVersion: pins.Load().Kubernetes.Default, PodCIDR: "10.128.0.0/22", ControlPlaneReplicas: 3,
			Workers: []config.Worker{{Cards: []config.Card{card, ill}}},
			Quota:   &config.Quota{GPUMemoryMiB: 3000, GPUCores: 200},
		}},
		KubernetesVersion: version,
		Network:           "172.30.0.0/24",
		ServiceCIDR:       "10.97.0.0/20",
		Mirror:            "http://mirror.example:5000",
		NodeImages:        map[string]string{version: "registry.example/node:mine"},
		ArtifactsDir:      "/srv/artifacts",
		Kubelet:           map[string]any{"maxPods": 50, "evictionHard": map[string]any{"memory.available": "1%"}, "x": []any{1.5, true}},
		KubeletArgs:       map[string]string{"v": "4", "fail-swap-on": "false", "node-ip": "::"},
		EtcdReplicas:      3,
		SlicesPerCard:     4,
		MemoryScaling:     1.5,
		CoreScaling:       2,
		MaxStarting:       7,
		Mock:              config.MockAgent,
		Preflight:         config.PreflightWarn,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestNumbersAsTexts decodes what `pulumi config set --path` makes of numbers.
func TestNumbersAsTexts(t *testing.T) {
	t.Parallel()
	texts := mustDecode(t, `tenants: [{name: a, controlPlaneReplicas: "2", workers: [{count: "3", gpus: [L4x2], unhealthy: ["1"]}]}]`)
	numbers := mustDecode(t, `tenants: [{name: a, controlPlaneReplicas: 2, workers: [{count: 3, gpus: [L4x2], unhealthy: [1]}]}]`)
	if !reflect.DeepEqual(texts, numbers) {
		t.Errorf("texts  %+v\nnumbers %+v", texts, numbers)
	}
}

// TestEmptyMeansNone: `pulumi config set mirror ""` takes a mirror away.
func TestEmptyMeansNone(t *testing.T) {
	t.Parallel()
	got := mustDecode(t, "mirror: ''\nnetwork: ''\nartifactsDir: ''\n")
	want := mustDecode(t, "{}")
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestWorkersShareNothing: to change one worker's card must not change another's.
func TestWorkersShareNothing(t *testing.T) {
	t.Parallel()
	workers := mustDecode(t, `tenants: [{name: a, workers: [{count: 2, gpus: [L4x2]}]}]`).Tenants[0].Workers
	workers[0].Cards[0].Healthy = false
	if !workers[1].Cards[0].Healthy || !workers[0].Cards[1].Healthy {
		t.Error("two cards are the same one")
	}
}

// TestGroupsAreShort: `gpus` and a group written out say the same.
func TestGroupsAreShort(t *testing.T) {
	t.Parallel()
	pairs := [][2]string{
		{"gpus: [A100x2, L4]", "workers: [{gpus: [A100, A100, L4]}]"},
		{"gpus: [{model: a100, count: 2}]", "gpus: [A100x2]"},
		{"gpus: [A100-80GB]", "gpus: [A100]"},
		{"workers: [{count: 2, gpus: [T4]}]", "workers: [{gpus: [T4]}, {gpus: [T4]}]"},
		{"gpus: []", "workers: [{}]"},
	}
	for _, pair := range pairs {
		first := mustDecode(t, "tenants: [{name: a, "+pair[0]+"}]")
		second := mustDecode(t, "tenants: [{name: a, "+pair[1]+"}]")
		if !reflect.DeepEqual(first, second) {
			t.Errorf("%v differ:\n%+v\n%+v", pair, first, second)
		}
	}
	none, group := mustDecode(t, "tenants: [{name: a}]"), mustDecode(t, "tenants: [{name: a, workers: [{count: 1}]}]")
	if !reflect.DeepEqual(none, group) {
		t.Errorf("a tenant without gpus and workers has no worker of its own: %+v, %+v", none, group)
	}
}

func TestQuotaReachesTheLastMiB(t *testing.T) {
	t.Parallel()
	const tenant = `tenants: [{name: a, gpus: [L4x2], quota: {gpuMemory: %d, gpuCores: %d}}]
memoryScaling: 1.5
coreScaling: 0.5
`
	full := mustDecode(t, fmt.Sprintf(tenant, 69102, 100))
	memory, cores := full.Capacity(full.Tenants[0])
	if memory != 69102 || cores != 100 {
		t.Errorf("capacity is %d MiB and %d percent, want 69102 and 100", memory, cores)
	}
	for _, quota := range [][2]int{{memory + 1, cores}, {memory, cores + 1}} {
		if faults := faultsOf(t, asPulumi(t, fmt.Sprintf(tenant, quota[0], quota[1]))); len(faults) != 1 {
			t.Errorf("quota %v: %v", quota, faults)
		}
	}
}

func TestKeysSorted(t *testing.T) {
	t.Parallel()
	if keys := config.Keys(); len(keys) == 0 || !slices.IsSorted(keys) {
		t.Errorf("keys are %v", keys)
	}
}

// TestLongestNameFits writes out the arithmetic behind MaxTenantName.
func TestLongestNameFits(t *testing.T) {
	t.Parallel()
	const longestHostName, leastForTheStack = 63, 22
	host := strings.Repeat("s", leastForTheStack) + "-" + strings.Repeat("t", config.MaxTenantName) + "-worker-99"
	if len(host) > longestHostName {
		t.Errorf("%s has %d characters", host, len(host))
	}
	mustDecode(t, "tenants: [{name: "+strings.Repeat("t", config.MaxTenantName)+"}]")
	if config.MaxWorkersPerTenant > 100 {
		t.Error("more workers than two digits can name")
	}
}
