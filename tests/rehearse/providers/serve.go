// Package providers stands in for the four Pulumi providers that the program
// uses. Each does what the real one does with the requests that this program
// makes: what it compares, what it replaces, what it refuses, what it reads back.
//
//   - command really runs the scripts, as pulumi-command 1.2 does;
//   - docker and random act on the stand-in machine (package world);
//   - kubernetes acts on the stand-in API servers (package objects), with
//     yaml/v2's ConfigGroup as a component that registers its children, and
//     helm.sh/v3's Release.
package providers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/pulumi/pulumi/sdk/v3/go/common/resource/plugin"
	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/objects"
	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/world"
)

// Operation is a creation, update or deletion that is about to be done.
type Operation struct {
	What string // "create", "update", "delete"
	URN  string
}

// Fault says what is to go wrong with an operation.
type Fault int

// The faults.
const (
	None       Fault = iota
	FailBefore       // it fails, and nothing is done
	FailAfter        // it is done, and fails
	KillBefore       // Pulumi is killed, and nothing is done
	KillAfter        // it is done, and Pulumi is killed before it knows
)

// Machine is what the providers act on.
type Machine struct {
	World *world.World
	// Store serves the Kubernetes API; nil where real API servers do, and then
	// the real provider with them.
	Store *objects.Store
	// Provider is the path of the real provider's binary, where there is no Store.
	Provider string
	// Dir is the folder in which scripts run, Environment what they get beside
	// their own.
	Dir         string
	Environment []string
	// Versions that the providers say they have, by name.
	Versions map[string]string

	// Quiet is how long no other operation may have begun before a fault takes
	// effect: what can run beside each other goes wrong together. 0: at once.
	Quiet time.Duration

	mu      sync.Mutex
	fault   func(Operation) Fault
	wave    *wave
	kill    func()
	scripts scripts
}

// wave is what goes wrong together. Operations that are to go wrong are held until
// every other one that has begun is at its end or held too, and for a while no
// other begins: then all that can run beside each other has come as far.
type wave struct {
	quiet time.Duration
	kill  func()

	mu     sync.Mutex
	active int // begun, and neither ended nor held
	held   int
	kills  bool // one of those held is to be killed
	timer  *time.Timer
	broken chan struct{} // closed when they go wrong
	over   bool
}

// begin tells that an operation begins.
func (w *wave) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.active++
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

// end tells that an operation has ended.
func (w *wave) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.active--
	w.arm()
}

// hold holds an operation until it may go wrong.
func (w *wave) hold(fault Fault) {
	w.mu.Lock()
	w.held++
	w.active--
	w.kills = w.kills || fault == KillBefore || fault == KillAfter
	w.arm()
	w.mu.Unlock()
	<-w.broken
	w.mu.Lock()
	w.active++ // its end is told as well
	w.mu.Unlock()
}

// arm lets those that are held go wrong when nothing else begins. The caller
// holds the lock.
func (w *wave) arm() {
	if w.over || w.held == 0 || w.active > 0 || w.timer != nil {
		return
	}
	w.timer = time.AfterFunc(w.quiet, func() {
		w.mu.Lock()
		due := !w.over && w.active == 0
		w.over = w.over || due
		w.mu.Unlock()
		if !due {
			return
		}
		if w.kills {
			w.kill()
		}
		close(w.broken)
	})
}

// SetFaults says what goes wrong from now on. nil: nothing does.
func (m *Machine) SetFaults(fault func(Operation) Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = fault
}

// SetKill says how the run of Pulumi that begins now is killed.
func (m *Machine) SetKill(kill func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kill = kill
	m.wave = &wave{quiet: m.Quiet, kill: kill, broken: make(chan struct{})}
}

// Kill kills Pulumi now, whatever it is doing.
func (m *Machine) Kill() {
	m.mu.Lock()
	kill := m.kill
	m.mu.Unlock()
	if kill != nil {
		kill()
	}
}

// KillScripts kills every script that runs, with all that it started.
func (m *Machine) KillScripts() { m.scripts.kill() }

// Servers are the providers, each listening on a port.
type Servers struct {
	Attach string // the value of PULUMI_DEBUG_PROVIDERS

	servers []*grpc.Server
}

