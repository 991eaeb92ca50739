// Package language is a host for Go programs that Pulumi attaches to. Pulumi's
// own is in no Go module that a module proxy would serve. This one runs a binary
// that is built already, with the environment that Pulumi's gives a program.
package language

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Host runs the program.
type Host struct {
	pulumirpc.UnimplementedLanguageRuntimeServer

	program     string
	environment []string
	server      *grpc.Server

	mu      sync.Mutex
	engine  string // address
	running map[int]bool
	peak    int64 // bytes of memory that a run of the program had at most
}

// Serve starts a host for one program binary; Attach is what
// PULUMI_DEBUG_LANGUAGES has to be.
func Serve(program string, environment []string) (host *Host, attach string, err error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	const maxMessage = 400 << 20
	host = &Host{program: program, environment: environment, server: grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage)), running: map[int]bool{}}
	pulumirpc.RegisterLanguageRuntimeServer(host.server, host)
	go func() { _ = host.server.Serve(listener) }()
	return host, fmt.Sprintf("go:%d", listener.Addr().(*net.TCPAddr).Port), nil
}

// Stop ends the host.
func (h *Host) Stop() { h.server.Stop() }

// Kill kills the program, if it runs.
func (h *Host) Kill() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for pid := range h.running {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
}

// Peak returns how much memory a run of the program had at most, in bytes.
func (h *Host) Peak() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.peak
}

// Handshake tells where the engine is.
func (h *Host) Handshake(_ context.Context, r *pulumirpc.LanguageHandshakeRequest) (*pulumirpc.LanguageHandshakeResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.engine = r.GetEngineAddress()
	return &pulumirpc.LanguageHandshakeResponse{}, nil
}

// GetPluginInfo says nothing of a version: none was asked for.
func (h *Host) GetPluginInfo(context.Context, *emptypb.Empty) (*pulumirpc.PluginInfo, error) {
	return &pulumirpc.PluginInfo{}, nil
}

// GetRequiredPackages names none: the providers are attached.
func (h *Host) GetRequiredPackages(context.Context, *pulumirpc.GetRequiredPackagesRequest) (*pulumirpc.GetRequiredPackagesResponse, error) {
	return &pulumirpc.GetRequiredPackagesResponse{}, nil
}

// GetRequiredPlugins is the older form of the same.
func (h *Host) GetRequiredPlugins(context.Context, *pulumirpc.GetRequiredPluginsRequest) (*pulumirpc.GetRequiredPluginsResponse, error) {
	return &pulumirpc.GetRequiredPluginsResponse{}, nil
}

// Run runs the program to its end.
func (h *Host) Run(ctx context.Context, r *pulumirpc.RunRequest) (*pulumirpc.RunResponse, error) {
	h.mu.Lock()
	engine := h.engine
	h.mu.Unlock()
	connection, err := grpc.NewClient(engine, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	environment, err := programEnvironment(r, engine)
	if err != nil {
		return nil, err
	}
	process := exec.CommandContext(ctx, h.program) //nolint:gosec // the project's own
	process.Dir = r.GetInfo().GetProgramDirectory()
	process.Env = append(append(os.Environ(), h.environment...), environment...)
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	process.Cancel = func() error { return syscall.Kill(-process.Process.Pid, syscall.SIGKILL) }
	process.WaitDelay = 5 * time.Second
	said, says := io.Pipe()
	process.Stdout, process.Stderr = says, says
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		pass(ctx, said, pulumirpc.NewEngineClient(connection))
	}()
	err = h.run(process)
	_ = says.Close()
	<-finished
	const saidAlready = 32 // the SDK's exit status when it has told the engine what is wrong
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == saidAlready:
		return &pulumirpc.RunResponse{Bail: true}, nil
	case errors.As(err, &exit):
		return &pulumirpc.RunResponse{Error: fmt.Sprintf("program exited with non-zero exit code: %d", exit.ExitCode())}, nil
	case err != nil:
		return &pulumirpc.RunResponse{Error: err.Error()}, nil
	}
	return &pulumirpc.RunResponse{}, nil
}

func (h *Host) run(process *exec.Cmd) error {
	h.mu.Lock()
	if err := process.Start(); err != nil {
		h.mu.Unlock()
		return err
	}
	pid := process.Process.Pid
	h.running[pid] = true
	h.mu.Unlock()
	err := process.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.running, pid)
	if usage, ok := process.ProcessState.SysUsage().(*syscall.Rusage); ok {
		const kibibyte = 1024
		h.peak = max(h.peak, usage.Maxrss*kibibyte)
	}
	return err
}

// pass hands what the program says to the engine, line by line.
func pass(ctx context.Context, said io.Reader, engine pulumirpc.EngineClient) {
	lines := bufio.NewScanner(said)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		_, _ = engine.Log(ctx, &pulumirpc.LogRequest{Severity: pulumirpc.LogSeverity_INFO, Message: lines.Text()})
	}
	_, _ = io.Copy(io.Discard, said)
}

// programEnvironment is how a Go program learns of its run.
func programEnvironment(r *pulumirpc.RunRequest, engine string) ([]string, error) {
	config, err := json.Marshal(r.GetConfig())
	if err != nil {
		return nil, err
	}
	keys := r.GetConfigSecretKeys()
	if keys == nil {
		keys = []string{}
	}
	secretKeys, err := json.Marshal(keys)
	if err != nil {
		return nil, err
	}
	var environment []string
	for name, value := range map[string]string{
		pulumi.EnvOrganization:        r.GetOrganization(),
		pulumi.EnvProject:             r.GetProject(),
		pulumi.EnvPulumiRootDirectory: r.GetInfo().GetRootDirectory(),
		pulumi.EnvStack:               r.GetStack(),
		pulumi.EnvConfig:              string(config),
		pulumi.EnvConfigSecretKeys:    string(secretKeys),
		pulumi.EnvDryRun:              strconv.FormatBool(r.GetDryRun()),
		pulumi.EnvParallel:            strconv.Itoa(int(r.GetParallel())),
		pulumi.EnvMonitor:             r.GetMonitorAddress(),
		pulumi.EnvEngine:              engine,
	} {
		if value != "" {
			environment = append(environment, name+"="+value)
		}
	}
	return environment, nil
}
