package host_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-tenants/gpu-tenants/stacks/host"
)

// sleepers is a stack with a node in each state.
func sleepers(cluster string) *host.Observed {
	o := &host.Observed{Names: names, Workers: map[string]host.Node{}}
	for _, state := range []string{"exited", "created", "paused", "running", "restarting", "removing", "dead"} {
		o.Workers["w-"+state] = host.Node{Name: "w-" + state, State: state, Incarnation: "1"}
	}
	if cluster != "" {
		o.Cluster = &host.Node{Name: names.ControlPlane(), State: cluster, Incarnation: "1"}
	}
	return o
}

func TestAsleep(t *testing.T) {
	want := []string{"proj-dev-control-plane", "w-created", "w-exited", "w-paused"}
	if got := sleepers("exited").Asleep(); !slices.Equal(got, want) {
		t.Errorf("asleep: %q, not %q", got, want)
	}
	if got := sleepers("running").Asleep(); !slices.Equal(got, want[1:]) {
		t.Errorf("asleep beside a running cluster: %q, not %q", got, want[1:])
	}
	if got := (&host.Observed{}).Asleep(); len(got) > 0 {
		t.Errorf("asleep where nothing is: %q", got)
	}
}

// wakeable answers the commands of Wake.
func wakeable() *machine {
	return &machine{
		timeouts: 200 * time.Millisecond,
		programs: map[string]answer{
			"docker start": {}, "docker unpause": {}, "docker exec proj-dev-control-plane kubectl": {stdout: "ok"},
		},
	}
}

func TestWake(t *testing.T) {
	const asks = "docker exec proj-dev-control-plane kubectl --kubeconfig=/etc/kubernetes/admin.conf get --raw=/readyz"
	for name, test := range map[string]struct {
		cluster, incarnation string
		want                 []string
	}{
		"stopped":     {"exited", "1", []string{asks, "docker start proj-dev-control-plane w-created w-exited", "docker unpause w-paused"}},
		"paused":      {"paused", "1", []string{asks, "docker start w-created w-exited", "docker unpause proj-dev-control-plane w-paused"}},
		"running":     {"running", "1", []string{"docker start w-created w-exited", "docker unpause w-paused"}},
		"never whole": {"exited", "", []string{"docker start w-created w-exited", "docker unpause w-paused"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := wakeable()
			o := sleepers(test.cluster)
			o.Cluster.Incarnation = test.incarnation
			if err := m.system().Wake(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			if got := m.commands(); !slices.Equal(got, test.want) {
				t.Errorf("ran %q, not %q", got, test.want)
			}
		})
	}
}

// TestWakeFails: what cannot be started, and an API server that does not answer.
func TestWakeFails(t *testing.T) {
	m := wakeable()
	m.programs["docker start"] = answer{stderr: "Error response from daemon: driver failed programming external connectivity", err: errExit}
	if err := m.system().Wake(t.Context(), sleepers("exited")); err == nil || !strings.Contains(err.Error(), "external connectivity") {
		t.Errorf("a container that does not start: %v", err)
	}
	if got := m.commands(); slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, "docker exec") }) {
		t.Errorf("went on: %q", got)
	}
	m = wakeable()
	m.programs["docker exec proj-dev-control-plane kubectl"] = answer{stderr: "connection refused", err: errExit}
	err := m.system().Wake(t.Context(), sleepers("exited"))
	if err == nil || !strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), "docker logs proj-dev-control-plane") {
		t.Errorf("an API server that does not answer: %v", err)
	}
	asked := 0
	for _, line := range m.commands() {
		if strings.HasPrefix(line, "docker exec") {
			asked++
		}
	}
	if asked < 2 {
		t.Errorf("asked %d times", asked)
	}
}
