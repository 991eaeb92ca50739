package objects

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// What both layers' stand-ins for controllers do alike stands here: it looks at
// objects only, wherever they are kept.

// Text returns a string inside an object, or "".
func Text(object Object, path ...string) string { return text(object, path...) }

// Field returns what is inside an object, or nil.
func Field(object Object, path ...string) any { return field(object, path...) }

// ConditionOf returns the status of an object's condition, or "".
func ConditionOf(object Object, kind string) string { return conditionOf(object, kind) }

// FreeAddress plays MetalLB: the first address of the pools that no control plane
// has, with the API server's port; "" when there is none.
func FreeAddress(pools []Object, taken map[string]bool) string {
	for _, pool := range pools {
		ranges, _ := field(pool, "spec", "addresses").([]any)
		for _, entry := range ranges {
			from, to, _ := strings.Cut(fmt.Sprint(entry), "-")
			first, err1 := netip.ParseAddr(from)
			last, err2 := netip.ParseAddr(to)
			if err1 != nil || err2 != nil || namespaceOf(pool) != "metallb-system" {
				continue
			}
			for address := first; address.Compare(last) <= 0; address = address.Next() {
				if endpoint := address.String() + ":6443"; !taken[endpoint] {
					return endpoint
				}
			}
		}
	}
	return ""
}

// ReadyPlane is the status of a TenantControlPlane whose API server answers at an
// endpoint, as far as somebody looks at it.
func ReadyPlane(plane Object, endpoint string) Object {
	replicas, _ := field(plane, "spec", "controlPlane", "deployment", "replicas").(float64)
	return Object{
		"controlPlaneEndpoint": endpoint, "observedGeneration": field(plane, "metadata", "generation"),
		"kubernetesResources": Object{
			"version":    Object{"status": "Ready", "version": text(plane, "spec", "kubernetes", "version")},
			"deployment": Object{"readyReplicas": int(replicas)},
		},
		"addons": Object{"konnectivity": Object{"enabled": field(plane, "spec", "addons", "konnectivity") != nil}},
	}
}

// resourceNames are what a node shows of its cards.
var resourceNames = []string{"nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores", "nvidia.com/gpumem-percentage"}

// Register is the annotation in which HAMi finds a node's cards.
const Register = "hami.io/node-nvidia-register"

// ShownCards is what the device plugins on a node have it show: the registration,
// "" when they show nothing. agent is this project's DaemonSet for the node or
// nil, inventory what its ConfigMap holds; plugin is HAMi's DaemonSet or nil.
// withImage says whether the node has the agent's image.
func ShownCards(node, agent Object, withImage bool, inventory string, plugin Object) string {
	switch {
	case agent != nil && inventory != "" && withImage:
		return inventory
	case plugin != nil && field(node, "status", "allocatable", "nvidia.com/gpu") != nil:
		return text(node, "metadata", "annotations", Register)
	}
	return ""
}

// FirstImage is the image of a workload's first container.
func FirstImage(workload Object) string {
	containers, _ := field(workload, "spec", "template", "spec", "containers").([]any)
	if len(containers) == 0 {
		return ""
	}
	container, _ := containers[0].(Object)
	return text(container, "image")
}

// SumOf adds up the healthy cards of a registration, by resource.
func SumOf(register string) Object {
	var cards []struct {
		Count, Devmem, Devcore int
		Health                 bool
	}
	if err := json.Unmarshal([]byte(register), &cards); err != nil {
		return nil
	}
	var count, memory, cores, percent int
	for _, card := range cards {
		if card.Health {
			count, memory, cores, percent = count+card.Count, memory+card.Devmem, cores+card.Devcore, percent+100
		}
	}
	shown := Object{}
	for i, value := range []int{count, memory, cores, percent} {
		shown[resourceNames[i]] = fmt.Sprint(value)
	}
	return shown
}

// hasImage reports whether an image was put into a node's containerd.
func hasImage(node Object, image string) bool {
	return slices.Contains(strings.Fields(text(node, "metadata", "annotations", images)), image)
}
