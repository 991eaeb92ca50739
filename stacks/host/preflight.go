package host

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Requirements says what a stack needs of its host.
type Requirements struct {
	// Fresh: nothing of the stack exists yet. What matters only before that,
	// memory and disk, is looked at only then; and what a running stack can do
	// without, a registry for its pods, is then fatal.
	Fresh bool

	// Subnet is the stack's Docker network. Reserved are the networks of pods
	// and services: they are never proposed instead.
	Subnet   netip.Prefix
	Reserved []netip.Prefix

	// WorkersTotal and ControlPlanes (of tenants), running or to be.
	WorkersTotal, ControlPlanes int
	// MemoryBytes and DiskBytes that the whole stack will take; 0: not looked at.
	MemoryBytes, DiskBytes int64
	// KubeletToleratesCgroupV1: the configuration lets kubelets run on it.
	KubeletToleratesCgroupV1 bool

	// Mirror as in the configuration: host[:port] or a URL; "" for none.
	Mirror string
	// ImageRefs are the images that Docker starts containers from, under their
	// upstream names: those of the nodes still to be made.
	ImageRefs []string
	// RegistryHosts are those from which images are pulled inside the nodes.
	RegistryHosts []string
	// URLs of what has to be downloaded: manifests, charts, git repositories.
	URLs []string

	// ToolsDir is looked in for tools before the PATH; "" for the PATH alone.
	ToolsDir string
	// KindVersion is the only one that serves, with or without a "v".
	KindVersion string
	// PulumiMinVersion is the oldest that serves; "": not looked at.
	PulumiMinVersion string
	NeedGit          bool
}

// Fault is something that the host lacks.
type Fault struct {
	// Check is a short, stable name of what was looked at.
	Check string
	// Problem says what is wrong and what follows; Remedy how to mend it. Both
	// may have several lines.
	Problem, Remedy string
	// Fatal: the stack will not come up or not work. Otherwise it may.
	Fatal bool
}

// The names of the checks, in their order.
const (
	checkSystem    = "system"
	checkDocker    = "docker"
	checkCPUs      = "cpus"
	checkMemory    = "memory"
	checkDisk      = "disk"
	checkCgroup    = "cgroup"
	checkInotify   = "inotify"
	checkConntrack = "conntrack"
	checkBridge    = "bridge-netfilter"
	checkNetwork   = "network"
	checkTools     = "tools"
	checkRegistry  = "registry"
	checkDownload  = "download"
)

// preflight is one run over all checks.
type preflight struct {
	*System
	o *Observed
	r Requirements
}

// Preflight checks the machine against what a stack needs, and returns all
// faults, in a fixed order. o is what Observe returned.
func (s *System) Preflight(ctx context.Context, o *Observed, r Requirements) []Fault {
	p := &preflight{System: s, o: o, r: r}
	checks := []func(context.Context) []Fault{
		p.system, p.docker, p.cpus, p.memory, p.disk, p.cgroup, p.inotify, p.conntrack, p.bridge,
		p.network, p.tools, p.registries, p.downloads,
	}
	found := make([][]Fault, len(checks))
	var group sync.WaitGroup
	for i, check := range checks {
		group.Go(func() { found[i] = check(ctx) })
	}
	group.Wait()
	return slices.Concat(found...)
}

// Report is the faults as text, the fatal ones first; "" when there are none.
func Report(faults []Fault) string {
	if len(faults) == 0 {
		return ""
	}
	sorted := slices.Clone(faults)
	slices.SortStableFunc(sorted, func(a, b Fault) int { return cmp.Compare(rank(a), rank(b)) })
	fatal := 0
	for _, fault := range faults {
		if fault.Fatal {
			fatal++
		}
	}
	var text strings.Builder
	switch warnings := len(faults) - fatal; {
	case fatal == 0:
		fmt.Fprintf(&text, "This host may give trouble (%s):\n", count(warnings, "warning"))
	case warnings == 0:
		fmt.Fprintf(&text, "This host cannot carry the stack (%s):\n", count(fatal, "fault"))
	default:
		fmt.Fprintf(&text, "This host cannot carry the stack (%s, %s):\n", count(fatal, "fault"), count(warnings, "warning"))
	}
	for _, fault := range sorted {
		word := "warning"
		if fault.Fatal {
			word = "fault"
		}
		fmt.Fprintf(&text, "\n%s (%s): %s\n", word, fault.Check, indent(fault.Problem, "  "))
		if fault.Remedy != "" {
			fmt.Fprintf(&text, "  To mend it: %s\n", indent(fault.Remedy, "    "))
		}
	}
	return text.String()
}

