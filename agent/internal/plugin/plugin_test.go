package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpu-tenants/gpu-tenants/agent/internal/apitest"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/hami"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/inventory"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/kubelettest"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/metrics"
)

var cards = inventory.Inventory{
	{ID: "GPU-a", Index: 0, Count: 2, Devmem: 81920, Devcore: 100, Type: "NVIDIA A100", Health: true},
	{ID: "GPU-b", Index: 1, Count: 1, Devmem: 24576, Devcore: 100, Type: "NVIDIA L4", Health: true},
}

// allocator gives out what it is told to.
type allocator struct {
	complete func(want []int, check func(hami.Slice) error) ([]hami.Assignment, error)
	next     [][]hami.Slice
}

func (a *allocator) Complete(_ context.Context, want []int, check func(hami.Slice) error) ([]hami.Assignment, error) {
	return a.complete(want, check)
}

func (a *allocator) Peek(context.Context) [][]hami.Slice { return a.next }

// bed is a plugin that is not running yet, and a kubelet.
type bed struct {
	testing.TB
	plugin    *Plugin
	kubelet   *kubelettest.Kubelet
	store     *inventory.Store
	allocator *allocator
	metrics   *metrics.Metrics
}

func newBed(tb testing.TB) *bed {
	tb.Helper()
	b := &bed{
		TB: tb, kubelet: kubelettest.New(tb), store: inventory.NewStore(), allocator: &allocator{},
		metrics: metrics.New(prometheus.NewRegistry()),
	}
	b.store.Set(cards)
	var err error
	b.plugin, err = New(b.kubelet.Dir, b.store, b.allocator, b.metrics, slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	b.plugin.Poll = 20 * time.Millisecond
	return b
}

// start runs the plugin; stop ends it and waits. The test's end does so too.
func (b *bed) start() (stop func()) {
	return b.startWith(b.plugin.Run)
}

func (b *bed) startWith(run func(context.Context)) (stop func()) {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run(ctx)
	}()
	stop = func() {
		cancel()
		<-ended
	}
	b.Cleanup(stop)
	return stop
}

func (b *bed) awaitDevices(want map[string]string) {
	b.Helper()
	apitest.Eventually(b, func() string {
		got, connected := b.kubelet.Devices()
		if !connected || !maps.Equal(got, want) {
			return fmt.Sprintf("devices are %v (connected: %v), want %v", got, connected, want)
		}
		return ""
	})
}

func allHealthy() map[string]string {
	return map[string]string{"GPU-a-0": "Healthy", "GPU-a-1": "Healthy", "GPU-b-0": "Healthy"}
}

func TestRegisters(t *testing.T) {
	b := newBed(t)
	b.start()
	b.awaitDevices(allHealthy())
	request := b.kubelet.Request()
	if request.GetResourceName() != "nvidia.com/gpu" || request.GetVersion() != "v1beta1" ||
		request.GetEndpoint() != ownSocket || !request.GetOptions().GetGetPreferredAllocationAvailable() {
		t.Errorf("registered as %v", request)
	}
	if err := errors.Join(b.plugin.Ready(), b.plugin.Health()); err != nil {
		t.Error(err)
	}
	apitest.Eventually(t, func() string { // Counted only after the kubelet's answer.
		if got := testutil.ToFloat64(b.metrics.Registrations.WithLabelValues("success")); got != 1 {
			return fmt.Sprintf("%v registrations counted", got)
		}
		return ""
	})
}

func TestInventoryChangesReachTheKubelet(t *testing.T) {
	b := newBed(t)
	b.start()
	b.awaitDevices(allHealthy())

	ill := slices.Clone(cards)
	ill[0].Health = false
	b.store.Set(ill)
	b.awaitDevices(map[string]string{"GPU-a-0": "Unhealthy", "GPU-a-1": "Unhealthy", "GPU-b-0": "Healthy"})

	b.store.Set(cards[1:])
	b.awaitDevices(map[string]string{"GPU-b-0": "Healthy"})

	b.store.Set(inventory.Inventory{})
	b.awaitDevices(map[string]string{})

	b.store.Set(cards)
	b.awaitDevices(allHealthy())
	if n := b.kubelet.Registrations(); n != 1 {
		t.Errorf("%d registrations: a change of the inventory needs no other", n)
	}
}

