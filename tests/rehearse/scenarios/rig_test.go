// Package scenarios runs the program through Pulumi's engine on the stand-in
// machine, and holds what happened against what should have: the exact set of
// operations, and what the machine holds afterwards.
package scenarios

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/artifacts"
	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/clusters"
	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/providers"
	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/stage"
	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/world"
)

var built *stage.Built

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	repository, err := filepath.Abs("../../..")
	if err == nil {
		built, err = stage.Build(ctx, repository, filepath.Join(repository, ".cache", "rehearse", "test-bin"), os.Stderr)
	}
	switch layer := os.Getenv(layerVariable); {
	case err != nil:
	case layer == "clusters":
		binaries, err = clusters.Build(ctx, repository, built.Pins.Pulumi["kubernetes"], os.Stderr)
	case layer != "" && layer != "engine":
		err = fmt.Errorf("%s=%s: it is engine or clusters", layerVariable, layer)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// config of a stack, without the project's name before the keys.
type config map[string]any

// list is a list in it.
type list = []any

// small is a stack of one tenant that has one of everything, and a version that
// is not the newest.
func small() config {
	return config{"tenants": list{tenant("a", config{"gpus": list{"A100x1"}, "quota": config{"gpuMemory": 40000, "gpuCores": 100}, "kubernetesVersion": older()})}}
}

// older is the version before the default one.
func older() string {
	versions := slices.Sorted(maps.Keys(built.Pins.Kubernetes.NodeImages)) // all of them v1.3x
	return versions[slices.Index(versions, built.Pins.Kubernetes.Default)-1]
}

// tenant is one of the list.
func tenant(name string, more config) config {
	all := config{"name": name}
	maps.Copy(all, more)
	return all
}

// two is the stack of two tenants that most changes start from.
func two() config {
	return config{"tenants": list{tenant("a", config{"gpus": list{"A100x1"}}), tenant("b", config{"gpus": list{"L4x2"}})}}
}

// rig is a stage with a test on it.
type rig struct {
	*stage.Stage

	t         *testing.T
	outputs   strings.Builder // all that was said
	lastWrong []string        // what the last run of endure was told to do wrong
}

func newRig(t *testing.T, with config) *rig {
	t.Helper()
	t.Parallel()
	return openRig(t, t.TempDir(), with)
}

func openRig(t *testing.T, dir string, with config) *rig {
	t.Helper()
	options := stage.Options{Dir: dir, Built: built, Stack: "dev", CPUs: 4}
	if binaries != nil {
		real, err := clusters.Open(t.Context(), filepath.Join(dir, "world"), binaries)
		if err != nil {
			t.Fatal(err)
		}
		options.Clusters = real
	}
	set, err := stage.Open(options)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Stage: set, t: t}
	t.Cleanup(func() {
		if gaps := set.World.Unknown(); len(gaps) > 0 {
			t.Errorf("the stand-ins were asked for what they do not know: %q", gaps)
		}
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := artifacts.Write(set.Artifacts(), built.Pins.Names()); err != nil {
		t.Fatal(err)
	}
	if binaries != nil {
		if err := clusters.Publish(t.Context(), built.Pins, set.Artifacts()); err != nil {
			t.Fatal(err)
		}
	}
	r.configure(with)
	return r
}

// configure gives the stack another configuration.
func (r *rig) configure(with config) {
	r.t.Helper()
	all := config{"artifactsDir": r.Artifacts(), "preflight": "skip"}
	maps.Copy(all, with)
	if err := r.Configure(all); err != nil {
		r.t.Fatal(err)
	}
}

// limit is how long a run of Pulumi may take. The stand-ins do at once what they
// do, so a script that still waits then waits in vain, and would for minutes.
const limit = 3 * time.Minute

// pulumi runs a command, which may fail.
func (r *rig) pulumi(arguments ...string) *stage.Run {
	r.t.Helper()
	before, _ := r.calls(0)
	late := time.AfterFunc(limit, r.Machine.Kill)
	result := r.Pulumi(r.t.Context(), arguments)
	if !late.Stop() {
		calls, _ := r.calls(len(before))
		const enough = 10
		for _, call := range calls[max(0, len(calls)-enough):] {
			r.t.Logf("%s %s %s: %s", call.What, call.URN, call.Line, call.Failed)
		}
		r.t.Fatalf("pulumi %v did not end within %s; its last calls stand above\n%s", arguments, limit, result.Output)
	}
	r.t.Logf("pulumi %s took %s", arguments[0], result.Took.Round(100*time.Millisecond))
	r.outputs.WriteString(result.Output)
	return result
}

// must runs a command, which may not fail.
func (r *rig) must(arguments ...string) operations {
	r.t.Helper()
	result := r.pulumi(arguments...)
	if result.Err != nil {
		r.t.Fatalf("%v\n%s", result.Err, result.Output)
	}
	return operationsOf(result)
}

func (r *rig) up() operations      { r.t.Helper(); return r.must("up", "--yes", "--skip-preview") }
func (r *rig) preview() operations { r.t.Helper(); return r.must("preview") }
func (r *rig) refresh() operations { r.t.Helper(); return r.must("refresh", "--yes") }
func (r *rig) destroy() operations { r.t.Helper(); return r.must("destroy", "--yes") }

// previewThenUp runs both and holds the one against the other.
func (r *rig) previewThenUp() operations {
	r.t.Helper()
	planned := r.preview()
	done := r.up()
	r.same("what up did, against its preview", withoutUnseen(done, planned), withoutPending(planned))
	return done
}

// pending is the operation by which a preview shows what goes for something else's
// sake, and of which it does not know whether it comes again.
const pending = "remove-pending-replace"

// withoutPending makes replacements of what is pending: that is what comes of it
// in a cluster that is made anew.
func withoutPending(planned operations) operations {
	all := maps.Clone(planned)
	delete(all, pending)
	if replaced := slices.Concat(planned["replace"], planned[pending]); len(replaced) > 0 {
		slices.Sort(replaced)
		all["replace"] = replaced
	}
	return all
}

// withoutUnseen leaves out what a preview cannot show: a manifest's group and
// objects that go into a cluster which is not there yet. Pulumi does not ask a
// provider for them whose configuration is not known.
func withoutUnseen(done, planned operations) operations {
	seen := maps.Clone(done)
	seen["create"] = slices.DeleteFunc(slices.Clone(done["create"]), func(name string) bool {
		_, name, _ = strings.Cut(name, " ")
		group, _, isChild := strings.Cut(name, ":")
		return isChild && slices.Contains(planned["create"], "ConfigGroup "+group) && len(matching(planned["create"], " "+group+":")) == 0
	})
	seen["replace"] = slices.DeleteFunc(slices.Clone(done["replace"]), func(name string) bool {
		group, isGroup := strings.CutPrefix(name, "ConfigGroup ")
		return isGroup && !slices.Contains(planned["replace"], name) && len(matching(planned[pending], " "+group+":")) > 0
	})
	return seen
}

// same compares two sets of operations.
func (r *rig) same(what string, got, want operations) {
	r.t.Helper()
	if difference := want.difference(got); difference != "" {
		r.t.Errorf("%s:\n%s", what, difference)
	}
}

// operations are the resources to which each kind of operation was done, sorted.
// What stayed the same is left out.
type operations map[string][]string

func operationsOf(run *stage.Run) operations {
	done := operations{}
	for _, event := range run.Events {
		if event.ResourcePre == nil {
			continue
		}
		what := event.ResourcePre.Metadata.Op
		switch what {
		case "same", "create-replacement", "delete-replaced", "read", "discard", "refresh", "":
			// A replacement is told as "replace" too; what is read changes nothing,
			// and is discarded when it is read no more.
			continue
		}
		name := nameOf(event.ResourcePre.Metadata.URN)
		if name == "provider-pulumi default" {
			continue // Pulumi's own, of a component that a provider makes; no preview shows it
		}
		done[what] = append(done[what], name)
	}
	for what := range done {
		slices.Sort(done[what])
		done[what] = slices.Compact(done[what])
	}
	return done
}

// nameOf is a resource's type, in short, and its name: "Command a-cluster".
func nameOf(urn string) string {
	parts := strings.Split(urn, "::")
	kind := parts[2][strings.LastIndexAny(parts[2], ":$")+1:]
	if strings.Contains(parts[2], "pulumi:providers:") {
		kind = "provider-" + kind
	}
	return kind + " " + strings.Join(parts[3:], "::")
}

// difference says what is in one and not in the other; "" when nothing is.
func (want operations) difference(got operations) string {
	var text strings.Builder
	kinds := map[string]bool{}
	for what := range want {
		kinds[what] = true
	}
	for what := range got {
		kinds[what] = true
	}
	for _, what := range slices.Sorted(maps.Keys(kinds)) {
		for _, name := range got[what] {
			if !slices.Contains(want[what], name) {
				fmt.Fprintf(&text, "  unexpected: %s %s\n", what, name)
			}
		}
		for _, name := range want[what] {
			if !slices.Contains(got[what], name) {
				fmt.Fprintf(&text, "  missing:    %s %s\n", what, name)
			}
		}
	}
	return text.String()
}

// matching returns the names that contain one of the texts.
func matching(names []string, texts ...string) []string {
	var found []string
	for _, name := range names {
		if slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(name, text) }) {
			found = append(found, name)
		}
	}
	return found
}

