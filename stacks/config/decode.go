package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-tenants/gpu-tenants/stacks/pins"
)

// Defaults.
const (
	// DefaultMock stands in for the cards of a stack that names nothing.
	DefaultMock = MockAgent
	// DefaultPodCIDR is the pod network of a tenant that names none. Tenants do
	// not route to each other, so all can have the same.
	DefaultPodCIDR = "10.244.0.0/16"
	// DefaultServiceCIDR is the service network of a stack that names none.
	DefaultServiceCIDR = "10.96.0.0/16"

	// articleTenants are the tenants of a stack that says nothing of any: the
	// lab of the article.
	articleTenants = `[
		{"name": "tenant-a", "gpus": ["A100x1"]},
		{"name": "tenant-b", "gpus": ["L4x2"]}
	]`
)

// Limits. Those without a reason beside them are far above what one machine
// can carry; they are there to catch slips.
const (
	// MaxTenantName keeps a worker's host name "<stack>-<tenant>-worker-NN"
	// within the 63 characters that a host name and a label may have: it leaves
	// 22 of them to the stack.
	MaxTenantName = 30

	MaxTenants              = 500
	MaxWorkersPerTenant     = 100 // "worker-NN" has two digits
	MaxCardsPerWorker       = 64
	MaxControlPlaneReplicas = 5
	MaxSlicesPerCard        = 1000
	MaxScaling              = 10
	MaxCardMemoryMiB        = 10_000_000 // times MaxScaling within HAMi's int32
	MaxCardCores            = 100        // percent of a card

	maxQuota = 1_000_000_000 // what the cards can bear is a rule of validate.go
)

// Decode makes a Config of the project's configuration as Pulumi hands it to
// the program: by key without the project's name, scalars as plain text,
// objects and lists as JSON. It fills in every default and checks everything.
// The error is of type Faults and holds all that is wrong.
func Decode(project map[string]string) (*Config, error) {
	r := &reader{meant: map[string]bool{}}
	values := make(map[string]any, len(project))
	for key, value := range project {
		values[key] = raw(value)
	}
	top := node{r, "", values}
	config := defaults()
	top.object(config.fields())
	if top.absent(values, "tenants") {
		config.readTenants(top.child("tenants", raw(articleTenants)))
	}
	if faults := slices.Concat(r.faults, validate(r, config)); len(faults) > 0 {
		faults.sort()
		return nil, faults
	}
	config.settle()
	return config, nil
}

// Keys returns the keys that a stack's configuration may have, sorted.
func Keys() []string {
	return slices.Sorted(maps.Keys(new(Config).fields()))
}

func defaults() *Config {
	return &Config{
		KubernetesVersion: pins.Load().Kubernetes.Default,
		ServiceCIDR:       DefaultServiceCIDR,
		EtcdReplicas:      1,
		SlicesPerCard:     10,
		MemoryScaling:     1,
		CoreScaling:       1,
		Mock:              DefaultMock,
		Preflight:         PreflightEnforce,
	}
}

// fields reads a stack's keys.
func (c *Config) fields() fields {
	return fields{
		"tenants":           c.readTenants,
		"kubernetesVersion": func(n node) { n.version(&c.KubernetesVersion) },
		"network":           func(n node) { n.unlessEmpty(func() { n.subnet(&c.Network, 16, 24) }) },
		// The API server takes no service network wider than /12; the DNS
		// service is its tenth address.
		"serviceCidr":   func(n node) { n.subnet(&c.ServiceCIDR, 12, 24) },
		"mirror":        func(n node) { n.unlessEmpty(func() { n.mirror(&c.Mirror) }) },
		"nodeImages":    func(n node) { n.nodeImages(&c.NodeImages) },
		"artifactsDir":  func(n node) { c.ArtifactsDir, _ = n.text("a folder's path") },
		"kubelet":       func(n node) { n.kubelet(&c.Kubelet) },
		"kubeletArgs":   func(n node) { n.kubeletArgs(&c.KubeletArgs) },
		"etcdReplicas":  func(n node) { n.etcdReplicas(&c.EtcdReplicas) },
		"slicesPerCard": func(n node) { n.integer(&c.SlicesPerCard, 1, MaxSlicesPerCard) },
		"memoryScaling": func(n node) { n.factor(&c.MemoryScaling, MaxScaling) },
		"coreScaling":   func(n node) { n.factor(&c.CoreScaling, MaxScaling) },
		"maxStarting":   func(n node) { n.integer(&c.MaxStarting, 0, MaxTenants) },
		"mock":          func(n node) { n.oneOf(&c.Mock, MockAgent, MockHAMi) },
		"preflight":     func(n node) { n.oneOf(&c.Preflight, PreflightEnforce, PreflightWarn, PreflightSkip) },
	}
}

