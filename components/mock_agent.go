package components

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/pulumi/pulumi-docker/sdk/v4/go/docker"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

// AgentImage is the image of the project's own device plugin, on this host.
type AgentImage struct {
	// Name is "repository:tag"; the tag changes with the source.
	Name string
	// Image is done when Docker has it.
	Image pulumi.Resource
}

// AgentImageArgs describes the building of the image.
type AgentImageArgs struct {
	Name string
	// Source is the folder of the agent's Go module, Build one that may be
	// written: binary and Dockerfile go there.
	Source, Build string
}

// NewAgentImage registers the agent's image: a static binary, built with the Go
// toolchain that builds this program too, on an empty image. Nothing is pulled.
func NewAgentImage(ctx *pulumi.Context, name string, args AgentImageArgs, opts ...pulumi.ResourceOption) (*AgentImage, error) {
	// A hook and not a step of its own: it runs whenever the image is made, so
	// a binary that somebody cleaned away is there again when it is needed.
	hook, err := ctx.RegisterResourceHook(name+"-binary", func(*pulumi.ResourceHookArgs) error {
		return buildAgent(ctx, args)
	}, nil)
	if err != nil {
		return nil, err
	}
	image, err := docker.NewRemoteImage(ctx, name, &docker.RemoteImageArgs{
		Name:  pulumi.String(args.Name),
		Build: &docker.RemoteImageBuildArgs{Context: pulumi.String(args.Build), Dockerfile: pulumi.String("Dockerfile")},
	}, append(opts, pulumi.ResourceHooks(&pulumi.ResourceHookBinding{BeforeCreate: []*pulumi.ResourceHook{hook}}))...)
	return &AgentImage{Name: args.Name, Image: image}, err
}

func buildAgent(ctx *pulumi.Context, args AgentImageArgs) error {
	if err := os.MkdirAll(args.Build, 0o755); err != nil { //nolint:gosec // a build folder
		return err
	}
	target, err := filepath.Abs(filepath.Join(args.Build, "mock-gpu-agent"))
	if err != nil {
		return err
	}
	build := exec.CommandContext(ctx.Context(), "go", "build", "-C", args.Source, "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", target, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOWORK=off")
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building the mock GPU agent: %w\n%s", err, strings.TrimSpace(string(output)))
	}
	dockerfile, err := os.ReadFile(filepath.Join(args.Source, "Dockerfile"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(args.Build, "Dockerfile"), dockerfile, 0o644) //nolint:gosec // nothing secret
}

// newAgent deploys the agent on one worker: it registers the cards with the
// kubelet and with HAMi, shows them in the Node's status, and ends bindings.
func (c *MockGPU) newAgent(ctx *pulumi.Context, name string, args *MockGPUArgs, register string) (pulumi.Resource, error) {
	loaded, err := newScript(ctx, name+"-image", scriptArgs{
		Create: "agent-load.sh",
		// Runs after the agent is gone, because the agent depends on it.
		Delete: "cards-withdraw.sh",
		Env: args.environment(pulumi.StringMap{
			"CONTAINER": pulumi.String(args.Container),
			"IMAGE":     pulumi.String(args.Mock.Agent.Name),
		}),
		Triggers: pulumi.Array{args.workerID()},
	}, pulumi.Parent(c), pulumi.DependsOn([]pulumi.Resource{args.Mock.Agent.Image}), pulumi.DeletedWith(args.GoesWith))
	if err != nil {
		return nil, err
	}
	text, err := manifest(agentObjects(args, register)...)
	if err != nil {
		return nil, err
	}
	return newGroup(ctx, name+"-agent", text, true, pulumi.Parent(c), pulumi.Provider(args.Provider), pulumi.DeletedWith(args.GoesWith),
		pulumi.DependsOn([]pulumi.Resource{loaded, args.HAMi}))
}

// smiFolder on the worker holds the mock nvidia-smi that containers get.
const smiFolder = "/var/lib/gpu-tenants"

// agentObjects are the agent's objects on one worker, with rights on that
// worker's Node only; see agent/README.md for each.
func agentObjects(args *MockGPUArgs, register string) []map[string]any {
	name := "mock-gpu-" + args.Node
	metadata := func() map[string]any {
		return map[string]any{"name": name, "namespace": "kube-system", "labels": map[string]any{"app.kubernetes.io/name": "mock-gpu-agent", "app.kubernetes.io/instance": args.Node}}
	}
	subject := []any{map[string]any{"kind": "ServiceAccount", "name": name, "namespace": "kube-system"}}
	rule := func(resource string, verbs []any, names ...any) map[string]any {
		rule := map[string]any{"apiGroups": []any{""}, "resources": []any{resource}, "verbs": verbs}
		if len(names) > 0 {
			rule["resourceNames"] = names
		}
		return rule
	}
	const rbac = "rbac.authorization.k8s.io/v1"
	return []map[string]any{
		{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(), "data": map[string]any{"inventory.json": register}},
		{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata()},
		{"apiVersion": rbac, "kind": "ClusterRole", "metadata": metadata(), "rules": []any{
			rule("nodes", []any{"get", "list", "watch", "patch"}, args.Node),
			rule("nodes/status", []any{"patch"}, args.Node),
			rule("pods", []any{"get", "list", "patch"}),
		}},
		{"apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": metadata(), "subjects": subject,
			"roleRef": map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}},
		{"apiVersion": rbac, "kind": "Role", "metadata": metadata(), "rules": []any{rule("configmaps", []any{"list", "watch"}, name)}},
		{"apiVersion": rbac, "kind": "RoleBinding", "metadata": metadata(), "subjects": subject,
			"roleRef": map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}},
		{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata(), "spec": map[string]any{
			"selector": map[string]any{"matchLabels": map[string]any{"app.kubernetes.io/instance": args.Node}},
			"template": map[string]any{
				"metadata": map[string]any{"labels": map[string]any{"app.kubernetes.io/name": "mock-gpu-agent", "app.kubernetes.io/instance": args.Node}},
				"spec":     agentPod(args, name),
			},
		}},
	}
}

