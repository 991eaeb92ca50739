package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpu-tenants/gpu-tenants/agent/internal/apitest"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/hami"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/inventory"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/kube"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/kubelettest"
)

const (
	worker    = "worker-1"
	namespace = "gpu-system"
	configMap = "cards"
)

// TestMain lets the test's binary be the agent's, for those who run it.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "nvidia-smi" || os.Getenv("RUN_AS_AGENT") != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// bed is a node: API server, kubelet and agent.
type bed struct {
	testing.TB
	api     *apitest.Server
	kubelet *kubelettest.Kubelet
	agent   *agent
	url     string
	address string
	stop    func()
}

func text(cards inventory.Inventory) string { return cards.Canonical() }

// fleet is n cards of some slices each.
func fleet(n int, count int32, model string, memory int32) inventory.Inventory {
	var inv inventory.Inventory
	for i := range n {
		inv = append(inv, inventory.Card{
			ID: fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", i), Index: i, Count: count, Devmem: memory, Devcore: 100,
			Type: model, Mode: "hami-core", Health: true,
		})
	}
	return inv
}

// newBed starts a node after changes to its agent; without cards the ConfigMap
// does not exist.
func newBed(tb testing.TB, cards string, changes ...func(*agent)) *bed {
	tb.Helper()
	b := &bed{TB: tb, api: apitest.New(tb), kubelet: kubelettest.New(tb)}
	cpu := corev1.ResourceList{"cpu": resource.MustParse("4")}
	b.api.Put(tb, "nodes", &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: worker, Annotations: map[string]string{"other": "kept"}},
		Status:     corev1.NodeStatus{Capacity: cpu, Allocatable: cpu},
	})
	if cards != "" {
		b.inventory(cards)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	b.address = listener.Addr().String()
	b.url = "http://" + b.address
	client, err := kube.New(b.api.Config())
	if err != nil {
		tb.Fatal(err)
	}
	opts := options{node: worker, namespace: namespace, configMap: configMap, socketDir: b.kubelet.Dir, listen: b.address}
	b.agent, err = newAgent(opts, client, slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	for _, change := range changes {
		change(b.agent)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.agent.run(ctx, listener) }()
	stopped := false
	b.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			if err := <-ended; err != nil {
				tb.Error(err)
			}
		}
	}
	tb.Cleanup(b.stop)
	return b
}

func (b *bed) inventory(cards string) {
	b.api.Put(b.TB, "configmaps", &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: configMap, Namespace: namespace},
		Data:       map[string]string{inventory.Key: cards},
	})
}

func (b *bed) node() corev1.Node {
	b.Helper()
	var node corev1.Node
	b.api.Get(b.TB, "nodes", "", worker, &node)
	return node
}

// await waits until kubelet, annotation and status show an inventory.
func (b *bed) await(inv inventory.Inventory) {
	b.Helper()
	apitest.Eventually(b, func() string {
		healthy, all := b.kubelet.Count()
		if int64(healthy) != inv.Healthy().Slices || int64(all) != inv.Totals().Slices {
			return fmt.Sprintf("%d of %d devices are healthy", healthy, all)
		}
		node := b.node()
		annotation, present := node.Annotations[hami.NodeRegister]
		if present != (len(inv) > 0) || present && !inv.Matches(annotation) {
			return "annotation is " + annotation
		}
		capacity, allocatable := node.Status.Capacity["nvidia.com/gpumem"], node.Status.Allocatable["nvidia.com/gpumem"]
		if capacity.Value() != inv.Totals().MemoryMiB || allocatable.Value() != inv.Healthy().MemoryMiB {
			return fmt.Sprintf("gpumem is %s, allocatable %s", capacity.String(), allocatable.String())
		}
		return ""
	})
}

func (b *bed) http(path string) (code int, body string) {
	b.Helper()
	response, err := http.Get(b.url + path) //nolint:gosec,noctx // Our own server.
	if err != nil {
		b.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		b.Fatal(err)
	}
	return response.StatusCode, string(data)
}

func (b *bed) awaitMetric(line string) {
	b.Helper()
	apitest.Eventually(b, func() string {
		if _, body := b.http("/metrics"); !strings.Contains(body, "\n"+line+"\n") {
			return line + " is missing in\n" + body
		}
		return ""
	})
}

