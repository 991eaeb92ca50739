package stacks

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-tenants/gpu-tenants/components"
	"github.com/gpu-tenants/gpu-tenants/stacks/config"
	"github.com/gpu-tenants/gpu-tenants/stacks/host"
	"github.com/gpu-tenants/gpu-tenants/stacks/pins"
)

// Plan is what a stack will consist of: the components' arguments, complete but
// for what only running resources can tell (Outputs, and other components).
type Plan struct {
	Management components.ManagementClusterArgs
	// Tenants sorted by name.
	Tenants []components.TenantPlaneArgs
	// NodeImages by Kubernetes version.
	NodeImages map[string]components.NodeImage
	// Agent says how the image of the mock GPU agent is built; nil when HAMi's
	// plugin stands in for the cards.
	Agent *components.AgentImageArgs
	// Mock is what stands in for the cards, as the configuration says it.
	Mock string
	// Starting bounds how many control planes start at once.
	Starting int
	// Requirements on the host.
	Requirements host.Requirements
}

// Sources are the manifests and charts that a plan refers to.
type Sources struct {
	CertManager, MetalLB, Calico string // content
	Kamaji, HAMi                 string // paths
}

// NewPlan decides everything about a stack that can be decided before its first
// resource. observed is what the host holds of it already: what is there keeps
// its address and its incarnation, and what is not there gets a new one from
// fresh. All that contradicts itself is told at once.
func NewPlan(project, stack string, cfg *config.Config, observed *host.Observed, fresh func() string) (*Plan, error) {
	p := &planner{cfg: cfg, pins: pins.Load(), names: newNames(project, stack), observed: observed, fresh: fresh}
	return p.plan()
}

// planner holds what every part of a plan is made from.
type planner struct {
	cfg      *config.Config
	pins     *pins.Pins
	names    names
	observed *host.Observed
	fresh    func() string

	addresses addresses
	faults    config.Faults
}

func (p *planner) plan() (*Plan, error) {
	subnet := derivedSubnet(p.names.prefix)
	if p.cfg.Network != "" {
		subnet = netip.MustParsePrefix(p.cfg.Network) // checked by package config
	}
	var err error
	if p.addresses, err = newAddresses(subnet); err != nil {
		return nil, config.Faults{{Path: "network", Message: err.Error()}}
	}
	p.checkNetworks()
	assigned := p.assignAddresses()
	p.checkUpgrades()
	if len(p.faults) > 0 {
		return nil, p.faults
	}
	plan := &Plan{Management: p.management(), NodeImages: p.nodeImages(), Mock: p.cfg.Mock, Starting: p.starting()}
	for _, tenant := range p.cfg.Tenants {
		plan.Tenants = append(plan.Tenants, p.tenant(tenant, plan.Management.Incarnation, assigned))
	}
	plan.Requirements = p.requirements()
	return plan, nil
}

func (p *planner) fault(path, format string, arguments ...any) {
	p.faults = append(p.faults, config.Fault{Path: path, Message: fmt.Sprintf(format, arguments...)})
}

// checkNetworks finds what package config cannot: the stack's network may be
// derived, and its size bounds what fits.
func (p *planner) checkNetworks() {
	reserved := map[string]string{"serviceCidr": p.cfg.ServiceCIDR}
	for i, tenant := range p.cfg.Tenants {
		reserved[fmt.Sprintf("tenants[%d].podCidr", i)] = tenant.PodCIDR
	}
	for _, path := range slices.Sorted(maps.Keys(reserved)) {
		if cidr, err := netip.ParsePrefix(reserved[path]); err == nil && cidr.Overlaps(p.addresses.subnet) {
			p.fault(path, "%s overlaps the stack's Docker network %s; choose another, or set `network`", cidr, p.addresses.subnet)
		}
	}
	if count, size := len(p.cfg.Tenants), p.addresses.poolSize(); count > size {
		p.fault("tenants", "%d tenants need an address each, and the pool %s has %d; set a larger `network`", count, p.addresses.pool(), size)
	}
}

