package host_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpu-tenants/gpu-tenants/stacks/host"
)

// answer is what a program does.
type answer struct {
	stdout string
	stderr string
	err    error
	hang   bool // until the context ends
}

var errExit = errors.New("exit status 1")

// machine stands in for a host. Its zero value has nothing; see dockerHost and
// soundMachine.
type machine struct {
	goos     string
	programs map[string]answer // by how the command line begins; the longest wins
	files    map[string]string
	tools    map[string]string // name or path -> path
	space    map[string]host.Space
	hosts    map[string][]string
	down     map[string]error // scheme://host that cannot be reached
	status   int              // what the others answer; 0: 401
	o        *host.Observed
	r        host.Requirements

	mu       sync.Mutex
	ran      []string
	asked    []string
	timeouts time.Duration
}

func (m *machine) run(ctx context.Context, name string, args ...string) (host.Output, error) {
	line := strings.Join(append([]string{name}, args...), " ")
	m.mu.Lock()
	m.ran = append(m.ran, line)
	m.mu.Unlock()
	best, found := "", false
	for prefix := range m.programs {
		if strings.HasPrefix(line, prefix) && (!found || len(prefix) > len(best)) {
			best, found = prefix, true
		}
	}
	if !found {
		return host.Output{Stderr: "unexpected: " + line}, errExit
	}
	given := m.programs[best]
	if given.hang {
		<-ctx.Done()
		return host.Output{}, errors.New("signal: killed")
	}
	return host.Output{Stdout: []byte(given.stdout), Stderr: given.stderr}, given.err
}

func (m *machine) commands() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(slices.Values(m.ran))
}

// Do answers as every host but those that are down.
func (m *machine) Do(request *http.Request) (*http.Response, error) {
	address := request.URL.Scheme + "://" + request.URL.Host
	m.mu.Lock()
	m.asked = append(m.asked, request.URL.String())
	m.mu.Unlock()
	if err := m.down[address]; err != nil {
		return nil, err
	}
	status := m.status
	if status == 0 {
		status = http.StatusUnauthorized
	}
	return &http.Response{
		StatusCode: status,
		Status:     fmt.Sprintf("%d %s", status, http.StatusText(status)),
		Body:       io.NopCloser(strings.NewReader("")),
	}, nil
}

func (m *machine) questions() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(slices.Values(m.asked))
}

func (m *machine) system() *host.System {
	timeout := m.timeouts
	if timeout == 0 {
		timeout = time.Minute
	}
	goos := m.goos
	if goos == "" {
		goos = "linux"
	}
	return &host.System{
		GOOS: goos,
		Run:  m.run,
		ReadFile: func(path string) ([]byte, error) {
			if text, found := m.files[path]; found {
				return []byte(text), nil
			}
			return nil, fs.ErrNotExist
		},
		DiskSpace: func(path string) (host.Space, error) {
			if space, found := m.space[path]; found {
				return space, nil
			}
			return host.Space{}, fs.ErrPermission
		},
		LookPath: func(file string) (string, error) {
			if path, found := m.tools[file]; found {
				return path, nil
			}
			return "", exec.ErrNotFound
		},
		LookupHost: func(_ context.Context, name string) ([]string, error) {
			if addresses, found := m.hosts[name]; found {
				return addresses, nil
			}
			return nil, errors.New("no such host")
		},
		HTTP:           m,
		CommandTimeout: timeout,
		NetworkTimeout: timeout,
		WakeTimeout:    timeout,
	}
}

func recorded(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", "docker-20.10", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

var names = host.Names{Network: "proj-dev", Cluster: "proj-dev", StackLabel: "proj-dev"}

// dockerHost is the machine on which testdata/docker-20.10 was recorded: a
// stack of one kind node, a paused worker and a stopped one.
func dockerHost(t *testing.T) *machine {
	t.Helper()
	return &machine{
		programs: map[string]answer{
			"docker context inspect":   {stdout: "unix:///var/run/docker.sock\n"},
			"docker info":              {stdout: recorded(t, "info.json")},
			"docker network ls":        {stdout: "id1\nid2\nid3\nid4\nid5\n"},
			"docker network inspect":   {stdout: recorded(t, "networks.jsonl")},
			"docker ps":                {stdout: "c1\nc2\n"},
			"docker container inspect": {stdout: recorded(t, "containers.jsonl")},
			"docker cp":                {stdout: recorded(t, "incarnation.tar")},
		},
		files: map[string]string{"/proc/net/route": recorded(t, "route")},
	}
}

const gibibyte = 1 << 30

// soundMachine lacks nothing, and needs everything.
func soundMachine() *machine {
	return &machine{
		programs: map[string]answer{
			"/tools/kind version":   {stdout: "kind v9.9.9 go1.99 linux/amd64\n"},
			"/tools/pulumi version": {stdout: "v9.9.9\n"},
			"docker image inspect":  {stderr: "Error: No such image", err: errExit},
		},
		files: map[string]string{
			"/proc/sys/kernel/osrelease":                   "9.9.0-test\n",
			"/proc/meminfo":                                "MemTotal:       99999999 kB\nMemFree:  1 kB\nMemAvailable:   8388608 kB\n",
			"/proc/sys/fs/inotify/max_user_watches":        "524288\n",
			"/proc/sys/fs/inotify/max_user_instances":      "512\n",
			"/proc/sys/net/netfilter/nf_conntrack_max":     "262144\n",
			"/proc/sys/net/netfilter/nf_conntrack_buckets": "65536\n",
			"/proc/sys/net/bridge/bridge-nf-call-iptables": "1\n",
			"/sys/devices/system/cpu/online":               "0-6,9\n",
		},
		tools: map[string]string{
			"/tools/kind": "/tools/kind", "/tools/pulumi": "/tools/pulumi",
			"kind": "/usr/bin/kind", "bash": "/bin/bash", "git": "/usr/bin/git",
		},
		space: map[string]host.Space{"/var/lib/docker": {Free: 60 * gibibyte, Total: 100 * gibibyte}},
		o: &host.Observed{
			Names:       names,
			CPUs:        8,
			MemoryBytes: 16 * gibibyte,
			Docker: host.Daemon{
				ServerVersion: "99.1.0", ClientVersion: "99.1.0-rc.1", OperatingSystem: "Test OS",
				Kernel: "9.9.0-test", CgroupVersion: "2", RootDir: "/var/lib/docker",
				InsecureCIDRs: prefixes("127.0.0.0/8", "::1/128"),
			},
			OtherNetworks: []host.Network{{Name: "bridge", ID: "b", Subnets: prefixes("172.17.0.0/16")}},
			Routes:        prefixes("192.0.2.0/24"),
		},
		r: host.Requirements{
			Fresh: true, Subnet: netip.MustParsePrefix("172.30.0.0/16"),
			WorkersTotal: 2, ControlPlanes: 2, MemoryBytes: 6 * gibibyte, DiskBytes: 20 * gibibyte,
			ImageRefs:     []string{"docker.io/kindest/node:v9.9.9@sha256:0000"},
			RegistryHosts: []string{"quay.io", "registry.k8s.io"},
			URLs:          []string{"https://example.org/a.yaml", "https://example.org/b.yaml", "https://git.example.org/x"},
			ToolsDir:      "/tools", KindVersion: "9.9.9", PulumiMinVersion: "9.1.0", NeedGit: true,
		},
	}
}

func prefixes(texts ...string) []netip.Prefix {
	all := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		all[i] = netip.MustParsePrefix(text)
	}
	return all
}
