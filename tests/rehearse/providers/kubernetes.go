package providers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource/plugin"
	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/objects"
)

// kubernetes is pulumi-kubernetes: one cluster, by its kubeconfig.
type kubernetes struct {
	base
	machine *Machine

	// As configured. client is nil while the kubeconfig is not known.
	client                 *objects.Client
	deleteUnreachable      bool
	upsert, mutableConfigs bool
}

// kubernetesServer adds what needs the request itself: components.
type kubernetesServer struct {
	pulumirpc.ResourceProviderServer

	provider *kubernetes

	mu     sync.Mutex
	engine *grpc.ClientConn
}

func newKubernetes(m *Machine) pulumirpc.ResourceProviderServer {
	provider := &kubernetes{machine: m}
	return &kubernetesServer{ResourceProviderServer: plugin.NewProviderServer(provider), provider: provider}
}

func (s *kubernetesServer) Attach(_ context.Context, r *pulumirpc.PluginAttach) (*emptypb.Empty, error) {
	engine, err := dial(r.GetAddress())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine = engine
	return &emptypb.Empty{}, err
}

// DiffConfig replaces a provider, and with it all that it made, when its
// clusterIdentifier changes. While that stays, another kubeconfig is another way
// to the same cluster. Without one, a kubeconfig that is not known yet has to be
// taken for another cluster's.
func (k *kubernetes) DiffConfig(_ context.Context, r plugin.DiffConfigRequest) (plugin.DiffConfigResponse, error) {
	difference := r.OldInputs.Diff(r.NewInputs)
	if difference == nil {
		return plugin.DiffResult{Changes: plugin.DiffNone}, nil
	}
	result := plugin.DiffResult{Changes: plugin.DiffSome, ChangedKeys: difference.ChangedKeys()}
	const identifier = "clusterIdentifier"
	switch {
	case difference.Updated(identifier):
		result.ReplaceKeys = []resource.PropertyKey{identifier}
	case r.NewInputs.HasValue(identifier) && difference.Same(identifier):
	case difference.Changed("kubeconfig"):
		result.ReplaceKeys = []resource.PropertyKey{"kubeconfig"}
	}
	return result, nil
}

func (k *kubernetes) Configure(_ context.Context, r plugin.ConfigureRequest) (plugin.ConfigureResponse, error) {
	for name, value := range r.Inputs {
		switch name {
		case "kubeconfig":
			kubeconfig, ok := plain(value).(string)
			if !ok {
				continue // not known yet
			}
			client, err := k.machine.Store.Connect([]byte(kubeconfig))
			if err == nil {
				k.client = client
			}
		case "deleteUnreachable":
			k.deleteUnreachable = isTrue(value)
		case "upsertExistingObjects":
			k.upsert = isTrue(value)
		case "enableConfigMapMutable":
			k.mutableConfigs = isTrue(value)
		case "clusterIdentifier", "version":
		default:
			if !strings.HasPrefix(string(name), "__") {
				return plugin.ConfigureResponse{}, fmt.Errorf("the stand-in for pulumi-kubernetes does not know the setting %s", name)
			}
		}
	}
	return plugin.ConfigureResponse{}, nil
}

// isTrue reads a setting, which the engine may hand over as a text.
func isTrue(value resource.PropertyValue) bool {
	got := plain(value)
	return got == true || got == "true"
}

func (k *kubernetes) unreachable() error {
	if k.client == nil {
		return fmt.Errorf("failed to parse kubeconfig data in `kubernetes:config:kubeconfig`")
	}
	return k.client.Reachable()
}

func (k *kubernetes) Diff(_ context.Context, r plugin.DiffRequest) (plugin.DiffResponse, error) {
	if r.Type == releaseType {
		return compare(r.OldInputs, r.NewInputs, func(path string) bool { return under(path, "name", "namespace") }), nil
	}
	fields := k.replacing(r.NewInputs)
	result := compare(k.canonical(r.OldInputs), k.canonical(r.NewInputs), func(path string) bool { return under(path, fields...) })
	// The new object has the old one's name, so the old one goes first.
	result.DeleteBeforeReplace = true
	return result, nil
}

