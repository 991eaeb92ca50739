package scenarios

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/world"
)

// TestTenants: adding, removing, renaming and reordering tenants touches no
// other one.
func TestTenants(t *testing.T) {
	r := newRig(t, config{"tenants": list{tenant("b", config{"gpus": list{"L4x2"}})}})
	alone := r.up()
	b := r.World.Container("gpu-tenants-dev-b-worker-0")

	r.configure(two())
	added := r.previewThenUp()
	creations := added["create"]
	r.same("adding a tenant", added, operations{"create": matching(creations, " a-", " a:", "TenantPlane a", "provider-kubernetes a")})
	if want := len(matching(alone["create"], " b-", "TenantPlane b", "provider-kubernetes b")); len(creations) < want {
		t.Errorf("a second tenant has %d resources, the first %d", len(creations), want)
	}
	both := r.everything()

	tenants := two()["tenants"].(list)
	slices.Reverse(tenants)
	r.configure(config{"tenants": tenants})
	r.same("reordering", r.previewThenUp(), operations{})
	r.sameAs(both)

	r.configure(config{"tenants": list{tenant("c", config{"gpus": list{"A100x1"}}), tenant("b", config{"gpus": list{"L4x2"}})}})
	renamed := r.previewThenUp()
	r.same("renaming", operations{"delete": renamed["delete"]}, operations{"delete": creations})
	r.same("renaming", operations{"create": renamed["create"]}, operations{"create": matching(renamed["create"], " c-", "TenantPlane c", "provider-kubernetes c")})
	if len(renamed["create"]) != len(creations) {
		t.Errorf("renamed: %d resources made, %d taken away", len(renamed["create"]), len(creations))
	}

	r.configure(config{"tenants": list{tenant("b", config{"gpus": list{"L4x2"}})}})
	r.same("removing a tenant", r.previewThenUp(), operations{"delete": renamed["create"]})
	if now := r.World.Container("gpu-tenants-dev-b-worker-0"); now == nil || now.ID != b.ID || now.Address != b.Address {
		t.Errorf("the other tenant's worker is another one now: %+v, before %+v", now, b)
	}
	r.wantCalm()
	r.destroy()
	r.wantNothing()
}

// TestCards: cards change without a worker being touched.
func TestCards(t *testing.T) {
	r := newRig(t, two())
	r.up()
	worker := r.World.Container("gpu-tenants-dev-a-worker-0")
	cards := []string{
		"ConfigMap a-cards-0-agent:kube-system/mock-gpu-a-worker-0", "Command a-cards-0-ready", "MockGPU a-cards-0",
	}
	for _, gpus := range []list{{"A100x2"}, {"L4x1", "A100x1"}} {
		r.configure(config{"tenants": list{tenant("a", config{"gpus": gpus}), tenant("b", config{"gpus": list{"L4x2"}})}})
		r.same("other cards", r.previewThenUp(), operations{"update": cards})
	}
	r.configure(config{"tenants": list{tenant("a", config{"gpus": list{"L4x1", "A100x1"}, "unhealthy": list{1}}), tenant("b", config{"gpus": list{"L4x2"}})}})
	r.same("a broken card", r.previewThenUp(), operations{"update": minus(cards, []string{"MockGPU a-cards-0"})})

	r.configure(config{"tenants": list{tenant("a", config{"gpus": list{}}), tenant("b", config{"gpus": list{"L4x2"}})}})
	none := r.previewThenUp()
	r.same("no cards", none, operations{"delete": matching(none["delete"], "a-cards-0")})
	if len(none["delete"]) < 10 {
		t.Errorf("without cards only %q goes", none["delete"])
	}
	if now := r.World.Container("gpu-tenants-dev-a-worker-0"); now.ID != worker.ID {
		t.Error("a change of cards replaced the worker")
	}
	r.wantCalm()
}

// TestWorkers: a worker is added and taken away without another one noticing.
func TestWorkers(t *testing.T) {
	workers := func(count int) config {
		return config{"tenants": list{tenant("a", config{"workers": list{config{"gpus": list{"L4x1"}, "count": count}}})}}
	}
	r := newRig(t, workers(1))
	r.up()
	first := r.World.Container("gpu-tenants-dev-a-worker-0")
	r.configure(workers(3))
	added := r.previewThenUp()
	r.same("more workers", added, operations{"create": matching(added["create"], "a-worker-1", "a-worker-2", "a-cards-1", "a-cards-2"), "update": {"Command a-worker-0-isolation"}})
	r.configure(workers(2))
	removed := r.previewThenUp()
	// The workers of a tenant let each other in.
	r.same("a worker less", removed, operations{
		"delete": matching(added["create"], "a-worker-2", "a-cards-2"), "update": {"Command a-worker-0-isolation", "Command a-worker-1-isolation"},
	})
	if nodes := matching(r.everything(), "/Node//"); len(nodes) != 3 {
		t.Errorf("nodes: %v", nodes)
	}
	if now := r.World.Container("gpu-tenants-dev-a-worker-0"); now.ID != first.ID {
		t.Error("the first worker is another one now")
	}
	r.wantCalm()
	r.destroy()
	r.wantNothing()
}

