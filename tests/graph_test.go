// Package tests holds the tests of the whole program: what it asks the engine
// for (here, with Pulumi's mocks), and what the repository as a whole promises.
package tests

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"

	"github.com/gpu-tenants/gpu-tenants/stacks/host"
	"github.com/gpu-tenants/gpu-tenants/stacks/pins"
)

var update = flag.Bool("update", false, "write the golden files")

// The article's lab with everything there already, so that nothing is random.
func articleLab(t *testing.T) *recorder {
	t.Helper()
	r, err := run(t, map[string]string{}, labHolding(2, "gpu-tenants-dev-tenant-a-worker-0", "gpu-tenants-dev-tenant-b-worker-0"), false)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// threeTenants has several workers, several kinds of card, and a quota.
const threeTenants = `[
  {"name": "blue", "gpus": ["L4x2"], "controlPlaneReplicas": 2},
  {"name": "red", "workers": [{"gpus": ["A100x2", "L4x1"], "count": 2}, {"gpus": []}], "quota": {"gpuMemory": 40000, "gpuCores": 100}},
  {"name": "green", "gpus": []}
]`

func TestGraphGolden(t *testing.T) {
	r := articleLab(t)
	var text strings.Builder
	for _, entry := range r.all {
		fmt.Fprintln(&text, render(entry))
	}
	const file = "testdata/article-lab.golden"
	if *update {
		if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil { //nolint:gosec // a test's own file
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(golden) != text.String() {
		t.Errorf("the graph of the article's lab is not that of %s; if it is meant to be: make golden\n%s", file, firstDifference(string(golden), text.String()))
	}
}

// render writes a resource in full but for what is secret, long, or this
// machine's.
func render(entry registered) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", short(entry.URN))
	line := func(key, value string) {
		if value != "" {
			fmt.Fprintf(&b, "  %s: %s\n", key, value)
		}
	}
	line("provider", short(strings.TrimSuffix(entry.Provider, "-id")))
	for _, dependency := range entry.Dependencies {
		line("depends on", short(dependency))
	}
	line("deleted with", short(entry.DeletedWith))
	if entry.DeleteBeforeReplace {
		line("replaced by", "deleting first")
	}
	line("secret outputs", strings.Join(entry.SecretOutputs, " "))
	line("ignores changes of", strings.Join(entry.IgnoreChanges, " "))
	line("before creation", strings.Join(entry.Hooks, " "))
	for _, key := range slices.Sorted(maps.Keys(entry.Inputs)) {
		if entry.Type == "command:local:Command" && (key == "create" || key == "delete" || key == "interpreter") {
			continue // shell scripts, read in their own files
		}
		line("  "+string(key), value(entry.Inputs[key]))
	}
	return b.String()
}

func short(urn string) string {
	urn = strings.TrimPrefix(urn, "urn:pulumi:dev::gpu-tenants::")
	return strings.ReplaceAll(urn, pins.Load().Kubernetes.Default, "PINNED")
}

var agentTag = regexp.MustCompile(`mock-gpu-agent:[0-9a-f]{12}`)

var temporary = regexp.MustCompile(`/[^" ]*/TestGraphGolden[^/]*/\d+/`)

func value(v resource.PropertyValue) string {
	if v.ContainsSecrets() {
		if v.IsObject() {
			return "{" + joined(v.ObjectValue()) + "}"
		}
		return "[secret]"
	}
	if v.IsObject() {
		return "{" + joined(v.ObjectValue()) + "}"
	}
	text := fmt.Sprint(v.Mappable())
	text = agentTag.ReplaceAllString(text, "mock-gpu-agent:SOURCE")
	text = temporary.ReplaceAllString(text, "ARTIFACTS/")
	for _, pin := range pinned() {
		text = strings.ReplaceAll(text, pin, "PINNED")
	}
	if len(text) > 700 {
		text = text[:700] + "..."
	}
	return strings.ReplaceAll(text, "\n", "\\n")
}

func joined(m resource.PropertyMap) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, string(key)+": "+value(m[key]))
	}
	return strings.Join(parts, ", ")
}