// canonical returns an object's inputs with a namespace only where its kind has
// one, which the cluster knows.
func (k *kubernetes) canonical(inputs resource.PropertyMap) resource.PropertyMap {
	if k.unreachable() != nil || !inputs["metadata"].IsObject() {
		return inputs
	}
	known, err := k.client.KindOf(textOf(inputs, "apiVersion"), textOf(inputs, "kind"))
	metadata := inputs["metadata"].ObjectValue().Copy()
	switch {
	case err == nil && !known.Namespaced:
		delete(metadata, "namespace")
	case !metadata.HasValue("namespace"):
		metadata["namespace"] = resource.NewStringProperty("default")
	}
	inputs = inputs.Copy()
	inputs["metadata"] = resource.NewObjectProperty(metadata)
	return inputs
}

// replacing are the fields that an object cannot change.
func (k *kubernetes) replacing(inputs resource.PropertyMap) []string {
	fields := []string{"apiVersion", "kind", "metadata.name", "metadata.namespace"}
	switch kind := textOf(inputs, "kind"); kind {
	case "DaemonSet", "Deployment":
		fields = append(fields, "spec.selector")
	case "StatefulSet":
		fields = append(fields, "spec.selector", "spec.serviceName", "spec.podManagementPolicy", "spec.volumeClaimTemplates")
	case "Job":
		fields = append(fields, "spec.selector", "spec.template", "spec.completions", "spec.parallelism")
	case "RoleBinding", "ClusterRoleBinding":
		fields = append(fields, "roleRef")
	case "Secret":
		fields = append(fields, "type")
	case "ConfigMap":
		if !k.mutableConfigs {
			fields = append(fields, "data", "binaryData")
		}
	}
	return fields
}

func (k *kubernetes) Create(_ context.Context, r plugin.CreateRequest) (plugin.CreateResponse, error) {
	if r.Type == releaseType {
		return k.install(r)
	}
	if err := k.unreachable(); err != nil {
		if r.Preview {
			return plugin.CreateResponse{Properties: r.Properties}, nil
		}
		return plugin.CreateResponse{}, fmt.Errorf("configured Kubernetes cluster is unreachable: %w", err)
	}
	if r.Preview && r.Properties.ContainsUnknowns() {
		return plugin.CreateResponse{Properties: r.Properties}, nil
	}
	wanted := plainMap(r.Properties)
	made, err := k.client.Create(wanted, r.Preview)
	if objects.Is(err, objects.AlreadyExists) && k.upsert && !r.Preview {
		made, err = k.put(wanted, nil)
	}
	switch {
	case r.Preview && (err == nil || objects.Is(err, objects.NotFound) || objects.Is(err, objects.NoMatch) || objects.Is(err, objects.AlreadyExists)):
		// What it lies in may be made by then, and what is in its way be gone.
		return plugin.CreateResponse{Properties: r.Properties}, nil
	case objects.Is(err, objects.NoMatch):
		return plugin.CreateResponse{}, fmt.Errorf("creation of resource %q failed because the Kubernetes API server reported that the apiVersion for this resource does not exist. "+
			"Verify that any required CRDs have been created: %w", r.URN, err)
	case err != nil:
		return plugin.CreateResponse{}, fmt.Errorf("resource %q was not successfully created by the Kubernetes API server: %w", r.URN, err)
	}
	return plugin.CreateResponse{ID: idOf(made), Properties: stateOf(made, r.Properties)}, nil
}

// put applies an object over the one that is there; what the old inputs named
// and the new ones do not is taken away.
func (k *kubernetes) put(wanted, before map[string]any) (map[string]any, error) {
	name, namespace := nameOf(wanted)
	return k.client.Edit(wanted["apiVersion"].(string), wanted["kind"].(string), namespace, name, func(live objects.Object) objects.Object {
		takeAway(live, before, wanted)
		objects.Merge(live, wanted)
		return live
	})
}

