package components

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
	"gopkg.in/yaml.v3"
)

// The Kubernetes objects of this project are registered by their type token,
// with the object itself as input. The typed packages of the SDK would say the
// same at the price of compiling every API group of Kubernetes into each build
// (helm/v3 and yaml/v2 pull in all of them: tens of minutes on a small
// machine); the provider checks the object against the API server either way.

// object is any Kubernetes object.
type object struct {
	pulumi.CustomResourceState

	Metadata pulumi.MapOutput `pulumi:"metadata"`
}

// uid tells an object from a later one of the same name, which has the same ID.
func (o *object) uid() pulumi.StringOutput {
	return o.Metadata.ApplyT(func(metadata map[string]any) string {
		uid, _ := metadata["uid"].(string)
		return uid
	}).(pulumi.StringOutput)
}

// secretObject is a Secret that is read, not made.
type secretObject struct {
	pulumi.CustomResourceState

	Data pulumi.StringMapOutput `pulumi:"data"`
}

// group is a set of objects that the provider orders and awaits by itself.
type group struct {
	pulumi.ResourceState
}

// newObject registers one Kubernetes object: {apiVersion, kind, metadata, ...}.
func newObject(ctx *pulumi.Context, name string, manifest map[string]any, opts ...pulumi.ResourceOption) (*object, error) {
	apiVersion, _ := manifest["apiVersion"].(string)
	kind, _ := manifest["kind"].(string)
	if apiVersion == "" || kind == "" {
		return nil, fmt.Errorf("object %s: apiVersion or kind is missing", name)
	}
	if apiVersion == "v1" {
		apiVersion = "core/v1" // as the provider's schema names the core group
	}
	inputs := pulumi.Map{}
	for key, value := range manifest {
		inputs[key] = pulumi.Any(value)
	}
	made := &object{}
	token := fmt.Sprintf("kubernetes:%s:%s", apiVersion, kind)
	return made, ctx.RegisterResource(token, name, inputs, made, opts...)
}

// onceDone is a text that a preview knows only when an object is there already. A
// preview tries every object whose inputs it knows against the API server; one
// that a webhook must take is not to be tried before that webhook answers, or
// what an interrupted run left behind could not be previewed, and so not
// completed.
func onceDone(there pulumi.CustomResource, text string) pulumi.StringOutput {
	return there.ID().ApplyT(func(pulumi.ID) string { return text }).(pulumi.StringOutput)
}

// readSecret reads a Secret that something else makes, once after is done.
func readSecret(ctx *pulumi.Context, resourceName, namespace, name string, after pulumi.CustomResource, opts ...pulumi.ResourceOption) (*secretObject, error) {
	read := &secretObject{}
	opts = append(opts, pulumi.AdditionalSecretOutputs([]string{"data", "stringData"}), pulumi.DependsOn([]pulumi.Resource{after}))
	// Unknown for as long as the Secret is not there.
	id := after.ID().ApplyT(func(pulumi.ID) pulumi.ID { return pulumi.ID(namespace + "/" + name) }).(pulumi.IDOutput)
	// What a refresh finds of its inputs: without them it would find a change.
	state := pulumi.Map{
		"apiVersion": pulumi.String("v1"),
		"kind":       pulumi.String("Secret"),
		"metadata":   pulumi.StringMap{"name": pulumi.String(name), "namespace": pulumi.String(namespace)},
	}
	return read, ctx.ReadResource("kubernetes:core/v1:Secret", resourceName, id, state, read, opts...)
}

// newGroup registers every object of a multi-document manifest. The objects'
// resource names get the group's name in front, so that two tenants can hold
// the same manifest. With skipAwait their readiness is somebody else's to
// wait for.
func newGroup(ctx *pulumi.Context, name, manifest string, skipAwait bool, opts ...pulumi.ResourceOption) (*group, error) {
	made := &group{}
	manifest, err := withoutDescriptions(manifest)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	inputs := pulumi.Map{
		"yaml":           pulumi.String(manifest),
		"resourcePrefix": pulumi.String(name),
		"skipAwait":      pulumi.Bool(skipAwait),
	}
	return made, ctx.RegisterRemoteComponentResource("kubernetes:yaml/v2:ConfigGroup", name, inputs, made, opts...)
}

// withoutDescriptions drops the explanations from the schemas of a manifest's
// CustomResourceDefinitions. They are half of a stack's state, which Pulumi
// writes anew at each step of an update.
func withoutDescriptions(published string) (string, error) {
	all, err := documents(published)
	if err != nil {
		return "", err
	}
	for _, document := range all {
		if document["kind"] == "CustomResourceDefinition" {
			dropDescriptions(document["spec"], false)
		}
	}
	return manifest(all...)
}

// dropDescriptions walks a schema. In a map of properties "description" is the
// name of one, not an explanation.
func dropDescriptions(value any, properties bool) {
	switch value := value.(type) {
	case map[string]any:
		if _, text := value["description"].(string); text && !properties {
			delete(value, "description")
		}
		for key, child := range value {
			dropDescriptions(child, key == "properties" && !properties)
		}
	case []any:
		for _, child := range value {
			dropDescriptions(child, false)
		}
	}
}

// releaseArgs describes a Helm release.
type releaseArgs struct {
	Name      string
	Namespace string
	Chart     string // a folder or a packaged chart on this machine
	Values    map[string]any
	// ManagementNode is the container from which the cluster is administered,
	// Tenant whose cluster it is; empty: the management cluster.
	ManagementNode, Tenant string
}

// newRelease installs a chart by Helm itself: the charts here set themselves
// up by hook jobs, which a renderer of templates would drop
// (https://github.com/pulumi/pulumi-kubernetes/issues/3284).
func newRelease(ctx *pulumi.Context, name string, args releaseArgs, opts ...pulumi.ResourceOption) (*object, error) {
	made := &object{}
	inputs := pulumi.Map{
		"name":            pulumi.String(args.Name),
		"namespace":       pulumi.String(args.Namespace),
		"createNamespace": pulumi.Bool(true),
		"chart":           pulumi.String(args.Chart),
		"values":          pulumi.Any(args.Values),
		"timeout":         pulumi.Int(900), // seconds; two cores are slow, not broken
	}
	hook, err := forgetLeftoverRelease(ctx, name+"-leftover", args)
	if err != nil {
		return nil, err
	}
	return made, ctx.RegisterResource("kubernetes:helm.sh/v3:Release", name, inputs, made, append(opts, hook)...)
}

// documents splits a multi-document manifest.
func documents(manifest string) ([]map[string]any, error) {
	decoder := yaml.NewDecoder(bytes.NewReader([]byte(manifest)))
	var all []map[string]any
	for {
		var document map[string]any
		switch err := decoder.Decode(&document); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		case len(document) > 0:
			all = append(all, document)
		}
	}
}

// manifest joins documents again, or turns Go values into one.
func manifest(documents ...map[string]any) (string, error) {
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	for _, document := range documents {
		if err := encoder.Encode(document); err != nil {
			return "", err
		}
	}
	return text.String(), encoder.Close()
}