func agentPod(args *MockGPUArgs, name string) map[string]any {
	field := func(variable, path string) map[string]any {
		return map[string]any{"name": variable, "valueFrom": map[string]any{"fieldRef": map[string]any{"fieldPath": path}}}
	}
	probe := func(path string) map[string]any {
		return map[string]any{"httpGet": map[string]any{"path": path, "port": "http"}, "periodSeconds": 5, "timeoutSeconds": 5}
	}
	const sockets = "/var/lib/kubelet/device-plugins"
	return map[string]any{
		"serviceAccountName": name,
		"nodeSelector":       map[string]any{"kubernetes.io/hostname": args.Node},
		"priorityClassName":  "system-node-critical",
		"tolerations":        []any{map[string]any{"operator": "Exists"}},
		"containers": []any{map[string]any{
			"name":            "agent",
			"image":           "docker.io/" + args.Mock.Agent.Name,
			"imagePullPolicy": "Never", // it was put into this node's containerd
			"args":            []any{"--config-map=" + name, "--nvidia-smi=" + smiFolder},
			"env":             []any{field("NODE_NAME", "spec.nodeName"), field("POD_NAMESPACE", "metadata.namespace")},
			"ports":           []any{map[string]any{"name": "http", "containerPort": 9410}},
			"livenessProbe":   probe("/healthz"),
			"readinessProbe":  probe("/readyz"),
			// Root, because the kubelet's folder is root's; nothing else of it.
			"securityContext": map[string]any{
				"runAsUser": 0, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
				"capabilities":   map[string]any{"drop": []any{"ALL"}},
				"seccompProfile": map[string]any{"type": "RuntimeDefault"},
			},
			"resources": map[string]any{"requests": map[string]any{"cpu": "10m", "memory": "32Mi"}},
			"volumeMounts": []any{
				map[string]any{"name": "sockets", "mountPath": sockets},
				map[string]any{"name": "smi", "mountPath": smiFolder},
			},
		}},
		"volumes": []any{
			map[string]any{"name": "sockets", "hostPath": map[string]any{"path": sockets, "type": "DirectoryOrCreate"}},
			map[string]any{"name": "smi", "hostPath": map[string]any{"path": smiFolder, "type": "DirectoryOrCreate"}},
		},
	}
}
