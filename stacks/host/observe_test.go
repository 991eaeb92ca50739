package host_test

import (
	"archive/tar"
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-tenants/gpu-tenants/stacks/host"
)

func observe(t *testing.T, m *machine) *host.Observed {
	t.Helper()
	o, err := m.system().Observe(t.Context(), names)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestObserveRecorded(t *testing.T) {
	m := dockerHost(t)
	o := observe(t, m)

	if o.CPUs != 2 || o.MemoryBytes != 25276026880 {
		t.Errorf("CPUs, memory = %d, %d", o.CPUs, o.MemoryBytes)
	}
	d := o.Docker
	if d.ServerVersion != "20.10.24+dfsg1" || d.CgroupVersion != "1" || d.RootDir != "/var/lib/docker" ||
		d.Rootless || d.UserNamespaces || d.Elsewhere || d.Proxied || d.ContainerdStore || d.Kernel == "" {
		t.Errorf("Docker = %+v", d)
	}
	if want := []string{"10.1.2.3:5000", "localhost:5000"}; !slices.Equal(d.InsecureRegistries, want) {
		t.Errorf("InsecureRegistries = %v", d.InsecureRegistries)
	}
	if !slices.Equal(d.InsecureCIDRs, prefixes("127.0.0.0/8")) {
		t.Errorf("InsecureCIDRs = %v", d.InsecureCIDRs)
	}

	if o.Network == nil || o.Network.Name != "proj-dev" || !slices.Equal(o.Network.Subnets, prefixes("172.29.77.0/24")) ||
		o.Network.Labels[host.LabelStack] != "proj-dev" ||
		!slices.Equal(o.Network.Containers, []string{"proj-dev-a-0", "proj-dev-control-plane"}) {
		t.Errorf("Network = %+v", o.Network)
	}
	var others []string
	for _, network := range o.OtherNetworks {
		others = append(others, network.Name)
	}
	if !slices.Equal(others, []string{"bridge", "other"}) { // not host, none: they have no subnet
		t.Errorf("OtherNetworks = %v", others)
	}
	if !slices.Equal(o.Routes, prefixes("192.0.2.0/24")) {
		t.Errorf("Routes = %v", o.Routes)
	}

	if c := o.Cluster; c == nil || c.Name != "proj-dev-control-plane" || !c.Running || c.State != "running" ||
		c.IPv4 != netip.MustParseAddr("172.29.77.2") || c.Incarnation != "4f9a" || c.ID == "" {
		t.Errorf("Cluster = %+v", o.Cluster)
	}
	if len(o.Workers) != 2 {
		t.Fatalf("Workers = %+v", o.Workers)
	}
	paused, stopped := o.Workers["proj-dev-a-0"], o.Workers["proj-dev-a-1"]
	if paused.Running || paused.State != "paused" || paused.IPv4 != netip.MustParseAddr("172.29.77.20") ||
		paused.Incarnation != "w0-1" || paused.Labels[host.LabelTenant] != "a" || paused.Labels[host.LabelVersion] != "v9.9.9" {
		t.Errorf("paused worker = %+v", paused)
	}
	// A stopped container has the address it is configured to get.
	if stopped.Running || stopped.State != "exited" || stopped.IPv4 != netip.MustParseAddr("172.29.77.21") || stopped.Incarnation != "w1-1" {
		t.Errorf("stopped worker = %+v", stopped)
	}
}

// Observe changes nothing and does not ask more often than it must.
func TestObserveCommands(t *testing.T) {
	m := dockerHost(t)
	observe(t, m)
	want := []string{
		"docker container inspect --format {{json .}} c1 c2 proj-dev-control-plane",
		"docker context inspect --format {{.Endpoints.docker.Host}}",
		"docker cp proj-dev-control-plane:/kind/gpu-tenants-incarnation -",
		"docker info --format {{json .}}",
		"docker network inspect --format {{json .}} id1 id2 id3 id4 id5",
		"docker network ls --quiet --no-trunc",
		"docker ps --all --quiet --no-trunc --filter label=io.gpu-tenants.stack=proj-dev",
	}
	if got := m.commands(); !slices.Equal(got, want) {
		t.Errorf("commands:\n%s", strings.Join(got, "\n"))
	}
}

func TestObserveAbsent(t *testing.T) {
	m := dockerHost(t)
	m.programs["docker network ls"] = answer{}
	m.programs["docker ps"] = answer{}
	m.programs["docker container inspect"] = answer{
		stderr: "Error response from daemon: No such container: proj-dev-control-plane\n", err: errExit,
	}
	m.programs["docker cp"] = answer{stderr: "Error response from daemon: No such container: proj-dev-control-plane\n", err: errExit}
	o := observe(t, m)
	if o.Network != nil || o.Cluster != nil || len(o.Workers) != 0 || o.OtherNetworks != nil {
		t.Errorf("observed %+v", o)
	}
	for _, command := range m.commands() { // docker refuses it without a name
		if strings.HasPrefix(command, "docker network inspect") {
			t.Error(command)
		}
	}
}

// The network of a stack whose containers are not this stack's.
func TestObserveLeftoverNetwork(t *testing.T) {
	m := dockerHost(t)
	m.programs["docker ps"] = answer{}
	m.programs["docker container inspect"] = answer{
		stderr: "WARNING: config file\nError response from daemon: No such container: proj-dev-control-plane\n", err: errExit,
	}
	m.programs["docker cp"] = answer{stderr: "Error: No such container", err: errExit}
	o := observe(t, m)
	if o.Network == nil || len(o.Network.Containers) != 2 || o.Cluster != nil || len(o.Workers) != 0 {
		t.Errorf("observed %+v, network %+v", o, o.Network)
	}
}

// Newer releases print subnets in the order they were given.
func TestObserveNetworkForms(t *testing.T) {
	network := func(name, id, labels, config string) string {
		return `{"Name":"` + name + `","Id":"` + id + `","Driver":"bridge","Labels":{` + labels + `},"IPAM":{"Config":[` + config + `]},"Containers":{}}` + "\n"
	}
	const (
		ula  = `{"Subnet":"fc00:f853:ccd:e793::/64","Gateway":"fc00:f853:ccd:e793::1"}`
		ours = `"io.gpu-tenants.stack":"proj-dev"`
	)
	tests := map[string]struct {
		networks string
		want     []netip.Prefix
		id       string
		others   int
	}{
		"IPv6 first":          {network("proj-dev", "n1", ours, ula+`,{"Subnet":"10.1.2.0/24"}`), prefixes("10.1.2.0/24"), "n1", 0},
		"host bits":           {network("proj-dev", "n1", ours, `{"Subnet":"10.1.2.3/24"}`), prefixes("10.1.2.0/24"), "n1", 0},
		"two IPv4":            {network("proj-dev", "n1", ours, `{"Subnet":"10.1.2.0/24"},{"Subnet":"10.1.3.0/24"}`), prefixes("10.1.2.0/24", "10.1.3.0/24"), "n1", 0},
		"IPv6 only":           {network("proj-dev", "n1", ours, ula) + network("v6", "n2", "", ula), nil, "n1", 0},
		"empty subnet":        {network("proj-dev", "n1", ours, `{"Subnet":""}`), nil, "n1", 0},
		"name twice, first":   {network("proj-dev", "n1", ours, `{"Subnet":"10.1.2.0/24"}`) + network("proj-dev", "n2", "", `{"Subnet":"10.1.3.0/24"}`), prefixes("10.1.2.0/24"), "n1", 1},
		"name twice, second":  {network("proj-dev", "n2", "", `{"Subnet":"10.1.3.0/24"}`) + network("proj-dev", "n1", ours, `{"Subnet":"10.1.2.0/24"}`), prefixes("10.1.2.0/24"), "n1", 1},
		"name is not a start": {network("proj-dev", "n1", ours, `{"Subnet":"10.1.2.0/24"}`) + network("proj-dev-2", "n2", "", `{"Subnet":"10.1.3.0/24"}`), prefixes("10.1.2.0/24"), "n1", 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := dockerHost(t)
			m.programs["docker network inspect"] = answer{stdout: test.networks}
			o := observe(t, m)
			if o.Network == nil || o.Network.ID != test.id || !slices.Equal(o.Network.Subnets, test.want) || len(o.OtherNetworks) != test.others {
				t.Errorf("network %+v, others %+v", o.Network, o.OtherNetworks)
			}
		})
	}
}

