// Command mock-gpu-agent stands in for NVIDIA's and HAMi's device plugins on a
// node whose GPUs exist only as an inventory. See README.md.
//
// # Rights
//
// The smallest set that suffices; tests compare every request with it.
//
//	ClusterRole  nodes         get, list, watch, patch  resourceNames: the nodes
//	             nodes/status  patch                    resourceNames: the nodes
//	             pods          get, list, patch         (a pod's name is not known beforehand)
//	Role         configmaps    list, watch              resourceNames: the inventory
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/gpu-tenants/gpu-tenants/agent/internal/hami"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/inventory"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/kube"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/metrics"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/node"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/plugin"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/smi"
)

const withdrawCommand = "withdraw"

// options are the flags.
type options struct {
	node, namespace, configMap string
	socketDir, smiDir          string
	listen                     string
	kubeconfig                 string
	debug                      bool
}

func main() {
	name, args := filepath.Base(os.Args[0]), os.Args[1:]
	if name != smi.Name && len(args) > 0 && args[0] == smi.Name {
		name, args = smi.Name, args[1:]
	}
	if name == smi.Name {
		os.Exit(smi.Run(args, os.Getenv, os.Stdout, os.Stderr))
	}
	klog.SetSlogLogger(slog.New(slog.NewJSONHandler(os.Stderr, nil))) // What client-go has to say.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, args, os.Getenv, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "mock-gpu-agent:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has run.
	}
}

// command runs the agent or, as its first argument says, withdraws.
func command(ctx context.Context, args []string, getenv func(string) string, stderr io.Writer) error {
	withdrawing := len(args) > 0 && args[0] == withdrawCommand
	if withdrawing {
		args = args[1:]
	}
	opts, err := parse(args, getenv, stderr)
	if err != nil {
		return err
	}
	level := slog.LevelInfo
	if opts.debug {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: level})).With("node", opts.node)
	client, err := connect(opts.kubeconfig)
	if err != nil {
		return err
	}
	if withdrawing {
		return withdraw(ctx, opts, client, log)
	}
	if opts.namespace == "" {
		return errors.New("the namespace is not named: set POD_NAMESPACE or -namespace")
	}
	listener, err := net.Listen("tcp", opts.listen)
	if err != nil {
		return err
	}
	return run(ctx, opts, client, listener, log)
}

func parse(args []string, getenv func(string) string, stderr io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("mock-gpu-agent", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.node, "node", getenv("NODE_NAME"), "`name` of the node (default $NODE_NAME)")
	f.StringVar(&o.namespace, "namespace", getenv("POD_NAMESPACE"), "`namespace` of the ConfigMap (default $POD_NAMESPACE)")
	f.StringVar(&o.configMap, "config-map", "mock-gpu-inventory", "`name` of the ConfigMap with the key "+inventory.Key)
	f.StringVar(&o.socketDir, "socket-dir", "/var/lib/kubelet/device-plugins", "the kubelet's plugin `directory`")
	f.StringVar(&o.smiDir, "nvidia-smi", "", "`directory` of the host, mounted here under the same path, "+
		"to put a mock nvidia-smi for containers into (default none)")
	f.StringVar(&o.listen, "listen", ":9410", "`address` for /healthz, /readyz and /metrics")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `file` (default: the pod's service account)")
	f.BoolVar(&o.debug, "debug", false, "log more")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("unknown command %q; there are %s and %s", f.Arg(0), withdrawCommand, smi.Name)
	case o.node == "":
		return o, errors.New("the node is not named: set NODE_NAME or -node")
	case o.smiDir != "" && !filepath.IsAbs(o.smiDir):
		return o, fmt.Errorf("-nvidia-smi %s: the path has to be absolute", o.smiDir)
	}
	return o, nil
}

func connect(kubeconfig string) (*kube.Client, error) {
	var config *rest.Config
	var err error
	if kubeconfig == "" {
		config, err = rest.InClusterConfig()
	} else {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, err
	}
	return kube.New(config)
}

