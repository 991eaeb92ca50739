package tests

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"

	"github.com/gpu-tenants/gpu-tenants/stacks"
	"github.com/gpu-tenants/gpu-tenants/stacks/config"
	"github.com/gpu-tenants/gpu-tenants/stacks/host"
	"github.com/gpu-tenants/gpu-tenants/stacks/pins"
)

// registered is one resource as the program asked the engine for it.
type registered struct {
	Type, Name, URN, Parent string
	Provider                string            // "" for components and providers
	Providers               map[string]string // of a component, by package
	Dependencies            []string          // all: explicit ones and those of inputs
	DeletedWith             string
	DeleteBeforeReplace     bool
	SecretOutputs           []string
	IgnoreChanges           []string
	Hooks                   []string
	Inputs                  resource.PropertyMap
	Custom, Remote, Read    bool
}

// recorder stands in for the engine. It answers with the outputs that the
// program reads, and fails on a type it has no answer for: an empty answer
// would let anything pass.
type recorder struct {
	kubeconfig string

	mu   sync.Mutex
	all  []registered
	seen map[string]bool
}

func (r *recorder) Call(args pulumi.MockCallArgs) (resource.PropertyMap, error) {
	return nil, fmt.Errorf("no call is expected, and %s was made", args.Token)
}

func (r *recorder) NewResource(args pulumi.MockResourceArgs) (string, resource.PropertyMap, error) {
	entry := registered{Type: args.TypeToken, Name: args.Name, Provider: args.Provider, Inputs: args.Inputs, Custom: args.Custom}
	switch rpc := args.RegisterRPC; {
	case rpc != nil:
		entry.Parent = rpc.GetParent()
		entry.Providers = rpc.GetProviders()
		entry.Dependencies = slices.Sorted(slices.Values(rpc.GetDependencies()))
		entry.DeletedWith = rpc.GetDeletedWith()
		entry.DeleteBeforeReplace = rpc.GetDeleteBeforeReplace()
		entry.SecretOutputs = rpc.GetAdditionalSecretOutputs()
		entry.IgnoreChanges = rpc.GetIgnoreChanges()
		entry.Remote = rpc.GetRemote()
		entry.Hooks = rpc.GetHooks().GetBeforeCreate()
	case args.ReadRPC != nil:
		entry.Parent = args.ReadRPC.GetParent()
		entry.Dependencies = slices.Sorted(slices.Values(args.ReadRPC.GetDependencies()))
		entry.SecretOutputs = args.ReadRPC.GetAdditionalSecretOutputs()
		entry.Provider = args.ReadRPC.GetProvider()
		entry.Read = true
	}
	entry.URN = urn(entry.Parent, args.TypeToken, args.Name)

	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen[entry.URN] {
		return "", nil, fmt.Errorf("%s is registered twice", entry.URN)
	}
	r.seen[entry.URN] = true
	r.all = append(r.all, entry)

	outputs := args.Inputs.Copy()
	set := func(key, value string) { outputs[resource.PropertyKey(key)] = resource.NewProperty(value) }
	switch kind := args.TypeToken; {
	case kind == "command:local:Command":
		switch {
		case strings.HasSuffix(args.Name, "-cluster"):
			set("stdout", r.kubeconfig)
		case strings.HasSuffix(args.Name, "-control-plane-ready"):
			set("stdout", "10.192.8.1:6443")
		case strings.HasSuffix(args.Name, "-container"):
			set("stdout", "container-of-"+args.Name)
		case strings.HasSuffix(args.Name, "-join"):
			set("stdout", outputs["environment"].ObjectValue()["NODE"].StringValue())
		}
	case kind == "kubernetes:core/v1:Secret" && entry.Read:
		outputs["data"] = resource.NewProperty(resource.PropertyMap{
			"admin.conf": resource.NewProperty(base64.StdEncoding.EncodeToString([]byte(r.kubeconfig))),
		})
	case kind == "random:index/randomString:RandomString", kind == "random:index/randomPassword:RandomPassword":
		set("result", strings.Repeat("s", int(outputs["length"].NumberValue())))
	case kind == "docker:index/remoteImage:RemoteImage":
		set("imageId", "sha256:0000")
	case kind == "docker:index/network:Network",
		strings.HasPrefix(kind, "pulumi:providers:"), strings.HasPrefix(kind, "gpu-tenants:index:"),
		strings.HasPrefix(kind, "kubernetes:"):
	default:
		return "", nil, fmt.Errorf("the recorder has no answer for %s %q", kind, args.Name)
	}
	return args.Name + "-id", outputs, nil
}

func (r *recorder) MethodCall(args pulumi.MockCallArgs) (resource.PropertyMap, error) {
	return r.Call(args)
}