// readTenants keeps a place for each element, read or not: until settle, a
// tenant's index is the one in its path.
func (c *Config) readTenants(n node) {
	items, ok := n.list("a list of tenants")
	if !ok {
		return
	}
	if len(items) > MaxTenants {
		n.faultf("has %d tenants; at most %d fit in a stack", len(items), MaxTenants)
		return
	}
	c.Tenants = make([]Tenant, len(items))
	for i, item := range items {
		item.tenant(&c.Tenants[i])
	}
}

// settle gives the tenants what is the stack's to give, and their order.
func (c *Config) settle() {
	for i := range c.Tenants {
		if c.Tenants[i].KubernetesVersion == "" {
			c.Tenants[i].KubernetesVersion = c.KubernetesVersion
		}
	}
	slices.SortFunc(c.Tenants, func(a, b Tenant) int { return strings.Compare(a.Name, b.Name) })
}

func (n node) tenant(tenant *Tenant) {
	*tenant = Tenant{PodCIDR: DefaultPodCIDR, ControlPlaneReplicas: 1}
	values := n.object(fields{
		"name":              func(n node) { n.tenantName(&tenant.Name) },
		"kubernetesVersion": func(n node) { n.version(&tenant.KubernetesVersion) },
		// kubeadm gives every node a /24 of it and can count 2^16 of those.
		"podCidr":              func(n node) { n.subnet(&tenant.PodCIDR, 8, 22) },
		"controlPlaneReplicas": func(n node) { n.integer(&tenant.ControlPlaneReplicas, 1, MaxControlPlaneReplicas) },
		"gpus":                 readElsewhere,
		"unhealthy":            readElsewhere,
		"workers":              func(n node) { n.workers(&tenant.Workers) },
		"quota":                func(n node) { n.quota(&tenant.Quota) },
	}, "name")
	cards := n.cards(values)
	if _, written := values["workers"]; !written {
		tenant.Workers = []Worker{{Cards: cards}}
	} else if _, both := values["gpus"]; both {
		n.child("workers", nil).faultf("stands beside gpus, which is short for one worker; keep one of the two")
	}
}

// workers reads a list of groups and writes out each of their workers.
func (n node) workers(target *[]Worker) {
	groups, ok := n.list("a list of worker groups")
	if !ok {
		return
	}
	if len(groups) == 0 {
		n.faultf("is empty, but a tenant needs a worker; leave the key out for one without cards")
		return
	}
	total := 0
	var workers []Worker
	for _, group := range groups {
		worker, count := group.workerGroup()
		if total += count; total > MaxWorkersPerTenant {
			continue
		}
		for range count {
			workers = append(workers, Worker{Cards: slices.Clone(worker.Cards)})
		}
	}
	if total > MaxWorkersPerTenant {
		n.faultf("has %d workers; a tenant has at most %d", total, MaxWorkersPerTenant)
		return
	}
	*target = workers
}

func (n node) workerGroup() (Worker, int) {
	count := 1
	values := n.object(fields{
		"gpus":      readElsewhere,
		"unhealthy": readElsewhere,
		"count":     func(n node) { n.integer(&count, 1, MaxWorkersPerTenant) },
	})
	return Worker{Cards: n.cards(values)}, count
}

func (n node) quota(target **Quota) {
	var quota Quota
	n.object(fields{
		"gpuMemory": func(n node) { n.integer(&quota.GPUMemoryMiB, 0, maxQuota) },
		"gpuCores":  func(n node) { n.integer(&quota.GPUCores, 0, maxQuota) },
	})
	if !n.sound(n.path) {
		return
	}
	if quota == (Quota{}) {
		n.faultf("limits nothing; give gpuMemory (MiB), gpuCores (percent, summed over cards) or both above 0, or leave it out")
		return
	}
	*target = &quota
}

// dns1035 is what Kubernetes asks of the name of a Service, and Kamaji of a
// tenant's.
var dns1035 = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)

