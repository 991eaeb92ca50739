package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// rules are those over several values. They say nothing about a value that the
// reader could not read.
type rules struct {
	*reader
	config *Config
	// broken is apart from the reader's faults: one broken rule does not keep
	// another from being checked.
	broken Faults
}

// validate returns the faults of all rules over several values.
func validate(r *reader, c *Config) Faults {
	rules := &rules{reader: r, config: c}
	rules.names()
	rules.nodeImages()
	rules.serviceNetwork()
	for i, tenant := range c.Tenants {
		path := fmt.Sprintf("tenants[%d]", i)
		rules.podNetwork(path, tenant)
		rules.nodeNetworks(path, tenant)
		rules.quota(path, tenant)
	}
	return rules.broken
}

// report adds a fault, unless another tenant has led to the same.
func (r *rules) report(path, format string, args ...any) {
	fault := Fault{Path: path, Message: fmt.Sprintf(format, args...)}
	if !slices.Contains(r.broken, fault) {
		r.broken = append(r.broken, fault)
	}
}

func (r *rules) names() {
	first := map[string]int{}
	for i, tenant := range r.config.Tenants {
		earlier, taken := first[tenant.Name]
		switch {
		case tenant.Name == "": // could not be read
		case taken:
			r.report(fmt.Sprintf("tenants[%d].name", i),
				"%q is also the name of tenants[%d]; give it one of its own", tenant.Name, earlier)
		default:
			first[tenant.Name] = i
		}
	}
}

func (r *rules) nodeImages() {
	if !r.sound("nodeImages") {
		return
	}
	images := r.config.imageVersions()
	check := func(path, version string) {
		if version != "" && r.sound(path) && !slices.Contains(images, version) {
			r.report(path, "there is no node image for %s; choose one of %s, or name an image in nodeImages",
				version, strings.Join(images, ", "))
		}
	}
	check("kubernetesVersion", r.config.KubernetesVersion)
	for i, tenant := range r.config.Tenants {
		check(fmt.Sprintf("tenants[%d].kubernetesVersion", i), tenant.KubernetesVersion)
	}
}

func (r *rules) serviceNetwork() {
	network, services := r.config.Network, r.config.ServiceCIDR
	if network != "" && r.sound("network", "serviceCidr") && overlap(network, services) {
		r.report("network", "%s overlaps the service network %s; choose another for one of them", network, services)
	}
}

func (r *rules) podNetwork(tenantPath string, tenant Tenant) {
	path := tenantPath + ".podCidr"
	check := func(other, what, subnet string) {
		if subnet == "" || !r.sound(path, other) || !overlap(tenant.PodCIDR, subnet) {
			return
		}
		blamed := path
		if tenant.PodCIDR == DefaultPodCIDR {
			blamed = other // a default is not at fault: what was written is
		}
		r.report(blamed, "the pod network %s overlaps the %s network %s; choose another for one of them",
			tenant.PodCIDR, what, subnet)
	}
	check("serviceCidr", "service", r.config.ServiceCIDR)
	check("network", "stack's", r.config.Network)
}

// nodeNetworks: Kamaji's controller manager gives every node a /24 of the pod
// network, and a node beyond the last none.
func (r *rules) nodeNetworks(tenantPath string, tenant Tenant) {
	const nodeBits = 24
	path := tenantPath + ".podCidr"
	if !r.sound(path) {
		return
	}
	bits := netip.MustParsePrefix(tenant.PodCIDR).Bits()
	if nodes := 1 << (nodeBits - bits); len(tenant.Workers) > nodes {
		r.report(path, "%s has room for %d workers, a /%d each, and the tenant has %d; choose a larger one",
			tenant.PodCIDR, nodes, nodeBits, len(tenant.Workers))
	}
}

func overlap(a, b string) bool {
	return netip.MustParsePrefix(a).Overlaps(netip.MustParsePrefix(b))
}

func (r *rules) quota(path string, tenant Tenant) {
	if tenant.Quota == nil || !r.sound(path+".gpus", path+".workers") {
		return
	}
	memory, cores := r.config.Capacity(tenant)
	if r.sound("memoryScaling") && tenant.Quota.GPUMemoryMiB > memory {
		r.report(path+".quota.gpuMemory", "allows %d MiB, but the tenant's cards have %d with memoryScaling %g; allow at most that",
			tenant.Quota.GPUMemoryMiB, memory, r.config.MemoryScaling)
	}
	if r.sound("coreScaling") && tenant.Quota.GPUCores > cores {
		r.report(path+".quota.gpuCores", "allows %d percent, but the tenant's cards have %d with coreScaling %g; allow at most that",
			tenant.Quota.GPUCores, cores, r.config.CoreScaling)
	}
}

// Capacity is what all cards of a tenant register together, healthy or not:
// each card's memory in MiB and percent of cores, scaled and rounded down as
// HAMi does it.
func (c *Config) Capacity(tenant Tenant) (memoryMiB, cores int) {
	for _, worker := range tenant.Workers {
		for _, card := range worker.Cards {
			memoryMiB += int(float64(card.MemoryMiB) * c.MemoryScaling)
			cores += int(float64(card.Cores) * c.CoreScaling)
		}
	}
	return memoryMiB, cores
}
