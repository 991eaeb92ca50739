package components

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const worker = "lab-red-worker-0"

func containerEnvironment(more ...string) map[string]string {
	environment := map[string]string{
		"CONTAINER": worker, "NODE": "red-worker-0", "IMAGE": "registry.test/node:v9.9.9", "CONTENT": "node:v9.9.9", "NETWORK": "lab",
		"SUBNET": "10.1.0.0/20", "NEAR": "10.2.0.0/16,10.3.0.0/16", "ADDRESS": "10.1.4.7",
		"LABELS": "test.incarnation=one two\ntest.stack=lab", "OWNER": "test.stack=lab",
	}
	for i := 0; i < len(more); i += 2 {
		environment[more[i]] = more[i+1]
	}
	return environment
}

func TestWorkerContainer(t *testing.T) {
	m := newMachine(t)
	m.wantSuccess(m.run("worker-container.sh", containerEnvironment()), "id-1\n")
	made := m.containers[worker]
	if made == nil || made.image != "registry.test/node:v9.9.9" || made.labels["test.incarnation"] != "one two" || made.labels["test.stack"] != "lab" {
		t.Fatalf("the container is %+v", made)
	}
	for flag, want := range map[string][]string{
		"--hostname": {"red-worker-0"}, "--network": {"lab"}, "--ip": {"10.1.4.7"}, "--privileged": nil,
		"--restart": {"unless-stopped"}, "--cgroupns": {"private"}, "--env": nil,
		"--volume": {"/var", "/lib/modules:/lib/modules:ro"}, "--tmpfs": {"/tmp", "/run"},
	} {
		if got := made.flags[flag]; !slices.Equal(got, want) {
			t.Errorf("%s is %q, want %q", flag, got, want)
		}
	}

	// The same again is the same container, running; and so is another way to
	// the same image.
	for _, environment := range []map[string]string{containerEnvironment(), containerEnvironment("IMAGE", "mirror.test/node:v9.9.9", "SUBNET", "10.1.0.0/16")} {
		made.running = false
		m.wantSuccess(m.run("worker-container.sh", environment), "id-1\n")
		if !made.running || m.count("docker run") != 1 || m.count("docker rm") != 0 {
			t.Errorf("the stopped container runs: %v; calls %v", made.running, m.calls)
		}
	}

	// What a container cannot change makes another one.
	changes := map[string]string{"NODE": "other", "CONTENT": "node:v9.9.8", "NETWORK": "other", "ADDRESS": "10.1.4.8", "LABELS": "test.incarnation=two\ntest.stack=lab"}
	for _, variable := range slices.Sorted(maps.Keys(changes)) {
		before := m.containers[worker].id
		m.calls = nil
		got := m.run("worker-container.sh", containerEnvironment(variable, changes[variable]))
		if now := m.containers[worker].id; got.code != 0 || now == before || got.stdout != now+"\n" || m.count("docker rm") != 1 {
			t.Errorf("another %s: container %s became %s, and the script did %+v", variable, before, now, got)
		}
	}
}

func TestWorkerContainerOfSomebodyElse(t *testing.T) {
	for name, labels := range map[string]map[string]string{
		"another stack's": {"test.stack": "other"}, "nobody's": {}, "an empty label": {"test.stack": ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.containers[worker] = &container{id: "theirs", labels: labels}
			m.wantFailure(m.run("worker-container.sh", containerEnvironment()), worker+" exists and is not this stack's", "test.stack=lab")
			if m.containers[worker] == nil || m.containers[worker].running || m.containers[worker].id != "theirs" {
				t.Errorf("their container was touched: %v", m.calls)
			}
		})
	}
}

// Docker leaves a container when it cannot start it; the next run must not
// find that.
func TestWorkerContainerCannotStart(t *testing.T) {
	m := newMachine(t)
	m.broken["docker run"] = true
	m.wantFailure(m.run("worker-container.sh", containerEnvironment()), "Address already in use", worker+" could not be started")
	if len(m.containers) != 0 {
		t.Errorf("left is %v", m.containers)
	}
}

