package components

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pulumi/pulumi-command/sdk/go/command/local"
	"github.com/pulumi/pulumi-random/sdk/v4/go/random"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
	"gopkg.in/yaml.v3"
)

const gpuWorkerToken = "gpu-tenants:index:GPUWorker"

// GPUWorkerArgs describes one worker of a tenant.
type GPUWorkerArgs struct {
	// Container is the Docker name, unique on the host; Node the hostname and
	// so the Node's name, unique in the tenant.
	Container, Node string
	Labels          Labels
	// Incarnation changes when the container is made anew, because it is gone
	// from the host while state still holds it. It is among the labels too.
	Incarnation string
	// Tenant and KubernetesVersion of the cluster that it joins.
	Tenant, KubernetesVersion string
	// NodeImage has the tenant's Kubernetes version in it.
	NodeImage NodeImage
	// Network's name and id, its Subnet, and the worker's own Address on it,
	// which stays the same over a restart of the container or of Docker.
	Network, NetworkID pulumi.StringInput
	Subnet, Address    string
	// Gateway is the host's address on the network, Peers are the addresses of
	// all of the tenant's workers: what else comes to the worker is refused.
	Gateway string
	Peers   []string
	// PodCIDR and ServiceCIDR of the tenant.
	PodCIDR, ServiceCIDR string
	// MirrorHosts is containerd's hosts.toml for the mirror; empty: none.
	MirrorHosts string
	// KubeletArgs are flags, without dashes.
	KubeletArgs map[string]string
	// ManagementNode is the container from which the tenant is administered.
	ManagementNode string
	// Kubeconfig of the tenant, for its address and its CA. Secret.
	Kubeconfig pulumi.StringInput
	// After must be done before the container is made.
	After []pulumi.Resource
	// GoesWith carries the tenant's cluster: when it is deleted, the node
	// object is not taken out of it one by one.
	GoesWith pulumi.Resource
}

// GPUWorker is a node container, joined to a tenant's cluster by kubeadm with a
// short-lived bootstrap token. It is ready when its Node is Ready at the
// tenant's version.
type GPUWorker struct {
	pulumi.ResourceState

	// Node is the Node's name, known once the Node is Ready.
	Node pulumi.StringOutput
	// Joined is done when the Node is Ready.
	Joined pulumi.Resource
}

// NewGPUWorker registers a worker. opts must bring providers for command
// and random.
func NewGPUWorker(ctx *pulumi.Context, name string, args *GPUWorkerArgs, opts ...pulumi.ResourceOption) (*GPUWorker, error) {
	if args == nil {
		return nil, errors.New("GPUWorker: args are missing")
	}
	c := &GPUWorker{}
	inputs := pulumi.Map{"container": pulumi.String(args.Container), "node": pulumi.String(args.Node), "address": pulumi.String(args.Address), "kubernetesVersion": pulumi.String(args.KubernetesVersion)}
	if err := ctx.RegisterComponentResourceV2(gpuWorkerToken, name, inputs, c, opts...); err != nil {
		return nil, err
	}
	container, err := c.newContainer(ctx, name, args)
	if err != nil {
		return nil, err
	}
	isolation, err := newIsolation(ctx, name+"-isolation", args.Container, workerRules(args.Subnet, args.Gateway, args.Peers), container, pulumi.Parent(c))
	if err != nil {
		return nil, err
	}
	join, err := c.newJoin(ctx, name, args, container, isolation)
	if err != nil {
		return nil, err
	}
	c.Joined = join
	// The script's output is the name, but everything of a Command with a
	// secret input counts as secret; a Node's name is none.
	c.Node = pulumi.Unsecret(join.Stdout).(pulumi.StringOutput)
	return c, ctx.RegisterResourceOutputs(c, pulumi.Map{"node": c.Node})
}

// newContainer runs the node image. It is a script and not a docker.Container,
// whose deletion fails when the container is gone already (it wants to stop it
// first) and whose creation fails when an interrupted run left one.
func (c *GPUWorker) newContainer(ctx *pulumi.Context, name string, args *GPUWorkerArgs) (*local.Command, error) {
	env := pulumi.StringMap{
		"CONTAINER": pulumi.String(args.Container),
		"NODE":      pulumi.String(args.Node),
		"IMAGE":     pulumi.String(args.NodeImage.Reference),
		"CONTENT":   pulumi.String(args.NodeImage.Identity),
		"NETWORK":   args.Network,
		"SUBNET":    pulumi.String(args.Subnet),
		"NEAR":      pulumi.String(args.PodCIDR + "," + args.ServiceCIDR),
		"ADDRESS":   pulumi.String(args.Address),
		"LABELS":    pulumi.String(strings.Join(args.Labels.pairs(), "\n")),
		"OWNER":     pulumi.String(args.Labels.owner()),
	}
	return newScript(ctx, name+"-container", scriptArgs{
		Create: "worker-container.sh",
		Delete: "worker-container-delete.sh",
		Env:    env,
		// A container cannot change: each of these makes another one.
		Triggers: pulumi.Array{env["CONTENT"], args.NetworkID, env["ADDRESS"], env["LABELS"], env["NODE"]},
	}, pulumi.Parent(c), pulumi.DependsOn(append([]pulumi.Resource{args.NodeImage.Pulled}, args.After...)))
}

