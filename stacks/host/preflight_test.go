package host_test

import (
	"crypto/tls"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-tenants/gpu-tenants/stacks/host"
)

func preflight(t *testing.T, m *machine) []host.Fault {
	t.Helper()
	return m.system().Preflight(t.Context(), m.o, m.r)
}

func TestPreflightSound(t *testing.T) {
	m := soundMachine()
	if faults := preflight(t, m); len(faults) > 0 {
		t.Errorf("faults of a sound host:\n%s", host.Report(faults))
	}
	// It looked: every registry and every host once.
	want := []string{
		"https://example.org/", "https://git.example.org/",
		"https://quay.io/v2/", "https://registry-1.docker.io/v2/", "https://registry.k8s.io/v2/",
	}
	if got := m.questions(); !slices.Equal(got, want) {
		t.Errorf("asked %v", got)
	}
	wantRun := []string{
		"/tools/kind version", "/tools/pulumi version",
		"docker image inspect --format {{.Id}} docker.io/kindest/node:v9.9.9@sha256:0000",
	}
	if got := m.commands(); !slices.Equal(got, wantRun) {
		t.Errorf("ran %v", got)
	}
}

// Each way in which a host can fall short, and nothing else is found then.
func TestPreflight(t *testing.T) {
	refused := errors.New("connection refused")
	const (
		fatal   = true
		warning = false
	)
	type want struct {
		check   string
		fatal   bool
		problem string
		remedy  string
	}
	tests := map[string]struct {
		change func(m *machine)
		want   []want // none: sound
	}{
		"old daemon": {
			func(m *machine) { m.o.Docker.ServerVersion = "20.9.1" },
			[]want{{"docker", fatal, "docker daemon is version 20.9.1, older than 20.10", "Upgrade Docker Engine"}},
		},
		"old command": {
			func(m *machine) { m.o.Docker.ClientVersion = "19.99.9" },
			[]want{{"docker", fatal, "docker command is version 19.99.9", "Upgrade Docker Engine"}},
		},
		"oldest daemon": {func(m *machine) { m.o.Docker.ServerVersion = "20.10.24+dfsg1" }, nil},
		"odd version": {
			func(m *machine) { m.o.Docker.ServerVersion = "dev" },
			[]want{{"docker", warning, `"dev", says nothing`, "release of Docker Engine"}},
		},
		"rootless": {
			func(m *machine) { m.o.Docker.Rootless, m.o.Docker.Elsewhere = true, true },
			[]want{{"docker", fatal, "Docker runs rootless", "docker context use default"}},
		},
		"rootless, with the host's network": {
			func(m *machine) { m.o.Docker.Rootless = true },
			[]want{{"docker", warning, "Docker runs rootless", "docker context use default"}},
		},
		"virtual machine": {
			func(m *machine) {
				m.o.Docker.Kernel, m.o.Docker.OperatingSystem, m.o.Docker.Elsewhere = "9.1-linuxkit", "Docker Desktop", true
			},
			[]want{{"docker", fatal, "daemon (Docker Desktop) runs on another kernel (9.1-linuxkit) than this process (9.9.0-test)", "Docker Engine of the system itself"}},
		},
		"in a container": {
			func(m *machine) { m.o.Docker.Elsewhere = true },
			[]want{{"docker", fatal, "none of Docker's bridge networks", "--network host"}},
		},
		"userns-remap": {
			func(m *machine) { m.o.Docker.UserNamespaces = true },
			[]want{{"docker", warning, "userns-remap", "daemon.json"}},
		},
		"one processor": {
			func(m *machine) { m.o.CPUs = 1 },
			[]want{{"cpus", warning, "Docker has 1 processor.", "at least 2"}},
		},
		"two processors": {func(m *machine) { m.o.CPUs = 2 }, nil},

		"little memory": {
			func(m *machine) { m.r.MemoryBytes = 8*gibibyte + 1024 },
			[]want{{"memory", fatal, "8.0 GiB of memory is available", "etcdReplicas: 1"}},
		},
		"just enough memory":         {func(m *machine) { m.r.MemoryBytes = 8 * gibibyte }, nil},
		"little memory, but running": {func(m *machine) { m.r.MemoryBytes, m.r.Fresh = 99*gibibyte, false }, nil},
		"memory unknown":             {func(m *machine) { delete(m.files, "/proc/meminfo") }, nil},
		"memory not asked":           {func(m *machine) { m.files["/proc/meminfo"], m.r.MemoryBytes = "MemAvailable: 1 kB\n", 0 }, nil},

		"little disk": {
			func(m *machine) { m.r.DiskBytes = 61 * gibibyte },
			[]want{{"disk", fatal, "60.0 GiB is free under /var/lib/docker, and the stack takes about 61.0 GiB", "docker system df"}},
		},
		"just enough disk":         {func(m *machine) { m.r.DiskBytes = 60 * gibibyte }, nil},
		"little disk, but running": {func(m *machine) { m.r.DiskBytes, m.r.Fresh = 61*gibibyte, false }, nil},
		"full disk": {
			func(m *machine) {
				m.space["/var/lib/docker"] = host.Space{Free: 140 * gibibyte, Total: 1000 * gibibyte}
			},
			[]want{{"disk", warning, "is 86 % full", "docker image prune"}},
		},
		"nearly full disk": {func(m *machine) {
			m.space["/var/lib/docker"] = host.Space{Free: 160 * gibibyte, Total: 1000 * gibibyte}
		}, nil},
		"disk that may not be looked at": {func(m *machine) { m.space = nil }, nil},
		"no root folder known":           {func(m *machine) { m.o.Docker.RootDir = "" }, nil},
		"little disk for containerd": {
			func(m *machine) {
				m.o.Docker.ContainerdStore = true
				m.space["/var/lib/containerd"] = host.Space{Free: gibibyte, Total: 100 * gibibyte}
			},
			[]want{{"disk", fatal, "1.0 GiB is free under /var/lib/containerd", ""}},
		},
		"containerd's folder unused": {func(m *machine) {
			m.space["/var/lib/containerd"] = host.Space{Free: gibibyte, Total: 100 * gibibyte}
		}, nil},

		"cgroup v1": {
			func(m *machine) { m.o.Docker.CgroupVersion = "1" },
			[]want{{"cgroup", fatal, "cgroup v1", "kubelet: {failCgroupV1: false}"}},
		},
		"cgroup v1, tolerated": {func(m *machine) { m.o.Docker.CgroupVersion, m.r.KubeletToleratesCgroupV1 = "1", true }, nil},

		"few watches": {
			func(m *machine) { m.files["/proc/sys/fs/inotify/max_user_watches"] = "524287\n" },
			[]want{{"inotify", fatal, "fs.inotify.max_user_watches is 524287, and this stack needs 524288", "sudo sysctl -w fs.inotify.max_user_watches=524288\necho 'fs.inotify.max_user_watches = 524288' | sudo tee /etc/sysctl.d/90-gpu-tenants-max-user-watches.conf"}},
		},
		"few instances": {
			func(m *machine) { m.files["/proc/sys/fs/inotify/max_user_instances"] = "128\n" },
			[]want{{"inotify", fatal, "fs.inotify.max_user_instances is 128, and this stack needs 512", "sudo sysctl -w fs.inotify.max_user_instances=512"}},
		},
		"eight nodes": {func(m *machine) { m.r.WorkersTotal, m.r.ControlPlanes = 5, 2 }, nil},
		"many nodes": {
			func(m *machine) { m.r.WorkersTotal, m.r.ControlPlanes = 6, 3 },
			[]want{
				{"inotify", warning, "max_user_watches is 524288, and this stack needs 655360", "max_user_watches=655360"},
				{"inotify", warning, "max_user_instances is 512, and this stack needs 640", "max_user_instances=640"},
			},
		},
		"inotify unreadable": {
			func(m *machine) { delete(m.files, "/proc/sys/fs/inotify/max_user_instances") },
			[]want{{"inotify", warning, "cannot be read", "max_user_instances=512"}},
		},

		"conntrack too small": {
			func(m *machine) { m.files["/proc/sys/net/netfilter/nf_conntrack_max"] = "131072\n" },
			[]want{{"conntrack", fatal, "nf_conntrack_max is 131072, and kube-proxy in the tenants wants exactly 262144 on 8 processors", "sudo sysctl -w net.netfilter.nf_conntrack_max=262144"}},
		},
		"conntrack too large": {
			func(m *machine) { m.files["/proc/sys/net/netfilter/nf_conntrack_max"] = "262145\n" },
			[]want{{"conntrack", fatal, "wants exactly 262144", "/etc/sysctl.d/90-gpu-tenants-nf-conntrack-max.conf"}},
		},
		"conntrack not loaded": {
			func(m *machine) { delete(m.files, "/proc/sys/net/netfilter/nf_conntrack_max") },
			[]want{{"conntrack", fatal, "module nf_conntrack is not loaded", "sudo modprobe nf_conntrack"}},
		},
		"conntrack floor": {func(m *machine) {
			m.files["/sys/devices/system/cpu/online"] = "0-1\n"
			m.files["/proc/sys/net/netfilter/nf_conntrack_max"] = "131072\n"
		}, nil},
		"conntrack by Docker's processors": {func(m *machine) {
			delete(m.files, "/sys/devices/system/cpu/online")
			m.o.CPUs = 6
			m.files["/proc/sys/net/netfilter/nf_conntrack_max"] = "196608\n"
		}, nil},
		"conntrack, odd list of processors": {func(m *machine) {
			m.files["/sys/devices/system/cpu/online"] = "7-0\n"
		}, nil},
		"conntrack ceiling": {func(m *machine) {
			m.files["/sys/devices/system/cpu/online"] = "0-63\n"
			m.files["/proc/sys/net/netfilter/nf_conntrack_max"] = "1048576\n"
			m.files["/proc/sys/net/netfilter/nf_conntrack_buckets"] = "262144\n"
		}, nil},
		"conntrack over the ceiling": {
			func(m *machine) {
				m.files["/sys/devices/system/cpu/online"] = "0-63\n"
				m.files["/proc/sys/net/netfilter/nf_conntrack_max"] = "2097152\n"
				m.files["/proc/sys/net/netfilter/nf_conntrack_buckets"] = "524288\n"
			},
			[]want{{"conntrack", warning, "A recent one wants 1048576", "nf_conntrack_max=1048576"}},
		},
		"conntrack table": {
			func(m *machine) { m.files["/proc/sys/net/netfilter/nf_conntrack_buckets"] = "65535\n" },
			[]want{{"conntrack", fatal, "nf_conntrack_buckets is 65535, and kube-proxy in the tenants wants at least 65536", "sudo sysctl -w net.netfilter.nf_conntrack_buckets=65536"}},
		},

		"no br_netfilter": {
			func(m *machine) { delete(m.files, "/proc/sys/net/bridge/bridge-nf-call-iptables") },
			[]want{{"bridge-netfilter", warning, "br_netfilter is not loaded", "sudo modprobe br_netfilter"}},
		},

		"subnet of a Docker network": {
			func(m *machine) { m.r.Subnet = netip.MustParsePrefix("172.17.4.0/24") },
			[]want{{"network", fatal, "172.17.4.0/24 overlaps the Docker network bridge (172.17.0.0/16)", "`network: 172.18.0.0/24`"}},
		},
		"subnet of a route and a network": {
			func(m *machine) {
				m.o.Routes = prefixes("172.30.8.0/24")
				m.o.OtherNetworks[0].Subnets = prefixes("172.30.9.0/24")
				m.r.Reserved = prefixes("172.31.0.0/16")
			},
			[]want{{"network", fatal, "overlaps the Docker network bridge (172.30.9.0/24), the host's route to 172.30.8.0/24", "`network: 172.16.0.0/16`"}},
		},
		"no subnet left": {
			func(m *machine) { m.o.Routes = prefixes("172.16.0.0/12", "192.168.0.0/16", "10.0.0.0/8") },
			[]want{{"network", fatal, "the host's route to 172.16.0.0/12", "`ip route`"}},
		},
		"network as it should be": {func(m *machine) { m.o.Network = ownNetwork("172.30.0.0/16") }, nil},
		"network exists, VPN came later": {
			func(m *machine) {
				m.o.Network = ownNetwork("172.30.0.0/16")
				m.o.Routes = prefixes("172.16.0.0/12")
			},
			[]want{{"network", warning, "route to 172.16.0.0/12", "close the VPN"}},
		},
		"network with another subnet": {
			func(m *machine) { m.o.Network = ownNetwork("172.28.0.0/16") },
			[]want{{"network", fatal, "has the subnet 172.28.0.0/16, and the configuration says 172.30.0.0/16", "`network: 172.28.0.0/16`. Or change it by building anew: pulumi destroy"}},
		},
		"network without IPv4": {
			func(m *machine) { m.o.Network = ownNetwork() },
			[]want{{"network", fatal, "has no IPv4 subnet", "pulumi destroy"}},
		},
		"network of somebody else": {
			func(m *machine) {
				m.o.Network = ownNetwork("172.30.0.0/16")
				m.o.Network.Labels = nil
			},
			[]want{{"network", fatal, "was not made by this stack", "docker network rm proj-dev"}},
		},
		"network twice": {
			func(m *machine) {
				m.o.Network = ownNetwork("172.30.0.0/16")
				m.o.OtherNetworks[0].Name = "proj-dev"
			},
			[]want{{"network", fatal, "two Docker networks called proj-dev", "docker network rm b"}},
		},
		"no subnet asked for": {func(m *machine) { m.r.Subnet, m.o.Routes = netip.Prefix{}, prefixes("172.16.0.0/12") }, nil},

		"no kind": {
			func(m *machine) { delete(m.tools, "/tools/kind"); delete(m.tools, "kind") },
			[]want{{"tools", fatal, "kind is neither in /tools nor on the PATH; 9.9.9 is needed", "make tools"}},
		},
		"kind on the PATH": {
			func(m *machine) {
				delete(m.tools, "/tools/kind")
				m.programs["/usr/bin/kind version"] = answer{stdout: "kind version 9.9.9\n"}
			},
			nil,
		},
		"other kind on the PATH": {
			func(m *machine) {
				m.r.ToolsDir, m.r.PulumiMinVersion = "", ""
				m.programs["/usr/bin/kind version"] = answer{stdout: "kind v9.9.10 go1.99 linux/amd64\n"}
			},
			[]want{{"tools", fatal, "/usr/bin/kind is version 9.9.10; 9.9.9 is needed", "make tools"}},
		},
		"kind before its release": {
			func(m *machine) {
				m.programs["/tools/kind version"] = answer{stdout: "kind v9.9.9-alpha+abc go1.99 linux/amd64\n"}
			},
			[]want{{"tools", fatal, "version 9.9.9-alpha+abc", "make tools"}},
		},
		"kind that does not run": {
			func(m *machine) {
				m.programs["/tools/kind version"] = answer{stderr: "exec format error\n", err: errExit}
			},
			[]want{{"tools", fatal, "/tools/kind does not tell its version: exec format error", "make tools"}},
		},
		"kind that says nothing": {
			func(m *machine) { m.programs["/tools/kind version"] = answer{} },
			[]want{{"tools", fatal, "version unknown", "make tools"}},
		},
		"kind version with a v": {func(m *machine) { m.r.KindVersion = "v9.9.9" }, nil},
		"old pulumi": {
			func(m *machine) { m.programs["/tools/pulumi version"] = answer{stdout: "v9.0.99\n"} },
			[]want{{"tools", fatal, "/tools/pulumi is version 9.0.99; 9.1.0 or later is needed", "make tools"}},
		},
		"newer pulumi": {func(m *machine) { m.programs["/tools/pulumi version"] = answer{stdout: "v9.10.0-dev.1\n"} }, nil},
		"no pulumi": {
			func(m *machine) { delete(m.tools, "/tools/pulumi") },
			[]want{{"tools", fatal, "pulumi is neither in /tools nor on the PATH", "make tools"}},
		},
		"no pulumi asked for": {func(m *machine) { delete(m.tools, "/tools/pulumi"); m.r.PulumiMinVersion = "" }, nil},
		"no bash": {
			func(m *machine) { delete(m.tools, "bash") },
			[]want{{"tools", fatal, "bash is not on the PATH", "apt-get install bash"}},
		},
		"no git": {
			func(m *machine) { delete(m.tools, "git") },
			[]want{{"tools", fatal, "git is not on the PATH", "apt-get install git"}},
		},
		"no git asked for": {func(m *machine) { delete(m.tools, "git"); m.r.NeedGit = false }, nil},

		"Docker Hub down": {
			func(m *machine) { m.down = map[string]error{"https://registry-1.docker.io": refused} },
			[]want{{"registry", fatal, "docker.io cannot be reached, from which Docker has to pull docker.io/kindest/node:v9.9.9@sha256:0000: GET https://registry-1.docker.io/v2/: connection refused", "set `mirror`"}},
		},
		"Docker Hub down, image there": {func(m *machine) {
			m.down = map[string]error{"https://registry-1.docker.io": refused}
			m.programs["docker image inspect"] = answer{stdout: "sha256:1\n"}
		}, nil},
		"Docker Hub down, for both": {
			func(m *machine) {
				m.down = map[string]error{"https://registry-1.docker.io": refused}
				m.r.RegistryHosts = []string{"docker.io"}
				m.r.ImageRefs = []string{"kindest/node:v9.9.9", "kindest/node:v9.9.8", "kindest/node:v9.9.9"}
			},
			[]want{{"registry", fatal, "Docker has to pull kindest/node:v9.9.8, kindest/node:v9.9.9 and the nodes pull images", "`nodeImages`"}},
		},
		"Docker Hub down, daemon with a proxy": {
			func(m *machine) {
				m.down = map[string]error{"https://registry-1.docker.io": refused}
				m.o.Docker.Proxied = true
			},
			[]want{{"registry", warning, "docker.io cannot be reached", "docker pull docker.io/kindest/node"}},
		},
		"Docker Hub down, daemon with mirrors": {
			func(m *machine) {
				m.down = map[string]error{"https://registry-1.docker.io": refused}
				m.o.Docker.RegistryMirrors = []string{"https://hub.example/"}
			},
			[]want{{"registry", warning, "docker.io cannot be reached", "mirrors of Docker Hub"}},
		},
		"registry of the nodes down": {
			func(m *machine) { m.down = map[string]error{"https://quay.io": refused} },
			[]want{{"registry", fatal, "quay.io cannot be reached, from which the nodes pull images", "set `mirror`"}},
		},
		"registry of the nodes down, but running": {
			func(m *machine) { m.down, m.r.Fresh = map[string]error{"https://quay.io": refused}, false },
			[]want{{"registry", warning, "quay.io cannot be reached", ""}},
		},
		"registry behind a bad proxy": {
			func(m *machine) { m.status, m.r.URLs, m.r.RegistryHosts = 407, nil, nil },
			[]want{{"registry", fatal, "407 Proxy Authentication Required", "proxy"}},
		},
		"registries that know nothing": {func(m *machine) { m.status = 404 }, nil},
		"registry with an unknown certificate": {
			func(m *machine) {
				m.down = map[string]error{"https://registry.example:5000": &tls.CertificateVerificationError{Err: errors.New("unknown authority")}}
				m.r.Mirror = "registry.example:5000"
			},
			[]want{{"registry", warning, "unknown authority", "/etc/docker/certs.d/registry.example:5000/ca.crt"}},
		},

		"mirror": {func(m *machine) { // alone it is asked, whatever else is down
			m.r.Mirror = "https://registry.example"
			m.down = map[string]error{"https://registry-1.docker.io": refused, "https://quay.io": refused, "https://registry.k8s.io": refused}
		}, nil},
		"mirror down": {
			func(m *machine) {
				m.r.Mirror = "registry.example:5000"
				m.down = map[string]error{"https://registry.example:5000": refused}
			},
			[]want{{"registry", fatal, "registry.example:5000 cannot be reached, from which Docker has to pull docker.io/kindest/node:v9.9.9@sha256:0000 and the nodes pull images", "`mirror`"}},
		},
		"mirror in plain HTTP, unknown to Docker": {
			func(m *machine) {
				m.r.Mirror = "http://registry.example:5000"
				m.down = map[string]error{"https://registry.example:5000": refused}
			},
			[]want{{"registry", fatal, "registry.example:5000 speaks plain HTTP, which the Docker daemon refuses", `{"insecure-registries": ["registry.example:5000"]}`}},
		},
		"mirror in plain HTTP, known to Docker": {func(m *machine) {
			m.r.Mirror = "http://registry.example:5000"
			m.o.Docker.InsecureRegistries = []string{"registry.example:5000"}
			m.down = map[string]error{"https://registry.example:5000": refused}
		}, nil},
		"mirror in plain HTTP, in Docker's range": {func(m *machine) {
			m.r.Mirror = "http://127.0.0.1:5000"
		}, nil},
		"mirror in plain HTTP, its name in Docker's range": {func(m *machine) {
			m.r.Mirror = "http://registry.example:5000"
			m.hosts = map[string][]string{"registry.example": {"127.0.0.1"}}
		}, nil},
		"mirror in plain HTTP, nothing to pull": {func(m *machine) {
			m.r.Mirror, m.r.ImageRefs = "http://registry.example:5000", nil
		}, nil},
		"mirror in plain HTTP, image there under the mirror's name": {func(m *machine) {
			m.r.Mirror = "http://registry.example:5000"
			m.programs["docker image inspect --format {{.Id}} registry.example:5000/kindest/node:v9.9.9@sha256:0000"] = answer{stdout: "sha256:1\n"}
		}, nil},
		"mirror that is none": {
			func(m *machine) { m.r.Mirror = "ftp://hush@registry.example" },
			[]want{{"registry", fatal, "neither host[:port] nor a URL", "mirror: http://"}},
		},
		"local registry that Docker knows": {func(m *machine) {
			m.r.ImageRefs = []string{"localhost:5000/kindest/node:v9.9.9"}
			m.o.Docker.InsecureRegistries = []string{"localhost:5000"}
			m.down = map[string]error{"https://localhost:5000": errors.New("http: server gave HTTP response to HTTPS client")}
		}, nil},

		"download host down": {
			func(m *machine) { m.down = map[string]error{"https://example.org": refused} },
			[]want{{"download", fatal, "GET https://example.org/: connection refused. It has to give:\nhttps://example.org/a.yaml\nhttps://example.org/b.yaml", "`artifactsDir`"}},
		},
		"nothing to download": {func(m *machine) {
			m.down, m.r.URLs = map[string]error{"https://example.org": refused}, nil
		}, nil},
		"odd addresses": {func(m *machine) { m.r.URLs = []string{"", "://", "file.yaml"} }, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := soundMachine()
			test.change(m)
			faults := preflight(t, m)
			if len(faults) != len(test.want) {
				t.Fatalf("%d faults, want %d:\n%s", len(faults), len(test.want), host.Report(faults))
			}
			for i, want := range test.want {
				got := faults[i]
				if got.Check != want.check || got.Fatal != want.fatal ||
					!strings.Contains(got.Problem, want.problem) || !strings.Contains(got.Remedy, want.remedy) {
					t.Errorf("got  %+v\nwant %+v", got, want)
				}
				if strings.Contains(got.Problem+got.Remedy, "hush") {
					t.Errorf("a secret in %+v", got)
				}
			}
		})
	}
}

