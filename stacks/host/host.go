// Package host looks at the machine on which a stack is to live: what of the
// stack Docker already holds, and what the machine lacks.
//
// Observe says what is there; Preflight says, all at once, what is missing and
// how to mend it. They change nothing; Wake starts what is there and does not
// run. Everything outside the process goes through a System, so a test can
// stand in for the machine.
package host

import (
	"context"
	"net/netip"
	"time"
)

// Labels on everything in Docker that belongs to a stack. The kind node is the
// exception: kind sets no labels of ours, see IncarnationFile.
const (
	LabelStack       = "io.gpu-tenants.stack"
	LabelIncarnation = "io.gpu-tenants.incarnation"
	LabelTenant      = "io.gpu-tenants.tenant"
	LabelVersion     = "io.gpu-tenants.kubernetes-version"
)

// IncarnationFile holds, inside the kind node, what LabelIncarnation holds on a
// worker.
const IncarnationFile = "/kind/gpu-tenants-incarnation"

// Names says by what names Docker knows a stack.
type Names struct {
	Network    string // of the Docker network
	Cluster    string // kind's name of the management cluster
	StackLabel string // value of LabelStack
}

// ControlPlane is the name of the management cluster's only container.
func (n Names) ControlPlane() string { return n.Cluster + "-control-plane" }

// Observed is what the machine holds and is.
type Observed struct {
	Names Names // what was asked for

	// CPUs and MemoryBytes as the Docker daemon counts them.
	CPUs        int
	MemoryBytes int64
	Docker      Daemon

	// Network is the stack's own; nil when absent. When several networks
	// have its name, the one with the stack's label; the others are in
	// OtherNetworks.
	Network *Network
	// OtherNetworks are all other Docker networks with an IPv4 subnet, by name.
	OtherNetworks []Network
	// Routes are the host's IPv4 routes (of the main table), sorted, without
	// Docker's own bridges and without what stands for "everywhere": the
	// default route and prefixes shorter than /8, into which VPNs split it.
	Routes []netip.Prefix

	// Cluster is the management cluster's container; nil when absent.
	Cluster *Node
	// Workers are the other containers with the stack's label, by name.
	Workers map[string]Node
}

// Network is a Docker network.
type Network struct {
	Name, ID string
	Driver   string
	Subnets  []netip.Prefix // IPv4 only, masked
	Labels   map[string]string
	// Containers are the names of those attached, sorted. Docker lists a
	// container here only while it runs.
	Containers []string
}

// Node is a container that is, or is to be, a Kubernetes node.
type Node struct {
	Name, ID string
	// State is Docker's word: created, running, paused, restarting, removing,
	// exited or dead. Running means that it is "running": a paused or
	// restarting container, which Docker calls running as well, serves nobody.
	State   string
	Running bool
	// Started is when it last was; zero when it never was.
	Started time.Time
	// IPv4 on the stack's network: the address it has, or, while stopped, the
	// one it is configured to have. Zero when there is neither.
	IPv4        netip.Addr
	Labels      map[string]string
	Incarnation string
}

// Daemon is what `docker info` says of the daemon and its client.
type Daemon struct {
	ServerVersion, ClientVersion string
	OperatingSystem, Kernel      string
	CgroupVersion                string // "1", "2"; "" from daemons too old to say
	RootDir                      string
	// ContainerdStore: images lie in containerd's folder, not in RootDir.
	ContainerdStore bool
	Rootless        bool
	UserNamespaces  bool // userns-remap
	// Elsewhere: the daemon has bridge networks, and none of them is in this
	// machine's route table, so its addresses cannot be reached from here.
	Elsewhere bool

	// How the daemon pulls images.
	Proxied            bool           // it has a proxy of its own
	RegistryMirrors    []string       // of Docker Hub
	InsecureRegistries []string       // host[:port], sorted
	InsecureCIDRs      []netip.Prefix // sorted
}

// Observe looks at the real machine. Its error means that Docker cannot be
// used, and is a *DockerError that says why and what helps, unless ctx ended.
func Observe(ctx context.Context, names Names) (*Observed, error) {
	return Real().Observe(ctx, names)
}

// Preflight checks the real machine against what a stack needs, and returns
// all faults, in a fixed order. o is what Observe returned.
func Preflight(ctx context.Context, o *Observed, r Requirements) []Fault {
	return Real().Preflight(ctx, o, r)
}