func rank(fault Fault) int {
	if fault.Fatal {
		return 0
	}
	return 1
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// indent all lines but the first.
func indent(text, by string) string {
	return strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+by)
}

func (p *preflight) linux() bool { return p.GOOS == "linux" }

func (p *preflight) system(context.Context) []Fault {
	if p.linux() {
		return nil
	}
	return []Fault{{
		Check: checkSystem,
		Problem: fmt.Sprintf("this host runs %s. Docker then lives in a virtual machine, and the LoadBalancer addresses "+
			"of the tenants, which lie on its network, cannot be reached from here.", p.GOOS),
		Remedy: "Run Pulumi on a Linux machine, or inside a Linux virtual machine that has Docker Engine in it.",
		Fatal:  true,
	}}
}

// docker looks at the daemon itself: its age, and whether its networks are this
// machine's. Of the latter only the most telling fault is named.
func (p *preflight) docker(context.Context) []Fault {
	const oldestMajor, oldestMinor = 20, 10 // the first with --cgroupns and cgroup v2
	var faults []Fault
	d := p.o.Docker
	for _, side := range []struct{ name, version string }{{"daemon", d.ServerVersion}, {"command", d.ClientVersion}} {
		major, minor, ok := majorMinor(side.version)
		switch {
		case !ok:
			faults = append(faults, Fault{
				Check: checkDocker,
				Problem: fmt.Sprintf("the version of the docker %s, %q, says nothing; at least %d.%d is needed.",
					side.name, side.version, oldestMajor, oldestMinor),
				Remedy: "Use a release of Docker Engine: https://docs.docker.com/engine/install/",
			})
		case major < oldestMajor || major == oldestMajor && minor < oldestMinor:
			faults = append(faults, Fault{
				Check: checkDocker,
				Problem: fmt.Sprintf("the docker %s is version %s, older than %d.%d: it knows no private cgroup namespaces, "+
					"which nodes in containers need.", side.name, side.version, oldestMajor, oldestMinor),
				Remedy: "Upgrade Docker Engine: https://docs.docker.com/engine/install/",
				Fatal:  true,
			})
		}
	}
	const needsEngine = "Use Docker Engine of the system itself (https://docs.docker.com/engine/install/), " +
		"run by root: docker context use default"
	kernel, err := p.ReadFile("/proc/sys/kernel/osrelease")
	local := strings.TrimSpace(string(kernel))
	switch {
	case d.Rootless:
		faults = append(faults, Fault{
			Check: checkDocker,
			Problem: "Docker runs rootless: its networks are inside a network namespace of its own, where the LoadBalancer " +
				"addresses cannot be reached from the host.",
			Remedy: needsEngine,
			// Some set-ups share the host's network; where Docker's bridges
			// are in the route table, only doubt is left.
			Fatal: d.Elsewhere,
		})
	case p.linux() && err == nil && d.Kernel != "" && d.Kernel != local:
		faults = append(faults, Fault{
			Check: checkDocker,
			Problem: fmt.Sprintf("the Docker daemon (%s) runs on another kernel (%s) than this process (%s): in a virtual machine "+
				"or behind a tunnel. The LoadBalancer addresses lie on its network and cannot be reached from here.",
				d.OperatingSystem, d.Kernel, local),
			Remedy: needsEngine,
			Fatal:  true,
		})
	case p.linux() && d.Elsewhere:
		faults = append(faults, Fault{
			Check: checkDocker,
			Problem: "none of Docker's bridge networks is in the route table of this process (/proc/net/route): it runs in a " +
				"container or network namespace, from which the LoadBalancer addresses cannot be reached.",
			Remedy: "Run Pulumi on the host itself, or in a container with `--network host`.",
			Fatal:  true,
		})
	}
	if d.UserNamespaces {
		faults = append(faults, Fault{
			Check: checkDocker,
			Problem: "the Docker daemon remaps user namespaces (userns-remap). Node containers are privileged, which Docker refuses " +
				"in a remapped namespace.",
			Remedy: "When a node fails with \"privileged mode is incompatible with user namespaces\": " +
				"take userns-remap out of /etc/docker/daemon.json and restart Docker.",
		})
	}
	return faults
}