func (c *GPUWorker) newJoin(ctx *pulumi.Context, name string, args *GPUWorkerArgs, container, isolation *local.Command) (*local.Command, error) {
	tokenID, err := newTokenPart(ctx, name+"-token-id", 6, args, c)
	if err != nil {
		return nil, err
	}
	tokenSecret, err := newTokenPart(ctx, name+"-token-secret", 16, args, c)
	if err != nil {
		return nil, err
	}
	config := pulumi.All(args.Kubeconfig, tokenID, tokenSecret).ApplyT(func(all []any) (string, error) {
		return joinConfiguration(all[0].(string), all[1].(string)+"."+all[2].(string), args.Node, args.KubeletArgs)
	}).(pulumi.StringOutput)
	return newScript(ctx, name+"-join", scriptArgs{
		Create: "worker-join.sh",
		Delete: "worker-leave.sh",
		Env: pulumi.StringMap{
			"MANAGEMENT_NODE": pulumi.String(args.ManagementNode),
			"TENANT":          pulumi.String(args.Tenant),
			"CONTAINER":       pulumi.String(args.Container),
			"NODE":            pulumi.String(args.Node),
			"VERSION":         pulumi.String(args.KubernetesVersion),
			"MIRROR_HOSTS":    pulumi.String(args.MirrorHosts),
			"TOKEN_ID":        tokenID,
			"TOKEN_SECRET":    tokenSecret,
			"JOIN_CONFIG":     pulumi.ToSecret(config).(pulumi.StringOutput),
		},
		Triggers: pulumi.Array{container.Stdout},
	}, pulumi.Parent(c), pulumi.DependsOn([]pulumi.Resource{isolation}), pulumi.DeletedWith(args.GoesWith))
}

// newTokenPart makes one half of a bootstrap token, new for each container. As a
// RandomString it would be its own identifier, which Pulumi shows and does not
// encrypt.
func newTokenPart(ctx *pulumi.Context, name string, length int, args *GPUWorkerArgs, parent pulumi.Resource) (pulumi.StringOutput, error) {
	part, err := random.NewRandomPassword(ctx, name, &random.RandomPasswordArgs{
		Length:  pulumi.Int(length),
		Special: pulumi.Bool(false),
		Upper:   pulumi.Bool(false),
		Keepers: pulumi.StringMap{"incarnation": pulumi.String(args.Incarnation)},
	}, pulumi.Parent(parent))
	if err != nil {
		return pulumi.StringOutput{}, err
	}
	return pulumi.ToSecret(part.Result).(pulumi.StringOutput), nil
}

// joinConfiguration is kubeadm's, with the control plane's address and the hash
// of its CA taken from the tenant's kubeconfig.
// https://kubernetes.io/docs/reference/config-api/kubeadm-config.v1beta4/
func joinConfiguration(kubeconfig, token, node string, kubeletArgs map[string]string) (string, error) {
	endpoint, hash, err := discovery(kubeconfig)
	if err != nil {
		return "", err
	}
	flags := []any{}
	for _, flag := range slices.Sorted(maps.Keys(kubeletArgs)) {
		flags = append(flags, map[string]any{"name": flag, "value": kubeletArgs[flag]})
	}
	return manifest(map[string]any{
		"apiVersion": "kubeadm.k8s.io/v1beta4",
		"kind":       "JoinConfiguration",
		"discovery": map[string]any{"bootstrapToken": map[string]any{
			"token":             token,
			"apiServerEndpoint": endpoint,
			"caCertHashes":      []any{hash},
		}},
		"nodeRegistration": map[string]any{
			"name":             node,
			"criSocket":        "unix:///run/containerd/containerd.sock",
			"kubeletExtraArgs": flags,
			"taints":           []any{},
		},
		// The node image fails checks meant for machines (swap, kernel config).
		"skipPhases": []any{"preflight"},
	})
}

// discovery returns the API server's "host:port" and "sha256:<hash of the CA's
// public key>" as kubeadm wants them.
func discovery(kubeconfig string) (endpoint, hash string, err error) {
	var parsed struct {
		Clusters []struct {
			Cluster struct {
				Server string `yaml:"server"`
				CA     string `yaml:"certificate-authority-data"`
			} `yaml:"cluster"`
		} `yaml:"clusters"`
	}
	// Errors name no content: a kubeconfig is secret.
	if err := yaml.Unmarshal([]byte(kubeconfig), &parsed); err != nil || len(parsed.Clusters) == 0 {
		return "", "", errors.New("the tenant's kubeconfig names no cluster")
	}
	cluster := parsed.Clusters[0].Cluster
	decoded, err := base64.StdEncoding.DecodeString(cluster.CA)
	if err != nil {
		return "", "", errors.New("the CA in the tenant's kubeconfig is not base64")
	}
	block, _ := pem.Decode(decoded)
	if block == nil {
		return "", "", errors.New("the CA in the tenant's kubeconfig is not PEM")
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", "", fmt.Errorf("the CA in the tenant's kubeconfig: %w", err)
	}
	sum := sha256.Sum256(certificate.RawSubjectPublicKeyInfo)
	return strings.TrimPrefix(cluster.Server, "https://"), "sha256:" + hex.EncodeToString(sum[:]), nil
}
