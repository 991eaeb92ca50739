package components

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// looks answers the first look with the first of the replies, and every one
// after the last with the last.
func looks(replies ...string) func() string {
	return func() string {
		first := replies[0]
		if len(replies) > 1 {
			replies = replies[1:]
		}
		return first
	}
}

// controlPlane is a TenantControlPlane's JSON.
func controlPlane(generation, observed int, state, version string, konnectivity bool, replicas int) string {
	return fmt.Sprintf(`{"metadata":{"generation":%d},"status":{"observedGeneration":%d,"controlPlaneEndpoint":"10.1.8.1:6443",
		"kubernetesResources":{"version":{"status":%q,"version":%q},"deployment":{"readyReplicas":%d}},
		"addons":{"konnectivity":{"enabled":%t}}}}`, generation, observed, state, version, replicas, konnectivity)
}

func TestControlPlaneReady(t *testing.T) {
	ready := controlPlane(3, 3, "Ready", "v9.9.9", true, 2)
	for name, before := range map[string]string{
		"nothing yet":            `{"metadata":{"generation":1}}`,
		"an older generation":    controlPlane(3, 2, "Ready", "v9.9.9", true, 2),
		"not Ready":              controlPlane(3, 3, "Upgrading", "v9.9.9", true, 2),
		"an older version":       controlPlane(3, 3, "Ready", "v9.8.0", true, 2),
		"no konnectivity":        controlPlane(3, 3, "Ready", "v9.9.9", false, 2),
		"one replica of two":     controlPlane(3, 3, "Ready", "v9.9.9", true, 1),
		"no replica and no word": `{"metadata":{"generation":3},"status":{"observedGeneration":3,"kubernetesResources":{"version":{"status":"Ready","version":"v9.9.9"}},"addons":{"konnectivity":{"enabled":true}}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			state, clusterInfo := looks(before, before, ready), looks("", "here")
			m := newMachine(t)
			m.containers[managementNode] = &container{running: true}
			m.kubectl = func(tenant string, args []string, _ string) reply {
				switch {
				case tenant == "" && starts(args, "--namespace", "tenants", "get", "tenantcontrolplane", "red"):
					return get(t, state(), args)
				case tenant == "red" && starts(args, "--namespace", "kube-public", "get", "configmap", "cluster-info"):
					return reply{code: map[bool]int{true: 1}[clusterInfo() == ""]}
				}
				return m.unknown("kubectl", args)
			}
			m.wantSuccess(m.run("control-plane-ready.sh", map[string]string{"MANAGEMENT_NODE": managementNode, "TENANT": "red", "VERSION": "v9.9.9", "REPLICAS": "2"}), "10.1.8.1:6443")
			// Three looks, and the endpoint.
			m.wantCounts(map[string]int{"get tenantcontrolplane red": 4, "cluster-info": 2})
		})
	}
}

func TestControlPlaneNotReady(t *testing.T) {
	for name, test := range map[string]struct {
		state   string
		silent  bool // the tenant's own API server
		telling []string
	}{
		"not at the version": {controlPlane(3, 3, "Upgrading", "v9.8.0", true, 1), false, []string{
			"seen: generation 3, observed 3, status Upgrading, version v9.8.0, konnectivity true, ready replicas 1",
			"red-0 CrashLoopBackOff", "Back-off restarting red-0", "did not become Ready at v9.9.9 within 600 s",
		}},
		"API does not answer": {controlPlane(3, 3, "Ready", "v9.9.9", true, 2), true, []string{"connection refused", "the API server of red does not answer"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.containers[managementNode] = &container{running: true}
			m.kubectl = func(tenant string, args []string, _ string) reply {
				switch {
				case tenant == "red":
					return reply{stderr: "connection refused", code: 1}
				case starts(args, "--namespace", "tenants", "get", "tenantcontrolplane", "red"):
					return get(t, test.state, args)
				case starts(args, "--namespace", "tenants", "get", "pods"):
					return reply{stdout: "red-0 CrashLoopBackOff\n"}
				case starts(args, "--namespace", "tenants", "get", "events"):
					return reply{stdout: "Back-off restarting red-0\nBack-off restarting blue-0\n"}
				}
				return m.unknown("kubectl", args)
			}
			got := m.run("control-plane-ready.sh", map[string]string{"MANAGEMENT_NODE": managementNode, "TENANT": "red", "VERSION": "v9.9.9", "REPLICAS": "2"})
			m.wantFailure(got, test.telling...)
			if strings.Contains(got.stderr, "blue") {
				t.Errorf("another tenant's events are told: %s", got.stderr)
			}
		})
	}
}

func TestManagementReady(t *testing.T) {
	const manifest = "kind: Issuer\nmetadata: {name: \"dry-run\"}\n"
	for name, test := range map[string]struct {
		waitFor       string
		refused, late int // looks
		telling       []string
	}{
		"at once":              {"", 0, 0, nil},
		"retried":              {"", 3, 0, nil},
		"waits":                {"--for=jsonpath={.status.ready}=true datastore/default", 1, 2, nil},
		"never takes it":       {"", 1000, 0, []string{"webhook.test: connection refused", "webhook Pending", "an event", "the webhook did not take a dry run within 300 s"}},
		"never comes true":     {"--for=x y", 0, 1000, []string{"timed out", "webhook Pending", "the webhook: '--for=x y' did not come true within 300 s"}},
		"takes it, no waiting": {"", 0, 1000, nil},
	} {
		t.Run(name, func(t *testing.T) {
			refused, late := test.refused, test.late
			m := newMachine(t)
			m.containers[managementNode] = &container{running: true}
			m.kubectl = func(_ string, args []string, stdin string) reply {
				switch {
				case starts(args, "create", "--dry-run=server", "--filename", "-"):
					if stdin != manifest {
						t.Errorf("the dry run is of %q", stdin)
					}
					if refused--; refused >= 0 {
						return reply{stderr: "failed calling webhook.test: connection refused", code: 1}
					}
					return reply{stdout: "issuer/dry-run"}
				case starts(args, "wait", "--timeout=5s"):
					if want := strings.Fields(test.waitFor); !slices.Equal(args[2:], want) {
						t.Errorf("it waits for %q, want %q", args[2:], want)
					}
					if late--; late >= 0 {
						return reply{stderr: "timed out", code: 1}
					}
					return reply{stdout: "condition met"}
				case starts(args, "--namespace", "webhooks", "get", "pods"):
					return reply{stdout: "webhook Pending\n"}
				case starts(args, "--namespace", "webhooks", "get", "events"):
					return reply{stdout: "an event\n"}
				}
				return m.unknown("kubectl", args)
			}
			got := m.run("management-ready.sh", map[string]string{"MANAGEMENT_NODE": managementNode, "WHAT": "the webhook", "NAMESPACE": "webhooks", "MANIFEST": manifest, "WAIT_FOR": test.waitFor})
			if test.telling != nil {
				m.wantFailure(got, test.telling...)
				return
			}
			m.wantSuccess(got, "")
			if m.count("--dry-run=server") != test.refused+1 || test.waitFor != "" && m.count("--timeout=5s") != test.late+1 || test.waitFor == "" && m.count("--timeout=5s") != 0 {
				t.Errorf("the calls are %v", m.calls)
			}
		})
	}
}

func TestHAMiReady(t *testing.T) {
	const pod = "kind: Pod\n"
	scheduled := func(by string) string { return fmt.Sprintf(`{"spec":{"schedulerName":%q}}`, by) }
	for name, test := range map[string]struct {
		answers []string // "" is a refusal
		looks   int
		telling []string
	}{
		"at once":               {[]string{scheduled("hami-scheduler")}, 1, nil},
		"the webhook is late":   {[]string{"", "", scheduled("hami-scheduler")}, 3, nil},
		"it passes the webhook": {[]string{scheduled("default-scheduler"), scheduled("hami-scheduler")}, 2, nil},
		"it never is routed":    {[]string{scheduled("default-scheduler")}, 0, []string{"a GPU pod would go to default-scheduler", "hami-scheduler Pending", "a GPU pod in red is not routed to hami-scheduler"}},
		"it is never taken":     {[]string{""}, 0, []string{"failed calling webhook", "a GPU pod would go to nobody", "konnectivity-agent"}},
	} {
		t.Run(name, func(t *testing.T) {
			answer := looks(test.answers...)
			m := newMachine(t)
			m.containers[managementNode] = &container{running: true}
			m.kubectl = func(tenant string, args []string, stdin string) reply {
				switch {
				case tenant != "red":
				case starts(args, "create", "--dry-run=server", "--filename", "-"):
					if stdin != pod {
						t.Errorf("the dry run is of %q", stdin)
					}
					if object := answer(); object != "" {
						return get(t, object, args)
					}
					return reply{stderr: "failed calling webhook", code: 1}
				case starts(args, "--namespace", "kube-system", "get", "pods"):
					return reply{stdout: "hami-scheduler Pending\n"}
				}
				return m.unknown("kubectl", args)
			}
			got := m.run("hami-ready.sh", map[string]string{"MANAGEMENT_NODE": managementNode, "TENANT": "red", "POD": pod})
			if test.telling != nil {
				m.wantFailure(got, test.telling...)
				return
			}
			m.wantSuccess(got, "")
			m.wantCounts(map[string]int{"--dry-run=server": test.looks})
		})
	}
}

func TestCardsReady(t *testing.T) {
	node := func(gpus, memory, cores string) string {
		return fmt.Sprintf(`{"status":{"allocatable":{"cpu":"2","nvidia.com/gpu":%q,"nvidia.com/gpumem":%q,"nvidia.com/gpucores":%q}}}`, gpus, memory, cores)
	}
	// exactly: all cards are healthy. between: one of two is not.
	exactly := [3]string{"10", "20000 20000", "100 100"}
	between := [3]string{"10", "20000 40000", "100 200"}
	for name, test := range map[string]struct {
		shown   []string
		want    [3]string // GPUS, GPUMEM, GPUCORES
		telling []string
	}{
		"in full":            {[]string{node("10", "81920", "100")}, [3]string{"10", "81920 81920", "100 100"}, nil},
		"thousands":          {[]string{node("1k", "20k", "100")}, [3]string{"1000", "20000 20000", "100 100"}, nil},
		"millions":           {[]string{node("1", "3M", "1")}, [3]string{"1", "3000000 3000000", "1 1"}, nil},
		"milliards":          {[]string{node("1", "1G", "1")}, [3]string{"1", "1000000000 1000000000", "1 1"}, nil},
		"later":              {[]string{`{}`, node("10", "0", "0"), node("10", "20k", "100")}, exactly, nil},
		"the lower bound":    {[]string{node("10", "20k", "100")}, between, nil},
		"the upper bound":    {[]string{node("10", "40k", "200")}, between, nil},
		"in between":         {[]string{node("10", "29999", "101")}, between, nil},
		"below":              {[]string{node("10", "19999", "100")}, between, []string{"gpumem 20000 to 40000, gpucores 100 to 200"}},
		"above":              {[]string{node("10", "40001", "100")}, between, []string{"seen: gpu 10, gpumem 40001"}},
		"cores above":        {[]string{node("10", "40k", "201")}, between, []string{"gpucores 201"}},
		"nothing":            {[]string{`{"status":{}}`}, exactly, []string{"seen: gpu 0, gpumem 0, gpucores 0; wanted: gpu 10, gpumem 20000"}},
		"too little":         {[]string{node("10", "19k", "100")}, exactly, []string{"seen: gpu 10, gpumem 19k, gpucores 100; wanted: gpu 10, gpumem 20000", "hami-mock Pending", "red-worker-0 does not advertise its cards within 240 s"}},
		"more":               {[]string{node("20", "20k", "100")}, exactly, []string{"seen: gpu 20"}},
		"no memory":          {[]string{`{"status":{"allocatable":{"nvidia.com/gpu":"10","nvidia.com/gpucores":"100"}}}`}, exactly, []string{"seen: gpu 10, gpumem 0, gpucores 100"}},
		"not a plain number": {[]string{node("10", "20Ki", "100")}, exactly, []string{"gpumem 20Ki", "does not advertise"}},
		"the API is away":    {[]string{""}, exactly, []string{"connection refused", "does not advertise"}},
	} {
		t.Run(name, func(t *testing.T) {
			shown := looks(test.shown...)
			m := newMachine(t)
			m.containers[managementNode] = &container{running: true}
			m.kubectl = func(tenant string, args []string, _ string) reply {
				switch {
				case tenant != "red":
				case starts(args, "get", "node", "red-worker-0"):
					if object := shown(); object != "" {
						return get(t, object, args)
					}
					return reply{stderr: "connection refused", code: 1}
				case starts(args, "--namespace", "kube-system", "get", "pods"):
					if !slices.Contains(args, "spec.nodeName=red-worker-0") {
						t.Errorf("it shows the pods of all nodes: %q", args)
					}
					return reply{stdout: "hami-mock Pending\n"}
				}
				return m.unknown("kubectl", args)
			}
			got := m.run("cards-ready.sh", map[string]string{
				"MANAGEMENT_NODE": managementNode, "TENANT": "red", "NODE": "red-worker-0",
				"GPUS": test.want[0], "GPUMEM": test.want[1], "GPUCORES": test.want[2],
			})
			if test.telling != nil {
				m.wantFailure(got, test.telling...)
				return
			}
			m.wantSuccess(got, "")
			m.wantCounts(map[string]int{"get node red-worker-0": len(test.shown)})
		})
	}
}