// majorMinor reads the start of "20.10.24+dfsg1".
func majorMinor(version string) (major, minor int, ok bool) {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 2 {
		return 0, 0, false
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	return major, minor, err1 == nil && err2 == nil
}

func (p *preflight) cpus(context.Context) []Fault {
	const fewest = 2
	if p.o.CPUs >= fewest {
		return nil
	}
	return []Fault{{
		Check: checkCPUs,
		Problem: fmt.Sprintf("Docker has %s. Tenants' control planes start so slowly on it that their probes may kill them.",
			count(p.o.CPUs, "processor")),
		Remedy: fmt.Sprintf("Give the machine at least %d processors.", fewest),
	}}
}

func (p *preflight) memory(context.Context) []Fault {
	if !p.r.Fresh || !p.linux() || p.r.MemoryBytes <= 0 {
		return nil
	}
	const kibibyte = 1024
	text, _ := p.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "MemAvailable:" {
			continue
		}
		available, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil || available*kibibyte >= p.r.MemoryBytes {
			return nil
		}
		return []Fault{{
			Check: checkMemory,
			Problem: fmt.Sprintf("%s of memory is available, and the stack takes about %s: the kernel would kill parts of it.",
				gibibytes(available*kibibyte), gibibytes(p.r.MemoryBytes)),
			Remedy: "End other programs, or make the stack smaller: fewer tenants, control-plane replicas or workers, `etcdReplicas: 1`.",
			Fatal:  true,
		}}
	}
	return nil
}

func gibibytes(n int64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }

// disk looks at the free bytes alone: the nodes' kubelets neither collect images
// nor evict pods, whatever the percentage in use. Folders that may not be looked
// at are passed over.
func (p *preflight) disk(context.Context) []Fault {
	const full = 85 // percent: Docker's other users feel it
	if !p.r.Fresh {
		return nil
	}
	paths := []string{p.o.Docker.RootDir}
	if p.o.Docker.ContainerdStore {
		paths = append(paths, "/var/lib/containerd")
	}
	for _, path := range paths { // on one file system, as a rule: the first fault is enough
		if path == "" {
			continue
		}
		space, err := p.DiskSpace(path)
		if err != nil || space.Total == 0 {
			continue
		}
		const remedy = "Make room: `docker system df` shows what Docker holds; `docker image prune` and `docker builder prune` " +
			"remove what nothing uses. Or move Docker: \"data-root\" in /etc/docker/daemon.json."
		used := 100 - float64(space.Free)*100/float64(space.Total)
		switch {
		case p.r.DiskBytes > 0 && space.Free < uint64(p.r.DiskBytes):
			return []Fault{{
				Check: checkDisk,
				Problem: fmt.Sprintf("%s is free under %s, and the stack takes about %s.",
					gibibytes(int64(space.Free)), path, gibibytes(p.r.DiskBytes)), //nolint:gosec // less than an int64
				Remedy: remedy,
				Fatal:  true,
			}}
		case used > full:
			return []Fault{{
				Check:   checkDisk,
				Problem: fmt.Sprintf("the file system of %s is %.0f %% full. The stack fits, other things may soon not.", path, used),
				Remedy:  remedy,
			}}
		}
	}
	return nil
}

func (p *preflight) cgroup(context.Context) []Fault {
	if p.o.Docker.CgroupVersion != "1" || p.r.KubeletToleratesCgroupV1 {
		return nil
	}
	return []Fault{{
		Check:   checkCgroup,
		Problem: "the host runs cgroup v1, on which today's kubelets refuse to start.",
		Remedy: "Boot with cgroup v2: add systemd.unified_cgroup_hierarchy=1 to the kernel's command line (GRUB_CMDLINE_LINUX in " +
			"/etc/default/grub, then sudo update-grub) and restart the machine.\n" +
			"Or, while kubelets still can, let them run on v1, with these settings of the stack:\n" +
			"kubelet: {failCgroupV1: false}\n" +
			"kubeletArgs: {fail-cgroupv1: \"false\"}",
		Fatal: true,
	}}
}