func (p *planner) assignAddresses() map[string]netip.Addr {
	has := map[string]netip.Addr{}
	for name, node := range p.observed.Workers {
		has[name] = node.IPv4
	}
	var containers []string
	for _, tenant := range p.cfg.Tenants {
		for i := range tenant.Workers {
			containers = append(containers, p.names.worker(tenant.Name, i))
		}
	}
	assigned, err := p.addresses.assign(containers, has)
	if err != nil {
		p.fault("network", "%s", err)
	}
	return assigned
}

// checkUpgrades refuses what Kubernetes does not support: a way back, or two
// minor versions at once. What runs now is read off the workers' labels.
func (p *planner) checkUpgrades() {
	for i, tenant := range p.cfg.Tenants {
		for index := range tenant.Workers {
			now := p.observed.Workers[p.names.worker(tenant.Name, index)].Labels[host.LabelVersion]
			has, err1 := minor(now)
			wants, err2 := minor(tenant.KubernetesVersion)
			if err1 != nil || err2 != nil {
				continue
			}
			path := fmt.Sprintf("tenants[%d].kubernetesVersion", i)
			switch {
			case wants < has:
				p.fault(path, "%s is older than the %s that tenant %s runs, and Kubernetes has no way back; remove the tenant and add it again", tenant.KubernetesVersion, now, tenant.Name)
			case wants > has+1:
				p.fault(path, "%s is more than one minor version after the %s that tenant %s runs; go to v1.%d first", tenant.KubernetesVersion, now, tenant.Name, has+1)
			default:
				continue
			}
			break
		}
	}
}

// minor returns MINOR of "v1.MINOR.PATCH".
func minor(version string) (int, error) {
	parts := strings.Split(version, ".")
	if len(parts) != 3 || parts[0] != "v1" {
		return 0, fmt.Errorf("%q is not a version like v1.MINOR.PATCH", version)
	}
	return strconv.Atoi(parts[1])
}

func (p *planner) management() components.ManagementClusterArgs {
	var has string
	if p.observed.Network != nil {
		has = p.observed.Network.Labels[host.LabelIncarnation]
	}
	network := incarnation(has, p.fresh)
	cluster := p.clusterIncarnation(network)
	return components.ManagementClusterArgs{
		Name:        p.names.cluster(),
		Incarnation: cluster,
		Network: components.NetworkArgs{
			Name:    p.names.network(),
			Labels:  p.labels(map[string]string{host.LabelIncarnation: network}),
			Subnet:  p.addresses.subnet.String(),
			Gateway: p.addresses.gateway.String(),
			Dynamic: p.addresses.dynamic.String(),
			Pool:    p.addresses.pool(),
		},
		KubernetesVersion: p.cfg.KubernetesVersion,
		MirrorHosts:       mirrorHosts(p.cfg.Mirror),
		Kubelet:           p.cfg.Kubelet,
		EtcdReplicas:      p.cfg.EtcdReplicas,
		KamajiImage:       image(p.pins.Images.Kamaji),
		KubectlImage:      image(p.pins.Images.KamajiKubectl),
	}
}

func (p *planner) tenant(tenant config.Tenant, cluster string, assigned map[string]netip.Addr) components.TenantPlaneArgs {
	args := components.TenantPlaneArgs{
		Name:               tenant.Name,
		KubernetesVersion:  tenant.KubernetesVersion,
		PodCIDR:            tenant.PodCIDR,
		ServiceCIDR:        p.cfg.ServiceCIDR,
		Replicas:           tenant.ControlPlaneReplicas,
		Kubelet:            p.cfg.Kubelet,
		KubeletArgs:        p.cfg.KubeletArgs,
		MirrorHosts:        mirrorHosts(p.cfg.Mirror),
		KubeSchedulerImage: components.Image{Repository: p.pins.Images.KubeScheduler, Tag: tenant.KubernetesVersion},
		ProbeImage:         p.pins.Images.Probe,
		Mock:               components.MockArgs{HAMiPlugin: image(p.pins.Images.HAMiMockDevicePlugin)},
	}
	if tenant.Quota != nil {
		args.Quota = &components.QuotaArgs{GPUMemoryMiB: tenant.Quota.GPUMemoryMiB, GPUCores: tenant.Quota.GPUCores}
	}
	for i, worker := range tenant.Workers {
		container := p.names.worker(tenant.Name, i)
		own := incarnation(p.observed.Workers[container].Labels[host.LabelIncarnation], p.fresh)
		args.Workers = append(args.Workers, components.WorkerArgs{
			Container:   container,
			Node:        p.names.node(tenant.Name, i),
			Address:     assigned[container].String(),
			Incarnation: own,
			Labels: p.labels(map[string]string{
				host.LabelIncarnation: own,
				host.LabelTenant:      tenant.Name,
				host.LabelVersion:     tenant.KubernetesVersion,
				// A worker of a cluster that was made anew has nothing to
				// come back to: its control plane is another one.
				labelCluster: cluster,
			}),
			Cards: p.cards(container, worker),
		})
	}
	return args
}