func firstDifference(a, b string) string {
	left, right := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range max(len(left), len(right)) {
		var l, r string
		if i < len(left) {
			l = left[i]
		}
		if i < len(right) {
			r = right[i]
		}
		if l != r {
			return fmt.Sprintf("line %d:\n- %s\n+ %s", i+1, l, r)
		}
	}
	return ""
}

// Every resource keeps these rules, whatever the configuration, in a real run
// and in a preview with its unknowns.
func TestEveryResource(t *testing.T) {
	for _, preview := range []bool{false, true} {
		t.Run(fmt.Sprintf("preview=%v", preview), func(t *testing.T) {
			r, err := run(t, map[string]string{"tenants": threeTenants}, labHolding(4), preview)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.all) < 60 {
				t.Fatalf("only %d resources were registered", len(r.all))
			}
			for _, entry := range r.all {
				checkEntry(t, entry)
			}
		})
	}
}

var (
	digestOrTag = regexp.MustCompile(`:(v?\d[\w.-]*|[0-9a-f]{12})(@sha256:[0-9a-f]{64})?$`)
	kubernetes  = regexp.MustCompile(`^kubernetes:`)
)

func checkEntry(t *testing.T, entry registered) {
	t.Helper()
	fail := func(format string, arguments ...any) {
		t.Helper()
		t.Errorf("%s: %s", short(entry.URN), fmt.Sprintf(format, arguments...))
	}
	isProvider := strings.HasPrefix(entry.Type, "pulumi:providers:")
	topLevel := isProvider || entry.Name == "mock-gpu-agent" || strings.HasPrefix(entry.Type, "docker:index/remoteImage") || strings.HasPrefix(entry.Type, "gpu-tenants:index:ManagementCluster") || strings.HasPrefix(entry.Type, "gpu-tenants:index:TenantPlane")
	if (entry.Custom && !isProvider || entry.Remote || entry.Read) && entry.Provider == "" {
		fail("has no explicit provider, and default providers are off")
	}
	if !topLevel && strings.Contains(entry.Parent, "pulumi:pulumi:Stack") {
		fail("has no component as its parent")
	}
	if kubernetes.MatchString(entry.Type) && !entry.Read && entry.DeletedWith == "" {
		fail("is not deleted with the cluster that it lives in: destroy would ask that cluster for it")
	}
	if entry.Type == "command:local:Command" && !entry.DeleteBeforeReplace {
		fail("would be replaced by making the new one first")
	}
	if strings.HasPrefix(entry.Type, "docker:index/network") {
		if !entry.DeleteBeforeReplace {
			fail("has a fixed name and would be replaced by making the new one first")
		}
		if len(entry.Hooks) != 1 {
			fail("has no hook that removes what an interrupted run left")
		}
		if name := entry.Inputs["name"].StringValue(); !strings.HasPrefix(name, "gpu-tenants-dev") {
			fail("its name %q does not say whose it is", name)
		}
		if labels := fmt.Sprint(entry.Inputs["labels"].Mappable()); !strings.Contains(labels, host.LabelStack) || !strings.Contains(labels, host.LabelIncarnation) {
			fail("its labels do not say whose it is and which making of it: %s", labels)
		}
	}
	plain(entry.Inputs, func(path, text string) {
		if strings.Contains(text, secretMark) || strings.Contains(text, strings.Repeat("s", 16)) {
			fail("input %s holds a secret in plain text", path)
		}
		if strings.HasSuffix(text, ":latest") || strings.HasSuffix(path, ".tag") && (text == "latest" || text == "") {
			fail("input %s is not pinned: %q", path, text)
		}
	})
	if entry.Type == "docker:index/remoteImage:RemoteImage" && !digestOrTag.MatchString(entry.Inputs["name"].StringValue()) {
		fail("image %q is not pinned", entry.Inputs["name"].StringValue())
	}
}