func (n node) tenantName(target *string) {
	const want = "lower-case letters, digits and dashes, from a letter to a letter or digit, such as \"tenant-a\""
	name, ok := n.text(want)
	switch {
	case !ok:
	case !dns1035.MatchString(name):
		n.wants(want)
	case len(name) > MaxTenantName:
		n.faultf("%q has %d characters; at most %d leave room for the stack's name and the worker's number in a host name of 63",
			name, len(name), MaxTenantName)
	default:
		*target = name
	}
}

// unlessEmpty reads a value of the top level of which the empty text means
// none: so does `pulumi config set mirror ""`.
func (n node) unlessEmpty(read func()) {
	if n.value != raw("") {
		read()
	}
}

func (n node) subnet(target *string, widest, narrowest int) {
	const want = "an IPv4 subnet such as \"10.0.0.0/16\""
	text, ok := n.text(want)
	if !ok {
		return
	}
	prefix, err := netip.ParsePrefix(text)
	switch {
	case err != nil || !prefix.Addr().Is4():
		n.wants(want)
	case prefix != prefix.Masked():
		n.faultf("%s is an address inside a subnet; the subnet is %s", text, prefix.Masked())
	case prefix.Bits() > narrowest:
		n.faultf("%s is too small; it must be between /%d and /%d", text, widest, narrowest)
	case prefix.Bits() < widest:
		n.faultf("%s is too large; it must be between /%d and /%d", text, widest, narrowest)
	default:
		*target = text
	}
}

var (
	registry     = regexp.MustCompile(`^(?:https?://)?[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::(?P<port>[0-9]+))?$`)
	registryPort = registry.SubexpIndex("port")
)

func (n node) mirror(target *string) {
	const highestPort = 65535
	var mirror string
	n.matching(&mirror, registry, "a registry, host[:port] or http(s)://host[:port], without a path")
	if mirror == "" {
		return
	}
	if port := registry.FindStringSubmatch(mirror)[registryPort]; port != "" {
		if number, ok := parseInteger(port); !ok || number < 1 || number > highestPort {
			n.faultf("has the port %s; it must be a number from 1 to %d", port, highestPort)
			return
		}
	}
	*target = mirror
}

// imageReference is a rough form: what follows it is for the registry to say.
var imageReference = regexp.MustCompile(`^[a-z0-9][A-Za-z0-9._/:@-]*[A-Za-z0-9]$`)

func (n node) nodeImages(target *map[string]string) {
	versions, values, ok := n.entries("an object of node images by Kubernetes version")
	if !ok {
		return
	}
	images := make(map[string]string, len(versions))
	for _, version := range versions {
		child := n.child(version, values[version])
		if _, isVersion := parseVersion(version); !isVersion {
			child.faultf("%s", noVersion(version))
			continue
		}
		var image string
		child.matching(&image, imageReference, "an image such as \"registry/name:tag@digest\"")
		images[version] = image
	}
	*target = images
}

func (n node) kubelet(target *map[string]any) {
	if _, values, ok := n.entries("an object of KubeletConfiguration fields"); ok {
		*target, _ = plain(values).(map[string]any)
	}
}

// plain turns json.Number, which only encoding/json knows to be a number, into
// int or float64.
func plain(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key := range value {
			value[key] = plain(value[key])
		}
	case []any:
		for i := range value {
			value[i] = plain(value[i])
		}
	case json.Number:
		if number, err := strconv.Atoi(value.String()); err == nil {
			return number
		}
		if number, err := value.Float64(); err == nil {
			return number
		}
		return value.String() // beyond any number: for kubelet to refuse
	}
	return value
}

var flagName = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)

func (n node) kubeletArgs(target *map[string]string) {
	flags, values, ok := n.entries("an object of kubelet flags")
	if !ok {
		return
	}
	args := make(map[string]string, len(flags))
	for _, flag := range flags {
		child := n.child(flag, values[flag])
		if !flagName.MatchString(flag) {
			child.faultf("is no flag's name; write lower-case words joined by dashes, without the leading ones, such as \"max-pods\"")
			continue
		}
		switch value := values[flag].(type) {
		case string, json.Number, bool:
			args[flag] = fmt.Sprint(value)
		default:
			child.wants("a text, a number, true or false")
		}
	}
	*target = args
}

func (n node) etcdReplicas(target *int) {
	const most = 5
	replicas := *target
	if !n.integer(&replicas, 1, most) {
		return
	}
	if replicas%2 == 0 {
		n.faultf("must be 1, 3 or 5, not %d: etcd needs a majority, to which an even member adds nothing", replicas)
		return
	}
	*target = replicas
}
