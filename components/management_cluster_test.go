package components

import (
	"reflect"
	"testing"
)

func TestKindConfig(t *testing.T) {
	want := map[string]any{
		"apiVersion": "kind.x-k8s.io/v1alpha4",
		"kind":       "Cluster",
		"networking": map[string]any{"ipFamily": "ipv4", "apiServerAddress": "127.0.0.1"},
		"nodes":      []any{map[string]any{"role": "control-plane"}},
	}
	for name, settings := range map[string]map[string]any{"none": nil, "empty": {}} {
		text, err := kindConfig(settings)
		if err != nil {
			t.Fatal(err)
		}
		if got := documentsOf(t, text); len(got) != 1 || !reflect.DeepEqual(got[0], want) {
			t.Errorf("%s: it is %v, want %v", name, got, want)
		}
	}

	settings := map[string]any{"maxPods": 50, "evictionHard": map[string]any{"nodefs.available": "5%"}, "cpuManagerPolicy": "none"}
	text, err := kindConfig(settings)
	if err != nil {
		t.Fatal(err)
	}
	got := documentsOf(t, text)
	if len(got) != 1 {
		t.Fatalf("it is %d documents", len(got))
	}
	patches, ok := got[0]["kubeadmConfigPatches"].([]any)
	if !ok || len(patches) != 1 {
		t.Fatalf("the patches are %v", got[0]["kubeadmConfigPatches"])
	}
	patch := documentsOf(t, patches[0].(string)) // kind wants each as a text
	wantPatch := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"maxPods": 50, "evictionHard": map[string]any{"nodefs.available": "5%"}, "cpuManagerPolicy": "none",
	}
	if len(patch) != 1 || !reflect.DeepEqual(patch[0], wantPatch) {
		t.Errorf("the patch is %v, want %v", patch, wantPatch)
	}
	delete(got[0], "kubeadmConfigPatches")
	if !reflect.DeepEqual(got[0], want) {
		t.Errorf("around the patch it is %v, want %v", got[0], want)
	}
	if again, err := kindConfig(settings); err != nil || again != text || len(settings) != 3 {
		t.Errorf("a second time it is another, and would replace the cluster (%v), or the settings are changed: %v", err, settings)
	}
}