func ownNetwork(subnets ...string) *host.Network {
	return &host.Network{
		Name: "proj-dev", ID: "n", Subnets: prefixes(subnets...),
		Labels: map[string]string{host.LabelStack: "proj-dev"},
	}
}

func TestPreflightElsewhere(t *testing.T) {
	for _, goos := range []string{"darwin", "windows"} {
		m := soundMachine()
		m.goos, m.files, m.space = goos, nil, nil
		m.o.Docker.Kernel = "9.1-linuxkit"
		faults := preflight(t, m)
		if len(faults) != 1 || faults[0].Check != "system" || !faults[0].Fatal ||
			!strings.Contains(faults[0].Problem, goos) || !strings.Contains(faults[0].Problem, "cannot be reached from here") {
			t.Errorf("%s:\n%s", goos, host.Report(faults))
		}
	}
}

// brokenMachine lacks nearly everything.
func brokenMachine() *machine {
	m := soundMachine()
	m.files = map[string]string{
		"/proc/meminfo":                            "MemAvailable: 1024 kB\n",
		"/proc/sys/fs/inotify/max_user_watches":    "8192\n",
		"/proc/sys/fs/inotify/max_user_instances":  "128\n",
		"/proc/sys/net/netfilter/nf_conntrack_max": "65536\n",
	}
	m.tools = nil
	m.space["/var/lib/docker"] = host.Space{Free: 1, Total: gibibyte}
	m.o.CPUs = 1
	m.o.Docker.ServerVersion, m.o.Docker.CgroupVersion, m.o.Docker.UserNamespaces = "18.9.0", "1", true
	m.o.Routes = prefixes("172.30.0.0/24")
	down := errors.New("connection refused")
	m.down = map[string]error{
		"https://registry-1.docker.io": down, "https://quay.io": down, "https://registry.k8s.io": down,
		"https://example.org": down, "https://git.example.org": down,
	}
	return m
}

