package components

import (
	"errors"
	"fmt"

	"github.com/pulumi/pulumi-command/sdk/go/command/local"
	"github.com/pulumi/pulumi-docker/sdk/v4/go/docker"
	"github.com/pulumi/pulumi-kubernetes/sdk/v4/go/kubernetes"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

const managementClusterToken = "gpu-tenants:index:ManagementCluster"

// tenantsNamespace holds every TenantControlPlane in the management cluster.
const tenantsNamespace = "tenants"

// ManagementClusterArgs describes the cluster that hosts all control planes.
type ManagementClusterArgs struct {
	// Name of the kind cluster. kind names the node after it, and a node's
	// name must fit in 63 characters with "-control-plane" behind.
	Name string
	// Incarnation changes when the cluster must be made anew: because it is
	// gone from the host while state still holds it, or because it must be made
	// from something else (node image, kubelet settings, network). What is in
	// the cluster goes by it, so it and nothing else replaces the cluster.
	Incarnation string
	Network     NetworkArgs
	// NodeImage has KubernetesVersion in it.
	NodeImage         NodeImage
	KubernetesVersion string
	// MirrorHosts is containerd's hosts.toml for the mirror; empty: none.
	MirrorHosts string
	// Kubelet holds KubeletConfiguration fields over kind's own.
	Kubelet map[string]any
	// EtcdReplicas of the DataStore that all tenants share.
	EtcdReplicas int
	// CertManagerManifest and MetalLBManifest are the manifests' content.
	CertManagerManifest, MetalLBManifest string
	// KamajiChart is the chart's folder, with its etcd chart in it.
	KamajiChart string
	// KamajiImage and KubectlImage are "repository:tag".
	KamajiImage, KubectlImage Image
}

// NetworkArgs describes the stack's Docker network.
type NetworkArgs struct {
	Name   string
	Labels Labels
	// Subnet, in which everything below lies, and Gateway: "10.1.0.0/20", "10.1.0.1".
	Subnet, Gateway string
	// Dynamic is the part that Docker hands out by itself (CIDR).
	Dynamic string
	// Pool is the part that MetalLB gives to control planes: "first-last".
	Pool string
}

// NodeImage is what a node container runs.
type NodeImage struct {
	// Reference is the name by which Docker has it, perhaps through a mirror.
	Reference string
	// Identity names its content: a node is replaced when this changes, and not
	// when only the way to it does.
	Identity string
	// Pulled is done when Docker has it.
	Pulled pulumi.Resource
}

// Image is a container image without a digest.
type Image struct {
	Repository, Tag string
}

// ManagementCluster is a Docker network with a kind cluster on it, able to host
// tenant control planes. It is ready when cert-manager's, MetalLB's and
// Kamaji's webhooks take a request and Kamaji's DataStore is ready.
type ManagementCluster struct {
	pulumi.ResourceState

	// Node is the container's name in which kubectl reaches the cluster.
	Node string
	// NetworkName and NetworkID are known once the network is there.
	NetworkName, NetworkID pulumi.StringOutput
	// Subnet of the network, and the host's address on it.
	Subnet, Gateway string
	// Kubeconfig is the administrator's, for use on this host. Secret.
	Kubeconfig pulumi.StringOutput
	// Provider makes objects in the cluster.
	Provider *kubernetes.Provider

	// Cluster carries everything inside: it is what DeletedWith names.
	Cluster *local.Command
	// Ready is done when a TenantControlPlane can be made.
	Ready pulumi.Resource

	incarnation string
}

// NewManagementCluster registers the management cluster and what it needs to
// host control planes. opts must bring providers for docker and command.
func NewManagementCluster(ctx *pulumi.Context, name string, args *ManagementClusterArgs, opts ...pulumi.ResourceOption) (*ManagementCluster, error) {
	if args == nil {
		return nil, errors.New("ManagementCluster: args are missing")
	}
	c := &ManagementCluster{Node: args.Name + "-control-plane", Subnet: args.Network.Subnet, Gateway: args.Network.Gateway, incarnation: args.Incarnation}
	inputs := pulumi.Map{"name": pulumi.String(args.Name), "subnet": pulumi.String(args.Network.Subnet), "pool": pulumi.String(args.Network.Pool), "nodeImage": pulumi.String(args.NodeImage.Identity)}
	if err := ctx.RegisterComponentResourceV2(managementClusterToken, name, inputs, c, opts...); err != nil {
		return nil, err
	}
	network, err := c.newNetwork(ctx, name, args)
	if err != nil {
		return nil, err
	}
	if err := c.newCluster(ctx, name, args, network); err != nil {
		return nil, err
	}
	isolation, err := newIsolation(ctx, name+"-isolation", c.Node, managementRules(args.Network.Subnet, args.Network.Gateway, args.Network.Pool), c.Cluster, pulumi.Parent(c))
	if err != nil {
		return nil, err
	}
	inCluster := []pulumi.ResourceOption{pulumi.Parent(c), pulumi.Provider(c.Provider), pulumi.DeletedWith(c.Cluster)}
	pool, err := c.newMetalLB(ctx, name, args, inCluster)
	if err != nil {
		return nil, err
	}
	kamaji, err := c.newKamaji(ctx, name, args, inCluster)
	if err != nil {
		return nil, err
	}
	c.Ready, err = newObject(ctx, name+"-tenants", map[string]any{
		"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": tenantsNamespace},
	}, append(inCluster, pulumi.DependsOn([]pulumi.Resource{pool, kamaji, isolation}))...)
	if err != nil {
		return nil, err
	}
	return c, ctx.RegisterResourceOutputs(c, pulumi.Map{"kubeconfig": c.Kubeconfig, "network": c.NetworkName})
}

