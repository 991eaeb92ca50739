package components

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/pulumi/pulumi-kubernetes/sdk/v4/go/kubernetes"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

const tenantPlaneToken = "gpu-tenants:index:TenantPlane"

// TenantPlaneArgs describes a tenant's cluster.
type TenantPlaneArgs struct {
	// Name of the tenant, DNS-1035.
	Name              string
	KubernetesVersion string
	// PodCIDR and ServiceCIDR of the tenant's cluster.
	PodCIDR, ServiceCIDR string
	// Replicas of the control plane.
	Replicas int
	// Kubelet holds KubeletConfiguration fields for the tenant's nodes.
	Kubelet map[string]any
	// Workers in order. At least one.
	Workers []WorkerArgs
	// NodeImage has KubernetesVersion in it.
	NodeImage NodeImage
	// MirrorHosts is containerd's hosts.toml for the mirror; empty: none.
	MirrorHosts string
	KubeletArgs map[string]string
	// Quota in the tenant's default namespace; nil: none.
	Quota *QuotaArgs
	// CalicoManifest as published.
	CalicoManifest string
	// HAMiChart is the packaged chart.
	HAMiChart string
	// KubeSchedulerImage has the tenant's version as its tag.
	KubeSchedulerImage Image
	// ProbeImage is what a pod that is never started names.
	ProbeImage string
	// Mock says what stands in for the cards.
	Mock MockArgs

	// Management cluster that hosts the control plane.
	Management *ManagementCluster
	// StartAfter must be done before the control plane starts: it bounds how
	// many start at once.
	StartAfter []pulumi.Resource
}

// WorkerArgs describes one worker of the tenant.
type WorkerArgs struct {
	Container, Node, Address, Incarnation string
	Labels                                Labels
	Cards                                 []Card // may be empty
}

// QuotaArgs is HAMi's ResourceQuota. 0 means not limited.
type QuotaArgs struct {
	GPUMemoryMiB, GPUCores int
}

// TenantPlane is one tenant's cluster: a control plane hosted by Kamaji at an
// address of its own, its workers, its CNI, HAMi, and its cards. It is ready
// when Kamaji says so for the generation asked for, when every worker is Ready,
// when a GPU pod's dry run comes back with HAMi's scheduler in it, and when
// every node advertises its cards.
type TenantPlane struct {
	pulumi.ResourceState

	// Endpoint of the API server, "host:port".
	Endpoint pulumi.StringOutput
	// Kubeconfig is the tenant's administrator's. Secret.
	Kubeconfig pulumi.StringOutput
	// Nodes are the names of the workers' Nodes, in order.
	Nodes pulumi.StringArrayOutput
	// Provider makes objects in the tenant's cluster.
	Provider *kubernetes.Provider
	// ControlPlaneReady is done when the tenant's API server answers.
	ControlPlaneReady pulumi.Resource

	controlPlane *object
}

// NewTenantPlane registers a tenant's cluster. opts must bring providers for
// docker, command and random.
func NewTenantPlane(ctx *pulumi.Context, name string, args *TenantPlaneArgs, opts ...pulumi.ResourceOption) (*TenantPlane, error) {
	if args == nil || args.Management == nil {
		return nil, errors.New("TenantPlane: args or their management cluster are missing")
	}
	c := &TenantPlane{}
	inputs := pulumi.Map{"name": pulumi.String(args.Name), "kubernetesVersion": pulumi.String(args.KubernetesVersion), "podCidr": pulumi.String(args.PodCIDR)}
	if err := ctx.RegisterComponentResourceV2(tenantPlaneToken, name, inputs, c, opts...); err != nil {
		return nil, err
	}
	if err := c.newControlPlane(ctx, name, args); err != nil {
		return nil, err
	}
	// Objects inside the tenant go when its control plane goes.
	inTenant := []pulumi.ResourceOption{pulumi.Parent(c), pulumi.Provider(c.Provider), pulumi.DeletedWith(c.controlPlane)}

	cni, err := c.newCNI(ctx, name, args, inTenant)
	if err != nil {
		return nil, err
	}
	workers, err := c.newWorkers(ctx, name, args, cni)
	if err != nil {
		return nil, err
	}
	hami, err := c.newHAMi(ctx, name, args, workers, inTenant)
	if err != nil {
		return nil, err
	}
	if err := c.newCards(ctx, name, args, workers, hami); err != nil {
		return nil, err
	}
	if err := c.newQuota(ctx, name, args, hami, inTenant); err != nil {
		return nil, err
	}
	return c, ctx.RegisterResourceOutputs(c, pulumi.Map{"endpoint": c.Endpoint, "kubeconfig": c.Kubeconfig, "nodes": c.Nodes})
}