// The host's proxy is the node's, and what is near is not asked of it.
func TestWorkerContainerBehindAProxy(t *testing.T) {
	for name, test := range map[string]struct {
		host map[string]string
		want []string
	}{
		"none":         {nil, nil},
		"upper case":   {map[string]string{"HTTPS_PROXY": "http://proxy.test", "NO_PROXY": "near.test"}, []string{"HTTPS_PROXY", "NO_PROXY=near.test,10.1.0.0/20,10.2.0.0/16,10.3.0.0/16,.svc,.cluster.local,localhost,127.0.0.1", "no_proxy=near.test,10.1.0.0/20,10.2.0.0/16,10.3.0.0/16,.svc,.cluster.local,localhost,127.0.0.1"}},
		"nothing near": {map[string]string{"HTTPS_PROXY": "http://proxy.test"}, []string{"HTTPS_PROXY", "NO_PROXY=10.1.0.0/20,10.2.0.0/16,10.3.0.0/16,.svc,.cluster.local,localhost,127.0.0.1", "no_proxy=10.1.0.0/20,10.2.0.0/16,10.3.0.0/16,.svc,.cluster.local,localhost,127.0.0.1"}},
		"lower case":   {map[string]string{"http_proxy": "http://proxy.test", "no_proxy": "near.test"}, []string{"http_proxy", "NO_PROXY=near.test,10.1.0.0/20,10.2.0.0/16,10.3.0.0/16,.svc,.cluster.local,localhost,127.0.0.1", "no_proxy=near.test,10.1.0.0/20,10.2.0.0/16,10.3.0.0/16,.svc,.cluster.local,localhost,127.0.0.1"}},
		"empty words":  {map[string]string{"HTTP_PROXY": "", "no_proxy": ""}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			environment := containerEnvironment()
			maps.Copy(environment, test.host)
			m.wantSuccess(m.run("worker-container.sh", environment), "id-1\n")
			if got := m.containers[worker].flags["--env"]; !slices.Equal(got, test.want) {
				t.Errorf("the container's environment is %q, want %q", got, test.want)
			}
		})
	}
}

func TestWorkerContainerDelete(t *testing.T) {
	for name, there := range map[string]bool{"present": true, "absent": false} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.containers["other"] = &container{}
			if there {
				m.containers[worker] = &container{running: true}
			}
			m.wantSuccess(m.run("worker-container-delete.sh", map[string]string{"CONTAINER": worker}), "")
			if len(m.containers) != 1 || m.containers["other"] == nil {
				t.Errorf("left are %v, want the other one", m.containers)
			}
		})
	}
}

// Docker being away is not the container being away: state must keep it.
func TestWorkerContainerDeleteWithoutDocker(t *testing.T) {
	m := newMachine(t)
	m.broken["docker ps"] = true
	m.wantFailure(m.run("worker-container-delete.sh", map[string]string{"CONTAINER": worker}), "Cannot connect to the Docker daemon")
}

// tenantCluster is a tenant's cluster with a worker's container that may join.
type tenantCluster struct {
	*machine

	deaf          int  // looks at containerd that fail
	kubeletConf   bool // the node thinks that it has joined
	node          bool // the cluster has its Node
	failingJoins  int
	readyAfter    int    // looks at the Node until it is Ready
	version       string // of the kubelet
	signs         bool   // the control plane signs cluster-info
	refusesTokens bool

	tokens map[string]bool // in the cluster, by id
	made   []bootstrapToken
	joins  []string // what kubeadm was given
}

type bootstrapToken struct {
	Kind, Type string
	Metadata   struct{ Name, Namespace string }
	StringData map[string]string
}

const (
	tokenID     = "abcdef"
	tokenSecret = "0123456789sEcReT"
)

func newTenantCluster(t *testing.T) *tenantCluster {
	t.Helper()
	c := &tenantCluster{machine: newMachine(t), version: "v9.9.9", signs: true, tokens: map[string]bool{}}
	c.containers[managementNode] = &container{running: true}
	c.containers[worker] = &container{running: true}
	c.machine.inside = c.inside
	c.machine.kubectl = c.kubectl
	return c
}

func (c *tenantCluster) environment() map[string]string {
	return map[string]string{
		"MANAGEMENT_NODE": managementNode, "TENANT": "red", "CONTAINER": worker, "NODE": "red-worker-0", "VERSION": "v9.9.9",
		"MIRROR_HOSTS": "# gpu-tenants\n", "TOKEN_ID": tokenID, "TOKEN_SECRET": tokenSecret,
		"JOIN_CONFIG": "kind: JoinConfiguration\ntoken: " + tokenID + "." + tokenSecret + "\n",
	}
}