// number reads a file that holds one number.
func (p *preflight) number(path string) (int, error) {
	text, err := p.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// setSysctl is how to set a kernel parameter now and for good.
func setSysctl(key string, value int) string {
	name := strings.ReplaceAll(key[strings.LastIndex(key, ".")+1:], "_", "-")
	return fmt.Sprintf("sudo sysctl -w %s=%d\necho '%s = %d' | sudo tee /etc/sysctl.d/90-gpu-tenants-%s.conf",
		key, value, key, value, name)
}

// loadModule is how to load a kernel module now and for good.
func loadModule(module string) string {
	return fmt.Sprintf("sudo modprobe %s\necho %s | sudo tee /etc/modules-load.d/gpu-tenants-%s.conf", module, module, module)
}

// inotify limits are shared by all containers of a user. kind asks for the base
// (https://kind.sigs.k8s.io/docs/user/known-issues/#pod-errors-due-to-too-many-open-files),
// which carries a handful of nodes; a large stack needs more, by estimate.
func (p *preflight) inotify(context.Context) []Fault {
	if !p.linux() {
		return nil
	}
	const carried = 8 // nodes and control planes that the base is enough for
	more := max(0, 1+p.r.WorkersTotal+p.r.ControlPlanes-carried)
	var faults []Fault
	for _, limit := range []struct {
		key, path  string
		base, each int
	}{
		{"fs.inotify.max_user_watches", "/proc/sys/fs/inotify/max_user_watches", 524288, 65536},
		{"fs.inotify.max_user_instances", "/proc/sys/fs/inotify/max_user_instances", 512, 64},
	} {
		want := limit.base + more*limit.each
		have, err := p.number(limit.path)
		switch {
		case err != nil:
			faults = append(faults, Fault{
				Check:   checkInotify,
				Problem: fmt.Sprintf("%s cannot be read (%v); %d is needed.", limit.key, err, want),
				Remedy:  setSysctl(limit.key, want),
			})
		case have < want:
			faults = append(faults, Fault{
				Check: checkInotify,
				Problem: fmt.Sprintf("%s is %d, and this stack needs %d: all nodes share it, and the last ones to start "+
					"die of \"too many open files\".", limit.key, have, want),
				Remedy: setSysctl(limit.key, want),
				Fatal:  have < limit.base,
			})
		}
	}
	return faults
}

// conntrack: kube-proxy in a tenant sets nf_conntrack_max by the number of
// processors, and enlarges the hash table to a quarter of it. In a container it
// can do neither and dies of the attempt; it makes none where the values are
// right already (k8s.io/kubernetes/pkg/proxy/conntrack/sysctls.go). kind turns
// this off on its own node, Kamaji's addon does not.
func (p *preflight) conntrack(context.Context) []Fault {
	if !p.linux() {
		return nil
	}
	const (
		perCPU, floor = 32768, 131072
		ceiling       = 1048576 // of recent releases; older ones have none
		keyMax        = "net.netfilter.nf_conntrack_max"
		keyBuckets    = "net.netfilter.nf_conntrack_buckets"
	)
	cpus := p.onlineCPUs()
	scaled := max(floor, perCPU*cpus)
	want := min(scaled, ceiling)
	have, err := p.number("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		return []Fault{{
			Check: checkConntrack,
			Problem: "net.netfilter.nf_conntrack_max does not exist: the kernel module nf_conntrack is not loaded, " +
				"and kube-proxy needs it.",
			Remedy: loadModule("nf_conntrack") + "\n" + setSysctl(keyMax, want),
			Fatal:  true,
		}}
	}
	var faults []Fault
	switch {
	case have == want:
	case have == scaled: // more processors than the ceiling allows for
		faults = append(faults, Fault{
			Check: checkConntrack,
			Problem: fmt.Sprintf("%s is %d, as an older kube-proxy wants it on %d processors. A recent one wants %d, may not set it "+
				"from within a container, and dies.", keyMax, have, cpus, want),
			Remedy: "If kube-proxy crashes in a tenant:\n" + setSysctl(keyMax, want),
		})
	default:
		faults = append(faults, Fault{
			Check: checkConntrack,
			Problem: fmt.Sprintf("%s is %d, and kube-proxy in the tenants wants exactly %d on %d processors. It may not set it from "+
				"within a container, and dies.", keyMax, have, want, cpus),
			Remedy: setSysctl(keyMax, want),
			Fatal:  true,
		})
	}
	const share = 4
	if buckets, err := p.number("/proc/sys/net/netfilter/nf_conntrack_buckets"); err == nil && buckets < want/share {
		faults = append(faults, Fault{
			Check: checkConntrack,
			Problem: fmt.Sprintf("%s is %d, and kube-proxy in the tenants wants at least %d. It may not set it from within a "+
				"container, and dies.", keyBuckets, buckets, want/share),
			Remedy: setSysctl(keyBuckets, want/share),
			Fatal:  true,
		})
	}
	return faults
}