func (c *TenantPlane) newControlPlane(ctx *pulumi.Context, name string, args *TenantPlaneArgs) error {
	management := args.Management
	spec, err := controlPlaneSpec(args)
	if err != nil {
		return err
	}
	c.controlPlane, err = newObject(ctx, name+"-control-plane", map[string]any{
		"apiVersion": "kamaji.clastix.io/v1alpha1", "kind": "TenantControlPlane",
		"metadata": map[string]any{"name": args.Name, "namespace": onceDone(management.Ready.(pulumi.CustomResource), tenantsNamespace)},
		"spec":     spec,
	}, pulumi.Parent(c), pulumi.Provider(management.Provider), pulumi.DeletedWith(management.Cluster),
		pulumi.DependsOn(append([]pulumi.Resource{management.Ready}, args.StartAfter...)),
		// Kamaji's finalizers clean the tenant's keys out of etcd first.
		pulumi.Timeouts(&pulumi.CustomTimeouts{Create: "15m", Update: "15m", Delete: "10m"}))
	if err != nil {
		return err
	}
	// Specification and UID are part of the environment, so that every change of
	// it, and an object that somebody deleted and Pulumi makes anew, is waited for
	// again.
	specText, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	ready, err := newScript(ctx, name+"-control-plane-ready", scriptArgs{
		Create: "control-plane-ready.sh",
		Env: pulumi.StringMap{
			"MANAGEMENT_NODE": pulumi.String(management.Node),
			"TENANT":          pulumi.String(args.Name),
			"VERSION":         pulumi.String(args.KubernetesVersion),
			"REPLICAS":        pulumi.Sprintf("%d", args.Replicas),
			"SPEC":            pulumi.String(specText),
			"UID":             c.controlPlane.uid(),
		},
		Triggers: pulumi.Array{c.controlPlane.ID(), pulumi.String(management.incarnation)},
	}, pulumi.Parent(c), pulumi.DependsOn([]pulumi.Resource{c.controlPlane}), pulumi.DeletedWith(c.controlPlane))
	if err != nil {
		return err
	}
	c.ControlPlaneReady = ready
	c.Endpoint = ready.Stdout

	secret, err := readSecret(ctx, name+"-admin-kubeconfig", tenantsNamespace, args.Name+"-admin-kubeconfig", ready, pulumi.Parent(c), pulumi.Provider(management.Provider))
	if err != nil {
		return err
	}
	c.Kubeconfig = pulumi.ToSecret(secret.Data.ApplyT(func(data map[string]string) (string, error) {
		decoded, err := base64.StdEncoding.DecodeString(data["admin.conf"])
		if err != nil || len(decoded) == 0 {
			return "", fmt.Errorf("the Secret %s/%s-admin-kubeconfig holds no admin.conf", tenantsNamespace, args.Name)
		}
		return string(decoded), nil
	})).(pulumi.StringOutput)
	c.Provider, err = kubernetes.NewProvider(ctx, name, &kubernetes.ProviderArgs{
		Kubeconfig:        c.Kubeconfig,
		ClusterIdentifier: pulumi.Sprintf("%s/%s/%s", management.Node, management.incarnation, args.Name),
		DeleteUnreachable: pulumi.Bool(true),
		// What a killed run made and could not write down is taken over.
		UpsertExistingObjects: pulumi.Bool(true),
		// The agent follows its ConfigMap; a new one under the same name would
		// be none for a moment.
		EnableConfigMapMutable: pulumi.Bool(true),
	}, pulumi.Parent(c))
	return err
}

