package components

import (
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

// registrations stand in for the engine, and keep what it is asked for.
type registrations struct {
	mu  sync.Mutex
	all []pulumi.MockResourceArgs
}

func (r *registrations) NewResource(args pulumi.MockResourceArgs) (string, resource.PropertyMap, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, args)
	return args.Name + "-id", args.Inputs, nil
}

func (r *registrations) Call(args pulumi.MockCallArgs) (resource.PropertyMap, error) {
	return nil, fmt.Errorf("no call is expected, and %s was made", args.Token)
}

// register runs a program and returns what it registered, but for the stack.
func register(t *testing.T, program pulumi.RunFunc) ([]pulumi.MockResourceArgs, error) {
	t.Helper()
	r := &registrations{}
	err := pulumi.RunErr(program, pulumi.WithMocks("gpu-tenants", "test", r))
	return r.all, err
}

// The tokens are those of the provider's schema; one that it does not have
// would only be found against a cluster.
func TestNewObject(t *testing.T) {
	for _, test := range []struct{ apiVersion, kind, token string }{
		{"v1", "Namespace", "kubernetes:core/v1:Namespace"},
		{"apps/v1", "Deployment", "kubernetes:apps/v1:Deployment"},
		{"kamaji.clastix.io/v1alpha1", "TenantControlPlane", "kubernetes:kamaji.clastix.io/v1alpha1:TenantControlPlane"},
		{"metallb.io/v1beta1", "IPAddressPool", "kubernetes:metallb.io/v1beta1:IPAddressPool"},
	} {
		got, err := register(t, func(ctx *pulumi.Context) error {
			_, err := newObject(ctx, "thing", map[string]any{
				"apiVersion": test.apiVersion, "kind": test.kind, "metadata": map[string]any{"name": "x"},
				"spec": map[string]any{"addresses": []any{"a-b"}, "replicas": 2},
			})
			return err
		})
		if err != nil || len(got) != 1 {
			t.Fatalf("%s: %d registrations, %v", test.kind, len(got), err)
		}
		if got[0].TypeToken != test.token || got[0].Name != "thing" || !got[0].Custom {
			t.Errorf("registered is %s %q, want %s", got[0].TypeToken, got[0].Name, test.token)
		}
		want := map[string]any{
			"apiVersion": test.apiVersion, "kind": test.kind, "metadata": map[string]any{"name": "x"},
			"spec": map[string]any{"addresses": []any{"a-b"}, "replicas": 2.0},
		}
		if inputs := got[0].Inputs.Mappable(); !reflect.DeepEqual(inputs, want) {
			t.Errorf("its inputs are %v, want the object as it is, %v", inputs, want)
		}
	}
}

func TestNewObjectWithoutAKind(t *testing.T) {
	for name, manifest := range map[string]map[string]any{
		"nothing": {}, "no kind": {"apiVersion": "v1"}, "no apiVersion": {"kind": "Pod"}, "a number": {"apiVersion": 1, "kind": "Pod"},
	} {
		got, err := register(t, func(ctx *pulumi.Context) error {
			_, err := newObject(ctx, "thing", manifest)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), "thing") || len(got) != 0 {
			t.Errorf("%s: %d registrations and error %v, want none and one that names the thing", name, len(got), err)
		}
	}
}

func TestManifestRoundTrip(t *testing.T) {
	want := []map[string]any{
		{"kind": "A", "list": []any{1, "1", true, "true", nil, 1.5}},
		{"kind": "B", "text": "line one\nline two: # x\n", "nested": map[string]any{"a.b/c": []any{map[string]any{"d": "- e"}}}},
	}
	text, err := manifest(want...)
	if err != nil {
		t.Fatal(err)
	}
	if got := documentsOf(t, "---\n"+text+"---\n# nothing\n"); !reflect.DeepEqual(got, want) {
		t.Errorf("it is read back as\n%v\nwant\n%v", got, want)
	}
}

// Explanations go, and whatever only looks like one stays.
func TestWithoutDescriptions(t *testing.T) {
	text, err := withoutDescriptions(`
kind: CustomResourceDefinition
metadata: {name: a, annotations: {description: kept}}
spec:
  versions:
    - schema:
        openAPIV3Schema:
          description: gone
          properties:
            description: {type: string, description: gone}
            properties: {type: object, properties: {description: {type: integer}}}
            list: {items: {description: gone, type: string}}
---
kind: ConfigMap
spec: {description: kept}
`)
	if err != nil {
		t.Fatal(err)
	}
	got := documentsOf(t, text)
	want := documentsOf(t, `
kind: CustomResourceDefinition
metadata: {name: a, annotations: {description: kept}}
spec:
  versions:
    - schema:
        openAPIV3Schema:
          properties:
            description: {type: string}
            properties: {type: object, properties: {description: {type: integer}}}
            list: {items: {type: string}}
---
kind: ConfigMap
spec: {description: kept}
`)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%v, want\n%v", got, want)
	}
	if _, err := withoutDescriptions("a: [b"); err == nil {
		t.Error("a manifest that is no YAML is accepted")
	}
}
