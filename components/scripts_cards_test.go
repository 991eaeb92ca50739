package components

import (
	"slices"
	"strings"
	"testing"
)

// The agent's image goes from this host's Docker into the worker once.
func TestAgentLoad(t *testing.T) {
	const image, archive = "lab/mock-gpu-agent:0123", "the image's layers"
	for name, test := range map[string]struct {
		inNode, inDocker bool
		imports          int
		telling          string
	}{
		"not there yet": {false, true, 1, ""},
		"there":         {true, false, 0, ""},
		"nowhere":       {false, false, 0, "image " + image + " is not in Docker"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.containers[worker] = &container{running: true}
			docker := m.answer
			m.answer = func(c call) reply {
				switch {
				case starts(c.args, "image", "inspect", image):
					return reply{code: map[bool]int{true: 0, false: 1}[test.inDocker]}
				case starts(c.args, "save", image):
					return reply{stdout: archive}
				}
				return docker(c)
			}
			m.inside = func(_ string, args []string, stdin string) reply {
				switch {
				case starts(args, "ctr", "--namespace", "k8s.io", "images", "ls", "--quiet"):
					// Another tag, and a name that has this one in it, are others.
					listed := "docker.io/lab/mock-gpu-agent:0122\ndocker.io/" + image + "4\n"
					if test.inNode {
						listed += "docker.io/" + image + "\n"
					}
					return reply{stdout: listed}
				case starts(args, "ctr", "--namespace", "k8s.io", "images", "import"):
					if stdin != archive {
						t.Errorf("containerd is given %q", stdin)
					}
					return reply{stdout: "unpacking"}
				}
				return m.unknown("the node", args)
			}
			got := m.run("agent-load.sh", map[string]string{"CONTAINER": worker, "IMAGE": image})
			m.wantCounts(map[string]int{" images import ": test.imports})
			if test.telling != "" {
				m.wantFailure(got, test.telling)
				return
			}
			m.wantSuccess(got, "")
		})
	}
}

// newNodeOf is a machine whose tenant has or lacks the Node.
func newNodeOf(t *testing.T, there bool) *machine {
	t.Helper()
	m := newMachine(t)
	m.containers[managementNode] = &container{running: true}
	m.kubectl = func(tenant string, args []string, _ string) reply {
		switch {
		case tenant != "red":
		case !there:
			return reply{stderr: "Error from server (NotFound)", code: 1}
		case starts(args, "get", "node", "red-worker-0"), starts(args, "annotate", "node", "red-worker-0"),
			starts(args, "patch", "node", "red-worker-0", "--subresource", "status"):
			return reply{stdout: "done"}
		}
		return m.unknown("kubectl", args)
	}
	return m
}

func TestCardsHAMi(t *testing.T) {
	const register = `[{"id":"GPU-one","type":"NVIDIA L4"}]`
	environment := map[string]string{"MANAGEMENT_NODE": managementNode, "TENANT": "red", "NODE": "red-worker-0", "REGISTER": register, "GPUS": "20"}
	m := newNodeOf(t, true)
	m.wantSuccess(m.run("cards-hami.sh", environment), "")
	if annotate := sent(t, m, managementNode, " annotate "); !slices.Contains(annotate, "hami.io/node-nvidia-register="+register) || !slices.Contains(annotate, "--overwrite") {
		t.Errorf("the Node is annotated by %q", annotate)
	}
	const status = `{"status":{"capacity":{"nvidia.com/gpu":"20"},"allocatable":{"nvidia.com/gpu":"20"}}}`
	if patch := sent(t, m, managementNode, " patch "); patch[len(patch)-1] != status {
		t.Errorf("the Node's status is patched by %q, want %s", patch, status)
	}
	m = newNodeOf(t, false)
	m.wantFailure(m.run("cards-hami.sh", environment), "NotFound")
}

func TestCardsWithdraw(t *testing.T) {
	environment := map[string]string{"MANAGEMENT_NODE": managementNode, "TENANT": "red", "NODE": "red-worker-0"}
	m := newNodeOf(t, true)
	m.wantSuccess(m.run("cards-withdraw.sh", environment), "")
	if annotate := sent(t, m, managementNode, " annotate "); !slices.Contains(annotate, "hami.io/node-nvidia-register-") || !slices.Contains(annotate, "hami.io/node-handshake-") {
		t.Errorf("the annotations are taken by %q", annotate)
	}
	patch := sent(t, m, managementNode, " patch ")
	for _, resource := range []string{"gpu", "gpumem", "gpucores"} {
		if strings.Count(patch[len(patch)-1], `"nvidia.com/`+resource+`":"0"`) != 2 {
			t.Errorf("%s is not taken from capacity and allocatable: %s", resource, patch[len(patch)-1])
		}
	}
	// Where the Node is gone, so are its cards.
	m = newNodeOf(t, false)
	m.wantSuccess(m.run("cards-withdraw.sh", environment), "")
}