func takeAway(live, before, wanted map[string]any) {
	for name, old := range before {
		kept, stays := wanted[name]
		if !stays {
			delete(live, name)
			continue
		}
		inside, isMap := old.(map[string]any)
		there, hasMap := live[name].(map[string]any)
		then, staysMap := kept.(map[string]any)
		if isMap && hasMap && staysMap {
			takeAway(there, inside, then)
		}
	}
}

func nameOf(object map[string]any) (name, namespace string) {
	metadata, _ := object["metadata"].(map[string]any)
	name, _ = metadata["name"].(string)
	namespace, _ = metadata["namespace"].(string)
	if namespace == "" {
		namespace = "default"
	}
	return name, namespace
}

// idOf is "namespace/name", or "name" of what is in no namespace.
func idOf(object map[string]any) resource.ID {
	metadata, _ := object["metadata"].(map[string]any)
	if namespace, ok := metadata["namespace"].(string); ok {
		return resource.ID(fmt.Sprintf("%s/%s", namespace, metadata["name"]))
	}
	return resource.ID(fmt.Sprint(metadata["name"]))
}

// stateOf is what is kept of an object: as it lives, and the inputs beside it.
func stateOf(live map[string]any, inputs resource.PropertyMap) resource.PropertyMap {
	state := resource.NewPropertyMapFromMap(live)
	for name, value := range inputs {
		if value.ContainsSecrets() {
			state[name] = resource.MakeSecret(state[name])
		}
	}
	state["__inputs"] = resource.NewObjectProperty(inputs)
	return state
}

func (k *kubernetes) Read(_ context.Context, r plugin.ReadRequest) (plugin.ReadResponse, error) {
	if err := k.unreachable(); err != nil {
		if k.deleteUnreachable {
			return plugin.ReadResponse{}, nil
		}
		return plugin.ReadResponse{}, fmt.Errorf("failed to read resource state due to unreachable cluster: %w", err)
	}
	if r.Type == releaseType {
		return k.readRelease(r)
	}
	apiVersion, kind := textOf(r.Inputs, "apiVersion"), textOf(r.Inputs, "kind")
	if apiVersion == "" {
		// Read and not made: the type says what it is.
		apiVersion, kind = strings.TrimPrefix(string(r.Type.Module().Name()), "core/"), string(r.Type.Name())
	}
	namespace, name, inNamespace := strings.Cut(string(r.ID), "/")
	if !inNamespace {
		namespace, name = "", string(r.ID)
	}
	live, err := k.client.Get(apiVersion, kind, namespace, name)
	if objects.Is(err, objects.NotFound) || objects.Is(err, objects.NoMatch) {
		return plugin.ReadResponse{}, nil
	}
	if err != nil {
		return plugin.ReadResponse{}, err
	}
	inputs := prune(resource.NewPropertyMapFromMap(live), r.Inputs)
	return plugin.ReadResponse{ReadResult: plugin.ReadResult{ID: r.ID, Inputs: inputs, Outputs: stateOf(live, inputs)}}, nil
}

// prune returns of live what inputs name.
func prune(live, inputs resource.PropertyMap) resource.PropertyMap {
	pruned := resource.PropertyMap{}
	for name, given := range inputs {
		value, there := live[name]
		switch {
		case !there:
		case given.IsSecret():
			pruned[name] = resource.MakeSecret(value)
		case given.IsObject() && value.IsObject():
			pruned[name] = resource.NewObjectProperty(prune(value.ObjectValue(), given.ObjectValue()))
		default:
			pruned[name] = value
		}
	}
	return pruned
}

func (k *kubernetes) Update(_ context.Context, r plugin.UpdateRequest) (plugin.UpdateResponse, error) {
	if r.Type == releaseType {
		return k.upgrade(r)
	}
	if err := k.unreachable(); err != nil {
		if r.Preview {
			return plugin.UpdateResponse{Properties: r.NewInputs}, nil
		}
		return plugin.UpdateResponse{}, fmt.Errorf("configured Kubernetes cluster is unreachable: %w", err)
	}
	if r.Preview {
		return plugin.UpdateResponse{Properties: r.NewInputs}, nil
	}
	live, err := k.put(plainMap(r.NewInputs), plainMap(r.OldInputs))
	if err != nil {
		return plugin.UpdateResponse{}, fmt.Errorf("update of resource %q failed because the Kubernetes API server reported: %w", r.URN, err)
	}
	return plugin.UpdateResponse{Properties: stateOf(live, r.NewInputs)}, nil
}