// minus returns the names that are not among the others.
func minus(names, others []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(others, name) })
}

// everything is what a machine and a state hold, in words that do not change
// from one run to the next: names, no identifiers.
func (r *rig) everything() []string {
	r.t.Helper()
	containers, networks, images := r.World.Inventory()
	var all []string
	for _, name := range containers {
		all = append(all, "container "+name)
	}
	for _, name := range networks {
		all = append(all, "network "+name)
	}
	for _, name := range images {
		all = append(all, "image "+name)
	}
	for cluster, objects := range r.Clusters.(holder).Inventory() {
		for _, object := range objects {
			all = append(all, "object "+cluster+" "+object)
		}
	}
	for _, resource := range r.resources() {
		all = append(all, "resource "+resource)
	}
	slices.Sort(all)
	return all
}

// resources are the names of what the state holds.
func (r *rig) resources() []string {
	r.t.Helper()
	text, err := os.ReadFile(r.StatePath())
	if err != nil {
		r.t.Fatal(err)
	}
	var state struct {
		Checkpoint struct {
			Latest struct {
				Resources []struct {
					URN    string `json:"urn"`
					Delete bool   `json:"delete"`
				} `json:"resources"`
			} `json:"latest"`
		} `json:"checkpoint"`
	}
	if err := json.Unmarshal(text, &state); err != nil {
		r.t.Fatal(err)
	}
	var names []string
	for _, resource := range state.Checkpoint.Latest.Resources {
		name := nameOf(resource.URN)
		if resource.Delete {
			name += " (to be deleted)"
		}
		names = append(names, name)
	}
	return names
}