// agent is what runs on a node.
type agent struct {
	opts     options
	client   *kube.Client
	log      *slog.Logger
	store    *inventory.Store
	metrics  *metrics.Metrics
	registry *prometheus.Registry
	binder   *hami.Binder
	plugin   *plugin.Plugin
	keeper   *node.Keeper
}

func newAgent(opts options, client *kube.Client, log *slog.Logger) (*agent, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m := metrics.New(registry)
	store := inventory.NewStore()
	binder := hami.NewBinder(client, opts.node, m, log)
	device, err := plugin.New(opts.socketDir, store, binder, m, log)
	if err != nil {
		return nil, err
	}
	device.SMIDir = opts.smiDir
	keeper := node.NewKeeper(client, opts.node, store, m, log)
	keeper.ReleaseStale = binder.ReleaseStale
	return &agent{
		opts: opts, client: client, log: log, store: store, metrics: m, registry: registry,
		binder: binder, plugin: device, keeper: keeper,
	}, nil
}

// run is the agent's life.
func run(ctx context.Context, opts options, client *kube.Client, listener net.Listener, log *slog.Logger) error {
	a, err := newAgent(opts, client, log)
	if err != nil {
		return err
	}
	if opts.smiDir != "" {
		if err := installSMI(opts.smiDir); err != nil {
			return fmt.Errorf("install %s: %w", smi.Name, err)
		}
	}
	return a.run(ctx, listener)
}

func (a *agent) run(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.log.Info("started, waiting for the inventory", "configMap", a.opts.namespace+"/"+a.opts.configMap)
	web := &http.Server{Handler: a.handler(), ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- web.Serve(listener) }()

	var parts sync.WaitGroup
	parts.Go(func() {
		inventory.Follow(ctx, a.client, a.opts.namespace, a.opts.configMap, a.store, a.metrics, a.log)
	})
	parts.Go(func() { a.count(ctx) })
	parts.Go(func() { a.keeper.Run(ctx) })
	parts.Go(func() { a.plugin.Run(ctx) })

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
		cancel()
	}
	parts.Wait()
	web.Close()
	a.log.Info("stopped")
	return err
}

// count keeps the gauges of the inventory.
func (a *agent) count(ctx context.Context) {
	for {
		inv, _, changed := a.store.Get()
		all, healthy := inv.Totals(), inv.Healthy()
		a.metrics.Cards.WithLabelValues("healthy").Set(float64(healthy.Cards))
		a.metrics.Cards.WithLabelValues("unhealthy").Set(float64(all.Cards - healthy.Cards))
		a.metrics.Slices.WithLabelValues("healthy").Set(float64(healthy.Slices))
		a.metrics.Slices.WithLabelValues("unhealthy").Set(float64(all.Slices - healthy.Slices))
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

func (a *agent) handler() http.Handler {
	mux := http.NewServeMux()
	check := func(path string, tests ...func() error) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			for _, test := range tests {
				if err := test(); err != nil {
					http.Error(w, err.Error(), http.StatusServiceUnavailable)
					return
				}
			}
			fmt.Fprintln(w, "ok")
		})
	}
	check("/healthz", a.plugin.Health)
	check("/readyz", a.plugin.Ready, a.keeper.Ready)
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("POST "+withdrawPath, a.serveWithdraw)
	return mux
}

// installSMI puts a copy of this binary where containers can be given it from.
// It is renamed into place, for a running container may have the old one open.
func installSMI(dir string) error {
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	source, err := os.Open(binary)
	if err != nil {
		return err
	}
	defer source.Close()
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // Containers of any user run it.
		return err
	}
	target, err := os.CreateTemp(dir, "."+smi.Name+"-")
	if err != nil {
		return err
	}
	defer os.Remove(target.Name())
	_, err = io.Copy(target, source)
	err = errors.Join(err, target.Chmod(0o755), target.Close()) //nolint:gosec // As above.
	if err != nil {
		return err
	}
	return os.Rename(target.Name(), filepath.Join(dir, smi.Name))
}
