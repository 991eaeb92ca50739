package components

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/pulumi/pulumi-kubernetes/sdk/v4/go/kubernetes"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

const mockGPUToken = "gpu-tenants:index:MockGPU"

// Card is one card as HAMi registers it, scaling applied.
type Card struct {
	UUID string
	// Type as NVIDIA's driver names it: "NVIDIA L4".
	Type      string
	MemoryMiB int
	// Cores in percent; 100 is one card.
	Cores int
	// Slices is how many pods may share the card.
	Slices  int
	Healthy bool
}

// MockArgs says what stands in for the cards, for every worker of a tenant.
type MockArgs struct {
	// Agent is the image of this project's device plugin. nil: HAMi's
	// mock-device-plugin stands in, which HAMi's chart deploys.
	Agent      *AgentImage
	HAMiPlugin Image
}

// MockGPUArgs describes the cards of one worker.
type MockGPUArgs struct {
	Mock  MockArgs
	Cards []Card // at least one
	// Tenant, its worker's Node and Container.
	Tenant, Node, Container string
	// ManagementNode is the container from which the tenant is administered.
	ManagementNode string
	Provider       *kubernetes.Provider
	// Worker is done when the Node is there, HAMi when it takes pods.
	Worker, HAMi pulumi.Resource
	// GoesWith carries the tenant's cluster.
	GoesWith pulumi.Resource
}

// MockGPU is the cards of one worker, as HAMi sees them: registered on the Node
// and advertised in its status. It is ready when the Node's allocatable
// nvidia.com/gpu, gpumem and gpucores equal the inventory.
type MockGPU struct {
	pulumi.ResourceState
}

// NewMockGPU registers the cards of a worker. opts must bring a provider for
// command.
func NewMockGPU(ctx *pulumi.Context, name string, args *MockGPUArgs, opts ...pulumi.ResourceOption) (*MockGPU, error) {
	if args == nil || len(args.Cards) == 0 {
		return nil, errors.New("MockGPU: args are missing or name no card")
	}
	c := &MockGPU{}
	total, healthy := sums(args.Cards)
	inputs := pulumi.Map{"node": pulumi.String(args.Node), "cards": pulumi.Int(len(args.Cards)), "memoryMiB": pulumi.Int(total.memoryMiB)}
	if err := ctx.RegisterComponentResourceV2(mockGPUToken, name, inputs, c, opts...); err != nil {
		return nil, err
	}
	register, err := registerAnnotation(args.Cards)
	if err != nil {
		return nil, err
	}
	var shown pulumi.Resource
	var revision pulumi.Input
	if args.Mock.Agent != nil {
		shown, err = c.newAgent(ctx, name, args, register)
		revision = pulumi.String(args.Mock.Agent.Name)
	} else {
		shown, err = c.newHAMiCards(ctx, name, args, register, total)
		revision = pulumi.String("")
	}
	if err != nil {
		return nil, err
	}
	_, err = newScript(ctx, name+"-ready", scriptArgs{
		Create: "cards-ready.sh",
		Env: args.environment(pulumi.StringMap{
			"GPUS":     pulumi.Sprintf("%d", healthy.slices),
			"GPUMEM":   pulumi.Sprintf("%d %d", healthy.memoryMiB, total.memoryMiB),
			"GPUCORES": pulumi.Sprintf("%d %d", healthy.cores, total.cores),
			"REGISTER": pulumi.String(register),
		}),
		Triggers: pulumi.Array{args.workerID(), revision},
	}, pulumi.Parent(c), pulumi.DependsOn([]pulumi.Resource{shown}), pulumi.DeletedWith(args.GoesWith))
	if err != nil {
		return nil, err
	}
	return c, ctx.RegisterResourceOutputs(c, pulumi.Map{})
}

// newHAMiCards puts the cards where HAMi's own mock plugin looks for them.
func (c *MockGPU) newHAMiCards(ctx *pulumi.Context, name string, args *MockGPUArgs, register string, total inventory) (pulumi.Resource, error) {
	return newScript(ctx, name+"-hami", scriptArgs{
		Create: "cards-hami.sh",
		Delete: "cards-withdraw.sh",
		Env: args.environment(pulumi.StringMap{
			"REGISTER": pulumi.String(register),
			"GPUS":     pulumi.Sprintf("%d", total.slices),
		}),
		// A Node made anew has forgotten its annotation and its capacity.
		Triggers: pulumi.Array{args.workerID()},
	}, pulumi.Parent(c), pulumi.DependsOn([]pulumi.Resource{args.HAMi}), pulumi.DeletedWith(args.GoesWith))
}

