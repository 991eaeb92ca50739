package plugin

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpu-tenants/gpu-tenants/agent/internal/hami"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/inventory"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/smi"
)

// smiTarget is where containers find nvidia-smi.
const smiTarget = "/usr/bin/" + smi.Name

// server answers the kubelet during one session.
type server struct {
	pluginapi.UnimplementedDevicePluginServer
	*Plugin
	stop chan struct{}
}

func options() *pluginapi.DevicePluginOptions {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}
}

// GetDevicePluginOptions says which optional calls the kubelet should make.
func (s *server) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return options(), nil
}

// ListAndWatch sends the slices now and after each change of the inventory.
func (s *server) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	s.link(1)
	defer s.link(-1)
	for {
		inv, _, changed := s.store.Get()
		devices := inv.Devices()
		response := &pluginapi.ListAndWatchResponse{Devices: make([]*pluginapi.Device, 0, len(devices))}
		for _, device := range devices {
			health := pluginapi.Unhealthy
			if device.Healthy {
				health = pluginapi.Healthy
			}
			response.Devices = append(response.Devices, &pluginapi.Device{ID: device.ID, Health: health})
		}
		if err := stream.Send(response); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		case <-s.stop:
			return nil
		}
	}
}

// GetPreferredAllocation makes the kubelet set aside slices of the cards that
// HAMi has chosen. Otherwise it takes any, and then, when a card falls ill, it
// believes other pods to be on that card than HAMi does and may have no healthy
// device left for a pod that HAMi still finds room for. It never fails, for the
// kubelet would turn the pod down.
func (s *server) GetPreferredAllocation(ctx context.Context, req *pluginapi.PreferredAllocationRequest,
) (*pluginapi.PreferredAllocationResponse, error) {
	response := &pluginapi.PreferredAllocationResponse{}
	next := s.allocator.Peek(ctx)
	for i, container := range req.GetContainerRequests() {
		var ids []string
		if i < len(next) && len(next[i]) == int(container.GetAllocationSize()) {
			ids = prefer(container.GetAvailableDeviceIDs(), container.GetMustIncludeDeviceIDs(), next[i])
		}
		response.ContainerResponses = append(response.ContainerResponses,
			&pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return response, nil
}

// prefer takes a device of each slice's card, beginning with those in must.
func prefer(available, must []string, want []hami.Slice) []string {
	left := slices.Sorted(slices.Values(available))
	taken := slices.Clone(must)
	covered := map[string]int{}
	for _, id := range must {
		covered[inventory.CardOf(id)]++
		left = slices.DeleteFunc(left, func(other string) bool { return other == id })
	}
	for _, slice := range want {
		if covered[slice.Card] > 0 {
			covered[slice.Card]--
			continue
		}
		i := slices.IndexFunc(left, func(id string) bool { return inventory.CardOf(id) == slice.Card })
		if i >= 0 {
			taken = append(taken, left[i])
			left = slices.Delete(left, i, i+1)
		}
	}
	return taken
}

// Allocate completes HAMi's binding and tells the containers what they got. Of
// the devices in the request only the number counts: which cards they are was
// HAMi's choice.
func (s *server) Allocate(ctx context.Context, req *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	want := make([]int, 0, len(req.GetContainerRequests()))
	for _, container := range req.GetContainerRequests() {
		want = append(want, len(container.GetDevicesIds()))
	}
	assignments, err := s.allocator.Complete(ctx, want, func(slice hami.Slice) error {
		_, err := s.card(slice)
		return err
	})
	if err != nil {
		s.log.Error("allocation failed", "want", want, "error", err)
		return nil, err
	}
	response := &pluginapi.AllocateResponse{}
	for _, assignment := range assignments {
		shares := make([]smi.Share, 0, len(assignment.Slices))
		for _, slice := range assignment.Slices {
			// Checked before. Should the card have gone since, its name is all
			// that is lost.
			card, _ := s.card(slice)
			shares = append(shares, smi.Share{
				Card: slice.Card, Type: card.Type, MemoryMiB: int64(slice.MemoryMiB), Cores: int64(slice.Cores),
			})
		}
		container := &pluginapi.ContainerAllocateResponse{Envs: smi.Env(shares)}
		if s.SMIDir != "" {
			container.Mounts = append(container.Mounts, &pluginapi.Mount{
				HostPath: filepath.Join(s.SMIDir, smi.Name), ContainerPath: smiTarget, ReadOnly: true,
			})
		}
		response.ContainerResponses = append(response.ContainerResponses, container)
		s.log.Info("container allocated", "pod", assignment.Namespace+"/"+assignment.Pod,
			"container", assignment.Container, "slices", assignment.Slices)
	}
	return response, nil
}

// card is the healthy card that a slice is of.
func (s *server) card(slice hami.Slice) (inventory.Card, error) {
	inv, _, _ := s.store.Get()
	card, ok := inv.Card(slice.Card)
	switch {
	case !ok:
		return card, fmt.Errorf("card %s is not in this node's inventory", slice.Card)
	case !card.Health:
		return card, fmt.Errorf("card %s is unhealthy", slice.Card)
	}
	return card, nil
}
