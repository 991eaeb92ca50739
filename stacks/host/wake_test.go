package host_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpu-tenants/gpu-tenants/stacks/host"
)

// sleepers is a stack with a worker in each state, and a cluster in the one given.
func sleepers(cluster host.Node) *host.Observed {
	o := &host.Observed{Names: names, Workers: map[string]host.Node{}}
	for _, state := range []string{"exited", "created", "paused", "running", "restarting", "removing", "dead"} {
		o.Workers["w-"+state] = host.Node{Name: "w-" + state, State: state, Incarnation: "1"}
	}
	cluster.Name = names.ControlPlane()
	o.Cluster = &cluster
	return o
}

const (
	asksCluster = "docker exec proj-dev-control-plane kubectl --kubeconfig=/etc/kubernetes/admin.conf get --raw=/readyz"
	asksTenants = "docker exec proj-dev-control-plane kubectl --kubeconfig=/etc/kubernetes/admin.conf get tenantcontrolplanes.kamaji.clastix.io"
	asksTenant  = "docker exec proj-dev-control-plane curl --silent --show-error --fail --insecure --max-time 5 https://"
	startsTwo   = "docker start w-created w-exited"
	unpausesOne = "docker unpause w-paused"
)

// wakeable answers the commands of Wake: two tenants that serve, one that never did.
func wakeable() *machine {
	return &machine{programs: map[string]answer{
		"docker start": {}, "docker unpause": {}, asksCluster: {stdout: "ok"}, asksTenant: {stdout: "ok"},
		asksTenants: {stdout: "a 10.0.0.1:6443 Ready\nb 10.0.0.2:6443 NotReady\nnew 10.0.0.3:6443 Provisioning\nnewer  \n"},
	}}
}

// starting are the commands that began with one of these, sorted.
func (m *machine) starting(with ...string) []string {
	return slices.DeleteFunc(m.commands(), func(line string) bool {
		return !slices.ContainsFunc(with, func(prefix string) bool { return strings.HasPrefix(line, prefix) })
	})
}

func TestWake(t *testing.T) {
	now := time.Now()
	for name, test := range map[string]struct {
		cluster host.Node
		starts  []string
		asks    bool
	}{
		"stopped":     {host.Node{State: "exited", Incarnation: "1"}, []string{"docker start proj-dev-control-plane w-created w-exited", unpausesOne}, true},
		"paused":      {host.Node{State: "paused", Incarnation: "1"}, []string{startsTwo, "docker unpause proj-dev-control-plane w-paused"}, true},
		"just begun":  {host.Node{State: "running", Incarnation: "1", Started: now}, []string{startsTwo, unpausesOne}, true},
		"running":     {host.Node{State: "running", Incarnation: "1", Started: now.Add(-time.Hour)}, []string{startsTwo, unpausesOne}, false},
		"never whole": {host.Node{State: "exited"}, []string{startsTwo, unpausesOne}, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := wakeable()
			var said []string
			if err := m.system().Wake(t.Context(), sleepers(test.cluster), func(text string) { said = append(said, text) }); err != nil {
				t.Fatal(err)
			}
			if got := m.starting("docker start", "docker unpause"); !slices.Equal(got, test.starts) {
				t.Errorf("ran %q, not %q", got, test.starts)
			}
			for _, command := range test.starts {
				if !slices.ContainsFunc(said, func(text string) bool { return strings.HasPrefix(text, command) }) {
					t.Errorf("%q was not said: %q", command, said)
				}
			}
			var want []string
			if test.asks {
				want = []string{asksTenant + "10.0.0.1:6443/readyz", asksTenant + "10.0.0.2:6443/readyz", asksCluster}
			}
			if got := m.starting(asksTenant, asksCluster); !slices.Equal(got, want) {
				t.Errorf("asked %q, not %q", got, want)
			}
		})
	}
	m := wakeable()
	if err := m.system().Wake(t.Context(), &host.Observed{}, func(string) {}); err != nil || len(m.commands()) > 0 {
		t.Errorf("where nothing is: %v, %q", err, m.commands())
	}
}

// A management cluster without Kamaji hosts nobody.
func TestWakeWithoutKamaji(t *testing.T) {
	m := wakeable()
	m.programs[asksTenants] = answer{stderr: `error: the server doesn't have a resource type "tenantcontrolplanes"`, err: errExit}
	if err := m.system().Wake(t.Context(), sleepers(host.Node{State: "exited", Incarnation: "1"}), func(string) {}); err != nil {
		t.Error(err)
	}
	if got := m.starting(asksTenant); len(got) > 0 {
		t.Errorf("asked %q", got)
	}
}

func TestWakeFails(t *testing.T) {
	stopped := host.Node{State: "exited", Incarnation: "1"}
	for name, test := range map[string]struct {
		cluster host.Node
		age     time.Duration // since its start
		command string
		answer  answer
		errs    []string // what the error says; none: no error
		says    []string // what is said
		asked   time.Duration
	}{
		"a container that does not start": {
			cluster: stopped, command: "docker start",
			answer: answer{stderr: "Error response from daemon: driver failed programming external connectivity", err: errExit},
			errs:   []string{"external connectivity"},
		},
		"a cluster that does not answer": {
			cluster: stopped, command: asksCluster,
			answer: answer{stderr: "connection refused", err: errExit},
			errs:   []string{"proj-dev-control-plane", "too long", "connection refused", "docker logs proj-dev-control-plane"},
			asked:  time.Minute,
		},
		"one that hangs": {
			cluster: stopped, command: asksCluster, answer: answer{hang: true},
			errs:  []string{"proj-dev-control-plane", "too long"},
			asked: time.Minute,
		},
		"a tenant that does not answer": {
			cluster: stopped, command: asksTenant + "10.0.0.1",
			answer: answer{stderr: "curl: (7) Failed to connect", err: errExit},
			says:   []string{"tenant a", "10.0.0.1:6443", "too long", "curl: (7)"},
			asked:  time.Minute,
		},
		"one whose time began before": {
			cluster: host.Node{State: "running", Incarnation: "1"}, age: 40 * time.Second, command: asksTenant + "10.0.0.1",
			answer: answer{stderr: "curl: (7) Failed to connect", err: errExit},
			says:   []string{"tenant a"},
			asked:  20 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := wakeable()
				m.programs[test.command] = test.answer
				begun := time.Now()
				test.cluster.Started = begun.Add(-test.age)
				said := ""
				err := m.system().Wake(t.Context(), sleepers(test.cluster), func(text string) { said += text + "\n" })
				if (err == nil) != (len(test.errs) == 0) {
					t.Fatalf("error: %v", err)
				}
				for _, want := range test.errs {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("the error lacks %q: %v", want, err)
					}
				}
				for _, want := range test.says {
					if !strings.Contains(said, want) {
						t.Errorf("what is said lacks %q: %s", want, said)
					}
				}
				if took := time.Since(begun); took < test.asked || took > test.asked+10*time.Second {
					t.Errorf("took %s, not %s", took, test.asked)
				}
			})
		})
	}
}
