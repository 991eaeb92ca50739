// Package stacks says what a stack is made of. Its subpackages hold what a
// stack may say (config), what of others it uses (pins, artifacts), and what
// the host has (host); this package turns them into a plan and composes the
// components by it.
package stacks

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"maps"
	"slices"

	"github.com/pulumi/pulumi-command/sdk/go/command"
	"github.com/pulumi/pulumi-docker/sdk/v4/go/docker"
	"github.com/pulumi/pulumi-random/sdk/v4/go/random"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"

	"github.com/gpu-tenants/gpu-tenants/components"
	"github.com/gpu-tenants/gpu-tenants/stacks/artifacts"
	"github.com/gpu-tenants/gpu-tenants/stacks/config"
	"github.com/gpu-tenants/gpu-tenants/stacks/host"
	"github.com/gpu-tenants/gpu-tenants/stacks/pins"
)

// Machine is the host on which a stack lives. *host.System is one.
type Machine interface {
	Observe(ctx context.Context, names host.Names) (*host.Observed, error)
	Preflight(ctx context.Context, o *host.Observed, r host.Requirements) []host.Fault
	Wake(ctx context.Context, o *host.Observed, say func(string)) error
}

// Platform makes a whole stack. Up to the first resource it decides and checks;
// a configuration or a host that will not do makes nothing and changes nothing.
func Platform(ctx *pulumi.Context, cfg *config.Config, machine Machine) error {
	names := newNames(ctx.Project(), ctx.Stack())
	observed, err := machine.Observe(ctx.Context(), host.Names{Network: names.network(), Cluster: names.cluster(), StackLabel: names.prefix})
	if err != nil {
		return err
	}
	plan, err := NewPlan(ctx.Project(), ctx.Stack(), cfg, observed, newIncarnation)
	if err != nil {
		return err
	}
	if err := preflight(ctx, cfg, machine, observed, plan); err != nil {
		return err
	}
	if err := bringArtifacts(ctx, cfg, plan); err != nil {
		return err
	}
	if cfg.Mock == config.MockAgent {
		if err := plan.useAgent(names, ctx.RootDirectory()); err != nil {
			return err
		}
	}
	// No change to any resource, and a preview needs it too: it reads the tenants'
	// kubeconfigs in the management cluster.
	if err := machine.Wake(ctx.Context(), observed, func(text string) { _ = ctx.Log.Info(text, nil) }); err != nil {
		return err
	}
	return compose(ctx, plan)
}

// preflight reports what the host lacks: an error, or warnings where the
// configuration wants no more.
func preflight(ctx *pulumi.Context, cfg *config.Config, machine Machine, observed *host.Observed, plan *Plan) error {
	if cfg.Preflight == config.PreflightSkip {
		return nil
	}
	faults := machine.Preflight(ctx.Context(), observed, plan.Requirements)
	fatal := slices.ContainsFunc(faults, func(fault host.Fault) bool { return fault.Fatal })
	switch report := host.Report(faults); {
	case report == "":
		return nil
	case fatal && cfg.Preflight == config.PreflightEnforce:
		return errors.New("this host is not ready, nothing was changed:\n" + report + "\nIf you know better: pulumi config set preflight warn")
	default:
		return ctx.Log.Warn(report, nil)
	}
}

// bringArtifacts completes a plan with manifests and charts.
func bringArtifacts(ctx *pulumi.Context, cfg *config.Config, plan *Plan) error {
	store := artifacts.Store{Folder: cfg.ArtifactsDir, Cache: ".cache/artifacts", Warn: func(text string) { _ = ctx.Log.Warn(text, nil) }}
	all := pins.Load().Artifacts
	var faults []error
	text := func(artifact pins.Artifact) string {
		content, err := store.Text(ctx.Context(), artifact)
		faults = append(faults, err)
		return content
	}
	plan.Management.CertManagerManifest = text(all.CertManager)
	plan.Management.MetalLBManifest = text(all.MetalLB)
	calico := text(all.Calico)
	kamaji, err := store.KamajiChart(ctx.Context(), all)
	faults = append(faults, err)
	hami, err := store.Path(ctx.Context(), all.HAMi)
	faults = append(faults, err)
	plan.Management.KamajiChart = kamaji
	for i := range plan.Tenants {
		plan.Tenants[i].CalicoManifest = calico
		plan.Tenants[i].HAMiChart = hami
	}
	return errors.Join(faults...)
}

