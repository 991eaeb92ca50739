package scenarios

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/providers"
)

// TestTakeover kills Pulumi right after it has made an object of each sort, before
// it knows, and lets others fail after they were made. The API server has the
// object then and the state has not, and so the next run must take it over:
// neither "already exists" nor a release's name "still in use" may end it.
func TestTakeover(t *testing.T) {
	r := newRig(t, small())
	killed := []string{
		"Namespace management-tenants", "IPAddressPool management-pool", "Release management-kamaji", "TenantControlPlane a-control-plane",
		"DaemonSet a-cni:kube-system/calico-node", "Release a-hami", "ResourceQuota a-quota",
	}
	failed := []string{"Service management-cert-manager:cert-manager/cert-manager-webhook", "L2Advertisement management-l2", "ConfigMap a-cards-0-agent:kube-system/mock-gpu-a-worker-0"}
	kills, fails := &once{fault: providers.KillAfter}, &once{fault: providers.FailAfter}
	r.Machine.SetFaults(func(operation providers.Operation) providers.Fault {
		name := nameOf(operation.URN)
		switch {
		case operation.What != "create":
			return providers.None
		case slices.Contains(killed, name):
			return kills.decide(operation)
		case slices.Contains(failed, name):
			return fails.decide(operation)
		}
		return providers.None
	})
	var wrong []string
	for runs := 1; ; runs++ {
		result := r.pulumi("up", "--yes", "--skip-preview")
		now := append(kills.next(), fails.next()...)
		wrong = append(wrong, now...)
		for _, words := range []string{"already exists", "still in use", "AlreadyExists"} {
			if strings.Contains(result.Output, words) {
				t.Fatalf("after %q went wrong, up says %q:\n%s", wrong, words, result.Output)
			}
		}
		if result.Err == nil {
			if len(now) > 0 {
				t.Errorf("up succeeded although %q went wrong", now)
			}
			t.Logf("%d runs", runs)
			break
		}
		if len(now) == 0 {
			t.Fatalf("up does not recover from %q:\n%v\n%s", wrong, result.Err, result.Output)
		}
		if _, err := r.Unlock(); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range append(killed, failed...) {
		if len(matching(wrong, name)) == 0 {
			t.Errorf("nothing went wrong with %s, but with %q", name, wrong)
		}
	}
	r.wantCalm()
	r.destroy()
	r.wantNothing()
}