func TestNothingIsRegisteredBeforeTheInventoryIsKnown(t *testing.T) {
	b := newBed(t)
	b.store = inventory.NewStore()
	b.plugin.store = b.store
	b.plugin.Grace = 0
	b.start()
	if b.plugin.Ready() == nil {
		t.Error("ready without an inventory")
	}
	if err := b.plugin.Health(); err != nil {
		t.Errorf("a restart would not bring an inventory, yet: %v", err)
	}
	if b.kubelet.Request() != nil {
		t.Error("registered without an inventory")
	}
	b.store.Set(cards)
	b.awaitDevices(allHealthy())
}

func TestKubeletRestart(t *testing.T) {
	// Either of the two ways to notice has to suffice.
	for name, run := range map[string]func(*Plugin) func(context.Context){
		"inotify": func(p *Plugin) func(context.Context) {
			p.Poll = time.Hour
			return p.Run
		},
		"polling": func(p *Plugin) func(context.Context) {
			return func(ctx context.Context) {
				p.awaitInventory(ctx)
				p.serve(ctx, nil)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.startWith(run(b.plugin))
			b.awaitDevices(allHealthy())
			for range 3 {
				before := b.kubelet.Registrations()
				b.kubelet.Stop()
				b.kubelet.Start()
				apitest.Eventually(t, func() string {
					if b.kubelet.Registrations() == before {
						return "not registered again"
					}
					return ""
				})
				b.awaitDevices(allHealthy())
			}
		})
	}
}

func TestKubeletRestartThatLeavesTheSocket(t *testing.T) {
	b := newBed(t)
	b.plugin.Poll = time.Hour
	b.start()
	b.awaitDevices(allHealthy())
	b.kubelet.Stop()
	b.kubelet.Listen()
	b.awaitDevices(allHealthy())
	if n := b.kubelet.Registrations(); n != 2 {
		t.Errorf("%d registrations, want another one", n)
	}
}

func TestKubeletThatComesLater(t *testing.T) {
	b := newBed(t)
	b.kubelet.Stop()
	b.start()
	apitest.Eventually(t, func() string {
		if testutil.ToFloat64(b.metrics.Registrations.WithLabelValues("failed")) < 2 {
			return "no attempts to register"
		}
		return ""
	})
	b.kubelet.Start()
	b.awaitDevices(allHealthy())
}

func TestKubeletThatRefuses(t *testing.T) {
	b := newBed(t)
	b.kubelet.Refuse(true)
	b.start()
	apitest.Eventually(t, func() string {
		if testutil.ToFloat64(b.metrics.Registrations.WithLabelValues("failed")) < 2 {
			return "no attempts to register"
		}
		return ""
	})
	b.kubelet.Refuse(false)
	b.awaitDevices(allHealthy())
}

func TestKubeletThatDropsTheConnection(t *testing.T) {
	b := newBed(t)
	b.start()
	b.awaitDevices(allHealthy())
	b.kubelet.Drop()
	b.awaitDevices(allHealthy())
	if n := b.kubelet.Registrations(); n != 2 {
		t.Errorf("%d registrations, want another one", n)
	}
}

func TestOwnSocketRemoved(t *testing.T) {
	b := newBed(t)
	b.start()
	b.awaitDevices(allHealthy())
	if err := os.Remove(filepath.Join(b.kubelet.Dir, ownSocket)); err != nil {
		t.Fatal(err)
	}
	apitest.Eventually(t, func() string {
		if b.kubelet.Registrations() < 2 {
			return "not registered again"
		}
		return ""
	})
	b.awaitDevices(allHealthy())
}

func TestHealth(t *testing.T) {
	b := newBed(t)
	b.plugin.Grace = 50 * time.Millisecond
	b.kubelet.Refuse(true)
	stop := b.start()
	apitest.Eventually(t, func() string {
		if err := b.plugin.Health(); err == nil || !strings.Contains(err.Error(), "not registered") {
			return fmt.Sprintf("health is %v, want a complaint", err)
		}
		return ""
	})
	b.kubelet.Refuse(false)
	b.awaitDevices(allHealthy())
	if err := b.plugin.Health(); err != nil {
		t.Error(err)
	}
	stop()
	if err := b.plugin.Health(); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("health is %v, want a complaint about the server", err)
	}
	if b.plugin.Ready() == nil {
		t.Error("ready after the end")
	}
}

