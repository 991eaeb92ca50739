// Package config holds what a stack may say: typed, strictly decoded, with
// defaults that give the article's lab, and checked as a whole before anything
// is made.
//
// A rule about one value belongs beside the code that decodes it (decode.go,
// inventory.go, version.go); a rule about several values together belongs in
// validate.go.
package config

// Config is a stack's whole configuration after decoding, with every default
// filled in. Its zero value is not usable; Decode makes one.
type Config struct {
	// Tenants, sorted by name: the order in the file carries no meaning.
	Tenants []Tenant
	// KubernetesVersion of the management cluster, and of every tenant that
	// names none of its own. "vMAJOR.MINOR.PATCH".
	KubernetesVersion string
	// Network is the IPv4 subnet of the stack's Docker network. Empty: derived
	// from project and stack name, see stacks.NewPlan.
	Network string
	// ServiceCIDR is the service network of every tenant; tenants do not
	// route to each other, so they can share it.
	ServiceCIDR string
	// Mirror is a registry that serves every image under its upstream path:
	// "host[:port]", or a URL when it speaks plain HTTP. Empty: none.
	Mirror string
	// NodeImages overrides the node image of a Kubernetes version.
	NodeImages map[string]string
	// ArtifactsDir is a folder from which charts and manifests are taken
	// instead of their addresses. Empty: they are downloaded.
	ArtifactsDir string
	// Kubelet holds KubeletConfiguration fields set on every node, over the
	// project's own.
	Kubelet map[string]any
	// KubeletArgs holds kubelet flags (without dashes) set on every worker.
	KubeletArgs map[string]string
	// EtcdReplicas of the DataStore that holds all tenants: 1, 3 or 5.
	EtcdReplicas int
	// SlicesPerCard is HAMi's split count: how many pods may share a card.
	SlicesPerCard int
	// MemoryScaling and CoreScaling multiply what each card registers
	// (HAMi's deviceMemoryScaling and deviceCoreScaling).
	MemoryScaling float64
	CoreScaling   float64
	// MaxStarting bounds how many tenant control planes start at once.
	// 0: from the host's cores.
	MaxStarting int
	// Mock says what stands in for the cards: MockAgent or MockHAMi.
	Mock string
	// Preflight says what a fault of the host does: PreflightEnforce,
	// PreflightWarn or PreflightSkip.
	Preflight string
}

// What stands in for the cards.
const (
	MockAgent = "agent" // this project's device plugin
	MockHAMi  = "hami"  // HAMi's mock-device-plugin
)

// What a fault of the host does.
const (
	PreflightEnforce = "enforce"
	PreflightWarn    = "warn"
	PreflightSkip    = "skip"
)

// Tenant is one tenant cluster: a control plane hosted by Kamaji, and workers.
type Tenant struct {
	Name                 string
	KubernetesVersion    string
	PodCIDR              string
	ControlPlaneReplicas int
	// Workers in the order written; a tenant that says `gpus` has one.
	// Never empty. WorkerGroup.Count is expanded.
	Workers []Worker
	// Quota is nil when the tenant has none.
	Quota *Quota
}

// Worker is one worker node. Its index in Tenant.Workers names it.
type Worker struct {
	Cards []Card // one entry per physical card, in order; may be empty
}

// Card is one mock card.
type Card struct {
	Model     string // the catalogue's key or the user's own name: "A100"
	Type      string // as NVIDIA's driver names it: "NVIDIA A100-SXM4-80GB", "Tesla T4"
	MemoryMiB int    // before MemoryScaling
	Cores     int    // percent of a card, before CoreScaling; 100
	Healthy   bool
}

// Quota is HAMi's ResourceQuota in the tenant's default namespace.
type Quota struct {
	GPUMemoryMiB int // 0: not limited
	GPUCores     int // percent, summed over cards; 0: not limited
}
