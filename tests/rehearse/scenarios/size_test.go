package scenarios

import (
	"fmt"
	"testing"
	"time"
)

// TestSize shows how a preview grows with the number of tenants. What is asserted
// is the number of resources; time and memory are printed. From ten tenants to
// fifty the time grows faster than they: Pulumi serializes its whole snapshot at
// every step, of a preview too (saveSnapshot in
// https://github.com/pulumi/pulumi/blob/master/pkg/backend/snapshot.go), which
// at thirty tenants is more than half of what it does.
func TestSize(t *testing.T) {
	engineOnly(t, "fifty real API servers do not fit on a small machine")
	resources := map[int]int{}
	counts := []int{1, 2, 10, 50}
	if testing.Short() {
		counts = []int{1, 2, 10}
	}
	r := newRig(t, nil)
	for _, count := range counts {
		tenants := list{}
		for i := range count {
			tenants = append(tenants, tenant(fmt.Sprintf("t%d", i), config{"gpus": list{"A100x1"}}))
		}
		r.configure(config{"tenants": tenants})
		result := r.pulumi("preview")
		if result.Err != nil {
			t.Fatalf("%v\n%s", result.Err, result.Output)
		}
		resources[count] = len(operationsOf(result)["create"])
		t.Logf("%2d tenants: %5d resources planned in %6s; the program took up to %d MiB", count, resources[count], result.Took.Round(10*time.Millisecond), r.Host.Peak()>>20)
	}
	each := resources[2] - resources[1]
	for _, count := range counts {
		if want := resources[1] + (count-1)*each; resources[count] != want {
			t.Errorf("%d tenants have %d resources, and not %d: one more tenant is not always %d more", count, resources[count], want, each)
		}
	}
}
