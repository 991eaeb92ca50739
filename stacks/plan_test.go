package stacks

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-tenants/gpu-tenants/components"
	"github.com/gpu-tenants/gpu-tenants/stacks/config"
	"github.com/gpu-tenants/gpu-tenants/stacks/host"
	"github.com/gpu-tenants/gpu-tenants/stacks/pins"
)

// planOf is the plan of stack dev on a machine that holds what observed says;
// nil: nothing.
func planOf(t *testing.T, raw map[string]string, observed *host.Observed) *Plan {
	t.Helper()
	plan, err := tryPlan(t, raw, observed)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func tryPlan(t *testing.T, raw map[string]string, observed *host.Observed) (*Plan, error) {
	t.Helper()
	cfg, err := config.Decode(raw)
	if err != nil {
		t.Fatal(err)
	}
	if observed == nil {
		observed = &host.Observed{}
	}
	made := 0
	return NewPlan("gpu-tenants", "dev", cfg, observed, func() string { made++; return fmt.Sprintf("fresh%d", made) })
}

func TestMirrorHosts(t *testing.T) {
	for mirror, server := range map[string]string{
		"registry.test":             "https://registry.test",
		"registry.test:5000":        "https://registry.test:5000",
		"http://registry.test:5000": "http://registry.test:5000",
		"https://registry.test":     "https://registry.test",
		"10.1.2.3:5000":             "https://10.1.2.3:5000",
	} {
		// The least of TOML that containerd's hosts.toml needs: a key at the
		// top, a table with a quoted name, a key in it.
		want := regexp.MustCompile(`^(#[^\n]*\n)+server = "` + regexp.QuoteMeta(server) + `"\n\n\[host\."` + regexp.QuoteMeta(server) + `"\]\n  capabilities = \["pull", "resolve"\]\n$`)
		if got := mirrorHosts(mirror); !want.MatchString(got) {
			t.Errorf("%s gives\n%s\nwant %s", mirror, got, want)
		}
		// By its first line the scripts know that it is theirs to take away.
		if got := mirrorHosts(mirror); !strings.HasPrefix(got, "# gpu-tenants") {
			t.Errorf("%s gives\n%s", mirror, got)
		}
	}
	if got := mirrorHosts(""); got != "" {
		t.Errorf("no mirror gives %q", got)
	}
}

func TestImage(t *testing.T) {
	for reference, want := range map[string]components.Image{
		"docker.io/some/image:v9.9.9":   {Repository: "docker.io/some/image", Tag: "v9.9.9"},
		"registry.test:5000/image:9.9":  {Repository: "registry.test:5000/image", Tag: "9.9"},
		"registry.test:5000/a/b/c:edge": {Repository: "registry.test:5000/a/b/c", Tag: "edge"},
	} {
		if got := image(reference); got != want {
			t.Errorf("%s is %+v, want %+v", reference, got, want)
		}
	}
	// Those that are pinned are written so, and their tags are tags.
	all := pins.Load().Images
	for _, reference := range []string{all.Kamaji, all.KamajiKubectl, all.HAMiMockDevicePlugin} {
		if got := image(reference); got.Repository == "" || got.Tag == "" || strings.Contains(got.Tag, "/") || strings.Contains(reference, "@") {
			t.Errorf("%s is %+v", reference, got)
		}
	}
}

func TestMinor(t *testing.T) {
	for version, want := range map[string]int{"v1.99.0": 99, "v1.0.1": 0, "v1.7.12": 7} {
		if got, err := minor(version); err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", version, got, err, want)
		}
	}
	for _, version := range []string{"", "v1", "v1.99", "1.99.0", "v2.99.0", "v1.x.0", "v1.99.0.1", "v1..0"} {
		if got, err := minor(version); err == nil {
			t.Errorf("%q is taken for minor %d", version, got)
		}
	}
}

func TestRequirementsFresh(t *testing.T) {
	for name, test := range map[string]struct {
		observed host.Observed
		want     bool
	}{
		"nothing is there": {host.Observed{}, true},
		"the network":      {host.Observed{Network: &host.Network{}}, false},
		"the cluster":      {host.Observed{Cluster: &host.Node{}}, false},
		"both":             {host.Observed{Network: &host.Network{}, Cluster: &host.Node{}}, false},
	} {
		if got := planOf(t, nil, &test.observed).Requirements.Fresh; got != test.want {
			t.Errorf("%s: fresh is %v, want %v", name, got, test.want)
		}
	}
}