// controlPlaneSpec is the TenantControlPlane's specification.
func controlPlaneSpec(args *TenantPlaneArgs) (map[string]any, error) {
	patches, err := kubeletPatches(args.Kubelet)
	if err != nil {
		return nil, err
	}
	// Kamaji rolls a new control plane two or three times within seconds. With
	// its default of a full surge that is as many API servers at once, on a
	// small host more than its cores can start within the probes' time.
	strategy := map[string]any{"type": "Recreate"}
	if args.Replicas > 1 {
		strategy = map[string]any{"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxSurge": 0, "maxUnavailable": 1}}
	}
	return map[string]any{
		"controlPlane": map[string]any{
			"deployment": map[string]any{
				"replicas": args.Replicas,
				"strategy": strategy,
				// 60 looks 10 s apart instead of 3: a slow start is not a failed one.
				"probes": map[string]any{
					"startup":   map[string]any{"failureThreshold": 60, "periodSeconds": 10, "timeoutSeconds": 10},
					"liveness":  map[string]any{"failureThreshold": 6, "periodSeconds": 15, "timeoutSeconds": 15},
					"readiness": map[string]any{"failureThreshold": 3, "periodSeconds": 5, "timeoutSeconds": 10},
				},
			},
			"service": map[string]any{"serviceType": "LoadBalancer"},
		},
		"kubernetes": map[string]any{
			"version": args.KubernetesVersion,
			"kubelet": map[string]any{"configurationJSONPatches": patches},
			// Kamaji's defaults, and NodeRestriction: a worker may change its
			// own Node and pods only.
			"admissionControllers": []any{
				"CertificateApproval", "CertificateSigning", "CertificateSubjectRestriction", "DefaultIngressClass", "DefaultStorageClass",
				"DefaultTolerationSeconds", "LimitRanger", "MutatingAdmissionWebhook", "NamespaceLifecycle", "NodeRestriction",
				"PersistentVolumeClaimResize", "Priority", "ResourceQuota", "RuntimeClass", "ServiceAccount",
				"StorageObjectInUseProtection", "TaintNodesByCondition", "ValidatingAdmissionWebhook",
			},
		},
		"networkProfile": map[string]any{"port": 6443, "podCidr": args.PodCIDR, "serviceCidr": args.ServiceCIDR},
		"addons": map[string]any{
			"coreDNS":   map[string]any{},
			"kubeProxy": map[string]any{},
			// A connection whose end only one side noticed leaves the agent
			// believing that it is connected, until it says something: by default
			// after an hour, in which no GPU pod is admitted. The server throws out
			// agents that ask more often than every 30 s
			// (https://github.com/kubernetes-sigs/apiserver-network-proxy/blob/v0.34.0/cmd/server/app/server.go#L403).
			"konnectivity": map[string]any{
				"server": map[string]any{"port": 8132, "extraArgs": []any{"--keepalive-time=30s"}},
				"agent":  map[string]any{"extraArgs": []any{"--keepalive-time=40s"}},
			},
		},
	}, nil
}

// kubeletPatches turns settings into the patches that Kamaji applies to the
// KubeletConfiguration it uploads. The base are the settings that kind gives
// its own nodes: without them a worker dies on a host with swap, or evicts
// everything on a host whose disk is fairly full.
func kubeletPatches(settings map[string]any) ([]any, error) {
	all := map[string]any{
		"cgroupDriver":                "systemd",
		"failSwapOn":                  false,
		"imageGCHighThresholdPercent": 100,
		"evictionHard":                map[string]any{"nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"},
	}
	maps.Copy(all, settings)
	patches := []any{}
	for _, field := range slices.Sorted(maps.Keys(all)) {
		// "add" replaces a field that is there; "replace" fails on one that is not.
		patches = append(patches, map[string]any{"op": "add", "path": "/" + field, "value": all[field]})
	}
	return patches, nil
}

func (c *TenantPlane) newCNI(ctx *pulumi.Context, name string, args *TenantPlaneArgs, inTenant []pulumi.ResourceOption) (pulumi.Resource, error) {
	text, err := calicoManifest(args.CalicoManifest, args.PodCIDR)
	if err != nil {
		return nil, err
	}
	// Nothing can run before a worker is there; the worker waits for it by
	// waiting to be Ready.
	return newGroup(ctx, name+"-cni", text, true, append(inTenant, pulumi.DependsOn([]pulumi.Resource{c.ControlPlaneReady}))...)
}

func (c *TenantPlane) newWorkers(ctx *pulumi.Context, name string, args *TenantPlaneArgs, cni pulumi.Resource) ([]*GPUWorker, error) {
	var workers []*GPUWorker
	nodes := pulumi.StringArray{}
	// One after the other: a change of version then replaces one at a time,
	// and the first one in is not held up by the others' pulls.
	before := []pulumi.Resource{c.ControlPlaneReady, cni}
	var peers []string
	for _, worker := range args.Workers {
		peers = append(peers, worker.Address)
	}
	for i, worker := range args.Workers {
		made, err := NewGPUWorker(ctx, fmt.Sprintf("%s-worker-%d", name, i), &GPUWorkerArgs{
			Container: worker.Container, Node: worker.Node, Address: worker.Address,
			Labels: worker.Labels, Incarnation: worker.Incarnation,
			Tenant: args.Name, KubernetesVersion: args.KubernetesVersion, NodeImage: args.NodeImage,
			Network: args.Management.NetworkName, NetworkID: args.Management.NetworkID, Subnet: args.Management.Subnet, Gateway: args.Management.Gateway, Peers: peers,
			PodCIDR: args.PodCIDR, ServiceCIDR: args.ServiceCIDR, MirrorHosts: args.MirrorHosts, KubeletArgs: args.KubeletArgs,
			ManagementNode: args.Management.Node, Kubeconfig: c.Kubeconfig,
			After: before, GoesWith: c.controlPlane,
		}, pulumi.Parent(c))
		if err != nil {
			return nil, err
		}
		workers = append(workers, made)
		nodes = append(nodes, made.Node)
		before = []pulumi.Resource{made.Joined}
	}
	c.Nodes = nodes.ToStringArrayOutput()
	return workers, nil
}