// Something that vanishes between the two rounds is not there; anything else
// that goes wrong is an error.
func TestObserveInspectFailures(t *testing.T) {
	for _, stderr := range []string{
		"Error response from daemon: network id2 not found\n",
		"Error: No such network: id2\n",
	} {
		m := dockerHost(t)
		m.programs["docker network inspect"] = answer{stdout: recorded(t, "networks.jsonl"), stderr: stderr, err: errExit}
		if o := observe(t, m); o.Network == nil {
			t.Errorf("%s lost the rest", stderr)
		}
	}
	for _, bad := range []answer{
		{stderr: "Error response from daemon: disk on fire\n", err: errExit},
		{stderr: "Error: No such network: id2\nError response from daemon: disk on fire\n", err: errExit},
		{err: errExit},
		{stdout: `{"Name":`},
	} {
		m := dockerHost(t)
		m.programs["docker network inspect"] = bad
		if o, err := m.system().Observe(t.Context(), names); err == nil {
			t.Errorf("%+v gave %+v", bad, o)
		}
	}
}

func TestObserveIncarnation(t *testing.T) {
	const noFile = "Error response from daemon: Could not find the file /kind/gpu-tenants-incarnation in container proj-dev-control-plane\n"
	tests := map[string]struct {
		cp      answer
		want    string
		wantErr string
	}{
		"absent file": {cp: answer{stderr: noFile, err: errExit}},
		// Not "": whoever reads "" makes the cluster anew.
		"daemon trouble": {cp: answer{stderr: "Error response from daemon: mount failed", err: errExit}, wantErr: "mount failed"},
		"no tar":         {cp: answer{stdout: "rubbish"}, wantErr: "cannot be read"},
		"a folder":       {cp: answer{stdout: folder(t)}, wantErr: "no regular file"},
		"present":        {cp: answer{stdout: recorded(t, "incarnation.tar")}, want: "4f9a"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := dockerHost(t)
			m.programs["docker cp"] = test.cp
			o, err := m.system().Observe(t.Context(), names)
			if test.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Errorf("error %v", err)
				}
				return
			}
			if err != nil || o.Cluster.Incarnation != test.want {
				t.Errorf("incarnation %q, error %v", o.Cluster.Incarnation, err)
			}
		})
	}
}