// plain calls visit with every string of the inputs that is not secret.
func plain(inputs resource.PropertyMap, visit func(path, text string)) {
	var walk func(path string, v resource.PropertyValue)
	walk = func(path string, v resource.PropertyValue) {
		switch {
		case v.IsString():
			visit(path, v.StringValue())
		case v.IsArray():
			for i, element := range v.ArrayValue() {
				walk(fmt.Sprintf("%s[%d]", path, i), element)
			}
		case v.IsObject():
			for key, element := range v.ObjectValue() {
				walk(path+"."+string(key), element)
			}
		case v.IsOutput():
			if !v.OutputValue().Secret {
				walk(path, v.OutputValue().Element)
			}
		}
	}
	for key, v := range inputs {
		walk(string(key), v)
	}
}

// A tenant's own objects are made with the tenant's own provider, and nothing
// of one tenant refers to another but the order in which control planes start.
func TestTenantsStayApart(t *testing.T) {
	r, err := run(t, map[string]string{"tenants": threeTenants}, labHolding(2), false)
	if err != nil {
		t.Fatal(err)
	}
	tenants := []string{"blue", "green", "red"}
	for _, own := range tenants {
		for _, kind := range []string{"yaml/v2:ConfigGroup", "helm.sh/v3:Release"} {
			name := map[string]string{"yaml/v2:ConfigGroup": own + "-cni", "helm.sh/v3:Release": own + "-hami"}[kind]
			if provider := r.byName(t, kind, name).Provider; !strings.Contains(provider, "TenantPlane$pulumi:providers:kubernetes::"+own+"::") {
				t.Errorf("%s is made with %s", name, provider)
			}
		}
		if provider := r.byName(t, ":TenantControlPlane", own+"-control-plane").Provider; !strings.Contains(provider, "::management::") {
			t.Errorf("the control plane of %s is made with %s", own, provider)
		}
	}
	for _, entry := range r.all {
		for _, own := range tenants {
			if !strings.HasPrefix(entry.Name, own) || strings.HasSuffix(entry.Name, "-control-plane") {
				continue
			}
			for _, dependency := range entry.Dependencies {
				name := dependency[strings.LastIndex(dependency, "::")+2:]
				for _, other := range tenants {
					if other != own && strings.HasPrefix(name, other) {
						t.Errorf("%s depends on %s", short(entry.URN), short(dependency))
					}
				}
			}
		}
	}
}

// Inside a tenant: control plane, worker, HAMi, cards; each waits for the one
// before it, also through others.
func TestOrderInsideATenant(t *testing.T) {
	r := articleLab(t)
	order := []registered{
		r.byName(t, ":Command", "management-kamaji-ready"),
		r.byName(t, ":TenantControlPlane", "tenant-a-control-plane"),
		r.byName(t, ":Command", "tenant-a-control-plane-ready"),
		r.byName(t, ":ConfigGroup", "tenant-a-cni"),
		r.byName(t, ":Command", "tenant-a-worker-0-container"),
		r.byName(t, ":Command", "tenant-a-worker-0-join"),
		r.byName(t, ":Release", "tenant-a-hami"),
		r.byName(t, ":Command", "tenant-a-hami-ready"),
		r.byName(t, ":ConfigGroup", "tenant-a-cards-0-agent"),
		r.byName(t, ":Command", "tenant-a-cards-0-ready"),
	}
	for i := 1; i < len(order); i++ {
		if !r.reaches(order[i].URN, order[i-1].URN) {
			t.Errorf("%s does not wait for %s", order[i].Name, order[i-1].Name)
		}
	}
}