// Serve starts the providers.
func Serve(m *Machine) (*Servers, error) {
	s := &Servers{}
	var attach []string
	// What one connection asks for is one provider's: Pulumi opens one for each
	// provider resource, and two of them can have different configurations.
	for name, make := range map[string]func() pulumirpc.ResourceProviderServer{
		"command":    func() pulumirpc.ResourceProviderServer { return serverOf(&command{machine: m}) },
		"docker":     func() pulumirpc.ResourceProviderServer { return serverOf(&docker{machine: m}) },
		"random":     func() pulumirpc.ResourceProviderServer { return serverOf(&random{}) },
		"kubernetes": func() pulumirpc.ResourceProviderServer { return newKubernetes(m) },
	} {
		if name == "kubernetes" && m.Store == nil {
			make = func() pulumirpc.ResourceProviderServer { return &real{machine: m} }
		}
		port, server, err := m.listen(m.Versions[name], make)
		if err != nil {
			s.Stop()
			return nil, err
		}
		s.servers = append(s.servers, server)
		attach = append(attach, fmt.Sprintf("%s:%d", name, port))
	}
	s.Attach = strings.Join(attach, ",")
	return s, nil
}

// Stop ends all of them.
func (s *Servers) Stop() {
	for _, server := range s.servers {
		server.Stop()
	}
}

// connections gives every connection a provider of its own.
type connections struct {
	make func() pulumirpc.ResourceProviderServer
}

type connectionKey struct{}

func (c connections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return context.WithValue(ctx, connectionKey{}, c.make())
}

// HandleConn ends what a connection had of its own.
func (connections) HandleConn(ctx context.Context, event stats.ConnStats) {
	if _, isEnd := event.(*stats.ConnEnd); !isEnd {
		return
	}
	if closer, ok := ctx.Value(connectionKey{}).(io.Closer); ok {
		_ = closer.Close()
	}
}
func (connections) HandleRPC(context.Context, stats.RPCStats)                       {}
func (connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

const maxMessage = 400 << 20 // as Pulumi's own

func (m *Machine) listen(version string, make func() pulumirpc.ResourceProviderServer) (int, *grpc.Server, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, nil, err
	}
	server := grpc.NewServer(
		grpc.StatsHandler(connections{make}), grpc.UnaryInterceptor(m.intercept),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
	)
	description := pulumirpc.ResourceProvider_ServiceDesc
	description.Streams = nil
	description.Methods = append([]grpc.MethodDesc(nil), description.Methods...)
	for i := range description.Methods {
		handler := description.Methods[i].Handler
		if description.Methods[i].MethodName == "GetPluginInfo" {
			description.Methods[i].Handler = func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
				return &pulumirpc.PluginInfo{Version: version}, nil
			}
			continue
		}
		description.Methods[i].Handler = func(_ any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			return handler(ctx.Value(connectionKey{}), ctx, decode, interceptor)
		}
	}
	server.RegisterService(&description, make())
	go func() { _ = server.Serve(listener) }()
	return listener.Addr().(*net.TCPAddr).Port, server, nil
}

// errInjected is what a fault fails with.
var errInjected = errors.New("a fault of the rehearsal: this operation was told to fail")

// intercept logs what changes something, and makes faults of it.
func (m *Machine) intercept(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	what, urn := changes(request)
	if what == "" {
		return handle(ctx, request)
	}
	m.mu.Lock()
	fault, wave := None, m.wave
	if m.fault != nil && what != "read" {
		fault = m.fault(Operation{What: what, URN: urn})
	}
	m.mu.Unlock()
	wave.begin()
	defer wave.end()
	call := world.Call{What: what, URN: urn}
	defer func() { m.World.Calls.Add(call) }()
	if fault == FailBefore || fault == KillBefore {
		call.Failed = "went wrong before it was done"
		wave.hold(fault)
		return nil, errInjected
	}
	response, err := handle(ctx, request)
	switch {
	case err != nil:
		call.Failed = "yes" // the message can hold a script's whole output
	case fault != None:
		call.Failed = "went wrong when it was done"
		wave.hold(fault)
		return nil, errInjected
	}
	return response, err
}

// changes says what a request changes: not in a preview.
func changes(request any) (what, urn string) {
	switch r := request.(type) {
	case *pulumirpc.CreateRequest:
		if !r.GetPreview() {
			return "create", r.GetUrn()
		}
	case *pulumirpc.UpdateRequest:
		if !r.GetPreview() {
			return "update", r.GetUrn()
		}
	case *pulumirpc.DeleteRequest:
		return "delete", r.GetUrn()
	case *pulumirpc.ReadRequest:
		return "read", r.GetUrn()
	}
	return "", ""
}

// server adds to a provider what plugin.NewProviderServer leaves out.
type server struct {
	pulumirpc.ResourceProviderServer
}

func serverOf(provider plugin.Provider) pulumirpc.ResourceProviderServer {
	return &server{plugin.NewProviderServer(provider)}
}

func (*server) Attach(context.Context, *pulumirpc.PluginAttach) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}

// dial connects to the engine.
func dial(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
}
