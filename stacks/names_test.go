package stacks

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/gpu-tenants/gpu-tenants/stacks/config"
)

// label is a DNS-1123 label: what a hostname, a Docker name and kind take.
var label = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

func TestNamesFit(t *testing.T) {
	stacks := []string{
		"dev", "a", "0", "d.e.v", "alice-dev", "Alice.Dev", "alice_dev", "--x--", "UPPER", "ends-", "-begins",
		"exactly-ten", strings.Repeat("long", 25), strings.Repeat("a-", 50), strings.Repeat("-", 99) + "x", "wörld", "日本",
	}
	tenant := strings.Repeat("t", config.MaxTenantName)
	for _, project := range []string{"gpu-tenants", "g", "GPU_Tenants.x", strings.Repeat("p", 100)} {
		for _, stack := range stacks {
			n := newNames(project, stack)
			if len(n.prefix) > maxPrefix {
				t.Errorf("the prefix %q of %s/%s is longer than %d", n.prefix, project, stack, maxPrefix)
			}
			for _, name := range []string{
				n.network(), n.cluster(), n.cluster() + "-control-plane",
				n.worker(tenant, config.MaxWorkersPerTenant-1), n.node(tenant, config.MaxWorkersPerTenant-1), n.worker("t", 0),
			} {
				if len(name) > 63 || !label.MatchString(name) {
					t.Errorf("%s/%s: %q (%d characters) is no hostname", project, stack, name, len(name))
				}
			}
			if again := newNames(project, stack); again != n {
				t.Errorf("%s/%s is %q, and a second time %q", project, stack, n.prefix, again.prefix)
			}
		}
	}
}

func TestNamesSayWhoseTheyAre(t *testing.T) {
	n := newNames("gpu-tenants", "dev")
	for got, want := range map[string]string{
		n.network(): "gpu-tenants-dev", n.cluster(): "gpu-tenants-dev",
		n.worker("red", 3): "gpu-tenants-dev-red-worker-3", n.node("red", 3): "red-worker-3",
	} {
		if got != want {
			t.Errorf("the name is %q, want %q", got, want)
		}
	}
	if got := newNames("gpu-tenants", "a-stack-with-a-long-name").prefix; !strings.HasPrefix(got, "gpu-tenants-a-st") {
		t.Errorf("the shortened name %q does not say whose it is", got)
	}
}

// Stacks that differ get names that differ, also where what can be seen of them
// is the same.
func TestNamesOfTwoStacksDiffer(t *testing.T) {
	stacks := []string{
		"dev", "Dev", "DEV", "de-v", "de.v", "de_v", "de--v", "-dev", "dev-", "dev.", // alike when sanitized
		"a-stack-with-a-long-name", "a-stack-with-a-long-name-too", "a-stack-with-a-long-nam", "A-stack-with-a-long-name", // alike when cut
	}
	for i := range 100 {
		stacks = append(stacks, fmt.Sprintf("alice-feature-number-%d", i))
	}
	seen := map[string]string{}
	for _, stack := range stacks {
		prefix := newNames("gpu-tenants", stack).prefix
		if other, taken := seen[prefix]; taken {
			t.Errorf("the stacks %q and %q are both %q", stack, other, prefix)
		}
		seen[prefix] = stack
	}
}

// A name that is fine as it is stays as it is, whatever it is made of.
func TestNamesKeepWhatFits(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a repeatable test
	for range 500 {
		length := 1 + random.IntN(maxPrefix-len("p-"))
		stack := make([]byte, length)
		for i := range stack {
			stack[i] = "abcxyz0189"[random.IntN(10)]
		}
		if got, want := newNames("p", string(stack)).prefix, "p-"+string(stack); got != want {
			t.Fatalf("the prefix is %q, want %q", got, want)
		}
	}
}