// labelCluster holds the incarnation of the management cluster.
const labelCluster = "io.gpu-tenants.cluster"

func (p *planner) cards(container string, worker config.Worker) []components.Card {
	var cards []components.Card
	for i, card := range worker.Cards {
		// Rounded down, as HAMi's own plugin does.
		cards = append(cards, components.Card{
			UUID:      cardUUID(container, i),
			Type:      card.Type,
			MemoryMiB: int(float64(card.MemoryMiB) * p.cfg.MemoryScaling),
			Cores:     int(float64(card.Cores) * p.cfg.CoreScaling),
			Slices:    p.cfg.SlicesPerCard,
			Healthy:   card.Healthy,
		})
	}
	return cards
}

// cardUUID looks like a card's, and is the same for the same slot of the same
// worker for as long as the stack has it.
func cardUUID(container string, slot int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", container, slot))
	text := hex.EncodeToString(sum[:16])
	return fmt.Sprintf("GPU-%s-%s-%s-%s-%s", text[0:8], text[8:12], text[12:16], text[16:20], text[20:32])
}

func (p *planner) labels(more map[string]string) components.Labels {
	all := map[string]string{host.LabelStack: p.names.prefix}
	maps.Copy(all, more)
	return components.Labels{All: all, Owner: host.LabelStack}
}

// incarnation tells one making of a thing from the next. A thing that is there
// carries its own, and nothing changes; for one that is not there a new one is
// made up, which differs from what state may hold, so that Pulumi replaces what
// was removed behind its back.
func incarnation(has string, fresh func() string) string {
	if has != "" {
		return has
	}
	return fresh()
}

// clusterIncarnation changes as well when the cluster must be another one,
// because it cannot change in what it was made from: everything that goes by
// its incarnation, providers and workers, then is made anew with it.
func (p *planner) clusterIncarnation(network string) string {
	kubelet, _ := json.Marshal(p.cfg.Kubelet) // decoded from JSON, so it encodes
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s\n%s", p.nodeImage(p.cfg.KubernetesVersion).Identity, kubelet, p.addresses.subnet, network))
	madeFrom := "-" + hex.EncodeToString(sum[:])[:8]
	if p.observed.Cluster != nil && strings.HasSuffix(p.observed.Cluster.Incarnation, madeFrom) {
		return p.observed.Cluster.Incarnation
	}
	return p.fresh() + madeFrom
}

func (p *planner) nodeImages() map[string]components.NodeImage {
	all := map[string]components.NodeImage{p.cfg.KubernetesVersion: p.nodeImage(p.cfg.KubernetesVersion)}
	for _, tenant := range p.cfg.Tenants {
		all[tenant.KubernetesVersion] = p.nodeImage(tenant.KubernetesVersion)
	}
	return all
}

// nodeImage is the image of a version: the user's own as it is written, the
// pinned one through the mirror.
func (p *planner) nodeImage(version string) components.NodeImage {
	name := p.upstreamImage(version)
	if p.cfg.NodeImages[version] != "" {
		return components.NodeImage{Reference: name, Identity: name}
	}
	return components.NodeImage{Reference: host.ThroughMirror(name, p.cfg.Mirror), Identity: name}
}

func (p *planner) upstreamImage(version string) string {
	return cmp.Or(p.cfg.NodeImages[version], p.pins.Kubernetes.NodeImages[version])
}