func (c *ManagementCluster) newNetwork(ctx *pulumi.Context, name string, args *ManagementClusterArgs) (*docker.Network, error) {
	labels := docker.NetworkLabelArray{}
	for _, key := range args.Network.Labels.keys() {
		labels = append(labels, &docker.NetworkLabelArgs{Label: pulumi.String(key), Value: pulumi.String(args.Network.Labels.All[key])})
	}
	hook, err := removeLeftoverNetwork(ctx, name+"-network-leftover", args.Network.Name, args.Network.Labels)
	if err != nil {
		return nil, err
	}
	network, err := docker.NewNetwork(ctx, name+"-network", &docker.NetworkArgs{
		Name:   pulumi.String(args.Network.Name),
		Driver: pulumi.String("bridge"),
		Labels: labels,
		// kind's own settings for its network: masquerade, and the host's MTU.
		Options: pulumi.StringMap{"com.docker.network.bridge.enable_ip_masquerade": pulumi.String("true")},
		IpamConfigs: docker.NetworkIpamConfigArray{&docker.NetworkIpamConfigArgs{
			Subnet:  pulumi.String(args.Network.Subnet),
			Gateway: pulumi.String(args.Network.Gateway),
			IpRange: pulumi.String(args.Network.Dynamic),
		}},
	}, pulumi.Parent(c), pulumi.DeleteBeforeReplace(true), hook)
	if err != nil {
		return nil, err
	}
	c.NetworkName = network.Name
	c.NetworkID = network.ID().ToStringOutput()
	return network, nil
}

func (c *ManagementCluster) newCluster(ctx *pulumi.Context, name string, args *ManagementClusterArgs, network *docker.Network) error {
	config, err := kindConfig(args.Kubelet)
	if err != nil {
		return err
	}
	c.Cluster, err = newScript(ctx, name+"-cluster", scriptArgs{
		Create: "cluster-create.sh",
		Delete: "cluster-delete.sh",
		Env: pulumi.StringMap{
			"CLUSTER":                          pulumi.String(args.Name),
			"IMAGE":                            pulumi.String(args.NodeImage.Reference),
			"CONFIG":                           pulumi.String(config),
			"INCARNATION":                      pulumi.String(args.Incarnation),
			"MIRROR_HOSTS":                     pulumi.String(args.MirrorHosts),
			"KIND_EXPERIMENTAL_DOCKER_NETWORK": network.Name,
		},
		// The incarnation stands for what the cluster is made from. A cluster
		// cannot move to another network.
		Triggers:     pulumi.Array{pulumi.String(args.Incarnation), network.ID()},
		SecretOutput: true,
	}, pulumi.Parent(c), pulumi.DependsOn([]pulumi.Resource{args.NodeImage.Pulled}))
	if err != nil {
		return err
	}
	c.Kubeconfig = pulumi.ToSecret(c.Cluster.Stdout).(pulumi.StringOutput)
	c.Provider, err = kubernetes.NewProvider(ctx, name, &kubernetes.ProviderArgs{
		Kubeconfig: c.Kubeconfig,
		// Without an identity of its own, a kubeconfig that is computed in a
		// preview plans the replacement of everything in the cluster.
		ClusterIdentifier: pulumi.String(args.Name + "/" + args.Incarnation),
		DeleteUnreachable: pulumi.Bool(true),
		// What a killed run made and could not write down is taken over.
		UpsertExistingObjects: pulumi.Bool(true),
	}, pulumi.Parent(c))
	return err
}

func (c *ManagementCluster) newMetalLB(ctx *pulumi.Context, name string, args *ManagementClusterArgs, inCluster []pulumi.ResourceOption) (pulumi.Resource, error) {
	metallb, err := newGroup(ctx, name+"-metallb", args.MetalLBManifest, false, inCluster...)
	if err != nil {
		return nil, err
	}
	const namespace = "metallb-system"
	pool := func(addresses any) map[string]any {
		return map[string]any{
			"apiVersion": "metallb.io/v1beta1", "kind": "IPAddressPool",
			"metadata": map[string]any{"name": "tenants", "namespace": namespace},
			"spec":     map[string]any{"addresses": []any{addresses}},
		}
	}
	ready, err := c.newReady(ctx, name+"-metallb-ready", "MetalLB's webhook", namespace, pool(args.Network.Pool), "", pulumi.DependsOn([]pulumi.Resource{metallb}))
	if err != nil {
		return nil, err
	}
	// Like onceDone, for a step whose identifier a preview makes up.
	once := ready.Stdout.ApplyT(func(string) string { return args.Network.Pool })
	addresses, err := newObject(ctx, name+"-pool", pool(once), append(inCluster, pulumi.DependsOn([]pulumi.Resource{ready}))...)
	if err != nil {
		return nil, err
	}
	return newObject(ctx, name+"-l2", map[string]any{
		"apiVersion": "metallb.io/v1beta1", "kind": "L2Advertisement",
		"metadata": map[string]any{"name": "tenants", "namespace": onceDone(addresses, namespace)},
		"spec":     map[string]any{"ipAddressPools": []any{"tenants"}},
	}, append(inCluster, pulumi.DependsOn([]pulumi.Resource{addresses}))...)
}

