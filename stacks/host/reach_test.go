package host_test

import (
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gpu-tenants/gpu-tenants/stacks/host"
)

// netMachine asks real servers.
func netMachine(mirror string) (*machine, *host.System) {
	m := soundMachine()
	m.r.Mirror, m.r.ImageRefs, m.r.URLs = mirror, nil, nil
	system := m.system()
	real := host.Real()
	system.HTTP = real.HTTP
	return m, system
}

func TestRegistryThatHangs(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	defer close(release)

	m, system := netMachine(server.URL)
	m.r.URLs = []string{server.URL + "/file.yaml"}
	system.NetworkTimeout = 100 * time.Millisecond
	start := time.Now()
	faults := system.Preflight(t.Context(), m.o, m.r)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("took %s", took)
	}
	if len(faults) != 2 || faults[0].Check != "registry" || faults[1].Check != "download" {
		t.Fatalf("faults:\n%s", host.Report(faults))
	}
	for _, fault := range faults {
		if !strings.Contains(fault.Problem, "no answer within 100ms") {
			t.Errorf("problem %q", fault.Problem)
		}
	}
}

func TestRegistryAnswers(t *testing.T) {
	var path string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path = r.URL.Path
		http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound) // must not be followed
	}))
	defer server.Close()
	m, system := netMachine(server.URL)
	if faults := system.Preflight(t.Context(), m.o, m.r); len(faults) > 0 {
		t.Errorf("faults:\n%s", host.Report(faults))
	}
	if path != "/v2/" {
		t.Errorf("asked for %q", path)
	}
}

// A mirror written without http:// is taken for one with TLS.
func TestRegistryWithoutTLS(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	m, system := netMachine(strings.TrimPrefix(server.URL, "http://"))
	m.o.Docker.InsecureCIDRs = nil
	faults := system.Preflight(t.Context(), m.o, m.r)
	if len(faults) != 1 || !strings.Contains(faults[0].Problem, "server gave HTTP response to HTTPS client") ||
		!strings.Contains(faults[0].Remedy, "a URL with http://") {
		t.Errorf("faults:\n%s", host.Report(faults))
	}
}

func TestRegistryWithUnknownCertificate(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	m, system := netMachine(server.URL)
	faults := system.Preflight(t.Context(), m.o, m.r)
	if len(faults) != 1 || faults[0].Fatal || !strings.Contains(faults[0].Remedy, "It answers.") {
		t.Errorf("faults:\n%s", host.Report(faults))
	}
}

func TestRegistryNobodyListens(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	address := strings.TrimPrefix(server.URL, "http://")
	server.Close()
	m, system := netMachine("http://me:hush@" + address)
	faults := system.Preflight(t.Context(), m.o, m.r)
	if len(faults) != 1 || !faults[0].Fatal || !strings.Contains(faults[0].Problem, "connection refused") {
		t.Errorf("faults:\n%s", host.Report(faults))
	}
	if report := host.Report(faults); strings.Contains(report, "hush") || strings.Count(report, "/v2/") != 1 {
		t.Errorf("report %q", report)
	}
}

func TestToolThatHangs(t *testing.T) {
	m := soundMachine()
	m.timeouts = 50 * time.Millisecond
	m.programs["/tools/kind version"] = answer{hang: true}
	faults := preflight(t, m)
	if len(faults) != 1 || !strings.Contains(faults[0].Problem, "no answer within 50ms") {
		t.Errorf("faults:\n%s", host.Report(faults))
	}
}

func TestThroughMirror(t *testing.T) {
	for _, test := range [][3]string{ // image, mirror, want
		{"docker.io/kindest/node:v9.9.9@sha256:00", "", "docker.io/kindest/node:v9.9.9@sha256:00"},
		{"docker.io/kindest/node:v9.9.9@sha256:00", "r.example:5000", "r.example:5000/kindest/node:v9.9.9@sha256:00"},
		{"kindest/node:v9.9.9", "http://r.example:5000", "r.example:5000/kindest/node:v9.9.9"},
		{"kindest/node", "https://me:hush@r.example/", "r.example/kindest/node"},
		{"node:v9", "r.example", "r.example/library/node:v9"},
		{"docker.io/node", "r.example", "r.example/library/node"},
		{"index.docker.io/a/b", "r.example", "r.example/a/b"},
		{"quay.io/a/b/c:v9", "r.example", "r.example/a/b/c:v9"},
		{"localhost/a", "r.example", "r.example/a"},
		{"localhost:5000/a", "http://localhost:5000", "localhost:5000/a"},
	} {
		if got := host.ThroughMirror(test[0], test[1]); got != test[2] {
			t.Errorf("ThroughMirror(%q, %q) = %q, want %q", test[0], test[1], got, test[2])
		}
	}
}

// The machine that runs the test: that it can be looked at, and quickly.
func TestRealDocker(t *testing.T) {
	if out, err := exec.CommandContext(t.Context(), "docker", "info").CombinedOutput(); err != nil {
		t.Skipf("no Docker here: %v: %.200s", err, out)
	}
	absent := host.Names{Network: "gpu-tenants-no-such", Cluster: "gpu-tenants-no-such", StackLabel: "gpu-tenants-no-such"}
	o, err := host.Observe(t.Context(), absent)
	if err != nil {
		t.Fatal(err)
	}
	if o.Network != nil || o.Cluster != nil || len(o.Workers) != 0 || o.CPUs < 1 || o.MemoryBytes < 1 || o.Docker.ServerVersion == "" {
		t.Errorf("observed %+v", o)
	}
	// Nothing is asked of the network.
	faults := host.Preflight(t.Context(), o, host.Requirements{
		Fresh: true, KubeletToleratesCgroupV1: true, MemoryBytes: 1, DiskBytes: 1,
		Subnet: host.FreeSubnet(o, prefixes("172.20.0.0/16")[0]),
	})
	for _, fault := range faults {
		if fault.Check == "network" || fault.Check == "memory" || fault.Check == "registry" || fault.Check == "download" {
			t.Errorf("unexpected fault %+v", fault)
		}
	}
	t.Log(host.Report(faults))
}