// reaches says whether a resource depends on another, directly or not.
func (r *recorder) reaches(from, to string) bool {
	byURN := map[string]registered{}
	for _, entry := range r.all {
		byURN[entry.URN] = entry
	}
	visited := map[string]bool{}
	var visit func(string) bool
	visit = func(urn string) bool {
		if urn == to {
			return true
		}
		if visited[urn] {
			return false
		}
		visited[urn] = true
		return slices.ContainsFunc(byURN[urn].Dependencies, visit)
	}
	return visit(from)
}

// No more control planes start at once than there are lanes.
func TestControlPlanesStartInLanes(t *testing.T) {
	var tenants []string
	for i := range 9 {
		tenants = append(tenants, fmt.Sprintf(`{"name": "t%d"}`, i))
	}
	for cpus, lanes := range map[int]int{2: 1, 8: 2, 16: 4} {
		r, err := run(t, map[string]string{"tenants": "[" + strings.Join(tenants, ",") + "]"}, labHolding(cpus), false)
		if err != nil {
			t.Fatal(err)
		}
		free := 0
		for i := range 9 {
			own := r.byName(t, ":TenantControlPlane", fmt.Sprintf("t%d-control-plane", i))
			waits := 0
			for j := range 9 {
				if j != i && r.reaches(own.URN, r.byName(t, ":Command", fmt.Sprintf("t%d-control-plane-ready", j)).URN) {
					waits++
				}
			}
			if waits == 0 {
				free++
			}
			if want := i / lanes; waits != want {
				t.Errorf("%d CPUs: control plane %d waits for %d others, want %d", cpus, i, waits, want)
			}
		}
		if free != lanes {
			t.Errorf("%d CPUs: %d control planes start at once, want %d", cpus, free, lanes)
		}
	}
}

// What dies with a cluster is not deleted piece by piece; what does not die
// with it is.
func TestDeletedWith(t *testing.T) {
	r := articleLab(t)
	cluster := r.byName(t, ":Command", "management-cluster").URN
	control := r.byName(t, ":TenantControlPlane", "tenant-a-control-plane").URN
	for _, want := range []struct{ kind, name, with string }{
		{":TenantControlPlane", "tenant-a-control-plane", cluster},
		{":Release", "management-kamaji", cluster},
		{":ConfigGroup", "tenant-a-cni", control},
		{":Release", "tenant-a-hami", control},
		{":Command", "tenant-a-worker-0-join", control},
		{":Command", "tenant-a-cards-0-image", control},
		{":ConfigGroup", "tenant-a-cards-0-agent", control},
		{":Command", "tenant-a-worker-0-container", ""},
		{":Command", "management-cluster", ""},
		{":Network", "management-network", ""},
		{":GPUWorker", "tenant-a-worker-0", ""}, // its children would inherit it
		{":TenantPlane", "tenant-a", ""},
	} {
		if got := r.byName(t, want.kind, want.name).DeletedWith; got != want.with {
			t.Errorf("%s is deleted with %q, want %q", want.name, short(got), short(want.with))
		}
	}
}

// A container or cluster that is gone from the host, and only that, gets
// another incarnation.
func TestWhatIsGoneIsMadeAnew(t *testing.T) {
	const gone, there = "gpu-tenants-dev-tenant-a-worker-0", "gpu-tenants-dev-tenant-b-worker-0"
	r, err := run(t, map[string]string{}, labHolding(2, there), false)
	if err != nil {
		t.Fatal(err)
	}
	labels := func(name string) string {
		return fmt.Sprint(r.byName(t, ":Command", name).Inputs["triggers"].Mappable())
	}
	if labels := labels("tenant-b-worker-0-container"); !strings.Contains(labels, "worker1") {
		t.Errorf("the worker that is there would be replaced: %s", labels)
	}
	if labels := labels("tenant-a-worker-0-container"); strings.Contains(labels, "worker1") {
		t.Errorf("%s is gone and would not be replaced: %s", gone, labels)
	}
	without := labHolding(2, gone, there)
	without.observed.Cluster = nil
	r, err = run(t, map[string]string{}, without, false)
	if err != nil {
		t.Fatal(err)
	}
	if triggers := labels("management-cluster"); strings.Contains(triggers, "cluster1") {
		t.Errorf("the cluster is gone and would not be replaced: %s", triggers)
	}
	if labels := labels("tenant-b-worker-0-container"); strings.Contains(labels, "cluster1") {
		t.Errorf("a worker of the cluster that is gone would stay: %s", labels)
	}
}