func (c *ManagementCluster) newKamaji(ctx *pulumi.Context, name string, args *ManagementClusterArgs, inCluster []pulumi.ResourceOption) (pulumi.Resource, error) {
	certManager, err := newGroup(ctx, name+"-cert-manager", args.CertManagerManifest, false, inCluster...)
	if err != nil {
		return nil, err
	}
	certManagerReady, err := c.newReady(ctx, name+"-cert-manager-ready", "cert-manager's webhook", "cert-manager", map[string]any{
		"apiVersion": "cert-manager.io/v1", "kind": "Issuer",
		"metadata": map[string]any{"name": "dry-run", "namespace": "cert-manager"},
		"spec":     map[string]any{"selfSigned": map[string]any{}},
	}, "", pulumi.DependsOn([]pulumi.Resource{certManager}))
	if err != nil {
		return nil, err
	}
	kamaji, err := newRelease(ctx, name+"-kamaji", releaseArgs{
		// A CRD annotation of the chart names the certificate of exactly this
		// release in exactly this namespace.
		Name: "kamaji", Namespace: "kamaji-system",
		Chart: args.KamajiChart,
		Values: map[string]any{
			"image": map[string]any{"repository": args.KamajiImage.Repository, "tag": args.KamajiImage.Tag, "pullPolicy": "IfNotPresent"},
			// The default limits (200m, 100Mi) are below what a few tenants need.
			"resources": map[string]any{"limits": map[string]any{"cpu": "4", "memory": "2Gi"}},
			"telemetry": map[string]any{"disabled": true},
			"kamaji-etcd": map[string]any{
				"replicas": args.EtcdReplicas,
				"jobs":     map[string]any{"kubectl": map[string]any{"image": args.KubectlImage.Repository, "tag": args.KubectlImage.Tag}},
			},
		},
		ManagementNode: c.Node,
	}, append(inCluster, pulumi.DependsOn([]pulumi.Resource{certManagerReady}))...)
	if err != nil {
		return nil, err
	}
	return c.newReady(ctx, name+"-kamaji-ready", "Kamaji", "kamaji-system", map[string]any{
		"apiVersion": "kamaji.clastix.io/v1alpha1", "kind": "TenantControlPlane",
		"metadata": map[string]any{"name": "dry-run", "namespace": "default"},
		"spec": map[string]any{
			// Kamaji's defaulting adds to the deployment and refuses one that is not there.
			"controlPlane": map[string]any{"deployment": map[string]any{"replicas": 1}, "service": map[string]any{"serviceType": "LoadBalancer"}},
			"kubernetes":   map[string]any{"version": args.KubernetesVersion, "kubelet": map[string]any{}},
		},
	}, "--for=jsonpath={.status.ready}=true datastore/default", pulumi.DependsOn([]pulumi.Resource{kamaji}))
}

// newReady waits until a webhook takes an object.
func (c *ManagementCluster) newReady(ctx *pulumi.Context, name, what, namespace string, dryRun map[string]any, waitFor string, opts ...pulumi.ResourceOption) (*local.Command, error) {
	text, err := manifest(dryRun)
	if err != nil {
		return nil, err
	}
	return newScript(ctx, name, scriptArgs{
		Create: "management-ready.sh",
		Env: pulumi.StringMap{
			"MANAGEMENT_NODE": pulumi.String(c.Node),
			"WHAT":            pulumi.String(what),
			"NAMESPACE":       pulumi.String(namespace),
			"MANIFEST":        pulumi.String(text),
			"WAIT_FOR":        pulumi.String(waitFor),
		},
	}, append(opts, pulumi.Parent(c), pulumi.DeletedWith(c.Cluster))...)
}

// kindConfig is kind's configuration: one node on IPv4, reachable from this
// host only, with the user's kubelet settings.
func kindConfig(kubelet map[string]any) (string, error) {
	config := map[string]any{
		"apiVersion": "kind.x-k8s.io/v1alpha4",
		"kind":       "Cluster",
		"networking": map[string]any{"ipFamily": "ipv4", "apiServerAddress": "127.0.0.1"},
		"nodes":      []any{map[string]any{"role": "control-plane"}},
	}
	if len(kubelet) > 0 {
		patch := map[string]any{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
		for key, value := range kubelet {
			patch[key] = value
		}
		text, err := manifest(patch)
		if err != nil {
			return "", fmt.Errorf("kubelet settings: %w", err)
		}
		config["kubeadmConfigPatches"] = []any{text}
	}
	return manifest(config)
}