func (c *tenantCluster) inside(name string, args []string, stdin string) reply {
	switch {
	case name != worker:
	case starts(args, "crictl"):
		if c.deaf--; c.deaf >= 0 {
			return reply{stderr: "connection refused", code: 1}
		}
		return reply{stdout: "{}"}
	case starts(args, "test", "-f", "/etc/kubernetes/kubelet.conf"):
		return reply{code: map[bool]int{true: 0, false: 1}[c.kubeletConf]}
	case starts(args, "journalctl"):
		return reply{stdout: "the kubelet's last words\n"}
	case starts(args, "sh", "-euc") && strings.Contains(args[2], "kubeadm join"):
		c.joins = append(c.joins, stdin)
		if c.failingJoins--; c.failingJoins >= 0 {
			return reply{stderr: "kubeadm: connection refused", code: 1}
		}
		c.kubeletConf, c.node = true, true
		return reply{stdout: "This node has joined the cluster"}
	}
	return c.unknown(name, args)
}

func (c *tenantCluster) kubectl(tenant string, args []string, stdin string) reply {
	missing := reply{stderr: "Error from server (NotFound)", code: 1}
	switch {
	case tenant != "red":
	case starts(args, "apply", "--filename", "-") && c.refusesTokens:
		return reply{stderr: "forbidden", code: 1}
	case starts(args, "apply", "--filename", "-"), starts(args, "delete", "--filename", "-"):
		var token bootstrapToken
		if err := json.Unmarshal([]byte(stdin), &token); err != nil {
			c.t.Errorf("the token's Secret: %v", err)
		}
		id := token.StringData["token-id"]
		if starts(args, "delete") {
			delete(c.tokens, id)
			return reply{}
		}
		c.made = append(c.made, token)
		c.tokens[id] = true
		return reply{stdout: "secret/" + token.Metadata.Name}
	case starts(args, "--namespace", "kube-public", "get", "configmap", "cluster-info"):
		signature := ""
		if c.signs && c.tokens[tokenID] {
			signature = `"jws-kubeconfig-` + tokenID + `":"signature"`
		}
		return get(c.t, `{"data":{`+signature+`}}`, args)
	case starts(args, "get", "node", "red-worker-0"):
		if !c.node {
			return missing
		}
		ready := "True"
		if asked := !slices.Contains(args, "name"); asked && c.readyAfter > 0 {
			c.readyAfter--
			ready = "False"
		}
		return get(c.t, fmt.Sprintf(`{"status":{"conditions":[{"type":"MemoryPressure","status":"False"},{"type":"Ready","status":%q}],"nodeInfo":{"kubeletVersion":%q}}}`, ready, c.version), args)
	case starts(args, "describe", "node"):
		return reply{stdout: "Name: x\nConditions:\n  Ready False NetworkPluginNotReady\nAddresses:\n  10.1.4.7\nSystem Info:\n"}
	case starts(args, "--namespace", "kube-system", "get", "pods"):
		return reply{stdout: "calico-node Pending\n"}
	}
	return c.unknown("kubectl", args)
}

// join runs the script, and looks for the token's secret where it must not be.
func (c *tenantCluster) join() result {
	c.t.Helper()
	got := c.run("worker-join.sh", c.environment())
	for _, call := range c.calls {
		if strings.Contains(call.line(), tokenSecret) {
			c.t.Errorf("the token's secret is on a command line: %s", call)
		}
	}
	if strings.Contains(got.stdout+got.stderr, tokenSecret) {
		c.t.Errorf("the token's secret is printed: %s%s", got.stdout, got.stderr)
	}
	if len(c.tokens) != 0 {
		c.t.Errorf("the token stays in the cluster: %v", c.tokens)
	}
	return got
}