// TestUpgrade: the control plane is upgraded in place, then the workers are
// replaced one after the other.
func TestUpgrade(t *testing.T) {
	with := func(version string) config {
		return config{"tenants": list{tenant("a", config{"kubernetesVersion": version, "workers": list{config{"gpus": list{"L4x1"}, "count": 2}}}), tenant("b", config{"gpus": list{"L4x2"}})}}
	}
	r := newRig(t, with(older()))
	r.up()
	_, mark := r.calls(0)
	r.configure(with(built.Pins.Kubernetes.Default))
	upgraded := r.previewThenUp()
	if got := matching(upgraded["replace"], "TenantControlPlane", " b-"); len(got) > 0 {
		t.Errorf("replaced: %v", got)
	}
	if !slices.Contains(upgraded["update"], "TenantControlPlane a-control-plane") {
		t.Errorf("the control plane was not updated: %v", upgraded)
	}
	for _, worker := range []string{"a-worker-0", "a-worker-1"} {
		if !slices.Contains(upgraded["replace"], "Command "+worker+"-container") || !slices.Contains(upgraded["replace"], "Command "+worker+"-join") {
			t.Errorf("%s was not replaced: %v", worker, upgraded["replace"])
		}
	}
	calls, _ := r.calls(mark)
	order := []string{"update TenantControlPlane a-control-plane", "create Command a-worker-0-join", "create Command a-worker-1-container"}
	if at := positions(calls, order); !slices.IsSorted(at) || slices.Contains(at, -1) {
		t.Errorf("order of %v: %v", order, at)
	}
	for _, node := range []string{"a-worker-0", "a-worker-1"} {
		object := r.Clusters.(holder).Object("gpu-tenants-dev/a", "v1", "Node", "", node)
		if got := version(object); got != built.Pins.Kubernetes.Default {
			t.Errorf("node %s has version %s", node, got)
		}
	}
	r.wantCalm()

	r.configure(with(older()))
	result := r.pulumi("up", "--yes")
	if result.Err == nil || !strings.Contains(result.Output, "no way back") {
		t.Errorf("a downgrade: %v\n%s", result.Err, result.Output)
	}
}

func version(node map[string]any) string {
	status, _ := node["status"].(map[string]any)
	info, _ := status["nodeInfo"].(map[string]any)
	text, _ := info["kubeletVersion"].(string)
	return text
}

// positions are where the operations stand among the calls; -1: nowhere.
func positions(calls []world.Call, wanted []string) []int {
	var all []int
	for _, want := range wanted {
		all = append(all, slices.IndexFunc(calls, func(call world.Call) bool { return call.URN != "" && call.What+" "+nameOf(call.URN) == want }))
	}
	return all
}

// TestQuota: a quota comes, changes and goes by itself.
func TestQuota(t *testing.T) {
	with := func(quota config) config {
		tenants := two()["tenants"].(list)
		if quota != nil {
			tenants[0].(config)["quota"] = quota
		}
		return config{"tenants": tenants}
	}
	r := newRig(t, with(nil))
	r.up()
	const quota = "ResourceQuota a-quota"
	for _, step := range []struct {
		what  string
		quota config
		want  operations
	}{
		{"a quota", config{"gpuMemory": 1000, "gpuCores": 50}, operations{"create": {quota}}},
		{"another quota", config{"gpuMemory": 2000, "gpuCores": 50}, operations{"update": {quota}}},
		{"half a quota", config{"gpuMemory": 2000}, operations{"update": {quota}}},
		{"no quota", nil, operations{"delete": {quota}}},
	} {
		r.configure(with(step.quota))
		r.same(step.what, r.previewThenUp(), step.want)
	}
}

// TestMirror: a mirror replaces nothing.
func TestMirror(t *testing.T) {
	r := newRig(t, small())
	r.up()
	node := r.World.Container("gpu-tenants-dev-a-worker-0")
	with := small()
	with["mirror"] = "http://mirror.example:5000"
	r.configure(with)
	mirrored := r.up()
	if got := mirrored["replace"]; len(matching(got, "Command", "provider", "Network")) > 0 {
		t.Errorf("a mirror replaced %v", got)
	}
	if now := r.World.Container("gpu-tenants-dev-a-worker-0"); now.ID != node.ID {
		t.Error("a mirror replaced the worker")
	}
	for _, container := range []string{"gpu-tenants-dev-a-worker-0", "gpu-tenants-dev-control-plane"} {
		if text := r.World.File(container, "etc/containerd/certs.d/_default/hosts.toml"); !strings.Contains(text, "mirror.example:5000") {
			t.Errorf("%s does not know the mirror: %q", container, text)
		}
	}
	r.wantCalm()
	r.configure(small())
	r.up()
	if text := r.World.File("gpu-tenants-dev-a-worker-0", "etc/containerd/certs.d/_default/hosts.toml"); text != "" {
		t.Errorf("the worker still has a mirror: %q", text)
	}
	r.wantCalm()
}

// TestManagementVersion: another management cluster, and so everything in it.
func TestManagementVersion(t *testing.T) {
	with := two()
	with["kubernetesVersion"] = older()
	r := newRig(t, with)
	r.up()
	r.configure(two())
	replaced := r.up()
	if !slices.Contains(replaced["replace"], "Command management-cluster") {
		t.Errorf("the management cluster was not replaced: %v", replaced)
	}
	r.wantCalm()
	r.destroy()
	r.wantNothing()
}