// Each tenant and each worker takes more memory, and each worker more disk.
func TestRequirementsGrow(t *testing.T) {
	of := func(tenants string) host.Requirements {
		return planOf(t, map[string]string{"tenants": tenants}, nil).Requirements
	}
	none, one, two := of(`[]`), of(`[{"name":"a"}]`), of(`[{"name":"a"},{"name":"b"}]`)
	workers := of(`[{"name":"a","workers":[{"count":3}]}]`)
	if none.MemoryBytes <= 0 || none.DiskBytes <= 0 {
		t.Errorf("the management cluster alone takes %d bytes of memory and %d of disk", none.MemoryBytes, none.DiskBytes)
	}
	if tenant := one.MemoryBytes - none.MemoryBytes; tenant <= 0 || two.MemoryBytes-one.MemoryBytes != tenant {
		t.Errorf("the memory goes from %d to %d to %d", none.MemoryBytes, one.MemoryBytes, two.MemoryBytes)
	}
	if workers.MemoryBytes <= one.MemoryBytes || workers.MemoryBytes-one.MemoryBytes >= 2*(two.MemoryBytes-one.MemoryBytes) {
		t.Errorf("two more workers take %d, and a tenant with one %d", workers.MemoryBytes-one.MemoryBytes, two.MemoryBytes-one.MemoryBytes)
	}
	if one.DiskBytes <= none.DiskBytes || workers.DiskBytes-one.DiskBytes != 2*(one.DiskBytes-none.DiskBytes) {
		t.Errorf("the disk goes from %d to %d to %d", none.DiskBytes, one.DiskBytes, workers.DiskBytes)
	}
	for _, test := range []struct {
		got                    host.Requirements
		controlPlanes, workers int
	}{{none, 0, 0}, {one, 1, 1}, {two, 2, 2}, {workers, 1, 3}} {
		if test.got.ControlPlanes != test.controlPlanes || test.got.WorkersTotal != test.workers {
			t.Errorf("%d control planes and %d workers, want %d and %d", test.got.ControlPlanes, test.got.WorkersTotal, test.controlPlanes, test.workers)
		}
	}
}

func TestRequirementsNetworks(t *testing.T) {
	got := planOf(t, map[string]string{"network": "10.50.0.0/20", "serviceCidr": "10.51.0.0/16", "tenants": `[{"name":"a","podCidr":"10.52.0.0/16"},{"name":"b","podCidr":"10.53.0.0/16"}]`}, nil).Requirements
	if got.Subnet != netip.MustParsePrefix("10.50.0.0/20") {
		t.Errorf("the subnet is %s", got.Subnet)
	}
	for _, reserved := range []string{"10.51.0.0/16", "10.52.0.0/16", "10.53.0.0/16"} {
		if !slices.Contains(got.Reserved, netip.MustParsePrefix(reserved)) || len(got.Reserved) != 3 {
			t.Errorf("%s is not among the reserved %v", reserved, got.Reserved)
		}
	}
}

// With a folder of artifacts nothing is downloaded.
func TestRequirementsDownloads(t *testing.T) {
	got := planOf(t, nil, nil).Requirements
	if !got.NeedGit || len(got.URLs) != 5 {
		t.Errorf("git %v, URLs %q", got.NeedGit, got.URLs)
	}
	for _, url := range got.URLs {
		if !strings.HasPrefix(url, "https://") {
			t.Errorf("%q is no address", url)
		}
	}
	if got := planOf(t, map[string]string{"artifactsDir": "somewhere"}, nil).Requirements; got.NeedGit || len(got.URLs) != 0 {
		t.Errorf("with a folder: git %v, URLs %q", got.NeedGit, got.URLs)
	}
}