func TestWorkerJoin(t *testing.T) {
	for name, test := range map[string]struct {
		prepare      func(*tenantCluster)
		tokens, join int
	}{
		"fresh":                  {func(*tenantCluster) {}, 1, 1},
		"joined":                 {func(c *tenantCluster) { c.kubeletConf, c.node = true, true }, 0, 0},
		"joined, its Node gone":  {func(c *tenantCluster) { c.kubeletConf = true }, 1, 1},
		"a Node and no kubelet":  {func(c *tenantCluster) { c.node = true }, 1, 1},
		"containerd starts late": {func(c *tenantCluster) { c.deaf = 2 }, 1, 1},
		"join is tried again":    {func(c *tenantCluster) { c.failingJoins = 2 }, 1, 3},
		"Ready a while later":    {func(c *tenantCluster) { c.readyAfter = 3 }, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTenantCluster(t)
			test.prepare(c)
			c.wantSuccess(c.join(), "red-worker-0")
			if len(c.made) != test.tokens || len(c.joins) != test.join {
				t.Errorf("%d tokens and %d joins, want %d and %d", len(c.made), len(c.joins), test.tokens, test.join)
			}
			for _, config := range c.joins {
				if config != c.environment()["JOIN_CONFIG"] {
					t.Errorf("kubeadm was given %q", config)
				}
			}
			if c.mirrors[worker] != "# gpu-tenants\n" {
				t.Errorf("the node's mirror is %q", c.mirrors[worker])
			}
		})
	}
}

// The token is one that kubeadm and Kubernetes take for joining and nothing
// else, and does not live long.
func TestWorkerJoinToken(t *testing.T) {
	c := newTenantCluster(t)
	c.wantSuccess(c.join(), "red-worker-0")
	if len(c.made) != 1 {
		t.Fatalf("%d tokens were made", len(c.made))
	}
	token := c.made[0]
	if token.Kind != "Secret" || token.Type != "bootstrap.kubernetes.io/token" || token.Metadata.Name != "bootstrap-token-"+tokenID || token.Metadata.Namespace != "kube-system" {
		t.Errorf("the token is %+v", token)
	}
	expires, err := time.Parse(time.RFC3339, token.StringData["expiration"])
	if left := time.Until(expires); err != nil || left < 5*time.Minute || left > 11*time.Minute {
		t.Errorf("the token expires in %s (%v), want about ten minutes", left, err)
	}
	delete(token.StringData, "expiration")
	want := map[string]string{
		"token-id": tokenID, "token-secret": tokenSecret, "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
		"usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
	}
	if !maps.Equal(token.StringData, want) {
		t.Errorf("the token's data are %v, want %v", token.StringData, want)
	}
}

func TestWorkerJoinFails(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(*tenantCluster)
		joins   bool
		telling []string
	}{
		"containerd is dead":    {func(c *tenantCluster) { c.deaf = 1000 }, false, []string{"the container's last words", "containerd in " + worker + " does not answer"}},
		"token refused":         {func(c *tenantCluster) { c.refusesTokens = true }, false, []string{"forbidden"}},
		"token not signed":      {func(c *tenantCluster) { c.signs = false }, false, []string{"the control plane of red did not sign"}},
		"kubeadm fails":         {func(c *tenantCluster) { c.failingJoins = 1000 }, true, []string{"kubeadm: connection refused", "the kubelet's last words", "red-worker-0 could not join red"}},
		"never Ready":           {func(c *tenantCluster) { c.readyAfter = 1000 }, true, []string{"seen: Ready False v9.9.9; wanted: Ready True v9.9.9", "NetworkPluginNotReady", "calico-node Pending", "did not become Ready at v9.9.9 within 420 s"}},
		"of an earlier version": {func(c *tenantCluster) { c.version = "v9.8.0" }, true, []string{"seen: Ready True v9.8.0"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTenantCluster(t)
			test.prepare(c)
			c.wantFailure(c.join(), test.telling...)
			if (len(c.joins) > 0) != test.joins {
				t.Errorf("kubeadm ran %d times", len(c.joins))
			}
		})
	}
}