// folder is the archive of one.
func folder(t *testing.T) string {
	t.Helper()
	var archive strings.Builder
	writer := tar.NewWriter(&archive)
	header := tar.Header{Name: "gpu-tenants-incarnation/", Typeflag: tar.TypeDir, Mode: 0o755}
	if err := errors.Join(writer.WriteHeader(&header), writer.Close()); err != nil {
		t.Fatal(err)
	}
	return archive.String()
}

func TestObserveAddresses(t *testing.T) {
	container := func(networks string) string {
		return `{"Id":"c1","Name":"/w","State":{"Status":"running"},"Config":{"Labels":{}},"NetworkSettings":{"Networks":{` + networks + `}}}`
	}
	const networkID = "6e6ad2789437a4087e55a8fc2532ad4343d132a967b7b109a0cd2d5230051bb9" // in the record
	tests := map[string]struct {
		networks string
		want     netip.Addr
	}{
		"running":           {`"proj-dev":{"IPAMConfig":null,"IPAddress":"172.29.77.9"}`, netip.MustParseAddr("172.29.77.9")},
		"has, not asked":    {`"proj-dev":{"IPAMConfig":{"IPv4Address":"172.29.77.8"},"IPAddress":"172.29.77.9"}`, netip.MustParseAddr("172.29.77.9")},
		"stopped":           {`"proj-dev":{"IPAMConfig":{"IPv4Address":"172.29.77.8"},"IPAddress":""}`, netip.MustParseAddr("172.29.77.8")},
		"stopped, dynamic":  {`"proj-dev":{"IPAMConfig":{},"IPAddress":""}`, netip.Addr{}},
		"second network":    {`"bridge":{"IPAddress":"172.17.0.2"},"proj-dev":{"IPAddress":"172.29.77.9"}`, netip.MustParseAddr("172.29.77.9")},
		"other network":     {`"bridge":{"IPAddress":"172.17.0.2"}`, netip.Addr{}},
		"network by its ID": {`"6e6ad27":{"NetworkID":"` + networkID + `","IPAddress":"172.29.77.9"}`, netip.MustParseAddr("172.29.77.9")},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := dockerHost(t)
			m.programs["docker container inspect"] = answer{stdout: container(test.networks)}
			if got := observe(t, m).Workers["w"].IPv4; got != test.want {
				t.Errorf("IPv4 = %v, want %v", got, test.want)
			}
		})
	}
}

