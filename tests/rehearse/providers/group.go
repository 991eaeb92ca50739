package providers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
	pulumiprovider "github.com/pulumi/pulumi/sdk/v3/go/pulumi/provider"
	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"gopkg.in/yaml.v3"
)

const groupType = "kubernetes:yaml/v2:ConfigGroup"

// group is a ConfigGroup: every object of a manifest, as a resource of its own.
type group struct {
	pulumi.ResourceState
}

// Construct registers a ConfigGroup with its children.
func (s *kubernetesServer) Construct(ctx context.Context, r *pulumirpc.ConstructRequest) (*pulumirpc.ConstructResponse, error) {
	if r.GetType() != groupType {
		return nil, fmt.Errorf("the stand-in for pulumi-kubernetes does not know the component %s", r.GetType())
	}
	s.mu.Lock()
	engine := s.engine
	s.mu.Unlock()
	inputs := r.GetInputs().AsMap()
	return pulumiprovider.Construct(ctx, r, engine, func(ctx *pulumi.Context, kind, name string, _ pulumiprovider.ConstructInputs, options pulumi.ResourceOption) (*pulumiprovider.ConstructResult, error) {
		made := &group{}
		if err := ctx.RegisterComponentResource(kind, name, made, options); err != nil {
			return nil, err
		}
		manifest, known := inputs["yaml"].(string)
		if !known {
			return nil, errors.New("the stand-in for pulumi-kubernetes needs a manifest that is known")
		}
		prefix, _ := inputs["resourcePrefix"].(string)
		if prefix == "" {
			prefix = name
		}
		if err := s.registerChildren(ctx, made, prefix, manifest, inputs["skipAwait"] == true); err != nil {
			return nil, err
		}
		return pulumiprovider.NewConstructResult(made)
	})
}

// object is a child.
type object struct {
	pulumi.CustomResourceState
}

// registerChildren registers the objects of a manifest: first those on which
// others depend, namespaces and definitions of kinds.
func (s *kubernetesServer) registerChildren(ctx *pulumi.Context, parent *group, prefix, manifest string, skipAwait bool) error {
	documents, err := decode(manifest)
	if err != nil {
		return err
	}
	made := map[string]pulumi.Resource{}
	definitions := map[string]map[string]any{} // by group/kind
	for _, document := range documents {
		if document["kind"] == "CustomResourceDefinition" {
			spec, _ := document["spec"].(map[string]any)
			names, _ := spec["names"].(map[string]any)
			definitions[fmt.Sprintf("%s/%s", spec["group"], names["kind"])] = document
		}
	}
	register := func(document map[string]any) error {
		apiVersion, _ := document["apiVersion"].(string)
		kind, _ := document["kind"].(string)
		metadata, _ := document["metadata"].(map[string]any)
		name, _ := metadata["name"].(string)
		if apiVersion == "" || kind == "" || name == "" {
			return fmt.Errorf("Kubernetes resources require a kind, an apiVersion and a .metadata.name: %s %s %q", apiVersion, kind, name) //nolint:staticcheck // the provider's words
		}
		group, _, hasGroup := strings.Cut(apiVersion, "/")
		if !hasGroup {
			group, apiVersion = "", "core/"+apiVersion
		}
		if _, given := metadata["namespace"]; !given && s.namespaced(document, definitions[group+"/"+kind]) {
			metadata["namespace"] = "default"
		}
		resourceName := prefix + ":" + name
		if namespace, ok := metadata["namespace"].(string); ok {
			resourceName = fmt.Sprintf("%s:%s/%s", prefix, namespace, name)
		}
		if skipAwait {
			annotations, ok := metadata["annotations"].(map[string]any)
			if !ok {
				annotations = map[string]any{}
				metadata["annotations"] = annotations
			}
			annotations["pulumi.com/skipAwait"] = "true"
		}
		options := []pulumi.ResourceOption{pulumi.Parent(parent)}
		for _, needed := range []string{"Namespace " + fmt.Sprint(metadata["namespace"]), "CustomResourceDefinition " + group + "/" + kind} {
			if resource := made[needed]; resource != nil {
				options = append(options, pulumi.DependsOn([]pulumi.Resource{resource}))
			}
		}
		properties := pulumi.Map{}
		for _, field := range sortedKeys(document) {
			value := pulumi.Any(document[field])
			if kind == "Secret" && (field == "data" || field == "stringData") {
				properties[field] = pulumi.ToSecret(value)
				continue
			}
			properties[field] = value
		}
		child := &object{}
		if err := ctx.RegisterResource(fmt.Sprintf("kubernetes:%s:%s", apiVersion, kind), resourceName, properties, child, options...); err != nil {
			return err
		}
		switch kind {
		case "Namespace":
			made["Namespace "+name] = child
		case "CustomResourceDefinition":
			spec, _ := document["spec"].(map[string]any)
			names, _ := spec["names"].(map[string]any)
			made[fmt.Sprintf("CustomResourceDefinition %s/%s", spec["group"], names["kind"])] = child
		}
		return nil
	}
	for _, first := range []bool{true, false} {
		for _, document := range documents {
			if isFirst := document["kind"] == "Namespace" || document["kind"] == "CustomResourceDefinition"; isFirst != first {
				continue
			}
			if err := register(document); err != nil {
				return err
			}
		}
	}
	return nil
}

// namespaced reports whether a document's kind lives in namespaces, by a
// definition in the same manifest or by what the cluster knows.
func (s *kubernetesServer) namespaced(document, definition map[string]any) bool {
	if definition != nil {
		spec, _ := definition["spec"].(map[string]any)
		return spec["scope"] != "Cluster"
	}
	if s.provider.client == nil {
		return false
	}
	known, err := s.provider.client.KindOf(document["apiVersion"].(string), document["kind"].(string))
	return err == nil && known.Namespaced
}

// decode splits a manifest.
func decode(manifest string) ([]map[string]any, error) {
	decoder := yaml.NewDecoder(bytes.NewReader([]byte(manifest)))
	var all []map[string]any
	for {
		var document map[string]any
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("decoding YAML: %w", err)
		}
		if len(document) > 0 {
			all = append(all, document)
		}
	}
}