// starting is how many control planes may start at once: each start keeps about
// four cores busy for as long as it lasts.
func (p *planner) starting() int {
	if p.cfg.MaxStarting > 0 {
		return p.cfg.MaxStarting
	}
	return max(1, p.observed.CPUs/4)
}

// Memory and disk that the parts take, measured on an idle lab and rounded up:
// the management node with its system pods, one tenant control plane, one
// worker. The image's layers and what is pulled in each node are disk.
const (
	memoryManagement   = 2 << 30
	memoryControlPlane = 700 << 20
	memoryWorker       = 700 << 20
	diskBase           = 6 << 30
	diskWorker         = 2 << 30
)

func (p *planner) requirements() host.Requirements {
	r := host.Requirements{
		Fresh:         p.observed.Network == nil && p.observed.Cluster == nil,
		Subnet:        p.addresses.subnet,
		ControlPlanes: len(p.cfg.Tenants),
		Mirror:        p.cfg.Mirror,
		ToolsDir:      ".tools/bin",
		KindVersion:   p.pins.Tools.Kind,
		RegistryHosts: []string{"registry.k8s.io", "quay.io", "docker.io"},
	}
	r.KubeletToleratesCgroupV1 = p.cfg.Kubelet["failCgroupV1"] == false || p.cfg.KubeletArgs["fail-cgroupv1"] == "false"
	for _, tenant := range p.cfg.Tenants {
		r.WorkersTotal += len(tenant.Workers)
		if cidr, err := netip.ParsePrefix(tenant.PodCIDR); err == nil {
			r.Reserved = append(r.Reserved, cidr)
		}
	}
	if cidr, err := netip.ParsePrefix(p.cfg.ServiceCIDR); err == nil {
		r.Reserved = append(r.Reserved, cidr)
	}
	r.MemoryBytes = memoryManagement + int64(r.ControlPlanes)*memoryControlPlane + int64(r.WorkersTotal)*memoryWorker
	r.DiskBytes = diskBase + int64(r.WorkersTotal)*diskWorker
	r.ImageRefs = p.imagesToStart()
	if p.cfg.ArtifactsDir == "" {
		r.NeedGit = true
		for _, artifact := range []pins.Artifact{p.pins.Artifacts.CertManager, p.pins.Artifacts.MetalLB, p.pins.Artifacts.Calico, p.pins.Artifacts.HAMi, p.pins.Artifacts.Kamaji} {
			r.URLs = append(r.URLs, artifact.URL+artifact.Git)
		}
	}
	return r
}

// imagesToStart are the node images, under their upstream names, of the nodes
// that are still to be made.
func (p *planner) imagesToStart() []string {
	versions := map[string]bool{p.cfg.KubernetesVersion: p.observed.Cluster == nil}
	for _, tenant := range p.cfg.Tenants {
		for i := range tenant.Workers {
			node, there := p.observed.Workers[p.names.worker(tenant.Name, i)]
			if !there || p.observed.Cluster == nil || node.Labels[host.LabelVersion] != tenant.KubernetesVersion {
				versions[tenant.KubernetesVersion] = true
			}
		}
	}
	var images []string
	for _, version := range slices.Sorted(maps.Keys(versions)) {
		if versions[version] {
			images = append(images, p.upstreamImage(version))
		}
	}
	return images
}

// mirrorHosts is containerd's hosts.toml that sends every pull to the mirror.
// https://github.com/containerd/containerd/blob/main/docs/hosts.md
func mirrorHosts(mirror string) string {
	if mirror == "" {
		return ""
	}
	if !strings.Contains(mirror, "://") {
		mirror = "https://" + mirror
	}
	return fmt.Sprintf("# gpu-tenants: config key `mirror`\nserver = %[1]q\n\n[host.%[1]q]\n  capabilities = [\"pull\", \"resolve\"]\n", mirror)
}

// image splits "repository:tag".
func image(reference string) components.Image {
	at := strings.LastIndex(reference, ":")
	return components.Image{Repository: reference[:at], Tag: reference[at+1:]}
}