func TestObserveInfo(t *testing.T) {
	const sound = `"ServerVersion":"99.1.0","ClientInfo":{"Version":"99.1.0"}`
	tests := map[string]struct {
		info string
		want host.Daemon
	}{
		"rootless":       {`"SecurityOptions":["name=seccomp,profile=builtin","name=rootless","name=cgroupns"]`, host.Daemon{Rootless: true}},
		"userns":         {`"SecurityOptions":["name=apparmor","name=userns"]`, host.Daemon{UserNamespaces: true}},
		"neither":        {`"SecurityOptions":["name=seccomp,profile=name"]`, host.Daemon{}},
		"proxy":          {`"HttpsProxy":"http://proxy.example:3128"`, host.Daemon{Proxied: true}},
		"containerd":     {`"DriverStatus":[["driver-type","io.containerd.snapshotter.v1"]]`, host.Daemon{ContainerdStore: true}},
		"mirrors":        {`"RegistryConfig":{"Mirrors":["https://hub.example/"]}`, host.Daemon{RegistryMirrors: []string{"https://hub.example/"}}},
		"null":           {`"RegistryConfig":null,"SecurityOptions":null,"DriverStatus":null`, host.Daemon{}},
		"secure indexes": {`"RegistryConfig":{"IndexConfigs":{"docker.io":{"Secure":true},"b":{"Secure":false},"a":{"Secure":false}}}`, host.Daemon{InsecureRegistries: []string{"a", "b"}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := dockerHost(t)
			m.programs["docker info"] = answer{stdout: "{" + sound + "," + test.info + "}"}
			test.want.ServerVersion, test.want.ClientVersion = "99.1.0", "99.1.0"
			if got := observe(t, m).Docker; !reflect.DeepEqual(got, test.want) {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
		})
	}
}

func TestObserveRoutes(t *testing.T) {
	const head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
	line := func(iface, destination, flags, mask string) string {
		return iface + "\t" + destination + "\t00000000\t" + flags + "\t0\t0\t0\t" + mask + "\t0\t0\t0\n"
	}
	docker0 := line("docker0", "000011AC", "0001", "0000FFFF")
	tests := map[string]struct {
		table     string
		want      []netip.Prefix
		elsewhere bool
	}{
		"Docker's own": {table: docker0},
		"VPN":          {table: docker0 + line("tun0", "0000000A", "0003", "000000FF") + line("tun0", "0100090A", "0005", "FFFFFFFF"), want: prefixes("10.0.0.0/8", "10.9.0.1/32")},
		"twice":        {table: docker0 + line("a", "0000000A", "0001", "000000FF") + line("b", "0000000A", "0001", "000000FF"), want: prefixes("10.0.0.0/8")},
		// A VPN that takes everything says so in halves.
		"default":   {table: docker0 + line("eth0", "00000000", "0003", "00000000") + line("tun0", "00000000", "0003", "00000080") + line("tun0", "00000080", "0003", "00000080")},
		"down":      {table: docker0 + line("eth1", "0000000A", "0000", "000000FF")},
		"reject":    {table: docker0 + line("*", "0000000A", "0201", "000000FF")},
		"rubbish":   {table: docker0 + "x y z\n" + line("eth1", "0000000A", "0001", "zz")},
		"elsewhere": {table: line("eth0", "000011AC", "0001", "0000FFFF"), want: prefixes("172.17.0.0/16"), elsewhere: true},
		"empty":     {elsewhere: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := dockerHost(t)
			m.files["/proc/net/route"] = head + test.table
			o := observe(t, m)
			if !slices.Equal(o.Routes, test.want) || o.Docker.Elsewhere != test.elsewhere {
				t.Errorf("routes %v, elsewhere %v", o.Routes, o.Docker.Elsewhere)
			}
		})
	}
	t.Run("unreadable", func(t *testing.T) {
		m := dockerHost(t)
		m.files = nil
		if o := observe(t, m); o.Routes != nil || o.Docker.Elsewhere {
			t.Errorf("routes %v, elsewhere %v", o.Routes, o.Docker.Elsewhere)
		}
	})
}