// workerID changes with the Node.
func (a *MockGPUArgs) workerID() pulumi.IDOutput { return a.Worker.(pulumi.CustomResource).ID() }

// environment adds what every script about a node needs.
func (a *MockGPUArgs) environment(more pulumi.StringMap) pulumi.StringMap {
	all := pulumi.StringMap{
		"MANAGEMENT_NODE": pulumi.String(a.ManagementNode),
		"TENANT":          pulumi.String(a.Tenant),
		"NODE":            pulumi.String(a.Node),
	}
	maps.Copy(all, more)
	return all
}

// inventory is the sum of some cards.
type inventory struct {
	slices, memoryMiB, cores int
}

// sums returns the sum of all cards, and of those that are healthy.
func sums(cards []Card) (total, healthy inventory) {
	for _, card := range cards {
		total = total.plus(card)
		if card.Healthy {
			healthy = healthy.plus(card)
		}
	}
	return total, healthy
}

func (i inventory) plus(card Card) inventory {
	return inventory{i.slices + card.Slices, i.memoryMiB + card.MemoryMiB, i.cores + card.Cores}
}

// registerAnnotation is the value of hami.io/node-nvidia-register.
// https://github.com/Project-HAMi/HAMi/blob/master/pkg/device/devices.go
func registerAnnotation(cards []Card) (string, error) {
	type entry struct {
		ID      string `json:"id"`
		Index   int    `json:"index"`
		Count   int    `json:"count"`
		Devmem  int    `json:"devmem"`
		Devcore int    `json:"devcore"`
		Type    string `json:"type"`
		Numa    int    `json:"numa"`
		Mode    string `json:"mode"`
		Health  bool   `json:"health"`
	}
	entries := make([]entry, 0, len(cards))
	for i, card := range cards {
		kind := card.Type
		// HAMi takes a device for NVIDIA's by this word in its type; its own
		// plugin puts it before names that lack it ("Tesla T4").
		if !strings.HasPrefix(kind, "NVIDIA") {
			kind = "NVIDIA-" + kind
		}
		entries = append(entries, entry{ID: card.UUID, Index: i, Count: card.Slices, Devmem: card.MemoryMiB, Devcore: card.Cores, Type: kind, Mode: "hami-core", Health: card.Healthy})
	}
	text, err := json.Marshal(entries)
	if err != nil {
		return "", fmt.Errorf("cards: %w", err)
	}
	return string(text), nil
}

// hamiDeviceConfig is HAMi's device configuration with NVIDIA's part alone: its
// mock plugin cannot read the other vendors' parts of HAMi >= 2.9 and exits.
const hamiDeviceConfig = `nvidia:
  resourceCountName: nvidia.com/gpu
  resourceMemoryName: nvidia.com/gpumem
  resourceMemoryPercentageName: nvidia.com/gpumem-percentage
  resourceCoreName: nvidia.com/gpucores
  resourcePriorityName: nvidia.com/priority
  overwriteEnv: false
  defaultMemory: 0
  defaultCores: 0
  defaultGPUNum: 1
  memoryFactor: 1
  deviceSplitCount: 10
  deviceMemoryScaling: 1
  deviceCoreScaling: 1
  gpuCorePolicy: default
  libCudaLogLevel: 1
`

// editHAMiValues adds what the mock needs of HAMi's chart.
func (m MockArgs) editHAMiValues(values map[string]any) {
	if m.Agent != nil {
		return
	}
	registry, repository, _ := strings.Cut(m.HAMiPlugin.Repository, "/")
	values["mockDevicePlugin"] = map[string]any{
		"enabled": true,
		"image":   map[string]any{"registry": registry, "repository": repository, "tag": m.HAMiPlugin.Tag},
	}
	values["device-config"] = map[string]any{"content": hamiDeviceConfig}
	// This plugin never ends a binding, so the node's lock stays until it is
	// too old. Pods that come together then bind one after another, this far
	// apart. (The chart's nodeLockExpire is overruled by this flag's default.)
	scheduler := values["scheduler"].(map[string]any)
	scheduler["extender"] = map[string]any{"extraArgs": []any{"-v=4", "--node-lock-timeout=5s"}}
}
