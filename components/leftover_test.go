package components

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestLabels(t *testing.T) {
	labels := Labels{All: map[string]string{"b": "2=3", "a": "1"}, Owner: "b"}
	if got, want := labels.pairs(), []string{"a=1", "b=2=3"}; !slices.Equal(got, want) {
		t.Errorf("the pairs are %q, want %q", got, want)
	}
	if labels.owner() != "b=2=3" {
		t.Errorf("the owner is %q", labels.owner())
	}
}

// What an interrupted run left is removed; what may be somebody's is not.
func TestRemoveNetwork(t *testing.T) {
	labels := Labels{All: map[string]string{"test.stack": "lab", "test.incarnation": "two"}, Owner: "test.stack"}
	for name, test := range map[string]struct {
		inspect reply
		rm      reply
		removed bool
		want    []string // in the error; nil: none
	}{
		"absent":                    {inspect: reply{stdout: "[]\n", stderr: "Error: No such network: lab", code: 1}},
		"ours, of another making":   {inspect: reply{stdout: `[{"Id":"abc","Labels":{"test.stack":"lab","test.incarnation":"one"},"Containers":{}}]`}, removed: true},
		"ours, Docker says null":    {inspect: reply{stdout: `[{"Id":"abc","Labels":{"test.stack":"lab"},"Containers":null}]`}, removed: true},
		"another stack's":           {inspect: reply{stdout: `[{"Id":"abc","Labels":{"test.stack":"other"},"Containers":{}}]`}, want: []string{"docker network lab", "not this stack's", "test.stack=lab"}},
		"nobody's":                  {inspect: reply{stdout: `[{"Id":"abc","Labels":null}]`}, want: []string{"not this stack's"}},
		"ours, with containers":     {inspect: reply{stdout: `[{"Id":"abc","Labels":{"test.stack":"lab"},"Containers":{"x":{},"y":{}}}]`}, want: []string{"docker network lab", "2 containers", "make purge"}},
		"another's with containers": {inspect: reply{stdout: `[{"Id":"abc","Labels":{},"Containers":{"x":{}}}]`}, want: []string{"not this stack's"}},
		"no answer":                 {inspect: reply{stdout: "words"}, want: []string{"docker network inspect lab"}},
		"an empty answer":           {inspect: reply{stdout: "[]"}, want: []string{"docker network inspect lab"}},
		"it cannot be removed":      {inspect: reply{stdout: `[{"Id":"abc","Labels":{"test.stack":"lab"}}]`}, rm: reply{stderr: "has active endpoints", code: 1}, removed: true, want: []string{"docker network rm lab", "has active endpoints"}},
	} {
		t.Run(name, func(t *testing.T) {
			var f *fakes
			f = newFakes(t, func(c call) reply {
				switch {
				case slices.Equal(c.args, []string{"network", "inspect", "lab"}):
					return test.inspect
				case slices.Equal(c.args, []string{"network", "rm", "abc"}): // by id: another can have the name
					return test.rm
				}
				return f.unknown("docker", c.args)
			}, "docker")
			t.Setenv("PATH", f.bin+":"+os.Getenv("PATH"))
			var err error
			f.during(func() { err = removeNetwork(t.Context(), "lab", labels) })
			if (err != nil) != (test.want != nil) {
				t.Fatalf("error %v, want %q", err, test.want)
			}
			for _, text := range append(test.want, "") {
				if err != nil && (!strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "%!")) {
					t.Errorf("error %q, want %q in it", err, text)
				}
			}
			if removed := f.count("network rm") == 1; removed != test.removed {
				t.Errorf("removed: %v, want %v", removed, test.removed)
			}
		})
	}
}

// Only Helm's own records of this one release go, in the right cluster; before
// an update only those of what never ended.
func TestReleaseLeftoverScript(t *testing.T) {
	for which, selector := range map[string]string{
		"all":     "owner=helm,name=hami",
		"pending": "owner=helm,name=hami,status in (pending-install,pending-upgrade,pending-rollback)",
	} {
		for name, tenant := range map[string]string{"management cluster": "", "tenant": "tenant-a"} {
			t.Run(which+", "+name, func(t *testing.T) {
				m := newMachine(t)
				m.containers[managementNode] = &container{running: true}
				m.kubectl = func(asked string, args []string, _ string) reply {
					want := []string{"--namespace", "kube-system", "delete", "secret", "--ignore-not-found", "--selector", selector}
					if asked != tenant || !slices.Equal(args, want) {
						t.Errorf("%q of tenant %q is asked for, want %q of %q", args, asked, want, tenant)
					}
					return reply{stdout: "No resources found\n"}
				}
				got := m.run("release-leftover.sh", map[string]string{
					"MANAGEMENT_NODE": managementNode, "TENANT": tenant, "NAMESPACE": "kube-system", "RELEASE": "hami", "WHICH": which,
				})
				m.wantSuccess(got, "No resources found\n")
				m.wantCounts(map[string]int{"delete secret": 1})
			})
		}
	}
}