// All faults come in one go, always in the same order.
func TestPreflightAllAtOnce(t *testing.T) {
	faults := preflight(t, brokenMachine())
	var got []string
	for _, fault := range faults {
		got = append(got, fault.Check)
	}
	want := []string{
		"docker", "docker", "cpus", "memory", "disk", "cgroup", "inotify", "inotify", "conntrack", "bridge-netfilter", "network",
		"tools", "tools", "tools", "tools", "registry", "registry", "registry", "download", "download",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	report := host.Report(faults)
	for range 20 {
		again := preflight(t, brokenMachine())
		if !reflect.DeepEqual(again, faults) || host.Report(again) != report {
			t.Fatalf("not the same twice:\n%s\n%s", report, host.Report(again))
		}
	}
}

func TestReport(t *testing.T) {
	if got := host.Report(nil); got != "" {
		t.Errorf("nothing gave %q", got)
	}
	soft := host.Fault{Check: "soft", Problem: "it creaks.", Remedy: "oil it\nwell"}
	hard := host.Fault{Check: "hard", Problem: "it broke\nin two.", Remedy: "glue", Fatal: true}
	bare := host.Fault{Check: "bare", Problem: "no help.", Fatal: true}
	got := host.Report([]host.Fault{soft, hard, bare})
	want := `This host cannot carry the stack (2 faults, 1 warning):

fault (hard): it broke
  in two.
  To mend it: glue

fault (bare): no help.

warning (soft): it creaks.
  To mend it: oil it
    well
`
	if got != want {
		t.Errorf("got:\n%s", got)
	}
	if got := host.Report([]host.Fault{soft, soft}); !strings.HasPrefix(got, "This host may give trouble (2 warnings):\n") {
		t.Errorf("got %q", got)
	}
	if got := host.Report([]host.Fault{hard}); !strings.HasPrefix(got, "This host cannot carry the stack (1 fault):\n") {
		t.Errorf("got %q", got)
	}
}
