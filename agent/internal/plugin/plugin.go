// Package plugin is the device plugin: it offers the slices of the node's mock
// cards to the kubelet as nvidia.com/gpu and stays registered with it.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpu-tenants/gpu-tenants/agent/internal/hami"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/inventory"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/metrics"
)

const (
	// ResourceName is the resource of which the kubelet counts slices.
	ResourceName = "nvidia.com/gpu"

	kubeletSocket = "kubelet.sock"
	ownSocket     = "mock-gpu-agent.sock"
)

const (
	defaultPoll  = 5 * time.Second
	defaultGrace = time.Minute
	// registerTimeout exceeds the 10 s within which the kubelet, before it
	// answers, has to reach this plugin.
	registerTimeout = 12 * time.Second
	// stopTimeout exceeds what an allocation may take.
	stopTimeout = 12 * time.Second
)

// Reasons to serve anew.
var (
	errSocketGone = errors.New("own socket is gone")
	errRestarted  = errors.New("kubelet has been restarted")
	errDropped    = errors.New("kubelet has dropped the connection")
)

// Allocator is the part of hami.Binder that the plugin needs.
type Allocator interface {
	Complete(ctx context.Context, want []int, check func(hami.Slice) error) ([]hami.Assignment, error)
	Peek(ctx context.Context) [][]hami.Slice
}

// Plugin serves the kubelet.
type Plugin struct {
	// SMIDir is a directory of the host that holds this binary under the name
	// nvidia-smi, which is mounted into containers; empty for none.
	SMIDir string
	// Poll is how often the sockets are looked at, see Run.
	Poll time.Duration
	// Grace is how long the kubelet may stay away before Health complains.
	Grace time.Duration

	dir       string
	store     *inventory.Store
	allocator Allocator
	metrics   *metrics.Metrics
	log       *slog.Logger

	mu      sync.Mutex
	started bool      // There is an inventory to serve.
	links   int       // Open ListAndWatch streams; only the kubelet opens one.
	lost    time.Time // When the last of them ended, or serving began.
}

// New returns a plugin for the kubelet whose plugin directory is dir.
func New(dir string, store *inventory.Store, allocator Allocator, m *metrics.Metrics, log *slog.Logger) (*Plugin, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	return &Plugin{
		Poll: defaultPoll, Grace: defaultGrace,
		dir: dir, store: store, allocator: allocator, metrics: m, log: log,
	}, nil
}

// Run serves from the first inventory on until ctx ends.
//
// A kubelet that starts wipes its plugin directory and forgets all plugins, so
// the plugin has to notice and begin again. Being told by inotify is quick but
// not certain: the number of inotify instances is limited for the whole host,
// all kind nodes together, and events are dropped on overflow. So the sockets
// are looked at regularly as well.
func (p *Plugin) Run(ctx context.Context) {
	if !p.awaitInventory(ctx) {
		return
	}
	var events <-chan fsnotify.Event
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		err = watcher.Add(p.dir)
		events = watcher.Events
	}
	if err != nil {
		p.log.Warn("no inotify, falling back to polling", "interval", p.Poll, "error", err)
	}
	p.serve(ctx, events)
}

// serve holds one session after another.
func (p *Plugin) serve(ctx context.Context, events <-chan fsnotify.Event) {
	for ctx.Err() == nil {
		err := p.session(ctx, events)
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, errSocketGone), errors.Is(err, errRestarted), errors.Is(err, errDropped):
			p.log.Info("serving anew", "reason", err)
		default:
			p.log.Error("cannot serve", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(p.Poll):
			}
		}
	}
}

func (p *Plugin) awaitInventory(ctx context.Context) bool {
	for {
		_, known, changed := p.store.Get()
		if known {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.started, p.lost = true, time.Now()
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		}
	}
}