// bind does what HAMi does before the kubelet sees a pod.
func (b *bed) bind(name, slices string) {
	b.Helper()
	containers := make([]corev1.Container, 0, strings.Count(slices, ";"))
	for i := range strings.Count(slices, ";") {
		containers = append(containers, corev1.Container{Name: fmt.Sprintf("c%d", i)})
	}
	b.api.Merge("nodes", "", worker, fmt.Sprintf(`{"metadata":{"annotations":{%q:"2026-12-01T03:00:00Z,team-a,%s"}}}`, hami.NodeLock, name))
	b.api.Put(b.TB, "pods", &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team-a", Annotations: map[string]string{
			hami.PodNode: worker, hami.PodBindPhase: hami.PhaseAllocating, hami.PodBindTime: "1764558000",
			hami.PodToAllocate: slices, hami.PodAllocated: slices,
		}},
		Spec:   corev1.PodSpec{NodeName: worker, Containers: containers},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	})
}

func TestAgent(t *testing.T) {
	cards := fleet(2, 10, "NVIDIA A100-SXM4-80GB", 81920)
	b := newBed(t, text(cards))
	b.await(cards)
	apitest.Eventually(t, func() string {
		if code, body := b.http("/readyz"); code != http.StatusOK {
			return body
		}
		return ""
	})
	if code, body := b.http("/healthz"); code != http.StatusOK {
		t.Errorf("healthz: %s", body)
	}

	// A slice of 20000 MiB and 30 %.
	b.bind("train", cards[1].ID+",NVIDIA,20000,30:;")
	response, err := b.kubelet.Allocate(t.Context(), []string{cards[1].ID + "-0"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"NVIDIA_VISIBLE_DEVICES":     "GPU-00000000-0000-0000-0000-000000000001",
		"CUDA_DEVICE_MEMORY_LIMIT_0": "20000m",
		"CUDA_DEVICE_SM_LIMIT":       "30",
		"MOCK_GPU_TYPE_0":            "NVIDIA A100-SXM4-80GB",
	}
	if got := response.GetContainerResponses()[0].GetEnvs(); !maps.Equal(got, want) {
		t.Errorf("environment is %v, want %v", got, want)
	}
	var pod corev1.Pod
	b.api.Get(t, "pods", "team-a", "train", &pod)
	if pod.Annotations[hami.PodBindPhase] != hami.PhaseSuccess {
		t.Errorf("phase is %s", pod.Annotations[hami.PodBindPhase])
	}
	node := b.node()
	if lock, locked := node.Annotations[hami.NodeLock]; locked {
		t.Errorf("node is still locked: %s", lock)
	}
	b.awaitMetric(`mock_gpu_agent_allocations_total{result="success"} 1`)
	b.awaitMetric(`mock_gpu_cards{health="healthy"} 2`)
	b.awaitMetric(`mock_gpu_slices{health="healthy"} 20`)
	b.awaitMetric(`mock_gpu_agent_registered 1`)

	// A card falls ill, and pods for it fail.
	cards[0].Health = false
	b.inventory(text(cards))
	b.await(cards)
	b.awaitMetric(`mock_gpu_cards{health="unhealthy"} 1`)
	b.bind("unlucky", cards[0].ID+",NVIDIA,1000,0:;")
	if _, err := b.kubelet.Allocate(t.Context(), []string{cards[1].ID + "-1"}); err == nil || !strings.Contains(err.Error(), "unhealthy") {
		t.Errorf("error is %v", err)
	}
	b.api.Get(t, "pods", "team-a", "unlucky", &pod)
	if pod.Annotations[hami.PodBindPhase] != hami.PhaseFailed {
		t.Errorf("phase is %s", pod.Annotations[hami.PodBindPhase])
	}
	node = b.node()
	if lock, locked := node.Annotations[hami.NodeLock]; locked {
		t.Errorf("node is still locked: %s", lock)
	}
}

func TestBadInventoryLeavesTheLastGoodOne(t *testing.T) {
	cards := fleet(1, 10, "NVIDIA L4", 24576)
	b := newBed(t, text(cards))
	b.await(cards)
	errs := 0
	rejected := func() {
		t.Helper()
		errs++
		b.awaitMetric(fmt.Sprintf("mock_gpu_agent_inventory_errors_total %d", errs))
		b.awaitMetric("mock_gpu_agent_inventory_rejected 1")
		b.await(cards)
	}
	b.inventory("[{}]")
	rejected()
	b.inventory("")
	rejected()
	b.api.Put(t, "configmaps", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: configMap, Namespace: namespace}})
	rejected()
	b.api.Delete("configmaps", namespace, configMap)
	rejected()

	cards = fleet(3, 4, "NVIDIA L4", 24576)
	b.inventory(text(cards))
	b.await(cards)
	b.awaitMetric("mock_gpu_agent_inventory_rejected 0")
}