func TestEndLetsAllocationsFinish(t *testing.T) {
	b := newBed(t)
	entered, leave := make(chan struct{}), make(chan struct{})
	b.allocator.complete = func([]int, func(hami.Slice) error) ([]hami.Assignment, error) {
		close(entered)
		<-leave
		return []hami.Assignment{{Slices: []hami.Slice{{Card: "GPU-a", MemoryMiB: 1}}}}, nil
	}
	stop := b.start()
	b.awaitDevices(allHealthy())
	answer := make(chan error, 1)
	go func() {
		_, err := b.kubelet.Allocate(t.Context(), []string{"GPU-a-0"})
		answer <- err
	}()
	<-entered
	ended := make(chan struct{})
	go func() {
		stop()
		close(ended)
	}()
	// The stream ends first, the allocation may go on.
	apitest.Eventually(t, func() string {
		if _, connected := b.kubelet.Devices(); connected {
			return "still connected"
		}
		return ""
	})
	close(leave)
	if err := <-answer; err != nil {
		t.Error(err)
	}
	<-ended
	if _, err := os.Stat(filepath.Join(b.kubelet.Dir, ownSocket)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

// TestEnvironment is the whole of what a container is told.
func TestEnvironment(t *testing.T) {
	b := newBed(t)
	b.plugin.SMIDir = "/opt/mock"
	b.allocator.complete = func(want []int, check func(hami.Slice) error) ([]hami.Assignment, error) {
		if !slices.Equal(want, []int{1, 2}) {
			t.Errorf("asked for %v", want)
		}
		assignments := []hami.Assignment{
			{Slices: []hami.Slice{{Card: "GPU-a", Vendor: "NVIDIA", MemoryMiB: 20000, Cores: 30}}},
			{Slices: []hami.Slice{
				{Card: "GPU-b", Vendor: "NVIDIA", MemoryMiB: 10000, Cores: 0},
				{Card: "GPU-a", Vendor: "NVIDIA", MemoryMiB: 30000, Cores: 0},
			}},
		}
		for _, assignment := range assignments {
			for _, slice := range assignment.Slices {
				if err := check(slice); err != nil {
					return nil, err
				}
			}
		}
		return assignments, nil
	}
	b.start()
	b.awaitDevices(allHealthy())
	response, err := b.kubelet.Allocate(t.Context(), []string{"GPU-a-0"}, []string{"GPU-a-1", "GPU-b-0"})
	if err != nil {
		t.Fatal(err)
	}
	want := []map[string]string{
		{
			"NVIDIA_VISIBLE_DEVICES":     "GPU-a",
			"CUDA_DEVICE_MEMORY_LIMIT_0": "20000m",
			"CUDA_DEVICE_SM_LIMIT":       "30",
			"MOCK_GPU_TYPE_0":            "NVIDIA A100",
		},
		{
			"NVIDIA_VISIBLE_DEVICES":     "GPU-b,GPU-a",
			"CUDA_DEVICE_MEMORY_LIMIT_0": "10000m",
			"CUDA_DEVICE_MEMORY_LIMIT_1": "30000m",
			"CUDA_DEVICE_SM_LIMIT":       "0",
			"MOCK_GPU_TYPE_0":            "NVIDIA L4",
			"MOCK_GPU_TYPE_1":            "NVIDIA A100",
		},
	}
	if len(response.GetContainerResponses()) != len(want) {
		t.Fatalf("%d containers answered, want %d", len(response.GetContainerResponses()), len(want))
	}
	for i, container := range response.GetContainerResponses() {
		if !maps.Equal(container.GetEnvs(), want[i]) {
			t.Errorf("container %d: environment %v, want %v", i, container.GetEnvs(), want[i])
		}
		mounts := container.GetMounts()
		if len(mounts) != 1 || mounts[0].GetHostPath() != "/opt/mock/nvidia-smi" ||
			mounts[0].GetContainerPath() != "/usr/bin/nvidia-smi" || !mounts[0].GetReadOnly() {
			t.Errorf("container %d: mounts %v", i, mounts)
		}
		if len(container.GetDevices())+len(container.GetCdiDevices())+len(container.GetAnnotations()) != 0 {
			t.Errorf("container %d is given more: %v", i, container)
		}
	}
}

func TestAllocateWithoutSMI(t *testing.T) {
	b := newBed(t)
	b.allocator.complete = func([]int, func(hami.Slice) error) ([]hami.Assignment, error) {
		return []hami.Assignment{{Slices: []hami.Slice{{Card: "GPU-a", MemoryMiB: 1}}}}, nil
	}
	b.start()
	b.awaitDevices(allHealthy())
	response, err := b.kubelet.Allocate(t.Context(), []string{"GPU-a-0"})
	if err != nil {
		t.Fatal(err)
	}
	if mounts := response.GetContainerResponses()[0].GetMounts(); len(mounts) != 0 {
		t.Errorf("mounts %v", mounts)
	}
}

func TestAllocateChecksTheCard(t *testing.T) {
	ill := slices.Clone(cards)
	ill[1].Health = false
	for card, want := range map[string]string{"GPU-a": "", "GPU-b": "unhealthy", "GPU-c": "not in this node's inventory"} {
		t.Run(card, func(t *testing.T) {
			b := newBed(t)
			b.store.Set(ill)
			b.allocator.complete = func(_ []int, check func(hami.Slice) error) ([]hami.Assignment, error) {
				return nil, check(hami.Slice{Card: card})
			}
			b.start()
			b.awaitDevices(map[string]string{"GPU-a-0": "Healthy", "GPU-a-1": "Healthy", "GPU-b-0": "Unhealthy"})
			_, err := b.kubelet.Allocate(t.Context(), []string{"GPU-a-0"})
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("error is %v, want %q", err, want)
			}
		})
	}
}

func TestPreferredAllocation(t *testing.T) {
	available := []string{"GPU-a-0", "GPU-a-1", "GPU-a-10", "GPU-b-0", "GPU-c-0"}
	on := func(cards ...string) []hami.Slice {
		var slices []hami.Slice
		for _, card := range cards {
			slices = append(slices, hami.Slice{Card: card})
		}
		return slices
	}
	for name, test := range map[string]struct {
		next       [][]hami.Slice
		must, want []string
		size       int32
	}{
		"the chosen card":           {[][]hami.Slice{on("GPU-b")}, nil, []string{"GPU-b-0"}, 1},
		"two cards":                 {[][]hami.Slice{on("GPU-c", "GPU-a")}, nil, []string{"GPU-c-0", "GPU-a-0"}, 2},
		"twice the same":            {[][]hami.Slice{on("GPU-a", "GPU-a")}, nil, []string{"GPU-a-0", "GPU-a-1"}, 2},
		"those that must be":        {[][]hami.Slice{on("GPU-a", "GPU-b")}, []string{"GPU-a-1"}, []string{"GPU-a-1", "GPU-b-0"}, 2},
		"unknown":                   {nil, nil, nil, 1},
		"another number":            {[][]hami.Slice{on("GPU-b")}, nil, nil, 2},
		"nothing left of that card": {[][]hami.Slice{on("GPU-d")}, nil, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.allocator.next = test.next
			b.start()
			b.awaitDevices(allHealthy())
			response, err := b.kubelet.Plugin().GetPreferredAllocation(t.Context(), &pluginapi.PreferredAllocationRequest{
				ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
					AvailableDeviceIDs: available, MustIncludeDeviceIDs: test.must, AllocationSize: test.size,
				}},
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := response.GetContainerResponses()[0].GetDeviceIDs(); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// large is 16 cards of 100 slices.
func large() inventory.Inventory {
	var inv inventory.Inventory
	for i := range 16 {
		inv = append(inv, inventory.Card{
			ID: fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", i), Index: i, Count: 100, Devmem: 143771, Devcore: 100,
			Type: "NVIDIA H200", Health: true,
		})
	}
	return inv
}

func BenchmarkRegister(b *testing.B) {
	bed := newBed(b)
	bed.store.Set(large())
	bed.start()
	for b.Loop() {
		before := bed.kubelet.Registrations()
		bed.kubelet.Stop()
		bed.kubelet.Start()
		apitest.Eventually(b, func() string {
			if _, all := bed.kubelet.Count(); all != 1600 || bed.kubelet.Registrations() == before {
				return fmt.Sprintf("%d devices", all)
			}
			return ""
		})
	}
}
