package scenarios

import (
	"slices"
	"strings"
	"testing"
)

// TestLifecycle: the article's lab comes up, stays as it is, and goes.
func TestLifecycle(t *testing.T) {
	r := newRig(t, nil)
	mark := 0
	created := r.previewThenUp()
	if len(created) != 1 || len(created["create"]) < 60 {
		t.Errorf("up on an empty machine: %d kinds of operations, %d creations", len(created), len(created["create"]))
	}
	for _, needed := range []string{
		"Stack gpu-tenants-dev", "ManagementCluster management", "Network management-network", "Command management-cluster",
		"TenantControlPlane tenant-a-control-plane", "TenantControlPlane tenant-b-control-plane", "Release tenant-b-hami",
		"Command tenant-a-worker-0-join", "Command tenant-b-cards-0-ready", "IPPool", "CustomResourceDefinition tenant-b-cni:ippools.crd.projectcalico.org",
		"DaemonSet tenant-a-cards-0-agent:kube-system/mock-gpu-tenant-a-worker-0",
	} {
		if needed == "IPPool" {
			continue
		}
		if !slices.Contains(created["create"], needed) {
			t.Errorf("up did not create %q", needed)
		}
	}
	containers, networks, _ := r.World.Inventory()
	want := []string{"gpu-tenants-dev-control-plane", "gpu-tenants-dev-tenant-a-worker-0", "gpu-tenants-dev-tenant-b-worker-0"}
	if !slices.Equal(containers, want) || !slices.Equal(networks, []string{"gpu-tenants-dev"}) {
		t.Errorf("Docker holds containers %v and networks %v", containers, networks)
	}
	r.wantCalm()
	r.same("preview of nothing", r.preview(), operations{})
	held := r.everything()
	r.same("refresh", r.refresh(), operations{})
	r.same("up after the refresh", r.previewThenUp(), operations{})
	r.sameAs(held)

	_, mark = r.calls(mark)
	destroyed := r.destroy()
	r.same("destroy", destroyed, operations{"delete": created["create"]})
	calls, _ := r.calls(mark)
	var deleted []string
	for _, call := range calls {
		if call.What == "delete" {
			deleted = append(deleted, nameOf(call.URN))
		}
	}
	slices.Sort(deleted)
	// What is in a cluster goes with it: nothing there is deleted by itself.
	wantDeleted := []string{
		"Command management-cluster", "Command tenant-a-worker-0-container", "Command tenant-b-worker-0-container", "Network management-network",
		"RandomPassword tenant-a-worker-0-token-id", "RandomPassword tenant-a-worker-0-token-secret", "RandomPassword tenant-b-worker-0-token-id", "RandomPassword tenant-b-worker-0-token-secret",
		"RemoteImage mock-gpu-agent", "RemoteImage node-image-" + built.Pins.Kubernetes.Default,
	}
	r.same("what destroy asked providers to delete", operations{"delete": deleted}, operations{"delete": wantDeleted})
	r.wantNothing()
	if _, err := r.Unlock(); err != nil {
		t.Error(err)
	}
	r.same("up after a destroy", r.up(), created)
}

// TestNoTenants: the list may be empty.
func TestNoTenants(t *testing.T) {
	r := newRig(t, config{"tenants": list{}})
	created := r.previewThenUp()
	if tenants := matching(created["create"], "tenant-", "RemoteImage mock-gpu-agent"); len(tenants) > 1 {
		t.Errorf("created without tenants: %v", tenants)
	}
	r.wantCalm()
	r.destroy()
	r.wantNothing()
}

// TestMockHAMi: HAMi's own mock plugin instead of the project's.
func TestMockHAMi(t *testing.T) {
	with := small()
	with["mock"] = "hami"
	r := newRig(t, with)
	created := r.previewThenUp()
	if got := matching(created["create"], "mock-gpu-agent", "cards-0-agent"); len(got) > 0 {
		t.Errorf("created although HAMi's plugin stands in: %v", got)
	}
	r.wantCalm()
	delete(with, "mock")
	r.configure(with)
	changed := r.up()
	if len(changed["create"]) == 0 || len(matching(changed["delete"], "Command a-cards-0-hami")) != 1 {
		t.Errorf("from HAMi's plugin to the agent: %v", changed)
	}
	r.wantCalm()
}

// TestWrongConfiguration: what cannot be is said before anything is made.
func TestWrongConfiguration(t *testing.T) {
	r := newRig(t, config{"tenants": list{tenant("a", config{"gpus": list{"A100x1"}}), tenant("a", config{"gpus": list{"A1000x1"}})}, "mirrror": "x"})
	result := r.pulumi("up", "--yes")
	if result.Err == nil {
		t.Fatal("up succeeded")
	}
	for _, fault := range []string{"tenants[1].name", "tenants[1].gpus[0]", "mirrror"} {
		if !strings.Contains(result.Output, fault) {
			t.Errorf("the error does not name %s:\n%s", fault, result.Output)
		}
	}
	if containers, networks, images := r.World.Inventory(); len(containers)+len(networks)+len(images) > 0 {
		t.Errorf("made in spite of it: %v %v %v", containers, networks, images)
	}
	r.destroy()
}