func TestInventoryOfOthersIsNotTaken(t *testing.T) {
	b := newBed(t, "")
	for _, other := range []metav1.ObjectMeta{{Name: "other", Namespace: namespace}, {Name: configMap, Namespace: "other"}} {
		b.api.Put(t, "configmaps", &corev1.ConfigMap{
			ObjectMeta: other, Data: map[string]string{inventory.Key: text(fleet(9, 1, "NVIDIA L4", 1))},
		})
	}
	cards := fleet(1, 1, "NVIDIA L4", 24576)
	b.inventory(text(cards))
	b.await(cards)
}

func TestEmptyInventory(t *testing.T) {
	cards := fleet(1, 10, "NVIDIA L4", 24576)
	b := newBed(t, text(cards))
	b.await(cards)
	b.inventory("[]")
	b.await(nil)
	node := b.node()
	if _, present := node.Status.Capacity["nvidia.com/gpumem"]; present {
		t.Error("a gpumem of 0 makes the kubelet turn pods down; it has to be absent")
	}
	if request := b.kubelet.Request(); request == nil || b.kubelet.Registrations() != 1 {
		t.Error("the plugin has to stay registered, with no devices")
	}
}

func TestEightH200(t *testing.T) {
	cards := fleet(8, 10, "NVIDIA H200", 143771)
	b := newBed(t, text(cards))
	b.await(cards)
	node := b.node()
	if memory := node.Status.Allocatable["nvidia.com/gpumem"]; memory.String() != "1150168" {
		t.Errorf("gpumem is %s", memory.String())
	}
}

func TestKubeletRestart(t *testing.T) {
	cards := fleet(2, 10, "NVIDIA L4", 24576)
	b := newBed(t, text(cards))
	b.await(cards)
	b.kubelet.Stop()
	b.kubelet.Start()
	apitest.Eventually(t, func() string {
		if b.kubelet.Registrations() < 2 {
			return "not registered again"
		}
		return ""
	})
	b.await(cards)
}

func TestStaleLockIsRemoved(t *testing.T) {
	cards := fleet(1, 10, "NVIDIA L4", 24576)
	b := newBed(t, text(cards), func(a *agent) {
		a.keeper.Resync, a.keeper.StaleAfter = 10*time.Millisecond, 20*time.Millisecond
	})
	b.await(cards)
	// The kubelet has turned the pod down without calling Allocate.
	b.bind("rejected", cards[0].ID+",NVIDIA,1,1:;")
	b.api.Merge("pods", "team-a", "rejected", `{"status":{"phase":"Failed"}}`)
	apitest.Eventually(t, func() string {
		node := b.node()
		return node.Annotations[hami.NodeLock]
	})
	b.awaitMetric(`mock_gpu_agent_lock_releases_total{reason="stale"} 1`)
}