// What a cluster cannot change in makes another one, and with it everything
// that goes by its incarnation.
func TestAnotherClusterTakesEverythingAlong(t *testing.T) {
	workers := []string{"gpu-tenants-dev-tenant-a-worker-0", "gpu-tenants-dev-tenant-b-worker-0"}
	own := func(raw map[string]string) string {
		r, err := run(t, raw, labHolding(2, workers...), false)
		if err != nil {
			t.Fatal(err)
		}
		identifier := func(name string) string {
			return r.byName(t, "pulumi:providers:kubernetes", name).Inputs["clusterIdentifier"].StringValue()
		}
		return identifier("management") + " " + identifier("tenant-a") + " " + fmt.Sprint(r.byName(t, ":Command", "tenant-a-worker-0-container").Inputs["triggers"].Mappable())
	}
	before := own(map[string]string{})
	if again := own(map[string]string{}); again != before {
		t.Fatalf("without a change, %s became %s", before, again)
	}
	for key, value := range map[string]string{"kubelet": `{"maxPods": 50}`, "network": "10.9.0.0/24", "kubernetesVersion": otherVersion(t)} {
		after := own(map[string]string{key: value})
		for i, part := range strings.Fields(before) {
			if i < 2 && part == strings.Fields(after)[i] {
				t.Errorf("%s makes another cluster, and %s stays", key, part)
			}
		}
		if strings.Contains(after, clusterThere()) {
			t.Errorf("%s makes another cluster, and something goes by the old one: %s", key, after)
		}
	}
}

// otherVersion is a pinned one that is not the default.
func otherVersion(t *testing.T) string {
	t.Helper()
	all := pins.Load().Kubernetes
	for version := range all.NodeImages {
		if version != all.Default {
			return version
		}
	}
	t.Skip("only one version is pinned")
	return ""
}

// A mirror is another way to the same images: it replaces nothing.
func TestMirrorReplacesNothing(t *testing.T) {
	triggers := func(mirror string) map[string]string {
		r, err := run(t, map[string]string{"mirror": mirror}, labHolding(2, "gpu-tenants-dev-tenant-a-worker-0", "gpu-tenants-dev-tenant-b-worker-0"), false)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for _, entry := range r.all {
			if entry.Type == "command:local:Command" {
				all[entry.Name] = fmt.Sprint(entry.Inputs["triggers"].Mappable())
			}
		}
		if image := r.byName(t, ":RemoteImage", "node-image-"+pins.Load().Kubernetes.Default).Inputs["name"].StringValue(); (mirror != "") != strings.HasPrefix(image, "mirror.example:5000/kindest/node") {
			t.Errorf("with mirror %q the node image is %s", mirror, image)
		}
		return all
	}
	if without, with := triggers(""), triggers("http://mirror.example:5000"); !maps.Equal(without, with) {
		t.Errorf("a mirror changes triggers:\n%v\n%v", without, with)
	}
}

