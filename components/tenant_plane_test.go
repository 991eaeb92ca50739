package components

import (
	"reflect"
	"slices"
	"testing"
)

// at follows keys into a value.
func at(t *testing.T, value any, keys ...string) any {
	t.Helper()
	for _, key := range keys {
		object, ok := value.(map[string]any)
		if !ok || object[key] == nil {
			t.Fatalf("%q of %q is missing", key, keys)
		}
		value = object[key]
	}
	return value
}

func TestKubeletPatches(t *testing.T) {
	byPath := func(settings map[string]any) map[string]any {
		patches, err := kubeletPatches(settings)
		if err != nil {
			t.Fatal(err)
		}
		var paths []string
		values := map[string]any{}
		for _, entry := range patches {
			patch := entry.(map[string]any)
			if len(patch) != 3 || patch["op"] != "add" {
				t.Errorf("the patch %v is not an addition", patch)
			}
			path := patch["path"].(string)
			paths = append(paths, path)
			values[path] = patch["value"]
		}
		if !slices.IsSorted(paths) || len(values) != len(paths) {
			t.Errorf("the paths %q are not sorted, or one is there twice", paths)
		}
		return values
	}
	base := byPath(nil)
	if len(base) != 4 || base["/failSwapOn"] != false || base["/cgroupDriver"] != "systemd" {
		t.Errorf("without settings the patches are %v", base)
	}
	eviction := map[string]any{"nodefs.available": "5%"}
	got := byPath(map[string]any{"evictionHard": eviction, "failSwapOn": true, "maxPods": 50})
	if len(got) != 5 || got["/failSwapOn"] != true || got["/maxPods"] != 50 || !reflect.DeepEqual(got["/evictionHard"], eviction) || got["/cgroupDriver"] != "systemd" {
		t.Errorf("with settings the patches are %v", got)
	}
	if again := byPath(nil); !reflect.DeepEqual(again, base) {
		t.Errorf("one tenant's settings stay for the next: %v", again)
	}
}

func TestControlPlaneSpec(t *testing.T) {
	for _, test := range []struct {
		replicas int
		strategy string
	}{{1, "Recreate"}, {2, "RollingUpdate"}, {5, "RollingUpdate"}} {
		spec, err := controlPlaneSpec(&TenantPlaneArgs{Name: "red", KubernetesVersion: "v9.9.9", PodCIDR: "10.9.0.0/16", ServiceCIDR: "10.8.0.0/16", Replicas: test.replicas})
		if err != nil {
			t.Fatal(err)
		}
		deployment := at(t, spec, "controlPlane", "deployment")
		if got := at(t, deployment, "strategy", "type"); got != test.strategy {
			t.Errorf("%d replicas are updated by %v, want %s", test.replicas, got, test.strategy)
		}
		if got := at(t, deployment, "replicas"); got != test.replicas {
			t.Errorf("%v replicas, want %d", got, test.replicas)
		}
		if version, pods, services := at(t, spec, "kubernetes", "version"), at(t, spec, "networkProfile", "podCidr"), at(t, spec, "networkProfile", "serviceCidr"); version != "v9.9.9" || pods != "10.9.0.0/16" || services != "10.8.0.0/16" {
			t.Errorf("version %v, pods %v, services %v", version, pods, services)
		}
		// A worker may change its own Node and no other.
		if plugins := at(t, spec, "kubernetes", "admissionControllers").([]any); !slices.Contains(plugins, any("NodeRestriction")) || !slices.Contains(plugins, any("MutatingAdmissionWebhook")) {
			t.Errorf("the admission plugins are %v", plugins)
		}
	}
}

func TestHAMiValues(t *testing.T) {
	args := &TenantPlaneArgs{
		KubernetesVersion:  "v9.9.9",
		KubeSchedulerImage: Image{Repository: "registry.test/kube-scheduler", Tag: "v9.9.9"},
		Mock:               MockArgs{HAMiPlugin: Image{Repository: "registry.test:5000/mock/plugin", Tag: "v9.9.8"}},
	}
	values := hamiValues(args)
	image := at(t, values, "scheduler", "kubeScheduler", "image")
	if got, want := image, map[string]any{"registry": "", "repository": "registry.test/kube-scheduler", "tag": "v9.9.9"}; !reflect.DeepEqual(got, want) {
		t.Errorf("the scheduler's image is %v, want %v", got, want)
	}
	webhook := at(t, values, "scheduler", "admissionWebhook")
	if got := at(t, webhook, "failurePolicy"); got != "Fail" {
		t.Errorf("a GPU pod that the webhook does not see gets the policy %v, want Fail", got)
	}
	// HAMi itself, and what it needs to start, must not wait for HAMi.
	if namespaces := at(t, webhook, "whitelistNamespaces").([]any); !slices.Contains(namespaces, any("kube-system")) || slices.Contains(namespaces, any("default")) {
		t.Errorf("the webhook leaves out %v", namespaces)
	}
	if got := at(t, values, "devicePlugin"); !reflect.DeepEqual(got, map[string]any{"enabled": false}) {
		t.Errorf("HAMi's plugin for real cards is %v", got)
	}
	if hamiValues(args)["scheduler"].(map[string]any)["leaderElect"] = true; at(t, values, "scheduler", "leaderElect") != false {
		t.Error("two tenants share their values")
	}
}

// HAMi's chart wants the registry apart from the repository.
func TestHAMiValuesOfTheMock(t *testing.T) {
	values := map[string]any{"scheduler": map[string]any{}}
	MockArgs{HAMiPlugin: Image{Repository: "registry.test:5000/mock/plugin", Tag: "v9.9.8"}}.editHAMiValues(values)
	want := map[string]any{"registry": "registry.test:5000", "repository": "mock/plugin", "tag": "v9.9.8"}
	if got := at(t, values, "mockDevicePlugin", "image"); !reflect.DeepEqual(got, want) {
		t.Errorf("the mock's image is %v, want %v", got, want)
	}
	content := at(t, values, "device-config", "content").(string)
	if got := documentsOf(t, content); len(got) != 1 || len(got[0]) != 1 || at(t, got[0], "nvidia", "resourceCountName") != "nvidia.com/gpu" {
		t.Errorf("the device configuration is %v", got)
	}
}