// compose registers every resource.
func compose(ctx *pulumi.Context, plan *Plan) error {
	providers, err := newProviders(ctx)
	if err != nil {
		return err
	}
	images := plan.NodeImages
	for _, version := range slices.Sorted(maps.Keys(images)) {
		image := images[version]
		image.Pulled, err = docker.NewRemoteImage(ctx, "node-image-"+version, &docker.RemoteImageArgs{
			Name: pulumi.String(image.Reference),
			// Other stacks use it too, and the next `up` is quicker with it.
			KeepLocally: pulumi.Bool(true),
		}, providers)
		if err != nil {
			return err
		}
		images[version] = image
	}
	plan.Management.NodeImage = images[plan.Management.KubernetesVersion]
	management, err := components.NewManagementCluster(ctx, "management", &plan.Management, providers)
	if err != nil {
		return err
	}
	var agent *components.AgentImage
	if plan.Agent != nil && len(plan.Tenants) > 0 {
		if agent, err = components.NewAgentImage(ctx, "mock-gpu-agent", *plan.Agent, providers); err != nil {
			return err
		}
	}
	planes := make([]*components.TenantPlane, len(plan.Tenants))
	for i := range plan.Tenants {
		args := plan.Tenants[i]
		args.Management = management
		args.Mock.Agent = agent
		args.NodeImage = images[args.KubernetesVersion]
		// As many lanes as may start at once; in a lane, one waits for the
		// one before it to answer.
		if i >= plan.Starting {
			args.StartAfter = []pulumi.Resource{planes[i-plan.Starting].ControlPlaneReady}
		}
		if planes[i], err = components.NewTenantPlane(ctx, args.Name, &args, providers); err != nil {
			return err
		}
	}
	export(ctx, plan, management, planes)
	return nil
}

// newProviders makes the providers that no component makes itself. Default
// providers are off (Pulumi.yaml), so that nothing can reach whatever cluster
// or Docker host happens to be current.
func newProviders(ctx *pulumi.Context) (pulumi.ResourceOption, error) {
	forDocker, err := docker.NewProvider(ctx, "docker", &docker.ProviderArgs{})
	if err != nil {
		return nil, err
	}
	forCommands, err := command.NewProvider(ctx, "command", &command.ProviderArgs{})
	if err != nil {
		return nil, err
	}
	forRandom, err := random.NewProvider(ctx, "random", &random.ProviderArgs{})
	if err != nil {
		return nil, err
	}
	return pulumi.Providers(forDocker, forCommands, forRandom), nil
}

// export registers the stack's outputs.
func export(ctx *pulumi.Context, plan *Plan, management *components.ManagementCluster, planes []*components.TenantPlane) {
	tenants := pulumi.Map{}
	for i, plane := range planes {
		args := plan.Tenants[i]
		workers := pulumi.Array{}
		for _, worker := range args.Workers {
			cards := []any{}
			for _, card := range worker.Cards {
				cards = append(cards, map[string]any{
					"uuid": card.UUID, "type": card.Type, "memoryMiB": card.MemoryMiB,
					"cores": card.Cores, "slices": card.Slices, "healthy": card.Healthy,
				})
			}
			workers = append(workers, pulumi.Map{
				"node": pulumi.String(worker.Node), "container": pulumi.String(worker.Container),
				"address": pulumi.String(worker.Address), "cards": pulumi.Any(cards),
			})
		}
		tenant := pulumi.Map{
			"endpoint":          plane.Endpoint,
			"kubernetesVersion": pulumi.String(args.KubernetesVersion),
			"podCidr":           pulumi.String(args.PodCIDR),
			"replicas":          pulumi.Int(args.Replicas),
			"workers":           workers,
		}
		if args.Quota != nil {
			tenant["quota"] = pulumi.Map{"gpuMemory": pulumi.Int(args.Quota.GPUMemoryMiB), "gpuCores": pulumi.Int(args.Quota.GPUCores)}
		}
		tenants[args.Name] = tenant
		ctx.Export(args.Name+"-kubeconfig", plane.Kubeconfig)
	}
	ctx.Export("managementCluster", pulumi.Map{
		"name": pulumi.String(plan.Management.Name), "node": pulumi.String(management.Node),
		"network": pulumi.String(plan.Management.Network.Subnet), "pool": pulumi.String(plan.Management.Network.Pool),
	})
	ctx.Export("managementKubeconfig", management.Kubeconfig)
	ctx.Export("mock", pulumi.String(plan.Mock))
	ctx.Export("tenants", tenants)
}

// newIncarnation returns a name that nothing had before.
func newIncarnation() string {
	var bytes [4]byte
	_, _ = rand.Read(bytes[:]) // never fails, crypto/rand says
	return hex.EncodeToString(bytes[:])
}

var _ Machine = (*host.System)(nil)