func (k *kubernetes) Delete(_ context.Context, r plugin.DeleteRequest) (plugin.DeleteResponse, error) {
	unreachable := k.unreachable()
	if r.Type == releaseType {
		if unreachable != nil {
			return plugin.DeleteResponse{}, fmt.Errorf("can't delete Helm Release with unreachable cluster. Reason: %q", unreachable.Error())
		}
		return plugin.DeleteResponse{}, k.client.Uninstall(textOf(r.Outputs, "name"), textOf(r.Outputs, "namespace"))
	}
	if unreachable != nil {
		if k.deleteUnreachable {
			return plugin.DeleteResponse{}, nil
		}
		return plugin.DeleteResponse{}, fmt.Errorf("configured Kubernetes cluster is unreachable: %w", unreachable)
	}
	name, namespace := nameOf(plainMap(r.Outputs))
	err := k.client.Delete(textOf(r.Outputs, "apiVersion"), textOf(r.Outputs, "kind"), namespace, name)
	if objects.Is(err, objects.NotFound) || objects.Is(err, objects.NoMatch) {
		err = nil
	}
	return plugin.DeleteResponse{}, err
}

// releaseType is Helm's.
const releaseType = "kubernetes:helm.sh/v3:Release"

func releaseOf(inputs resource.PropertyMap) objects.Release {
	values, _ := plain(inputs["values"]).(map[string]any)
	return objects.Release{
		Name: textOf(inputs, "name"), Namespace: textOf(inputs, "namespace"), Chart: textOf(inputs, "chart"),
		Values: values, CreateNamespace: isTrue(inputs["createNamespace"]),
	}
}

func (k *kubernetes) install(r plugin.CreateRequest) (plugin.CreateResponse, error) {
	if r.Preview {
		return plugin.CreateResponse{Properties: r.Properties}, nil
	}
	if err := k.unreachable(); err != nil {
		return plugin.CreateResponse{}, fmt.Errorf("can't create Helm Release with unreachable cluster: %w", err)
	}
	release := releaseOf(r.Properties)
	if err := k.client.Install(release); err != nil {
		return plugin.CreateResponse{}, err
	}
	return plugin.CreateResponse{ID: resource.ID(release.Namespace + "/" + release.Name), Properties: releaseState(r.Properties)}, nil
}

func releaseState(inputs resource.PropertyMap) resource.PropertyMap {
	state := inputs.Copy()
	state["status"] = resource.NewObjectProperty(resource.PropertyMap{"status": resource.NewStringProperty("deployed")})
	return state
}

func (k *kubernetes) upgrade(r plugin.UpdateRequest) (plugin.UpdateResponse, error) {
	if r.Preview {
		return plugin.UpdateResponse{Properties: r.NewInputs}, nil
	}
	if err := k.unreachable(); err != nil {
		return plugin.UpdateResponse{}, fmt.Errorf("can't update Helm Release with unreachable cluster: %w", err)
	}
	return plugin.UpdateResponse{Properties: releaseState(r.NewInputs)}, k.client.Upgrade(releaseOf(r.NewInputs))
}

func (k *kubernetes) readRelease(r plugin.ReadRequest) (plugin.ReadResponse, error) {
	status, err := k.client.Status(textOf(r.State, "name"), textOf(r.State, "namespace"))
	if err != nil || status == "" {
		return plugin.ReadResponse{}, err
	}
	return plugin.ReadResponse{ReadResult: plugin.ReadResult{ID: r.ID, Inputs: r.Inputs, Outputs: r.State}}, nil
}

// sortedKeys returns a map's keys in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
