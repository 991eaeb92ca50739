// Package node publishes the inventory on the Node object: HAMi reads an
// annotation there, people and the kubelet's admission read the status.
package node

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpu-tenants/gpu-tenants/agent/internal/hami"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/inventory"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/plugin"
)

// Extended resources that the agent writes into the node's status itself. As
// devices of the kubelet they would be one per MiB, which is more than a
// ListAndWatch message holds from some 120 GB on.
const (
	// ResourceMemory is the cards' memory in MiB.
	ResourceMemory corev1.ResourceName = "nvidia.com/gpumem"
	// ResourceCores is their compute capacity in percent of one card.
	ResourceCores corev1.ResourceName = "nvidia.com/gpucores"
	// ResourcePercentage is 100 per card.
	ResourcePercentage corev1.ResourceName = "nvidia.com/gpumem-percentage"
)

// resourceSlices is the one resource that the kubelet itself keeps.
const resourceSlices corev1.ResourceName = plugin.ResourceName

var ownResources = []corev1.ResourceName{ResourceMemory, ResourceCores, ResourcePercentage}

type amounts map[corev1.ResourceName]int64

// capacity counts all cards.
func capacity(inv inventory.Inventory) amounts {
	all := inv.Totals()
	return amounts{ResourceMemory: all.MemoryMiB, ResourceCores: all.Cores, ResourcePercentage: 100 * all.Cards}
}

// allocatable counts the healthy cards and of the others what pods still hold.
// That part cannot be taken away: the kubelet compares allocatable with what
// all pods on the node ask for, those on a sick card included, and would turn
// down a newcomer for whom HAMi has found room on a healthy one. For the
// devices of plugins it makes the same allowance itself (sanitizeNodeAllocatable
// in https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/cm/devicemanager/manager.go).
func allocatable(inv inventory.Inventory, held map[string]hami.Slice) amounts {
	healthy := inv.Healthy()
	sum := amounts{ResourceMemory: healthy.MemoryMiB, ResourceCores: healthy.Cores, ResourcePercentage: 100 * healthy.Cards}
	for _, card := range inv {
		slice, ok := held[card.ID]
		if card.Health || !ok {
			continue
		}
		sum[ResourceMemory] += int64(min(slice.MemoryMiB, card.Devmem))
		sum[ResourceCores] += int64(min(slice.Cores, card.Devcore))
		sum[ResourcePercentage] += inventory.Percent(int64(slice.MemoryMiB), int64(card.Devmem))
	}
	return sum
}

// held sums up per card the slices of the pods that have not ended.
func held(pods []corev1.Pod) map[string]hami.Slice {
	sum := map[string]hami.Slice{}
	for i := range pods {
		if phase := pods[i].Status.Phase; phase == corev1.PodSucceeded || phase == corev1.PodFailed {
			continue
		}
		// What cannot be read is not HAMi's and holds nothing.
		containers, _ := hami.ParseSlices(pods[i].Annotations[hami.PodAllocated])
		for _, container := range containers {
			for _, slice := range container {
				s := sum[slice.Card]
				s.MemoryMiB += slice.MemoryMiB
				s.Cores += slice.Cores
				sum[slice.Card] = s
			}
		}
	}
	return sum
}

// difference is the part of a merge patch that makes got into want as far as
// the agent's resources go; nil if they are equal. A nil want removes them.
func difference(got corev1.ResourceList, want amounts) map[corev1.ResourceName]any {
	var patch map[corev1.ResourceName]any
	set := func(name corev1.ResourceName, value any) {
		if patch == nil {
			patch = map[corev1.ResourceName]any{}
		}
		patch[name] = value
	}
	for _, name := range ownResources {
		have, present := got[name]
		amount, wanted := want[name]
		switch {
		case wanted && (!present || have.Cmp(*resource.NewQuantity(amount, resource.DecimalSI)) != 0):
			set(name, strconv.FormatInt(amount, 10))
		case !wanted && present:
			set(name, nil)
		}
	}
	return patch
}