// The order of the list carries no meaning.
func TestReorderingChangesNothing(t *testing.T) {
	render := func(tenants string) string {
		workers := []string{"gpu-tenants-dev-blue-worker-0", "gpu-tenants-dev-red-worker-0", "gpu-tenants-dev-red-worker-1", "gpu-tenants-dev-red-worker-2", "gpu-tenants-dev-green-worker-0"}
		r, err := run(t, map[string]string{"tenants": tenants, "artifactsDir": fixedArtifacts(t)}, labHolding(8, workers...), false)
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		for _, entry := range r.all {
			fmt.Fprintln(&text, render(entry))
		}
		return text.String()
	}
	one := `[{"name":"blue","gpus":["L4"]},{"name":"red","workers":[{"gpus":["A100"],"count":3}]},{"name":"green"}]`
	other := `[{"name":"green"},{"name":"red","workers":[{"gpus":["A100"],"count":3}]},{"name":"blue","gpus":["L4"]}]`
	if a, b := render(one), render(other); a != b {
		t.Error("the graph depends on the order of the list: " + firstDifference(a, b))
	}
}

// A wrong configuration or host registers nothing.
func TestNothingIsRegisteredOnAFault(t *testing.T) {
	for name, test := range map[string]struct {
		raw  map[string]string
		on   machine
		want string
	}{
		"unknown key":          {map[string]string{"tenant": "[]"}, labHolding(2), `tenant: unknown key`},
		"unknown model":        {map[string]string{"tenants": `[{"name":"a","gpus":["A1000x1"]}]`}, labHolding(2), `tenants[0].gpus[0]`},
		"more than the pool":   {map[string]string{"tenants": many(128), "network": "10.9.0.0/24"}, labHolding(2), "10.9.0.128-10.9.0.254"},
		"more than the subnet": {map[string]string{"tenants": `[{"name":"a","workers":[{"count":65}]}]`, "network": "10.9.0.0/24"}, labHolding(2), "addresses for 64 workers"},
		"overlapping networks": {map[string]string{"tenants": `[{"name":"a","podCidr":"10.192.0.0/11"}]`}, labHolding(2), "overlaps"},
		"host not ready":       {map[string]string{}, machine{faults: []host.Fault{{Check: "disk", Problem: "too full", Remedy: "empty it", Fatal: true}}}, "too full"},
		"no artifacts":         {map[string]string{"artifactsDir": "testdata/nowhere"}, labHolding(2), "testdata/nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := run(t, test.raw, test.on, false)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one that names %q", err, test.want)
			}
			if len(r.all) != 0 {
				t.Errorf("%d resources were registered, the first is %s", len(r.all), r.all[0].URN)
			}
		})
	}
}

func many(count int) string {
	var all []string
	for i := range count {
		all = append(all, fmt.Sprintf(`{"name":"t%d"}`, i))
	}
	return "[" + strings.Join(all, ",") + "]"
}

// A tenant goes forward one minor version at a time, and never back.
func TestUpgradesAreChecked(t *testing.T) {
	versions := slices.SortedFunc(maps.Keys(pins.Load().Kubernetes.NodeImages), func(a, b string) int { return strings.Compare(a, b) })
	if len(versions) < 3 {
		t.Skip("three versions are needed")
	}
	const worker = "gpu-tenants-dev-a-worker-0"
	running := func(version string) machine {
		m := labHolding(2, worker)
		m.observed.Workers[worker].Labels[host.LabelVersion] = version
		return m
	}
	for _, test := range []struct{ from, to, want string }{
		{versions[0], versions[1], ""},
		{versions[1], versions[1], ""},
		{versions[0], versions[2], "more than one minor"},
		{versions[1], versions[0], "no way back"},
	} {
		_, err := run(t, map[string]string{"tenants": fmt.Sprintf(`[{"name":"a","kubernetesVersion":%q}]`, test.to)}, running(test.from), false)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("from %s to %s: %v, want %q", test.from, test.to, err, test.want)
		}
	}
}

// An empty list of tenants is the management cluster alone.
func TestNoTenants(t *testing.T) {
	r, err := run(t, map[string]string{"tenants": "[]"}, labHolding(2), false)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range r.all {
		if strings.Contains(entry.Type, "TenantPlane") || strings.Contains(entry.Name, "worker") {
			t.Errorf("%s was registered", short(entry.URN))
		}
	}
	r.byName(t, ":Command", "management-kamaji-ready")
}