// What docker says without a daemon, as recorded from clients 20.10 and 28.
func TestObserveUnusable(t *testing.T) {
	const (
		denied     = "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: Get \"http://%2Fvar%2Frun%2Fdocker.sock/v1.50/info\": dial unix /var/run/docker.sock: connect: permission denied\n"
		deniedOld  = "Got permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock"
		down       = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?\n"
		noDaemon   = `{"ID":"","NCPU":0,"ServerVersion":"","RegistryConfig":null,"ClientInfo":{"Version":"28.2.2"}}`
		withErrors = `{"ServerVersion":"","ServerErrors":["` + deniedOld + `"],"ClientInfo":{"Context":"default"}}`
	)
	notFound := &exec.Error{Name: "docker", Err: exec.ErrNotFound}
	tests := map[string]struct {
		programs map[string]answer
		problem  string
		remedy   string
	}{
		"no command": {
			map[string]answer{"docker": {err: notFound}},
			"docker command is not on the PATH", "Install Docker Engine",
		},
		"permission denied": {
			map[string]answer{"docker": {stdout: noDaemon, stderr: denied, err: errExit}},
			"permission denied on Docker's socket", "sudo usermod -aG docker $USER",
		},
		"permission denied, old client": {
			map[string]answer{"docker info": {stdout: withErrors}, "docker": {stderr: deniedOld, err: errExit}},
			"permission denied on Docker's socket", "Rootless Docker is no way around it",
		},
		"daemon down": {
			map[string]answer{"docker": {stdout: noDaemon, stderr: down, err: errExit}},
			"daemon does not run", "sudo systemctl enable --now docker",
		},
		"ssh": {
			map[string]answer{"docker context inspect": {stdout: "ssh://me:hush@build.example\n"}},
			"daemon on another machine: ssh://me:xxxxx@build.example", "unset DOCKER_HOST",
		},
		"tcp": {
			map[string]answer{"docker context inspect": {stdout: "tcp://docker:2375\n"}},
			"daemon on another machine: tcp://docker:2375", "Run Pulumi on that machine",
		},
		"no daemon, no words": {
			map[string]answer{"docker info": {stdout: noDaemon}, "docker": {err: errExit}},
			"names no server version", "stand-in",
		},
		"Podman": {
			map[string]answer{"docker info": {stdout: `{"host":{"arch":"amd64"},"version":{}}`}, "docker": {}},
			"names no server version", "Podman",
		},
		"no JSON": {
			map[string]answer{"docker info": {stdout: "Client:\n"}, "docker": {}},
			"cannot be read", "docker version",
		},
		"other": {
			map[string]answer{"docker": {stderr: "client version 9.99 is too new\n", err: errExit}},
			"client version 9.99 is too new", "`docker info` must work",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := &machine{programs: test.programs}
			o, err := m.system().Observe(t.Context(), names)
			var dockerError *host.DockerError
			if o != nil || !errors.As(err, &dockerError) {
				t.Fatalf("observed %+v, error %v", o, err)
			}
			if !strings.Contains(dockerError.Problem, test.problem) || !strings.Contains(dockerError.Remedy, test.remedy) {
				t.Errorf("problem %q, remedy %q", dockerError.Problem, dockerError.Remedy)
			}
			if text := err.Error(); strings.Contains(text, "hush") || !strings.Contains(text, test.problem) || !strings.Contains(text, test.remedy) {
				t.Errorf("error %q", text)
			}
		})
	}
}

func TestObserveLocalEndpoints(t *testing.T) {
	for _, endpoint := range []string{"unix:///run/user/1000/docker.sock", "tcp://127.0.0.1:2375", "tcp://localhost:2375", "tcp://[::1]:2375", ""} {
		m := dockerHost(t)
		m.programs["docker context inspect"] = answer{stdout: endpoint + "\n"}
		observe(t, m)
	}
	m := dockerHost(t) // a client too old for contexts
	m.programs["docker context inspect"] = answer{stderr: "docker: 'context' is not a docker command.", err: errExit}
	observe(t, m)
}

func TestObserveTimeout(t *testing.T) {
	for _, command := range []string{"docker context inspect", "docker info", "docker network inspect", "docker cp"} {
		m := dockerHost(t)
		m.timeouts = 50 * time.Millisecond
		m.programs[command] = answer{hang: true}
		start := time.Now()
		_, err := m.system().Observe(t.Context(), names)
		var dockerError *host.DockerError
		if !errors.As(err, &dockerError) || !strings.Contains(dockerError.Problem, "gave no answer within 50ms") {
			t.Errorf("%s: %v", command, err)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("%s took %s", command, took)
		}
	}
}

// The caller's own end is no fault of Docker.
func TestObserveCancelled(t *testing.T) {
	m := dockerHost(t)
	m.programs["docker info"] = answer{hang: true}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := m.system().Observe(ctx, names)
	var dockerError *host.DockerError
	if !errors.Is(err, context.DeadlineExceeded) || errors.As(err, &dockerError) {
		t.Errorf("error %v", err)
	}
}