// urn is built as the SDK's mocks build it.
func urn(parent, kind, name string) string {
	qualified := kind
	if parent != "" && !strings.Contains(parent, "::pulumi:pulumi:Stack::") {
		qualified = strings.Split(parent, "::")[2] + "$" + kind
	}
	return "urn:pulumi:dev::gpu-tenants::" + qualified + "::" + name
}

// byName returns the one resource of that name and type suffix.
func (r *recorder) byName(t *testing.T, kind, name string) registered {
	t.Helper()
	for _, entry := range r.all {
		if entry.Name == name && strings.HasSuffix(entry.Type, kind) {
			return entry
		}
	}
	t.Fatalf("no %s named %s was registered", kind, name)
	return registered{}
}

// machine stands in for the host.
type machine struct {
	observed host.Observed
	faults   []host.Fault
	woken    *int // counts
	wakeErr  error
}

func (m machine) Observe(_ context.Context, names host.Names) (*host.Observed, error) {
	observed := m.observed
	observed.Names = names
	return &observed, nil
}

func (m machine) Wake(context.Context, *host.Observed, func(string)) error {
	if m.woken != nil {
		*m.woken++
	}
	return m.wakeErr
}

func (m machine) Preflight(context.Context, *host.Observed, host.Requirements) []host.Fault {
	return m.faults
}

// clusterThere is the incarnation of a cluster made from the defaults: its end
// says what it was made from.
var clusterThere = sync.OnceValue(func() string {
	cfg, err := config.Decode(nil)
	if err != nil {
		panic(err)
	}
	with := &host.Observed{Network: &host.Network{Labels: map[string]string{host.LabelIncarnation: "net1"}}}
	plan, err := stacks.NewPlan("gpu-tenants", "dev", cfg, with, func() string { return "cluster1" })
	if err != nil {
		panic(err)
	}
	return plan.Management.Incarnation
})

// labHolding is a host with a whole stack on it, so that nothing is random.
func labHolding(cpus int, workers ...string) machine {
	m := machine{observed: host.Observed{
		CPUs:    cpus,
		Network: &host.Network{Labels: map[string]string{host.LabelIncarnation: "net1"}},
		Cluster: &host.Node{Incarnation: clusterThere()},
		Workers: map[string]host.Node{},
	}}
	for _, name := range workers {
		m.observed.Workers[name] = host.Node{Name: name, IPv4: netip.Addr{}, Labels: map[string]string{host.LabelIncarnation: "worker1"}}
	}
	return m
}

// run runs the program on a configuration, and returns what it registered.
func run(t *testing.T, raw map[string]string, on stacks.Machine, preview bool) (*recorder, error) {
	t.Helper()
	if raw["artifactsDir"] == "" {
		raw["artifactsDir"] = artifactsDir(t)
	}
	r := &recorder{kubeconfig: kubeconfig(t), seen: map[string]bool{}}
	err := pulumi.RunErr(func(ctx *pulumi.Context) error {
		cfg, err := config.Decode(raw)
		if err != nil {
			return err
		}
		return stacks.Platform(ctx, cfg, on)
	}, pulumi.WithMocks("gpu-tenants", "dev", r), func(info *pulumi.RunInfo) {
		info.DryRun = preview
		info.RootDirectory = ".." // where the agent's source is
	})
	slices.SortFunc(r.all, func(a, b registered) int { return strings.Compare(a.URN, b.URN) })
	return r, err
}

// artifactsDir is a folder with the least that the program reads of each
// manifest and chart, under the names that the pins give them.
func artifactsDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	all := pins.Load().Artifacts
	for file, content := range map[string]string{
		all.CertManager.File: "testdata/artifacts/cert-manager.yaml",
		all.MetalLB.File:     "testdata/artifacts/metallb-native.yaml",
		all.Calico.File:      "testdata/artifacts/calico.yaml",
		all.HAMi.File:        "", // only its path is used
	} {
		text := []byte{}
		if content != "" {
			var err error
			if text, err = os.ReadFile(content); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, chart := range []string{all.Kamaji.File, all.KamajiEtcd.File} {
		if err := os.MkdirAll(filepath.Join(dir, chart), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

var (
	kubeconfigOnce sync.Once
	kubeconfigText string
)

// secretMark is in every secret of the tests, so that a search for it finds a leak.
const secretMark = "SECRET-MARK"

// kubeconfig is a tenant's, with a CA of its own.
func kubeconfig(t *testing.T) string {
	t.Helper()
	kubeconfigOnce.Do(func() {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubernetes"}, NotAfter: time.Now().Add(time.Hour), IsCA: true}
		der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		kubeconfigText = fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster:\n    server: https://10.192.8.1:6443\n    certificate-authority-data: %s\nusers:\n- name: admin\n  user:\n    client-key-data: %s\n",
			base64.StdEncoding.EncodeToString(ca), secretMark)
	})
	return kubeconfigText
}