// kubeconfig is a file with which to reach the API server.
func (b *bed) kubeconfig() string {
	path := filepath.Join(b.TempDir(), "kubeconfig")
	content := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: x, clusters: [{name: x, cluster: {server: %q}}],
		contexts: [{name: x, context: {cluster: x, user: x}}], users: [{name: x, user: {}}]}`, b.api.URL)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		b.Fatal(err)
	}
	return path
}

func (b *bed) withdraw(args ...string) error {
	args = append([]string{"withdraw", "--node", worker, "--kubeconfig", b.kubeconfig()}, args...)
	return command(b.Context(), args, func(string) string { return "" }, io.Discard)
}

func TestWithdraw(t *testing.T) {
	cards := fleet(2, 10, "NVIDIA L4", 24576)
	t.Run("beside the agent", func(t *testing.T) {
		b := newBed(t, text(cards))
		b.await(cards)
		if err := b.withdraw("--listen", b.address); err != nil {
			t.Fatal(err)
		}
		b.await(nil)
		// Neither the agent nor a change of the inventory brings it back.
		b.inventory(text(fleet(3, 10, "NVIDIA L4", 24576)))
		b.inventory("[{}]")
		b.awaitMetric("mock_gpu_agent_inventory_errors_total 1")
		b.await(nil)
	})
	t.Run("after the agent", func(t *testing.T) {
		b := newBed(t, text(cards))
		b.await(cards)
		b.stop()
		if err := b.withdraw("--listen", b.address); err != nil {
			t.Fatal(err)
		}
		node := b.node()
		if len(node.Annotations) != 1 || len(node.Status.Capacity) != 1 {
			t.Errorf("annotations %v, capacity %v", node.Annotations, node.Status.Capacity)
		}
	})
	t.Run("beside another node's agent", func(t *testing.T) {
		b := newBed(t, text(cards))
		b.await(cards)
		if asked, err := askAgent(t.Context(), options{node: "worker-2", listen: b.address}); asked || err != nil {
			t.Errorf("asked: %v, error %v", asked, err)
		}
		b.await(cards)
	})
	t.Run("in vain", func(t *testing.T) {
		b := newBed(t, text(cards))
		b.await(cards)
		b.stop()
		b.api.OnRequest(func(apitest.Request) apitest.Fault { return apitest.Forbidden })
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := withdrawNode(ctx, b.agent.client, worker, b.agent.log); err == nil {
			t.Error("no error")
		}
	})
	t.Run("from outside", func(t *testing.T) {
		b := newBed(t, text(cards))
		b.await(cards)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, withdrawPath+"?node="+worker, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.RemoteAddr = "10.0.0.7:4711"
		answer := &recorder{header: http.Header{}}
		b.agent.handler().ServeHTTP(answer, request)
		if answer.code != http.StatusForbidden {
			t.Errorf("answered with %d", answer.code)
		}
		b.await(cards)
	})
}

type recorder struct {
	header http.Header
	code   int
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) Write(b []byte) (int, error) { return len(b), nil }
func (r *recorder) WriteHeader(code int)        { r.code = code }

func TestFlags(t *testing.T) {
	env := map[string]string{"NODE_NAME": worker, "POD_NAMESPACE": namespace}
	o, err := parse([]string{"--config-map", "x", "--nvidia-smi", "/opt/mock"}, func(name string) string { return env[name] }, io.Discard)
	want := options{
		node: worker, namespace: namespace, configMap: "x", socketDir: "/var/lib/kubelet/device-plugins", smiDir: "/opt/mock", listen: ":9410",
	}
	if err != nil || o != want {
		t.Errorf("got %+v, %v", o, err)
	}
	for _, args := range [][]string{{"--node", ""}, {"--nvidia-smi", "relative"}, {"nonsense"}, {"--nonsense"}} {
		if err := command(t.Context(), args, func(name string) string { return env[name] }, io.Discard); err == nil {
			t.Errorf("%v accepted", args)
		}
	}
}

func TestMockSMI(t *testing.T) {
	dir := t.TempDir()
	for range 2 { // The second time it is there already.
		if err := installSMI(dir); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("directory holds %v, %v", entries, err)
	}
	info, err := entries[0].Info()
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("mode is %v, %v", info.Mode(), err)
	}
	smi := exec.CommandContext(t.Context(), filepath.Join(dir, "nvidia-smi"), "-L")
	smi.Env = []string{"NVIDIA_VISIBLE_DEVICES=GPU-a", "CUDA_DEVICE_MEMORY_LIMIT_0=20000m", "MOCK_GPU_TYPE_0=NVIDIA L4"}
	out, err := smi.CombinedOutput()
	if err != nil || string(out) != "GPU 0: NVIDIA L4 (UUID: GPU-a)\n" {
		t.Errorf("got %q, %v", out, err)
	}
	// The same by name of the subcommand.
	sub := exec.CommandContext(t.Context(), os.Args[0], "nvidia-smi", "-L")
	sub.Env = append(smi.Env, "RUN_AS_AGENT=1")
	if again, err := sub.CombinedOutput(); err != nil || !bytes.Equal(again, out) {
		t.Errorf("got %q, %v", again, err)
	}
}

// TestRights makes the agent do all that it can and compares what it asked the
// API server for with the rules in the README.
func TestRights(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, ok := strings.Cut(string(readme), "```yaml\n")
	block, _, end := strings.Cut(block, "```")
	if !ok || !end {
		t.Fatal("no YAML in the README")
	}
	block = strings.NewReplacer("[NODE]", "["+worker+"]", "[CONFIGMAP]", "["+configMap+"]").Replace(block)
	var rights struct {
		ClusterRole, Role []rbacv1.PolicyRule
	}
	if err := yaml.UnmarshalStrict([]byte(block), &rights); err != nil {
		t.Fatal(err)
	}

	cards := fleet(2, 10, "NVIDIA L4", 24576)
	cards[1].Health = false
	b := newBed(t, text(cards))
	b.await(cards)
	b.bind("p", cards[0].ID+",NVIDIA,1,1:;")
	if _, err := b.kubelet.Allocate(t.Context(), []string{cards[0].ID + "-0"}); err != nil {
		t.Fatal(err)
	}
	b.bind("q", cards[1].ID+",NVIDIA,1,1:;")
	if _, err := b.kubelet.Allocate(t.Context(), []string{cards[0].ID + "-1"}); err == nil {
		t.Fatal("a slice of an unhealthy card")
	}
	if err := b.agent.binder.ReleaseStale(t.Context(), "2026-12-01T03:00:00Z,team-a,p"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.kubelet.Allocate(t.Context(), []string{cards[0].ID + "-2"}); err == nil {
		t.Fatal("a slice without a pod")
	}
	if err := b.withdraw("--listen", b.address); err != nil {
		t.Fatal(err)
	}

	used := map[string]bool{}
	permits := func(rules []rbacv1.PolicyRule, r apitest.Request) bool {
		permitted := false
		for i, rule := range rules {
			if slices.Contains(rule.APIGroups, "") && slices.Contains(rule.Resources, r.Resource) && slices.Contains(rule.Verbs, r.Verb) &&
				(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, r.Name)) {
				used[fmt.Sprintf("%p %d %s", rules, i, r.Verb)] = true
				permitted = true
			}
		}
		return permitted
	}
	for _, r := range b.api.Requests() {
		// Each is judged by both, so that no rule counts as unused.
		byCluster := permits(rights.ClusterRole, r)
		byRole := r.Namespace == namespace && permits(rights.Role, r)
		if !byCluster && !byRole {
			t.Errorf("the rules do not permit %+v", r)
		}
	}
	// What the informers do by listing depends on the API server: they list
	// only if it cannot stream what is there.
	for _, rules := range [][]rbacv1.PolicyRule{rights.ClusterRole, rights.Role} {
		for i, rule := range rules {
			for _, verb := range rule.Verbs {
				if !used[fmt.Sprintf("%p %d %s", rules, i, verb)] && (verb != "list" || slices.Contains(rule.Resources, "pods")) {
					t.Errorf("%s %v is granted and not needed", verb, rule.Resources)
				}
			}
		}
	}
}

func TestEndsWhenItCannotServe(t *testing.T) {
	b := newBed(t, text(fleet(1, 1, "NVIDIA L4", 1)))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	second, err := newAgent(options{node: worker, namespace: namespace, configMap: configMap, socketDir: t.TempDir()},
		b.agent.client, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := second.run(t.Context(), listener); !errors.Is(err, net.ErrClosed) {
		t.Errorf("error is %v", err)
	}
}

func BenchmarkAllocate(b *testing.B) {
	cards := fleet(16, 100, "NVIDIA H200", 143771)
	bed := newBed(b, text(cards))
	bed.await(cards)
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		name := fmt.Sprintf("p%d", i)
		bed.bind(name, cards[i%16].ID+",NVIDIA,1000,1:;")
		b.StartTimer()
		if _, err := bed.kubelet.Allocate(b.Context(), []string{cards[i%16].ID + "-0"}); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		bed.api.Delete("pods", "team-a", name)
		b.StartTimer()
	}
}