// sameAs compares what the machine and the state hold.
func (r *rig) sameAs(want []string) {
	r.t.Helper()
	got := r.everything()
	r.same("what machine and state hold", operations{"holds": got}, operations{"holds": want})
}

// wantNothing checks that nothing is left but what a pull brought.
func (r *rig) wantNothing() {
	r.t.Helper()
	for _, what := range r.everything() {
		if !strings.HasPrefix(what, "image docker.io/kindest/node") {
			r.t.Errorf("left over: %s", what)
		}
	}
	folders, err := os.ReadDir(filepath.Join(r.WorldDir(), "containers"))
	if err != nil || len(folders) > 0 {
		r.t.Errorf("folders of containers are left: %v %v", folders, err)
	}
}

// wantCalm checks that another run changes nothing.
func (r *rig) wantCalm() {
	r.t.Helper()
	r.same("up again", r.up(), operations{})
}

// calls returns the calls since a mark, and the next mark.
func (r *rig) calls(mark int) ([]world.Call, int) { return r.World.Calls.Since(mark) }

// faultsWanted is how much TestFaults does: "" two ways in which an operation can
// go wrong, and at once all operations that can run beside each other; "all" four
// ways, which takes twice as long; "each" also one operation in each run of
// Pulumi, which takes an hour.
var faultsWanted = os.Getenv("REHEARSE_FAULTS")

// once makes each operation go wrong the first time that it is tried.
type once struct {
	fault providers.Fault

	mu       sync.Mutex
	tried    map[string]bool
	thisRun  []string
	finished bool
}

func (o *once) decide(operation providers.Operation) providers.Fault {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := operation.What + " " + nameOf(operation.URN)
	if o.tried[key] || o.finished {
		return providers.None
	}
	if o.tried == nil {
		o.tried = map[string]bool{}
	}
	o.tried[key] = true
	o.thisRun = append(o.thisRun, key)
	o.finished = faultsWanted == "each"
	return o.fault
}

// next begins another run and returns what went wrong in the last.
func (o *once) next() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := o.thisRun
	o.thisRun, o.finished = nil, false
	return before
}

// endure runs a command again and again, with everything going wrong once, until
// it succeeds. It returns what went wrong, and in how many runs.
func (r *rig) endure(fault providers.Fault, arguments ...string) (all []string, runs int) {
	r.t.Helper()
	faults := &once{fault: fault}
	if faultsWanted != "each" {
		// How long Pulumi may take from the end of one operation to the start of
		// the next; too short only makes more runs.
		r.Machine.Quiet = 200 * time.Millisecond
	}
	r.Machine.SetFaults(faults.decide)
	defer r.Machine.SetFaults(nil)
	for {
		result := r.pulumi(arguments...)
		runs++
		wrong := faults.next()
		switch {
		case result.Err == nil && len(wrong) == 0:
			return all, runs
		case result.Err == nil:
			r.t.Fatalf("pulumi %v succeeded although %q went wrong", arguments, wrong)
		case len(wrong) == 0:
			r.t.Fatalf("pulumi %v does not recover from what went wrong in the run before it, %q:\n%v\n%s", arguments, r.lastWrong, result.Err, result.Output)
		}
		r.lastWrong = wrong
		all = append(all, wrong...)
		if _, err := r.Unlock(); err != nil {
			r.t.Fatal(err)
		}
		if err := r.t.Context().Err(); err != nil {
			r.t.Fatal(errors.Join(err, result.Err))
		}
	}
}
