// Package hami speaks the protocol between HAMi's scheduler and the device
// plugin of a node. It consists of annotations alone: the scheduler writes onto
// the pod which card each container gets, locks the node for the pod and binds
// it; the plugin, asked by the kubelet for some anonymous devices, finds out by
// the lock which pod that must be, takes its containers off the list one by
// one, and unlocks the node after the last.
//
// HAMi's side of it is described by its own code only:
//   - https://github.com/Project-HAMi/HAMi/blob/master/pkg/device-plugin/nvidiadevice/nvinternal/plugin/server.go (Allocate)
//   - https://github.com/Project-HAMi/HAMi/blob/master/pkg/util/nodelock/nodelock.go (the lock)
//   - https://github.com/Project-HAMi/HAMi/blob/master/pkg/scheduler/scheduler.go (Bind and register)
//   - https://github.com/Project-HAMi/HAMi/blob/master/pkg/device/devices.go (formats, CheckHealth)
//   - https://github.com/Project-HAMi/HAMi/blob/master/pkg/device/nvidia/device.go (CheckHealth of NVIDIA cards)
package hami

import (
	"fmt"
	"strconv"
	"strings"
)

// Annotations of a node.
const (
	// NodeRegister lists the node's cards, see inventory.Card.
	NodeRegister = "hami.io/node-nvidia-register"
	// NodeHandshake is where the scheduler asks "Requesting_<time>" whether the
	// plugin lives.
	NodeHandshake = "hami.io/node-handshake"
	// NodeLock is held for the pod that is being bound: "<RFC 3339>,<namespace>,<pod>".
	NodeLock = "hami.io/mutex.lock"
)

// Annotations of a pod.
const (
	// PodNode is the node that the scheduler chose.
	PodNode = "hami.io/vgpu-node"
	// PodBindPhase is one of the Phase constants.
	PodBindPhase = "hami.io/bind-phase"
	// PodBindTime is when the pod was bound, in seconds since 1970.
	PodBindTime = "hami.io/bind-time"
	// PodToAllocate lists the slices that containers still wait for, see Slices.
	PodToAllocate = "hami.io/vgpu-devices-to-allocate"
	// PodAllocated lists the slices of all containers and stays as it is.
	PodAllocated = "hami.io/vgpu-devices-allocated"
)

// Values of PodBindPhase. The scheduler sets allocating, the plugin the others.
const (
	PhaseAllocating = "allocating"
	PhaseSuccess    = "success"
	PhaseFailed     = "failed"
)

// Handshake values begin with one of these. Only the first has a meaning to
// HAMi >= 2.9: a time stamp that is not renewed for a minute counts against a
// node without allocatable cards. Whatever else stands there is an answer, and
// the scheduler takes the node's cards over and asks again.
const (
	HandshakeRequesting = "Requesting"
	HandshakeReported   = "Reported"
)

// Slice is a container's share of one card.
type Slice struct {
	// Card is the UUID of the card.
	Card string
	// Vendor is "NVIDIA" for all slices that reach this plugin.
	Vendor string
	// MemoryMiB is the share of memory in MiB.
	MemoryMiB int32
	// Cores is the share of compute time in percent of the card; 0 is no limit.
	Cores int32
}

// Slices has an entry per container of a pod, init containers first; that of a
// container without a card is empty. As an annotation each slice reads
// "<card>,<vendor>,<MiB>,<percent>:" and each container ends with ";".
type Slices [][]Slice

// ParseSlices reads an annotation.
func ParseSlices(annotation string) (Slices, error) {
	if annotation == "" {
		return nil, nil
	}
	var all Slices
	// ";" ends a container, so what follows the last one is not another.
	for container := range strings.SplitSeq(strings.TrimSuffix(annotation, ";"), ";") {
		var slices []Slice
		for text := range strings.SplitSeq(container, ":") {
			if text == "" {
				continue
			}
			fields := strings.Split(text, ",")
			if len(fields) != 4 || fields[0] == "" {
				return nil, fmt.Errorf("slice %q is not card,vendor,MiB,percent", text)
			}
			memory, err := strconv.ParseInt(fields[2], 10, 32)
			if err != nil {
				return nil, fmt.Errorf("memory of slice %q: %w", text, err)
			}
			cores, err := strconv.ParseInt(fields[3], 10, 32)
			if err != nil {
				return nil, fmt.Errorf("cores of slice %q: %w", text, err)
			}
			slices = append(slices, Slice{Card: fields[0], Vendor: fields[1], MemoryMiB: int32(memory), Cores: int32(cores)})
		}
		all = append(all, slices)
	}
	return all, nil
}

// String writes the annotation.
func (s Slices) String() string {
	var b strings.Builder
	for _, container := range s {
		for _, slice := range container {
			fmt.Fprintf(&b, "%s,%s,%d,%d:", slice.Card, slice.Vendor, slice.MemoryMiB, slice.Cores)
		}
		b.WriteByte(';')
	}
	return b.String()
}

// Next is the number of the first container that still waits, or -1.
func (s Slices) Next() int {
	for i, container := range s {
		if len(container) > 0 {
			return i
		}
	}
	return -1
}

// LockHolder reads from a lock which pod it is held for. A lock without a pod,
// as HAMi wrote it long ago, has no holder that could be asked or matched.
func LockHolder(lock string) (namespace, pod string, ok bool) {
	fields := strings.Split(lock, ",")
	if len(fields) != 3 || fields[1] == "" || fields[2] == "" {
		return "", "", false
	}
	return fields[1], fields[2], true
}
