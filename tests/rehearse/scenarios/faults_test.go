package scenarios

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/providers"
	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/world"
)

// faults are the ways in which an operation can go wrong.
var faults = []struct {
	name  string
	fault providers.Fault
	// seldom ones are left out by default: of a failure it makes no difference to
	// the state whether Pulumi or the operation was ended by it.
	seldom bool
}{
	{"fails", providers.FailBefore, false},
	{"done, but fails", providers.FailAfter, true},
	{"killed before it", providers.KillBefore, true},
	{"killed right after", providers.KillAfter, false},
}

// TestFaults makes every creation, update, replacement and deletion of a small
// stack's life go wrong once, one way after the other, and wants the same
// machine and the same state in the end as without.
func TestFaults(t *testing.T) {
	engineOnly(t, "each of its runs of Pulumi takes ten times as long with real API servers; TestTakeover is its part that they matter for")
	for _, way := range faults {
		t.Run(way.name, func(t *testing.T) {
			if way.seldom && faultsWanted == "" {
				t.Skip("set REHEARSE_FAULTS=all for this one")
			}
			reference := newRig(t, small())
			reference.up()
			made := reference.everything()
			reference.configure(changed())
			reference.up()
			afterwards := reference.everything()

			r := openRig(t, t.TempDir(), small())
			creations, runs := r.endure(way.fault, "up", "--yes")
			const fewest = 40
			if len(creations) < fewest {
				t.Errorf("only %d operations went wrong: %q", len(creations), creations)
			}
			r.wantCalm()
			r.sameAs(made)

			r.configure(changed())
			changes, more := r.endure(way.fault, "up", "--yes")
			r.wantCalm()
			r.sameAs(afterwards)

			deletions, last := r.endure(way.fault, "destroy", "--yes")
			r.wantNothing()
			t.Logf("went wrong: %d operations of the creation in %d runs, %d of a change in %d, %d of the destruction in %d",
				len(creations), runs, len(changes), more, len(deletions), last)
		})
	}
}

// TestKilledInside kills Pulumi, with the script that runs, right after each
// command by which a script changes something: what it has done by then is on the
// machine, and neither the script's end nor the state is.
func TestKilledInside(t *testing.T) {
	engineOnly(t, "it is about scripts, and its runs of Pulumi are many")
	reference := newRig(t, small())
	reference.up()
	made := reference.everything()

	r := openRig(t, t.TempDir(), small())
	up := r.interrupt("up", "--yes", "--skip-preview")
	for _, wanted := range []string{"kind create cluster", "docker run", "kubeadm join", " apply", "images import", "systemctl restart"} {
		if len(matching(up, wanted)) == 0 {
			t.Errorf("no run was killed right after %q, but after %q", wanted, up)
		}
	}
	r.wantCalm()
	// A token that was left is good for ten minutes, and the cluster's token cleaner
	// takes it away then.
	got := minus(r.everything(), matching(r.everything(), "/Secret/kube-system/bootstrap-token-"))
	r.same("what machine and state hold", operations{"holds": got}, operations{"holds": made})
	destroy := r.interrupt("destroy", "--yes", "--skip-preview")
	r.wantNothing()
	t.Logf("killed after each of %q and %q", up, destroy)
}

// interrupt runs a command again and again, and kills it each time that one of
// its scripts has changed something in a way that no run was killed after yet. It
// returns what that was.
func (r *rig) interrupt(arguments ...string) []string {
	r.t.Helper()
	var mu sync.Mutex
	var all []string
	killed := false
	r.World.SetAfter(func(call world.Call) {
		what := change(call.Line)
		if what != "" && call.Failed != "" {
			// What is half done is completed, and nothing stands in its way.
			r.t.Errorf("after a kill, %s failed: %s", call.Line, call.Failed)
		}
		mu.Lock()
		due := what != "" && !killed && !slices.Contains(all, what)
		if due {
			killed = true
			all = append(all, what)
		}
		mu.Unlock()
		if due {
			r.Machine.Kill()
		}
	})
	defer r.World.SetAfter(nil)
	for {
		killed = false // nothing runs now
		result := r.pulumi(arguments...)
		switch {
		case result.Err == nil && !killed:
			return all
		case result.Err == nil:
			r.t.Fatalf("pulumi %v succeeded although it was killed after %q", arguments, last(all))
		case !killed:
			r.t.Fatalf("pulumi %v does not recover from being killed after %q:\n%v\n%s", arguments, last(all), result.Err, result.Output)
		}
		if _, err := r.Unlock(); err != nil {
			r.t.Fatal(err)
		}
		if err := r.t.Context().Err(); err != nil {
			r.t.Fatal(err)
		}
	}
}

func last(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1]
}

// change is what a command line changes, in words that are the same each time; ""
// for one that only looks.
func change(line string) string {
	reads := []string{"get", "inspect", "ls", "ps", "info", "logs", "wait", "describe", "version", "test", "crictl", "journalctl", "cp", "save", "--check", "--dry-run=server"}
	var words []string
	for _, word := range strings.Fields(line) {
		switch {
		case slices.Contains(reads, word):
			return ""
		case strings.HasPrefix(word, "-") || strings.ContainsAny(word, "/={"):
		default:
			words = append(words, word)
		}
	}
	return strings.Join(words, " ")
}

// changed is the small stack with a change of everything that can change.
func changed() config {
	return config{
		"tenants": list{
			tenant("a", config{"workers": list{config{"gpus": list{"L4x2"}}, config{"gpus": list{}}}, "controlPlaneReplicas": 2}),
			tenant("b", config{"gpus": list{"L4x1"}}),
		},
	}
}