func TestRequirementsCgroups(t *testing.T) {
	for name, test := range map[string]struct {
		raw  map[string]string
		want bool
	}{
		"nothing said":  {nil, false},
		"by a field":    {map[string]string{"kubelet": `{"failCgroupV1": false}`}, true},
		"not by it":     {map[string]string{"kubelet": `{"failCgroupV1": true}`}, false},
		"by a flag":     {map[string]string{"kubeletArgs": `{"fail-cgroupv1": "false"}`}, true},
		"by other ones": {map[string]string{"kubelet": `{"maxPods": 50}`, "kubeletArgs": `{"v": "4"}`}, false},
	} {
		if got := planOf(t, test.raw, nil).Requirements.KubeletToleratesCgroupV1; got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

// Images are asked for by their own names, of the nodes that are still to be
// made; what Docker pulls goes through the mirror, but for the user's own.
func TestNodeImages(t *testing.T) {
	version := pins.Load().Kubernetes.Default
	pinned := pins.Load().Kubernetes.NodeImages[version]
	_, path, _ := strings.Cut(pinned, "/")
	const own = "registry.test/own/node:v9.9.9"
	ownImages := fmt.Sprintf(`{%q: %q}`, version, own)
	for name, test := range map[string]struct {
		raw                 map[string]string
		reference, identity string
	}{
		"pinned":           {map[string]string{}, pinned, pinned},
		"through a mirror": {map[string]string{"mirror": "http://mirror.test:5000"}, "mirror.test:5000/" + path, pinned},
		"one's own":        {map[string]string{"nodeImages": ownImages}, own, own},
		"own and a mirror": {map[string]string{"nodeImages": ownImages, "mirror": "mirror.test"}, own, own},
	} {
		plan := planOf(t, test.raw, nil)
		if got := plan.NodeImages[version]; got.Reference != test.reference || got.Identity != test.identity || len(plan.NodeImages) != 1 {
			t.Errorf("%s: %d images, %+v; want %s, %s", name, len(plan.NodeImages), got, test.reference, test.identity)
		}
		if got := plan.Requirements.ImageRefs; !slices.Equal(got, []string{test.identity}) {
			t.Errorf("%s: the images that must be there are %q, want %q", name, got, test.identity)
		}
	}
}

func TestImagesOfNodesToBeMade(t *testing.T) {
	kubernetes := pins.Load().Kubernetes
	version := kubernetes.Default
	var other string
	for _, candidate := range slices.Sorted(maps.Keys(kubernetes.NodeImages)) {
		if candidate != version {
			other = candidate
		}
	}
	raw := map[string]string{"tenants": fmt.Sprintf(`[{"name":"a"},{"name":"b","kubernetesVersion":%q}]`, other)}
	worker := func(version string) host.Node {
		return host.Node{Labels: map[string]string{host.LabelVersion: version}}
	}
	const a, b = "gpu-tenants-dev-a-worker-0", "gpu-tenants-dev-b-worker-0"
	for name, test := range map[string]struct {
		observed host.Observed
		want     []string
	}{
		"nothing is there": {host.Observed{}, []string{version, other}},
		"all is there":     {host.Observed{Cluster: &host.Node{}, Workers: map[string]host.Node{a: worker(version), b: worker(other)}}, nil},
		"b is gone":        {host.Observed{Cluster: &host.Node{}, Workers: map[string]host.Node{a: worker(version)}}, []string{other}},
		"a is gone":        {host.Observed{Cluster: &host.Node{}, Workers: map[string]host.Node{b: worker(other)}}, []string{version}},
	} {
		var want []string
		for _, version := range test.want {
			want = append(want, kubernetes.NodeImages[version])
		}
		got := planOf(t, raw, &test.observed).Requirements.ImageRefs
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: the images are %q, want %q", name, got, want)
		}
	}
}

// Scaling is rounded down, as HAMi rounds; a card keeps its UUID whatever is
// said about it, and no two have the same.
func TestCards(t *testing.T) {
	const tenants = `[{"name":"a","workers":[{"gpus":[{"model":"X9","memory":10001,"cores":33,"count":2}],"count":2}]},{"name":"b","gpus":["L4"],"unhealthy":[0]}]`
	raw := map[string]string{"tenants": tenants, "memoryScaling": "1.5", "coreScaling": "1.1", "slicesPerCard": "7"}
	plan := planOf(t, raw, nil)
	seen := map[string]bool{}
	uuid := regexp.MustCompile(`^GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	for _, tenant := range plan.Tenants {
		for _, worker := range tenant.Workers {
			for _, card := range worker.Cards {
				if seen[card.UUID] || !uuid.MatchString(card.UUID) {
					t.Errorf("the UUID %s is no card's, or another's", card.UUID)
				}
				seen[card.UUID] = true
				if card.Slices != 7 || card.Healthy != (tenant.Name == "a") {
					t.Errorf("%s has the card %+v", worker.Node, card)
				}
				if tenant.Name == "a" && (card.MemoryMiB != 15001 || card.Cores != 36) {
					t.Errorf("the card is %+v, want 15001 MiB and 36 percent", card)
				}
			}
		}
	}
	if len(seen) != 5 {
		t.Errorf("%d cards, want 5", len(seen))
	}
	raw["memoryScaling"] = "1"
	if again := planOf(t, raw, nil).Tenants[0].Workers[1].Cards[1].UUID; again != plan.Tenants[0].Workers[1].Cards[1].UUID {
		t.Error("another scaling gives a card another UUID")
	}
}

func TestStarting(t *testing.T) {
	for name, test := range map[string]struct {
		raw  map[string]string
		cpus int
		want int
	}{
		"one core":     {nil, 1, 1},
		"seven cores":  {nil, 7, 1},
		"eight cores":  {nil, 8, 2},
		"as it is set": {map[string]string{"maxStarting": "3"}, 64, 3},
	} {
		if got := planOf(t, test.raw, &host.Observed{CPUs: test.cpus}).Starting; got != test.want {
			t.Errorf("%s: %d start at once, want %d", name, got, test.want)
		}
	}
}

// The scheduler beside HAMi is of the tenant's version, and so is the worker's
// label by which the next run knows what the tenant runs.
func TestTenantVersion(t *testing.T) {
	kubernetes := pins.Load().Kubernetes
	for version := range kubernetes.NodeImages {
		plan := planOf(t, map[string]string{"tenants": fmt.Sprintf(`[{"name":"a","kubernetesVersion":%q}]`, version)}, nil)
		tenant := plan.Tenants[0]
		if tenant.KubernetesVersion != version || tenant.KubeSchedulerImage.Tag != version || tenant.Workers[0].Labels.All[host.LabelVersion] != version {
			t.Errorf("the tenant of %s is %+v", version, tenant)
		}
		if plan.Management.KubernetesVersion != kubernetes.Default || plan.NodeImages[kubernetes.Default].Reference == "" || plan.NodeImages[version].Reference == "" {
			t.Errorf("the management cluster is of %s, the images are %v", plan.Management.KubernetesVersion, plan.NodeImages)
		}
	}
}

// What is there keeps its incarnation; each thing that is not gets one of its
// own.
func TestIncarnations(t *testing.T) {
	const a0 = "gpu-tenants-dev-a-worker-0"
	raw := map[string]string{"tenants": `[{"name":"a","workers":[{"count":2}]}]`}
	network := &host.Network{Labels: map[string]string{host.LabelIncarnation: "network1"}}
	cluster := planOf(t, raw, &host.Observed{Network: network}).Management.Incarnation
	plan := planOf(t, raw, &host.Observed{
		Network: network,
		Cluster: &host.Node{Incarnation: cluster},
		Workers: map[string]host.Node{a0: {Labels: map[string]string{host.LabelIncarnation: "worker1"}}},
	})
	workers := plan.Tenants[0].Workers
	if plan.Management.Incarnation != cluster || plan.Management.Network.Labels.All[host.LabelIncarnation] != "network1" || workers[0].Incarnation != "worker1" {
		t.Errorf("what is there is made anew: %+v, %+v", plan.Management, workers[0])
	}
	if workers[1].Incarnation == "" || workers[1].Incarnation == "worker1" || workers[1].Labels.All[host.LabelIncarnation] != workers[1].Incarnation {
		t.Errorf("what is not there is %+v", workers[1])
	}
	// A cluster whose marker is missing is half-made.
	plan = planOf(t, raw, &host.Observed{Network: &host.Network{}, Cluster: &host.Node{}})
	seen := map[string]bool{plan.Management.Incarnation: true, plan.Management.Network.Labels.All[host.LabelIncarnation]: true, plan.Tenants[0].Workers[0].Incarnation: true, plan.Tenants[0].Workers[1].Incarnation: true}
	if len(seen) != 4 || seen[""] {
		t.Errorf("the incarnations are not each its own: %v", seen)
	}
}

// All that contradicts itself is told at once.
func TestPlanTellsAllFaults(t *testing.T) {
	observed := &host.Observed{Workers: map[string]host.Node{"gpu-tenants-dev-a-worker-0": {Labels: map[string]string{host.LabelVersion: "v1.99.0"}}}}
	_, err := tryPlan(t, map[string]string{"network": "10.50.0.0/24", "tenants": `[{"name":"a"},{"name":"b","workers":[{"count":64}]}]`}, observed)
	for _, want := range []string{"tenants[0].kubernetesVersion", "no way back", "network:", "addresses for 64 workers"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}
