package lab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakedynamic "k8s.io/client-go/dynamic/fake"

	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/stack"
)

// docker puts a stand-in onto the PATH. It returns what it was called with.
func docker(t *testing.T, running bool) func() string {
	t.Helper()
	folder := t.TempDir()
	log := filepath.Join(folder, "log")
	id := ""
	if running {
		id = "4f2a"
	}
	script := "#!/bin/sh\necho \"$*\" >>" + log + "\n[ \"$1\" != ps ] || echo " + id + "\n"
	if err := os.WriteFile(filepath.Join(folder, "docker"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	return func() string {
		text, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}

// TestCutTunnel: Kamaji runs the agent as a pod, whose packets a node forwards
// and does not send, so rules for what it sends alone would cut nothing.
func TestCutTunnel(t *testing.T) {
	said := docker(t, true)
	plane := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kamaji.clastix.io/v1alpha1", "kind": "TenantControlPlane", "metadata": map[string]any{"name": "a", "namespace": TenantsNamespace},
		"spec": map[string]any{"addons": map[string]any{"konnectivity": map[string]any{"server": map[string]any{"port": int64(8132)}}}},
	}}
	lists := map[schema.GroupVersionResource]string{{Group: "kamaji.clastix.io", Version: "v1alpha1", Resource: "tenantcontrolplanes"}: "TenantControlPlaneList"}
	tenant := &Tenant{
		Tenant: stack.Tenant{Name: "a", Endpoint: "10.0.0.1:6443"},
		Lab:    &Lab{Management: &Cluster{Objects: fakedynamic.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, plane)}},
	}
	if err := tenant.CutTunnel(t.Context(), stack.Worker{Container: "w"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"exec w nft", "hook forward", "hook output", "ip daddr 10.0.0.1 tcp dport 8132 reject", "ip saddr 10.0.0.1 tcp sport 8132 reject",
	} {
		if !strings.Contains(said(), want) {
			t.Errorf("%q is not in %s", want, said())
		}
	}
}

// TestRestoreTunnel: where no rule can be left, there is nothing to undo.
func TestRestoreTunnel(t *testing.T) {
	for _, running := range []bool{true, false} {
		said := docker(t, running)
		if err := new(Tenant).RestoreTunnel(t.Context(), stack.Worker{Container: "w"}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(said(), "delete table"); got != running {
			t.Errorf("running %v: %s", running, said())
		}
	}
}

func TestMember(t *testing.T) {
	store := func(endpoints ...any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "default"}, "spec": map[string]any{"endpoints": endpoints}}}
	}
	want := place{host: "etcd-0.etcd.kamaji-system.svc.cluster.local", namespace: "kamaji-system", pod: "etcd-0", port: "2379"}
	if got, err := member(store("etcd-0.etcd.kamaji-system.svc.cluster.local:2379", "x")); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	for _, wrong := range []*unstructured.Unstructured{store(), store("10.0.0.1:2379"), store("etcd:2379"), store("etcd-0.etcd.kamaji-system")} {
		if got, err := member(wrong); err == nil || !strings.Contains(err.Error(), "default") {
			t.Errorf("%+v, %v", got, err)
		}
	}
}