// session serves on a socket and registers it, until there is a reason to do
// both again.
func (p *Plugin) session(ctx context.Context, events <-chan fsnotify.Event) error {
	path := filepath.Join(p.dir, ownSocket)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	own, err := os.Stat(path)
	if err != nil {
		listener.Close()
		return errSocketGone
	}
	s := &server{Plugin: p, stop: make(chan struct{})}
	grpcServer := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(grpcServer, s)
	served := make(chan error, 1)
	go func() { served <- grpcServer.Serve(listener) }()
	defer func() {
		close(s.stop)
		if ctx.Err() == nil {
			// Nobody can be waiting for an answer on a socket that is gone.
			grpcServer.Stop()
			return
		}
		force := time.AfterFunc(stopTimeout, grpcServer.Stop)
		defer force.Stop()
		grpcServer.GracefulStop()
	}()

	var (
		kubelet    os.FileInfo // The socket at which this session is registered.
		registered time.Time
		pause      = 100 * time.Millisecond
	)
	retry := time.NewTimer(0)
	defer retry.Stop()
	poll := time.NewTicker(p.Poll)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-served:
			return fmt.Errorf("gRPC server: %w", err)
		case <-retry.C:
			// Looked at first: should the kubelet be restarted right now, it
			// is better registered with twice than not at all.
			kubelet, err = os.Stat(filepath.Join(p.dir, kubeletSocket))
			if err == nil {
				err = p.register(ctx)
			}
			if err != nil {
				kubelet = nil
				p.metrics.Registrations.WithLabelValues("failed").Inc()
				p.log.Warn("not registered with the kubelet", "retryIn", pause, "error", err)
				retry.Reset(pause)
				pause = min(2*pause, p.Poll)
				continue
			}
			registered, pause = time.Now(), 100*time.Millisecond
			p.metrics.Registrations.WithLabelValues("success").Inc()
			p.log.Info("registered with the kubelet", "resource", ResourceName)
			continue
		case event, ok := <-events:
			if !ok {
				events = nil
				continue
			}
			switch filepath.Base(event.Name) {
			case ownSocket:
			case kubeletSocket:
				if kubelet == nil && event.Has(fsnotify.Create) {
					retry.Reset(0)
				}
			default:
				continue
			}
		case <-poll.C:
			if kubelet != nil && p.unlinkedFor(registered) > 2*p.Poll {
				return errDropped
			}
		}
		if !isStill(path, own) {
			return errSocketGone
		}
		// A kubelet that is merely down comes back with another socket.
		if now, err := os.Stat(filepath.Join(p.dir, kubeletSocket)); kubelet != nil && err == nil && !same(now, kubelet) {
			return errRestarted
		}
	}
}

func isStill(path string, known os.FileInfo) bool {
	now, err := os.Stat(path)
	return err == nil && same(now, known)
}

// same compares the time too, for inode numbers are used again at once.
func same(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime())
}

func (p *Plugin) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+filepath.Join(p.dir, kubeletSocket),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
		Version:      pluginapi.Version,
		Endpoint:     ownSocket,
		ResourceName: ResourceName,
		Options:      options(),
	})
	return err
}

func (p *Plugin) link(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.links += n
	if p.links == 0 {
		p.lost = time.Now()
	}
	p.metrics.Registered.Set(float64(min(p.links, 1)))
}

// unlinkedFor is for how long no stream has been open; not counted is the time
// before since.
func (p *Plugin) unlinkedFor(since time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.links > 0 {
		return 0
	}
	if p.lost.After(since) {
		since = p.lost
	}
	return time.Since(since)
}

// Ready reports whether the kubelet follows the plugin's list of devices.
func (p *Plugin) Ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.started:
		return errors.New("no inventory has been read yet")
	case p.links == 0:
		return errors.New("the kubelet does not follow this plugin")
	}
	return nil
}

// Health reports what a restart of the process might cure: a socket that nobody
// answers on, or a kubelet that has stayed away for longer than Grace. To have
// no inventory yet is not among that.
func (p *Plugin) Health() error {
	p.mu.Lock()
	started := p.started
	p.mu.Unlock()
	if !started {
		return nil
	}
	conn, err := net.DialTimeout("unix", filepath.Join(p.dir, ownSocket), time.Second)
	if err != nil {
		return fmt.Errorf("the gRPC server does not answer: %w", err)
	}
	conn.Close()
	if away := p.unlinkedFor(time.Time{}); away > p.Grace {
		return fmt.Errorf("not registered with the kubelet for %s", away.Round(time.Second))
	}
	return nil
}