// onlineCPUs as kube-proxy counts them: by /sys, not by what Docker may use.
func (p *preflight) onlineCPUs() int {
	text, err := p.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return p.o.CPUs
	}
	cpus := 0
	for part := range strings.SplitSeq(strings.TrimSpace(string(text)), ",") { // "0-3,5"
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err1 := strconv.Atoi(from)
		last, err2 := strconv.Atoi(to)
		if err1 != nil || err2 != nil || last < first {
			return p.o.CPUs
		}
		cpus += last - first + 1
	}
	return cpus
}

func (p *preflight) bridge(context.Context) []Fault {
	if !p.linux() {
		return nil
	}
	if _, err := p.ReadFile("/proc/sys/net/bridge/bridge-nf-call-iptables"); err == nil {
		return nil
	}
	return []Fault{{
		Check: checkBridge,
		Problem: "the kernel module br_netfilter is not loaded: pods on the same node may not reach each other " +
			"through a Service. Nodes try to load it, which does not work on every host.",
		Remedy: loadModule("br_netfilter"),
	}}
}

// network looks for what else has the stack's addresses.
func (p *preflight) network(context.Context) []Fault {
	if !p.r.Subnet.IsValid() {
		return nil
	}
	subnet := p.r.Subnet.Masked()
	var faults []Fault
	exists := false // just as it should be
	if own := p.o.Network; own != nil {
		exists = slices.Contains(own.Subnets, subnet)
		switch {
		case own.Labels[LabelStack] != p.o.Names.StackLabel:
			faults = append(faults, Fault{
				Check: checkNetwork,
				Problem: fmt.Sprintf("there is a Docker network %s that was not made by this stack (label %s is %q, not %q).",
					own.Name, LabelStack, own.Labels[LabelStack], p.o.Names.StackLabel),
				Remedy: fmt.Sprintf("If nothing needs it: docker network rm %s. Otherwise give the stack another name.", own.Name),
				Fatal:  true,
			})
		case !exists:
			has, remedy := "no IPv4 subnet", "Build anew: pulumi destroy, then pulumi up."
			if len(own.Subnets) > 0 {
				has = "the subnet " + own.Subnets[0].String()
				remedy = fmt.Sprintf("Keep it: set `network: %s`. Or change it by building anew: pulumi destroy, then pulumi up.",
					own.Subnets[0])
			}
			faults = append(faults, Fault{
				Check: checkNetwork,
				Problem: fmt.Sprintf("the stack's network %s has %s, and the configuration says %s. A network's subnet "+
					"cannot be changed while nodes live on it.", own.Name, has, subnet),
				Remedy: remedy,
				Fatal:  true,
			})
		}
	}
	var clashes []string
	for _, network := range p.o.OtherNetworks {
		if network.Name == p.o.Names.Network {
			faults = append(faults, Fault{
				Check: checkNetwork,
				Problem: fmt.Sprintf("there are two Docker networks called %s, and Docker refuses to guess which is meant.",
					network.Name),
				Remedy: "Remove the one that nothing uses: docker network rm " + network.ID,
				Fatal:  true,
			})
		}
		for _, other := range network.Subnets {
			if other.Overlaps(subnet) {
				clashes = append(clashes, fmt.Sprintf("the Docker network %s (%s)", network.Name, other))
			}
		}
	}
	for _, route := range p.o.Routes {
		if route.Overlaps(subnet) {
			clashes = append(clashes, fmt.Sprintf("the host's route to %s", route))
		}
	}
	if len(clashes) == 0 {
		return faults
	}
	remedy := "Set `network` to a subnet that nothing else uses; `ip route` and `docker network inspect` show what is used."
	if free := FreeSubnet(p.o, subnet, p.r.Reserved...); free.IsValid() {
		remedy = fmt.Sprintf("Set `network: %s`, which is free.", free)
	}
	if exists {
		remedy = "If tenants cannot be reached, or something behind that route cannot: close the VPN, or destroy the stack and build it anew. " + remedy
	}
	return append(faults, Fault{
		Check:   checkNetwork,
		Problem: fmt.Sprintf("the stack's subnet %s overlaps %s.", subnet, strings.Join(clashes, ", ")),
		Remedy:  remedy,
		// The network that exists was made in spite of it; a VPN may have
		// come up since, and need not hurt.
		Fatal: !exists,
	})
}