// With HAMi's own mock plugin there is no agent, and with the agent none of
// HAMi's.
func TestWhatStandsInForTheCards(t *testing.T) {
	for mock, agent := range map[string]bool{"agent": true, "hami": false} {
		r, err := run(t, map[string]string{"mock": mock}, labHolding(2), false)
		if err != nil {
			t.Fatal(err)
		}
		agents := 0
		for _, entry := range r.all {
			if strings.HasSuffix(entry.Name, "-agent") {
				agents++
			}
		}
		if agent != (agents == 3) || !agent && agents != 0 { // an image, and one agent on each worker
			t.Errorf("mock %s: %d resources of the agent", mock, agents)
		}
		values := fmt.Sprint(r.byName(t, ":Release", "tenant-a-hami").Inputs["values"].Mappable())
		if strings.Contains(values, "mockDevicePlugin") == agent {
			t.Errorf("mock %s: HAMi's values are %s", mock, values)
		}
	}
}

// A change of cards touches the cards' own resources and no worker.
func TestCardsAreTheCardsOwn(t *testing.T) {
	dir := fixedArtifacts(t)
	graph := func(gpus string) map[string]string {
		r, err := run(t, map[string]string{"tenants": fmt.Sprintf(`[{"name":"a","gpus":[%s]}]`, gpus), "artifactsDir": dir}, labHolding(2, "gpu-tenants-dev-a-worker-0"), false)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for _, entry := range r.all {
			all[entry.URN] = render(entry)
		}
		return all
	}
	before, after := graph(`"A100x1"`), graph(`"A100x1", "L4x2"`)
	changed := 0
	for urn, text := range after {
		if before[urn] != text {
			changed++
			if !strings.Contains(urn, "MockGPU") {
				t.Errorf("a change of cards changes %s: %s", short(urn), firstDifference(before[urn], text))
			}
		}
	}
	if changed == 0 || len(before) != len(after) {
		t.Errorf("%d resources changed, and their number went from %d to %d", changed, len(before), len(after))
	}
}

// fixedArtifacts is one folder for several runs of a test.
func fixedArtifacts(t *testing.T) string {
	t.Helper()
	if dir, ok := fixed[t.Name()]; ok {
		return dir
	}
	fixed[t.Name()] = artifactsDir(t)
	return fixed[t.Name()]
}

var fixed = map[string]string{}

// TestWakes: the lab is woken before anything else. A preview does it too: it
// reads the tenants' kubeconfigs, and an update begins with one.
func TestWakes(t *testing.T) {
	woken := 0
	lab := labHolding(2, "gpu-tenants-dev-tenant-a-worker-0", "gpu-tenants-dev-tenant-b-worker-0")
	lab.woken = &woken
	before, err := run(t, map[string]string{}, lab, false)
	if err != nil || woken != 1 {
		t.Fatalf("woken %d times: %v", woken, err)
	}
	lab.observed.Cluster.Name, lab.observed.Cluster.State = "gpu-tenants-dev-control-plane", "exited"
	if _, err := run(t, map[string]string{}, lab, true); err != nil || woken != 2 {
		t.Errorf("with a preview it was woken %d times: %v", woken, err)
	}
	after, err := run(t, map[string]string{}, lab, false)
	if err != nil || woken != 3 {
		t.Errorf("woken %d times: %v", woken, err)
	}
	if len(after.all) != len(before.all) {
		t.Errorf("%d resources, and %d before it was stopped", len(after.all), len(before.all))
	}
	lab.wakeErr = errors.New("it does not start")
	after, err = run(t, map[string]string{}, lab, false)
	if !errors.Is(err, lab.wakeErr) && (err == nil || !strings.Contains(err.Error(), "it does not start")) {
		t.Errorf("an error on the way: %v", err)
	}
	if len(after.all) > 0 {
		t.Errorf("registered all the same: %d", len(after.all))
	}
}
