package components

import (
	"strings"
	"testing"
)

const managementNode = "lab-control-plane"

// newKindMachine is a machine on which an API server answers, as the named
// number of looks has passed.
func newKindMachine(t *testing.T, unanswered int) *machine {
	t.Helper()
	m := newMachine(t)
	m.kubectl = func(tenant string, args []string, _ string) reply {
		switch {
		case tenant != "":
		case starts(args, "get", "--raw", "/readyz"):
			if unanswered--; unanswered >= 0 {
				return reply{stderr: "connection refused", code: 1}
			}
			return reply{stdout: "ok"}
		case starts(args, "wait", "--for=condition=Ready", "node", "--all"):
			return reply{stdout: "condition met"}
		}
		return m.unknown("kubectl", args)
	}
	return m
}

func clusterEnvironment() map[string]string {
	return map[string]string{
		"CLUSTER": "lab", "IMAGE": "registry.test/node:v9.9.9", "CONFIG": "kind: Cluster\n", "INCARNATION": "second",
		"MIRROR_HOSTS": "# gpu-tenants\n", "KIND_EXPERIMENTAL_DOCKER_NETWORK": "lab",
	}
}

const markerFile = "/kind/gpu-tenants-incarnation"

func TestClusterCreate(t *testing.T) {
	kept := map[string]int{" create cluster ": 0, " delete cluster ": 0, "docker start " + managementNode: 1}
	made := map[string]int{" create cluster ": 1, " delete cluster ": 1, "docker start": 0}
	for name, test := range map[string]struct {
		before *container
		slow   int // looks at the API server that fail
		want   map[string]int
		id     string
	}{
		"fresh":                           {nil, 0, made, "id-1"},
		"whole":                           {&container{id: "old", running: true, files: map[string]string{markerFile: "second"}}, 0, kept, "old"},
		"whole and stopped":               {&container{id: "old", files: map[string]string{markerFile: "second"}}, 2, kept, "old"},
		"of another incarnation":          {&container{id: "old", running: true, files: map[string]string{markerFile: "first"}}, 0, made, "id-1"},
		"half-made":                       {&container{id: "old", running: true, files: map[string]string{}}, 0, made, "id-1"},
		"with an API server that is slow": {nil, 3, made, "id-1"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newKindMachine(t, test.slow)
			if test.before != nil {
				m.containers[managementNode] = test.before
			}
			got := m.run("cluster-create.sh", clusterEnvironment())
			m.wantSuccess(got, kindKubeconfig)
			if strings.Contains(got.stderr, "SECRET-MARK") {
				t.Errorf("the kubeconfig is on standard error: %s", got.stderr)
			}
			m.wantCounts(test.want)
			node := m.containers[managementNode]
			if node == nil || !node.running || node.id != test.id || node.files[markerFile] != "second" {
				t.Fatalf("the node is %+v, want %s running and marked", node, test.id)
			}
			if m.mirrors[managementNode] != "# gpu-tenants\n" {
				t.Errorf("the node's mirror is %q", m.mirrors[managementNode])
			}
			if test.id != "old" && (node.image != "registry.test/node:v9.9.9" || node.files["config"] != "kind: Cluster\n") {
				t.Errorf("kind was given image %q and configuration %q", node.image, node.files["config"])
			}
		})
	}
}

func TestClusterCreateFails(t *testing.T) {
	whole := func() *container { return &container{id: "old", files: map[string]string{markerFile: "second"}} }
	for name, test := range map[string]struct {
		before  *container
		broken  string
		slow    int
		telling []string
	}{
		"kind":       {nil, "kind create", 0, []string{"no space left", "kind could not create cluster lab", "--retain --name lab"}},
		"docker":     {whole(), "docker start", 0, []string{"address already in use"}},
		"API server": {nil, "", 1000, []string{"connection refused", "the API server of cluster lab does not answer"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newKindMachine(t, test.slow)
			m.broken[test.broken] = true
			if test.before != nil {
				m.containers[managementNode] = test.before
			}
			m.wantFailure(m.run("cluster-create.sh", clusterEnvironment()), test.telling...)
			if node := m.containers[managementNode]; test.before == nil && node != nil && node.files[markerFile] != "" {
				t.Error("the cluster is not whole and is marked as if it were: the next run would keep it")
			}
		})
	}
}

// A node that does not become Ready is no cluster either.
func TestClusterCreateWaitsForTheNode(t *testing.T) {
	m := newKindMachine(t, 0)
	answers := m.kubectl
	m.kubectl = func(tenant string, args []string, stdin string) reply {
		if starts(args, "wait") {
			return reply{stderr: "timed out waiting for the condition", code: 1}
		}
		return answers(tenant, args, stdin)
	}
	m.wantFailure(m.run("cluster-create.sh", clusterEnvironment()), "timed out waiting", "the node of cluster lab is not Ready")
	if node := m.containers[managementNode]; node == nil || node.files[markerFile] != "" {
		t.Errorf("the node is %+v, want one that is not marked as whole", node)
	}
}

func TestClusterDelete(t *testing.T) {
	for name, there := range map[string]bool{"present": true, "absent": false} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.containers["other-control-plane"] = &container{}
			if there {
				m.containers[managementNode] = &container{}
			}
			m.wantSuccess(m.run("cluster-delete.sh", map[string]string{"CLUSTER": "lab"}), "")
			if len(m.containers) != 1 || m.containers["other-control-plane"] == nil {
				t.Errorf("left are %v, want the other cluster's node", m.containers)
			}
		})
	}
}