// find a tool: in ToolsDir, then on the PATH.
func (p *preflight) find(tool string) (string, error) {
	if p.r.ToolsDir != "" {
		if path, err := p.LookPath(filepath.Join(p.r.ToolsDir, tool)); err == nil {
			return path, nil
		}
	}
	return p.LookPath(tool)
}

func (p *preflight) tools(ctx context.Context) []Fault {
	var faults []Fault
	if p.r.KindVersion != "" {
		faults = append(faults, p.versioned(ctx, "kind", p.r.KindVersion, func(have string) bool { return have == bare(p.r.KindVersion) },
			"exactly the release whose node images this project names")...)
	}
	if p.r.PulumiMinVersion != "" {
		faults = append(faults, p.versioned(ctx, "pulumi", p.r.PulumiMinVersion+" or later",
			func(have string) bool { return !older(have, bare(p.r.PulumiMinVersion)) }, "")...)
	}
	plain := []string{"bash"}
	if p.r.NeedGit {
		plain = append(plain, "git")
	}
	for _, tool := range plain {
		if _, err := p.find(tool); err != nil {
			faults = append(faults, Fault{
				Check:   checkTools,
				Problem: tool + " is not on the PATH.",
				Remedy:  fmt.Sprintf("Install it, for example: sudo apt-get install %s", tool),
				Fatal:   true,
			})
		}
	}
	return faults
}

// versioned checks a tool that must be of a certain version.
func (p *preflight) versioned(ctx context.Context, tool, want string, serves func(string) bool, why string) []Fault {
	needed := want + " is needed"
	if why != "" {
		needed += ", " + why
	}
	fault := Fault{Check: checkTools, Remedy: "make tools", Fatal: true}
	path, err := p.find(tool)
	if err != nil {
		places := "not on the PATH"
		if p.r.ToolsDir != "" {
			places = fmt.Sprintf("neither in %s nor on the PATH", p.r.ToolsDir)
		}
		fault.Problem = fmt.Sprintf("%s is %s; %s.", tool, places, needed)
		return []Fault{fault}
	}
	limited, cancel := context.WithTimeout(ctx, p.CommandTimeout)
	defer cancel()
	out, err := p.Run(limited, path, "version")
	if err != nil {
		reason := firstLine(out.Stderr)
		if limited.Err() != nil {
			reason = fmt.Sprintf("no answer within %s", p.CommandTimeout)
		} else if reason == "" {
			reason = err.Error()
		}
		fault.Problem = fmt.Sprintf("%s does not tell its version: %s; %s.", path, reason, needed)
		return []Fault{fault}
	}
	have := toolVersion(string(out.Stdout))
	if serves(have) {
		return nil
	}
	fault.Problem = fmt.Sprintf("%s is version %s; %s.", path, cmp.Or(have, "unknown"), needed)
	return []Fault{fault}
}

// toolVersion reads "kind v9.9.9 go1.99 linux/amd64", "kind version 9.9.9" and
// "v9.9.9": the first word that looks like a version.
func toolVersion(text string) string {
	for _, word := range strings.Fields(text) {
		word = bare(word)
		if _, _, ok := majorMinor(word); ok {
			return word
		}
	}
	return ""
}

func bare(version string) string { return strings.TrimPrefix(version, "v") }

// older compares versions by their numbers; what follows "-" or "+" counts for
// nothing. A version that is none is older than any.
func older(have, than string) bool {
	a, okA := numbers(have)
	b, okB := numbers(than)
	if !okA || !okB {
		return !okA
	}
	return slices.Compare(a, b) < 0
}

func numbers(version string) ([]int, bool) {
	if cut := strings.IndexAny(version, "-+"); cut >= 0 {
		version = version[:cut]
	}
	var all []int
	for part := range strings.SplitSeq(version, ".") {
		number, err := strconv.Atoi(part)
		if err != nil {
			return nil, false
		}
		all = append(all, number)
	}
	return all, true
}