// What the join does inside the node: the configuration, which has the token in
// it, is there for as long as kubeadm runs and for root alone; and what an
// earlier join left is reset first.
func TestJoinInsideTheNode(t *testing.T) {
	c := newTenantCluster(t)
	c.wantSuccess(c.join(), "red-worker-0")
	arguments := sent(t, c.machine, worker, "kubeadm join")

	for name, test := range map[string]struct {
		joined bool
		code   int
		calls  []string
	}{
		"fresh":         {false, 0, []string{"join"}},
		"a second time": {true, 0, []string{"reset", "join"}},
		"kubeadm fails": {false, 3, []string{"join"}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			file := filepath.Join(root, "run/kubeadm-join.yaml")
			for _, folder := range []string{"run", "etc/kubernetes"} {
				if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if test.joined {
				if err := os.WriteFile(filepath.Join(root, "etc/kubernetes/kubelet.conf"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var calls []string
			f := newFakes(t, func(call call) reply {
				calls = append(calls, call.args[0])
				if call.args[0] == "reset" {
					return reply{}
				}
				if !slices.Equal(call.args, []string{"join", "--config", file}) {
					t.Errorf("kubeadm is called with %q", call.args)
				}
				content, err := os.ReadFile(file)
				if err != nil || string(content) != "the configuration" {
					t.Errorf("kubeadm's configuration is %q (%v)", content, err)
				}
				if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
					t.Errorf("kubeadm's configuration is %v (%v), want it to be root's alone", info.Mode(), err)
				}
				return reply{code: test.code}
			}, "kubeadm")
			if got := inside(f, arguments, root, "the configuration", nil); got.code != test.code {
				t.Errorf("exit status %d, want %d: %s", got.code, test.code, got.stderr)
			}
			if !slices.Equal(calls, test.calls) {
				t.Errorf("kubeadm is called to %q, want %q", calls, test.calls)
			}
			if _, err := os.Stat(file); err == nil {
				t.Error("the configuration stays in the node")
			}
		})
	}
}

func TestWorkerLeave(t *testing.T) {
	const (
		own      = `{"metadata":{"name":"red-worker-1"},"spec":{},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`
		similar  = `{"metadata":{"name":"red-worker-10"},"spec":{},"status":{"conditions":[{"type":"DiskPressure","status":"False"},{"type":"Ready","status":"True"}]}}`
		notReady = `{"metadata":{"name":"red-worker-2"},"spec":{},"status":{"conditions":[{"type":"Ready","status":"Unknown"}]}}`
		cordoned = `{"metadata":{"name":"red-worker-3"},"spec":{"unschedulable":true},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`
	)
	for name, test := range map[string]struct {
		nodes          []string
		dead           bool // the API server
		stuck          bool // draining fails
		drains, delete int
		says           string
	}{
		"another Ready node":      {nodes: []string{own, similar}, drains: 1, delete: 1},
		"one of many":             {nodes: []string{notReady, own, cordoned, similar}, drains: 1, delete: 1},
		"the only node":           {nodes: []string{own}, delete: 1},
		"another, not Ready":      {nodes: []string{own, notReady}, delete: 1},
		"another, cordoned":       {nodes: []string{own, cordoned}, delete: 1},
		"it cannot be drained":    {nodes: []string{own, similar}, stuck: true, drains: 1, delete: 1, says: "red-worker-1 could not be drained"},
		"it has left already":     {nodes: []string{similar}},
		"the API server is gone":  {dead: true},
		"the API server dies now": {nodes: []string{own}, delete: 1, says: "node red-worker-1 is left to it"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.containers[managementNode] = &container{running: true}
			m.kubectl = func(tenant string, args []string, _ string) reply {
				list := strings.Join(test.nodes, ",")
				switch {
				case tenant != "red":
				case test.dead:
					return reply{stderr: "connection refused", code: 1}
				case starts(args, "get", "node", "red-worker-1"):
					return reply{code: map[bool]int{true: 0, false: 1}[strings.Contains(list, `"red-worker-1"`)]}
				case starts(args, "get", "nodes"):
					return get(t, `{"items":[`+list+`]}`, args)
				case starts(args, "drain", "red-worker-1"):
					return reply{stdout: "evicting", code: map[bool]int{true: 1, false: 0}[test.stuck]}
				case starts(args, "delete", "node", "red-worker-1"):
					return reply{stdout: "deleted", code: map[bool]int{true: 1, false: 0}[strings.Contains(name, "dies")]}
				}
				return m.unknown("kubectl", args)
			}
			got := m.run("worker-leave.sh", map[string]string{"MANAGEMENT_NODE": managementNode, "TENANT": "red", "NODE": "red-worker-1"})
			m.wantSuccess(got, "")
			m.wantCounts(map[string]int{" drain ": test.drains, " delete node ": test.delete})
			if !strings.Contains(got.stderr, test.says) {
				t.Errorf("it says %q, want %q", got.stderr, test.says)
			}
			if test.dead && len(m.calls) != 1 {
				t.Errorf("a dead API server is asked %d times, and each can last: %v", len(m.calls), m.calls)
			}
		})
	}
}
