// Package kubelettest is the side of the kubelet that a device plugin deals
// with: https://github.com/kubernetes/kubernetes/tree/master/pkg/kubelet/cm/devicemanager
package kubelettest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Kubelet accepts device plugins in a directory.
type Kubelet struct {
	pluginapi.UnimplementedRegistrationServer

	// Dir is the plugin directory.
	Dir string

	tb     testing.TB
	mu     sync.Mutex
	server *grpc.Server
	refuse bool
	// Of the plugin that has registered last.
	request *pluginapi.RegisterRequest
	conn    *grpc.ClientConn
	devices []*pluginapi.Device // Nil before the first list and after the stream's end.
	lists   int
	// registrations counts over restarts.
	registrations int
}

// New starts a kubelet that ends with the test.
func New(tb testing.TB) *Kubelet {
	tb.Helper()
	k := &Kubelet{Dir: tb.TempDir(), tb: tb}
	k.Start()
	tb.Cleanup(k.Stop)
	return k
}

// Start begins to listen, in a directory wiped of everything, as a kubelet does.
func (k *Kubelet) Start() {
	k.tb.Helper()
	k.wipe()
	k.Listen()
}

func (k *Kubelet) wipe() {
	k.tb.Helper()
	entries, err := os.ReadDir(k.Dir)
	if err != nil {
		k.tb.Fatal(err)
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(k.Dir, entry.Name())); err != nil {
			k.tb.Fatal(err)
		}
	}
}

// Listen begins to listen and leaves the sockets of plugins where they are.
func (k *Kubelet) Listen() {
	k.tb.Helper()
	listener, err := net.Listen("unix", filepath.Join(k.Dir, "kubelet.sock"))
	if err != nil {
		k.tb.Fatal(err)
	}
	server := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(server, k)
	k.mu.Lock()
	k.server = server
	k.mu.Unlock()
	go func() { _ = server.Serve(listener) }()
}

// Stop ends it together with its connection to the plugin.
func (k *Kubelet) Stop() {
	k.mu.Lock()
	server := k.server
	k.mu.Unlock()
	k.Drop()
	server.Stop()
}

// Drop closes the connection to the plugin.
func (k *Kubelet) Drop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conn != nil {
		k.conn.Close()
		k.conn, k.devices = nil, nil
	}
}

// Refuse makes it turn registrations down from now on, or no longer.
func (k *Kubelet) Refuse(refuse bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refuse = refuse
}

// Register is called by the plugin, which is called back before it is answered.
func (k *Kubelet) Register(ctx context.Context, request *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	k.mu.Lock()
	refuse := k.refuse
	k.mu.Unlock()
	if refuse {
		return nil, fmt.Errorf("registration of %s refused", request.GetResourceName())
	}
	conn, err := grpc.NewClient("unix://"+filepath.Join(k.Dir, request.GetEndpoint()),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client := pluginapi.NewDevicePluginClient(conn)
	if _, err := client.GetDevicePluginOptions(ctx, &pluginapi.Empty{}); err != nil {
		conn.Close()
		return nil, err
	}
	k.Drop()
	k.mu.Lock()
	k.request, k.conn = request, conn
	k.registrations++
	k.mu.Unlock()
	go k.follow(client, conn)
	return &pluginapi.Empty{}, nil
}

func (k *Kubelet) follow(client pluginapi.DevicePluginClient, conn *grpc.ClientConn) {
	stream, err := client.ListAndWatch(context.Background(), &pluginapi.Empty{})
	for err == nil {
		var list *pluginapi.ListAndWatchResponse
		list, err = stream.Recv()
		k.mu.Lock()
		if k.conn == conn {
			if err == nil {
				k.devices = list.GetDevices()
				if k.devices == nil {
					k.devices = []*pluginapi.Device{}
				}
				k.lists++
			} else {
				k.devices = nil
			}
		}
		k.mu.Unlock()
	}
}

// Request is the last registration; nil without one.
func (k *Kubelet) Request() *pluginapi.RegisterRequest {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.request
}

// Registrations is how many there have been.
func (k *Kubelet) Registrations() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.registrations
}

// Devices maps the plugin's devices to their health; ok is false while no
// plugin is connected.
func (k *Kubelet) Devices() (devices map[string]string, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	devices = map[string]string{}
	for _, device := range k.devices {
		devices[device.GetID()] = device.GetHealth()
	}
	return devices, k.devices != nil
}

// Count is the number of healthy devices and of all.
func (k *Kubelet) Count() (healthy, all int) {
	devices, _ := k.Devices()
	for _, health := range devices {
		if health == pluginapi.Healthy {
			healthy++
		}
	}
	return healthy, len(devices)
}

// Plugin is a client of the plugin; nil while none is connected.
func (k *Kubelet) Plugin() pluginapi.DevicePluginClient {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conn == nil {
		return nil
	}
	return pluginapi.NewDevicePluginClient(k.conn)
}

// Allocate asks for devices, a list of IDs per container.
func (k *Kubelet) Allocate(ctx context.Context, containers ...[]string) (*pluginapi.AllocateResponse, error) {
	request := &pluginapi.AllocateRequest{}
	for _, ids := range containers {
		request.ContainerRequests = append(request.ContainerRequests, &pluginapi.ContainerAllocateRequest{DevicesIds: ids})
	}
	return k.Plugin().Allocate(ctx, request)
}
