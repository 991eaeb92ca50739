package providers

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/child"
)

// real is the real Kubernetes provider: a process for each connection, as Pulumi
// has one for each provider resource. What is asked of it passes here, so that it
// is logged and can go wrong like everything else.
type real struct {
	pulumirpc.UnimplementedResourceProviderServer
	machine *Machine

	mu         sync.Mutex
	process    *exec.Cmd
	connection *grpc.ClientConn
	closed     bool
}

// behind returns the provider's process, started the first time.
func (r *real) behind() (client, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return nil, fmt.Errorf("the provider's connection is closed")
	case r.connection == nil:
		if err := r.start(); err != nil {
			return nil, fmt.Errorf("the Kubernetes provider %s: %w", r.machine.Provider, err)
		}
	}
	return pulumirpc.NewResourceProviderClient(r.connection), nil
}

func (r *real) start() error {
	home := filepath.Join(r.machine.Dir, "provider-home")
	if err := os.MkdirAll(home, 0o700); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(home, "provider.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	process := exec.Command(r.machine.Provider) //nolint:gosec // built for this
	process.Dir = r.machine.Dir
	// Neither the user's clusters nor the user's Helm are any of its business.
	process.Env = append(os.Environ(), "HOME="+home, "KUBECONFIG=", "XDG_CONFIG_HOME=", "XDG_CACHE_HOME=", "XDG_DATA_HOME=")
	process.Stderr = log
	said, err := process.StdoutPipe()
	if err != nil {
		return err
	}
	if err := child.Start(process); err != nil {
		return err
	}
	r.process = process
	line, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		return fmt.Errorf("it says no port: %w, see %s", err, log.Name())
	}
	port, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		return fmt.Errorf("it says %q instead of its port", line)
	}
	r.connection, err = dial(fmt.Sprintf("127.0.0.1:%d", port))
	return err
}

// Close ends the process.
func (r *real) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.connection != nil {
		_ = r.connection.Close()
	}
	if r.process != nil {
		_ = r.process.Process.Kill() // it may be gone
		_ = r.process.Wait()
		r.process = nil
	}
	return nil
}

// pass hands a request on.
func pass[In, Out any](r *real, ctx context.Context, request In, method func(client, context.Context, In, ...grpc.CallOption) (Out, error)) (Out, error) { //nolint:revive // the provider comes first
	behind, err := r.behind()
	if err != nil {
		var none Out
		return none, err
	}
	return method(behind, ctx, request)
}

type client = pulumirpc.ResourceProviderClient

func (r *real) Handshake(ctx context.Context, q *pulumirpc.ProviderHandshakeRequest) (*pulumirpc.ProviderHandshakeResponse, error) {
	return pass(r, ctx, q, client.Handshake)
}

func (r *real) Parameterize(ctx context.Context, q *pulumirpc.ParameterizeRequest) (*pulumirpc.ParameterizeResponse, error) {
	return pass(r, ctx, q, client.Parameterize)
}

func (r *real) GetSchema(ctx context.Context, q *pulumirpc.GetSchemaRequest) (*pulumirpc.GetSchemaResponse, error) {
	return pass(r, ctx, q, client.GetSchema)
}

func (r *real) CheckConfig(ctx context.Context, q *pulumirpc.CheckRequest) (*pulumirpc.CheckResponse, error) {
	return pass(r, ctx, q, client.CheckConfig)
}

func (r *real) DiffConfig(ctx context.Context, q *pulumirpc.DiffRequest) (*pulumirpc.DiffResponse, error) {
	return pass(r, ctx, q, client.DiffConfig)
}

func (r *real) Configure(ctx context.Context, q *pulumirpc.ConfigureRequest) (*pulumirpc.ConfigureResponse, error) {
	return pass(r, ctx, q, client.Configure)
}

func (r *real) Invoke(ctx context.Context, q *pulumirpc.InvokeRequest) (*pulumirpc.InvokeResponse, error) {
	return pass(r, ctx, q, client.Invoke)
}

func (r *real) Call(ctx context.Context, q *pulumirpc.CallRequest) (*pulumirpc.CallResponse, error) {
	return pass(r, ctx, q, client.Call)
}

func (r *real) Check(ctx context.Context, q *pulumirpc.CheckRequest) (*pulumirpc.CheckResponse, error) {
	return pass(r, ctx, q, client.Check)
}

func (r *real) Diff(ctx context.Context, q *pulumirpc.DiffRequest) (*pulumirpc.DiffResponse, error) {
	return pass(r, ctx, q, client.Diff)
}

func (r *real) Create(ctx context.Context, q *pulumirpc.CreateRequest) (*pulumirpc.CreateResponse, error) {
	return pass(r, ctx, q, client.Create)
}

func (r *real) Read(ctx context.Context, q *pulumirpc.ReadRequest) (*pulumirpc.ReadResponse, error) {
	return pass(r, ctx, q, client.Read)
}

func (r *real) Update(ctx context.Context, q *pulumirpc.UpdateRequest) (*pulumirpc.UpdateResponse, error) {
	return pass(r, ctx, q, client.Update)
}

func (r *real) Delete(ctx context.Context, q *pulumirpc.DeleteRequest) (*emptypb.Empty, error) {
	return pass(r, ctx, q, client.Delete)
}

func (r *real) Construct(ctx context.Context, q *pulumirpc.ConstructRequest) (*pulumirpc.ConstructResponse, error) {
	return pass(r, ctx, q, client.Construct)
}

func (r *real) Cancel(ctx context.Context, q *emptypb.Empty) (*emptypb.Empty, error) {
	return pass(r, ctx, q, client.Cancel)
}

func (r *real) Attach(ctx context.Context, q *pulumirpc.PluginAttach) (*emptypb.Empty, error) {
	return pass(r, ctx, q, client.Attach)
}
