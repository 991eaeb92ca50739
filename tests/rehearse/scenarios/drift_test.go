package scenarios

import (
	"slices"
	"strings"
	"testing"
)

// TestClusterGone: somebody deleted the management cluster; up makes it again,
// and all that was in it.
func TestClusterGone(t *testing.T) {
	r := newRig(t, two())
	created := r.up()
	held := r.everything()
	if err := r.World.RemoveContainer(t.Context(), "gpu-tenants-dev-control-plane"); err != nil {
		t.Fatal(err)
	}
	repaired := r.previewThenUp()
	if !slices.Contains(repaired["replace"], "Command management-cluster") || !slices.Contains(repaired["replace"], "TenantControlPlane a-control-plane") {
		t.Errorf("up did not make the cluster again: %v", repaired)
	}
	if len(repaired["create"]) > 0 || len(repaired["delete"]) > 0 {
		t.Errorf("created %v, deleted %v", repaired["create"], repaired["delete"])
	}
	r.sameAs(held)
	r.wantCalm()

	if err := r.World.RemoveContainer(t.Context(), "gpu-tenants-dev-control-plane"); err != nil {
		t.Fatal(err)
	}
	r.same("destroy without a cluster", r.destroy(), operations{"delete": created["create"]})
	r.wantNothing()
}

// TestWorkerGone: somebody removed a worker's container.
func TestWorkerGone(t *testing.T) {
	r := newRig(t, two())
	created := r.up()
	held := r.everything()
	other := r.World.Container("gpu-tenants-dev-b-worker-0")
	if err := r.World.RemoveContainer(t.Context(), "gpu-tenants-dev-a-worker-0"); err != nil {
		t.Fatal(err)
	}
	repaired := r.previewThenUp()
	for _, needed := range []string{"Command a-worker-0-container", "Command a-worker-0-join", "Command a-cards-0-image", "Command a-cards-0-ready"} {
		if !slices.Contains(repaired["replace"], needed) {
			t.Errorf("%s was not replaced: %v", needed, repaired)
		}
	}
	if got := matching(slices.Concat(repaired["replace"], repaired["update"]), " b-", "management-"); len(got) > 0 {
		t.Errorf("touched as well: %v", got)
	}
	if now := r.World.Container("gpu-tenants-dev-b-worker-0"); now.ID != other.ID {
		t.Error("the other tenant's worker is another one now")
	}
	r.sameAs(held)
	r.wantCalm()
	if err := r.World.RemoveContainer(t.Context(), "gpu-tenants-dev-b-worker-0"); err != nil {
		t.Fatal(err)
	}
	r.same("destroy without a worker", r.destroy(), operations{"delete": created["create"]})
	r.wantNothing()
}

// TestStopped: containers were stopped, as after a restart of the machine. Up
// starts them, which changes nothing; a preview names them; what a refresh forgot,
// because nobody answered, is taken over; and a destruction ends.
func TestStopped(t *testing.T) {
	r := newRig(t, two())
	created := r.up()
	held := r.everything()
	nodes := []string{"gpu-tenants-dev-control-plane", "gpu-tenants-dev-a-worker-0"}
	stop := func() {
		t.Helper()
		for _, name := range nodes {
			if err := r.World.StopContainer(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop()
	preview := r.pulumi("preview")
	if preview.Err != nil {
		t.Errorf("preview of a stopped lab: %v\n%s", preview.Err, preview.Output)
	}
	r.same("preview of a stopped lab", operationsOf(preview), operations{})
	for _, name := range nodes {
		if !strings.Contains(preview.Output, name) {
			t.Errorf("the preview does not say that %s is stopped:\n%s", name, preview.Output)
		}
	}
	stop()
	r.same("up of a stopped lab", r.up(), operations{})
	for _, name := range nodes {
		if !r.World.Container(name).Running {
			t.Errorf("up did not start %s", name)
		}
	}
	r.sameAs(held)
	r.wantCalm()

	stop()
	r.refresh()
	r.up()
	r.sameAs(held)
	r.wantCalm()

	stop()
	r.same("destroy of a stopped lab", r.destroy(), operations{"delete": created["create"]})
	r.wantNothing()
}

// TestTenantGone: somebody deleted a tenant's control plane. Pulumi sees it in a
// refresh; up makes it again with all that was in it.
func TestTenantGone(t *testing.T) {
	r := newRig(t, two())
	created := r.up()
	held := r.everything()
	remove := func() {
		t.Helper()
		if err := r.Clusters.(holder).Remove("gpu-tenants-dev", "kamaji.clastix.io/v1alpha1", "TenantControlPlane", "tenants", "a"); err != nil {
			t.Fatal(err)
		}
	}
	remove()
	r.refresh()
	r.up()
	r.sameAs(held)
	r.wantCalm()
	remove()
	destroyed := r.destroy()
	r.same("destroy without a tenant's control plane", destroyed, operations{"delete": created["create"]})
	r.wantNothing()
}