func (c *TenantPlane) newHAMi(ctx *pulumi.Context, name string, args *TenantPlaneArgs, workers []*GPUWorker, inTenant []pulumi.ResourceOption) (pulumi.Resource, error) {
	values := hamiValues(args)
	release, err := newRelease(ctx, name+"-hami", releaseArgs{
		Name: "hami", Namespace: "kube-system", Chart: args.HAMiChart, Values: values,
		ManagementNode: args.Management.Node, Tenant: args.Name,
	}, append(inTenant, pulumi.DependsOn([]pulumi.Resource{workers[0].Joined}))...)
	if err != nil {
		return nil, err
	}
	pod, err := manifest(map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"generateName": "gpu-dry-run-", "namespace": "default"},
		"spec": map[string]any{"containers": []any{map[string]any{
			"name": "gpu", "image": args.ProbeImage,
			"resources": map[string]any{"limits": map[string]any{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1", "nvidia.com/gpucores": "1"}},
		}}},
	})
	if err != nil {
		return nil, err
	}
	valuesText, err := json.Marshal(values)
	if err != nil {
		return nil, err
	}
	return newScript(ctx, name+"-hami-ready", scriptArgs{
		Create: "hami-ready.sh",
		Env: pulumi.StringMap{
			"MANAGEMENT_NODE": pulumi.String(args.Management.Node),
			"TENANT":          pulumi.String(args.Name),
			"POD":             pulumi.String(pod),
			// A change of HAMi or of where it runs is waited for again.
			"VALUES": pulumi.String(valuesText),
		},
		Triggers: pulumi.Array{release.ID(), workers[0].Joined.(pulumi.CustomResource).ID()},
	}, pulumi.Parent(c), pulumi.DependsOn([]pulumi.Resource{release}), pulumi.DeletedWith(c.controlPlane))
}

// hamiValues are the chart's values. What they do not name is the chart's.
func hamiValues(args *TenantPlaneArgs) map[string]any {
	values := map[string]any{
		"scheduler": map[string]any{
			"leaderElect": false,
			"kubeScheduler": map[string]any{"image": map[string]any{
				"registry": "", "repository": args.KubeSchedulerImage.Repository, "tag": args.KubeSchedulerImage.Tag,
			}},
			"service": map[string]any{"type": "ClusterIP"},
			"admissionWebhook": map[string]any{
				// A GPU pod that slips past the webhook would be run by the
				// default scheduler, uncounted. What must start without HAMi
				// lives in these namespaces.
				"failurePolicy":       "Fail",
				"whitelistNamespaces": []any{"kube-system", "kube-public", "kube-node-lease"},
			},
		},
		"devicePlugin": map[string]any{"enabled": false},
	}
	args.Mock.editHAMiValues(values)
	return values
}

func (c *TenantPlane) newCards(ctx *pulumi.Context, name string, args *TenantPlaneArgs, workers []*GPUWorker, hami pulumi.Resource) error {
	for i, worker := range args.Workers {
		if len(worker.Cards) == 0 {
			continue
		}
		_, err := NewMockGPU(ctx, fmt.Sprintf("%s-cards-%d", name, i), &MockGPUArgs{
			Mock: args.Mock, Cards: worker.Cards, Tenant: args.Name, Node: worker.Node, Container: worker.Container,
			ManagementNode: args.Management.Node, Provider: c.Provider,
			Worker: workers[i].Joined, HAMi: hami, GoesWith: c.controlPlane,
		}, pulumi.Parent(c))
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *TenantPlane) newQuota(ctx *pulumi.Context, name string, args *TenantPlaneArgs, hami pulumi.Resource, inTenant []pulumi.ResourceOption) error {
	if args.Quota == nil {
		return nil
	}
	hard := map[string]any{}
	if args.Quota.GPUMemoryMiB > 0 {
		hard["limits.nvidia.com/gpumem"] = fmt.Sprint(args.Quota.GPUMemoryMiB)
	}
	if args.Quota.GPUCores > 0 {
		hard["limits.nvidia.com/gpucores"] = fmt.Sprint(args.Quota.GPUCores)
	}
	_, err := newObject(ctx, name+"-quota", map[string]any{
		"apiVersion": "v1", "kind": "ResourceQuota",
		"metadata": map[string]any{"name": "gpu", "namespace": "default"},
		"spec":     map[string]any{"hard": hard},
	}, append(inTenant, pulumi.DependsOn([]pulumi.Resource{hami}))...)
	return err
}
