package node

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-tenants/gpu-tenants/agent/internal/apitest"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/hami"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/inventory"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/metrics"
)

const worker = "worker-1"

var cards = inventory.Inventory{
	{ID: "GPU-a", Index: 0, Count: 10, Devmem: 81920, Devcore: 100, Type: "NVIDIA A100", Mode: "hami-core", Health: true},
	{ID: "GPU-b", Index: 1, Count: 10, Devmem: 24576, Devcore: 100, Type: "NVIDIA L4", Mode: "hami-core", Health: true},
}

// ill are the cards with the second one unhealthy.
func ill() inventory.Inventory {
	inv := slices.Clone(cards)
	inv[1].Health = false
	return inv
}

type bed struct {
	*testing.T
	api     *apitest.Server
	store   *inventory.Store
	keeper  *Keeper
	metrics *metrics.Metrics
}

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{T: t, api: apitest.New(t), store: inventory.NewStore(), metrics: metrics.New(prometheus.NewRegistry())}
	b.keeper = NewKeeper(b.api.Client(t), worker, b.store, b.metrics, slog.New(slog.DiscardHandler))
	b.keeper.Resync = 20 * time.Millisecond
	b.keeper.writes = rate.NewLimiter(rate.Inf, 1)
	b.putNode()
	return b
}

// putNode makes the worker as a kubelet registers it. Ten slices are known to it.
func (b *bed) putNode() {
	b.api.Delete("nodes", "", worker)
	resources := corev1.ResourceList{"cpu": resource.MustParse("4"), "nvidia.com/gpu": resource.MustParse("20")}
	b.api.Put(b.T, "nodes", &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: worker, Annotations: map[string]string{"other": "kept"}},
		Status:     corev1.NodeStatus{Capacity: resources, Allocatable: resources},
	})
}

func (b *bed) start() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.keeper.Run(ctx)
	}()
	b.Cleanup(func() {
		cancel()
		<-ended
	})
}

func (b *bed) get() corev1.Node {
	b.Helper()
	var node corev1.Node
	b.api.Get(b.T, "nodes", "", worker, &node)
	return node
}

// await waits for the annotation and the amounts in capacity and allocatable,
// each as "gpumem gpucores percentage", "" for none.
func (b *bed) await(inv inventory.Inventory, capacity, allocatable string) {
	b.Helper()
	text := func(list corev1.ResourceList) string {
		var amounts []string
		for _, name := range ownResources {
			if amount, ok := list[name]; ok {
				amounts = append(amounts, amount.String())
			}
		}
		return strings.Join(amounts, " ")
	}
	apitest.Eventually(b, func() string {
		node := b.get()
		annotation, present := node.Annotations[hami.NodeRegister]
		switch {
		case present != (len(inv) > 0) || present && !inv.Matches(annotation):
			return "annotation is " + annotation
		case text(node.Status.Capacity) != capacity:
			return fmt.Sprintf("capacity is %q, want %q", text(node.Status.Capacity), capacity)
		case text(node.Status.Allocatable) != allocatable:
			return fmt.Sprintf("allocatable is %q, want %q", text(node.Status.Allocatable), allocatable)
		case node.Annotations["other"] != "kept":
			return "annotations of others have been touched"
		}
		return ""
	})
}

func (b *bed) awaitReady() {
	b.Helper()
	apitest.Eventually(b, func() string {
		if err := b.keeper.Ready(); err != nil {
			return err.Error()
		}
		return ""
	})
}

func (b *bed) annotate(key string, value any) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
	if err != nil {
		b.Fatal(err)
	}
	b.api.Merge("nodes", "", worker, string(patch))
}

func (b *bed) repairs(what string) float64 {
	return testutil.ToFloat64(b.metrics.Repairs.WithLabelValues(what))
}

func (b *bed) patches() int {
	n := 0
	for _, r := range b.api.Requests() {
		if r.Verb == "patch" {
			n++
		}
	}
	return n
}

const bothCards = "106496 200 200"

func TestPublishes(t *testing.T) {
	b := newBed(t)
	b.start()
	if b.keeper.Ready() == nil {
		t.Error("ready before the inventory is known")
	}
	b.store.Set(cards)
	b.await(cards, bothCards, bothCards)
	b.awaitReady()
	node := b.get()
	if got := node.Annotations[hami.NodeRegister]; got != cards.Canonical() {
		t.Errorf("annotation is %s", got)
	}
	if gpus := node.Status.Capacity["nvidia.com/gpu"]; gpus.Value() != 20 {
		t.Errorf("nvidia.com/gpu is %s: that is the kubelet's", gpus.String())
	}
	if n := b.repairs("register") + b.repairs("status"); n != 0 {
		t.Errorf("%v repairs counted where nothing was broken", n)
	}
	if n := b.patches(); n != 2 {
		t.Errorf("%d patches, want one of the annotation and one of the status", n)
	}

	b.store.Set(cards[:1])
	b.await(cards[:1], "81920 100 100", "81920 100 100")
	b.store.Set(inventory.Inventory{})
	b.await(nil, "", "")
	b.awaitReady()
	b.store.Set(cards)
	b.await(cards, bothCards, bothCards)
}

func TestEightH200(t *testing.T) {
	var inv inventory.Inventory
	for i := range 8 {
		inv = append(inv, inventory.Card{
			ID: fmt.Sprintf("GPU-h%d", i), Index: i, Count: 10, Devmem: 143771, Devcore: 100, Type: "NVIDIA H200", Health: true,
		})
	}
	b := newBed(t)
	b.start()
	b.store.Set(inv)
	b.await(inv, "1150168 800 800", "1150168 800 800")
}

func TestAnnotationIsRepaired(t *testing.T) {
	b := newBed(t)
	b.start()
	b.store.Set(cards)
	b.await(cards, bothCards, bothCards)
	b.awaitReady()
	for i, value := range []any{"[]", strings.Replace(cards.Canonical(), "81920", "1", 1), "rubbish", nil} {
		b.annotate(hami.NodeRegister, value)
		b.await(cards, bothCards, bothCards)
		apitest.Eventually(t, func() string {
			if got := b.repairs("register"); got != float64(i+1) {
				return fmt.Sprintf("%v repairs counted, want %d", got, i+1)
			}
			return ""
		})
		b.awaitReady()
	}
	// An inventory without cards is kept as well.
	b.store.Set(inventory.Inventory{})
	b.await(nil, "", "")
	b.awaitReady()
	b.annotate(hami.NodeRegister, cards.Canonical())
	b.await(nil, "", "")
}

func TestSameMeaningIsLeftAlone(t *testing.T) {
	b := newBed(t)
	b.start()
	b.store.Set(cards)
	b.await(cards, bothCards, bothCards)
	b.awaitReady()
	other := `[{"id":"GPU-b","index":1,"count":10,"devmem":24576,"devcore":100,"type":"NVIDIA L4","mode":"hami-core","health":true},
		{"id":"GPU-a","count":10,"devmem":81920,"devcore":100,"type":"NVIDIA A100","mode":"hami-core","health":true}]`
	before := b.patches()
	b.annotate(hami.NodeRegister, other)
	// The keeper has seen that when it has seen what comes after it.
	b.annotate("marker", "1")
	apitest.Eventually(t, func() string {
		b.keeper.mu.Lock()
		defer b.keeper.mu.Unlock()
		if b.keeper.latest.Annotations["marker"] != "1" {
			return "not seen"
		}
		return ""
	})
	b.store.Set(cards[:1])
	b.await(cards[:1], "81920 100 100", "81920 100 100")
	if n := b.patches() - before; n != 2 {
		t.Errorf("%d patches, want the two of the new inventory only", n)
	}
}

func TestNodeMadeAnew(t *testing.T) {
	b := newBed(t)
	b.start()
	b.store.Set(cards)
	b.await(cards, bothCards, bothCards)
	b.putNode()
	b.await(cards, bothCards, bothCards)
	b.awaitReady()
}

func TestNodeThatComesLater(t *testing.T) {
	b := newBed(t)
	b.api.Delete("nodes", "", worker)
	b.start()
	b.store.Set(cards)
	b.putNode()
	b.await(cards, bothCards, bothCards)
}

func TestStatusIsReasserted(t *testing.T) {
	b := newBed(t)
	b.start()
	b.store.Set(cards)
	b.await(cards, bothCards, bothCards)
	b.awaitReady()
	for _, change := range []string{
		// As a kubelet without a checkpoint does.
		`{"status":{"capacity":{"nvidia.com/gpumem":"0","nvidia.com/gpucores":"0"},"allocatable":{"nvidia.com/gpumem":"0","nvidia.com/gpucores":"0"}}}`,
		`{"status":{"capacity":{"nvidia.com/gpumem":null},"allocatable":{"nvidia.com/gpumem":null}}}`,
		`{"status":{"allocatable":{"nvidia.com/gpumem-percentage":"1"}}}`,
	} {
		b.api.Merge("nodes", "", worker, change)
		b.await(cards, bothCards, bothCards)
		b.awaitReady()
	}
	if n := b.repairs("status"); n != 3 {
		t.Errorf("%v repairs counted, want 3", n)
	}
}

func TestDifference(t *testing.T) {
	want := amounts{ResourceMemory: 106496, ResourceCores: 200, ResourcePercentage: 200}
	list := func(memory string) corev1.ResourceList {
		return corev1.ResourceList{
			ResourceMemory: resource.MustParse(memory), ResourceCores: resource.MustParse("200"),
			ResourcePercentage: resource.MustParse("200"), "nvidia.com/gpu": resource.MustParse("7"),
		}
	}
	for _, test := range []struct {
		got  corev1.ResourceList
		want amounts
		diff string
	}{
		{list("106496"), want, "null"},
		{list("104Ki"), want, "null"}, // The same in another notation.
		{list("0"), want, `{"nvidia.com/gpumem":"106496"}`},
		{nil, want, `{"nvidia.com/gpucores":"200","nvidia.com/gpumem":"106496","nvidia.com/gpumem-percentage":"200"}`},
		{list("0"), nil, `{"nvidia.com/gpucores":null,"nvidia.com/gpumem":null,"nvidia.com/gpumem-percentage":null}`},
		{nil, nil, "null"},
	} {
		diff, err := json.Marshal(difference(test.got, test.want))
		if err != nil || string(diff) != test.diff {
			t.Errorf("from %v to %v: got %s, want %s", test.got, test.want, diff, test.diff)
		}
	}
}

func TestWatchAndPatchOutOfOrder(t *testing.T) {
	b := newBed(t)
	node := func(uid, version string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), ResourceVersion: version}}
	}
	for _, step := range []struct {
		what        string
		take        func(*corev1.Node)
		given, want *corev1.Node
	}{
		{"the first", b.keeper.see, node("x", "8"), node("x", "8")},
		{"newer", b.keeper.see, node("x", "9"), node("x", "9")},
		{"written", b.keeper.wrote, node("x", "11"), node("x", "11")},
		{"seen late", b.keeper.see, node("x", "10"), node("x", "11")},
		{"replaced", b.keeper.see, node("y", "13"), node("y", "13")},
		{"the old one written", b.keeper.wrote, node("x", "12"), node("y", "13")},
		{"gone", b.keeper.see, nil, nil},
		{"what is gone written", b.keeper.wrote, node("y", "14"), nil},
	} {
		step.take(step.given)
		if !reflect.DeepEqual(b.keeper.latest, step.want) {
			t.Errorf("%s: latest is %v, want %v", step.what, b.keeper.latest, step.want)
		}
	}
}

func TestUnhealthyCard(t *testing.T) {
	b := newBed(t)
	b.start()
	b.store.Set(ill())
	b.await(ill(), bothCards, "81920 100 100")

	// Pods that are on the card keep their part of it, else the kubelet would
	// turn down pods for the other card.
	pod := func(name string, phase corev1.PodPhase, slices string) {
		b.api.Put(t, "pods", &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "x", Annotations: map[string]string{hami.PodAllocated: slices}},
			Spec:       corev1.PodSpec{NodeName: worker}, Status: corev1.PodStatus{Phase: phase},
		})
	}
	pod("running", corev1.PodRunning, "GPU-b,NVIDIA,10000,30:;")
	pod("ended", corev1.PodSucceeded, "GPU-b,NVIDIA,10000,30:;")
	pod("elsewhere", corev1.PodRunning, "GPU-a,NVIDIA,5000,10:;")
	b.await(ill(), bothCards, "91920 130 141")
	pod("running-2", corev1.PodRunning, ";GPU-b,NVIDIA,20000,80:;")
	b.await(ill(), bothCards, "106496 200 200")
	b.api.Delete("pods", "x", "running")
	b.api.Delete("pods", "x", "running-2")
	b.await(ill(), bothCards, "81920 100 100")

	b.store.Set(cards)
	b.await(cards, bothCards, bothCards)
}

// TestQuarrelWithTheKubelet has somebody undo each write at once.
func TestQuarrelWithTheKubelet(t *testing.T) {
	b := newBed(t)
	b.keeper.Resync = time.Hour
	b.keeper.writes = rate.NewLimiter(rate.Every(time.Hour), 4)
	var undone atomic.Int32
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	go func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			node := corev1.Node{}
			b.api.Get(t, "nodes", "", worker, &node)
			if memory := node.Status.Allocatable[ResourceMemory]; memory.Value() == 81920 {
				b.api.Merge("nodes", "", worker, `{"status":{"allocatable":{"nvidia.com/gpumem":"106496"}}}`)
				undone.Add(1)
			}
		}
	}()
	b.start()
	b.store.Set(ill())
	apitest.Eventually(t, func() string {
		if n := undone.Load(); n != 4 {
			return fmt.Sprintf("%d writes undone, want 4", n)
		}
		return ""
	})
	// The fifth is due in an hour. That it does not come sooner can only be
	// seen by waiting; a loop without a limit makes hundreds of them.
	<-time.After(200 * time.Millisecond)
	if n := undone.Load(); n != 4 {
		t.Errorf("%d writes, want 4", n)
	}
	if b.keeper.Ready() == nil {
		t.Error("ready, though the node shows something else")
	}
}

func TestAPIErrors(t *testing.T) {
	for name, fault := range map[string]apitest.Fault{
		"unavailable": apitest.Unavailable, "forbidden": apitest.Forbidden, "conflict": apitest.Conflict,
	} {
		for _, resource := range []string{"nodes", "nodes/status", "pods"} {
			t.Run(name+" "+resource, func(t *testing.T) {
				b := newBed(t)
				b.keeper.Resync = time.Hour
				var seen atomic.Int32
				b.api.OnRequest(func(r apitest.Request) apitest.Fault {
					if r.Resource == resource && r.Verb != "list" == (resource != "pods") && seen.Add(1) <= 2 {
						return fault
					}
					return 0
				})
				b.start()
				b.store.Set(ill())
				b.await(ill(), bothCards, "81920 100 100")
				if seen.Load() < 3 {
					t.Errorf("%d attempts, want two in vain and a third", seen.Load())
				}
			})
		}
	}
}

func TestStaleLocks(t *testing.T) {
	const lock = "2026-12-01T03:00:00Z,team-a,train"
	t.Run("asked about after a time", func(t *testing.T) {
		b := newBed(t)
		b.keeper.StaleAfter = 50 * time.Millisecond
		asked := make(chan string, 100)
		b.keeper.ReleaseStale = func(_ context.Context, lock string) error { asked <- lock; return nil }
		b.annotate(hami.NodeLock, lock)
		started := time.Now()
		b.start()
		b.store.Set(cards)
		if got := <-asked; got != lock {
			t.Errorf("asked about %q", got)
		}
		if after := time.Since(started); after < b.keeper.StaleAfter {
			t.Errorf("asked about already after %s", after)
		}
	})
	t.Run("not about a young one", func(t *testing.T) {
		b := newBed(t)
		b.keeper.StaleAfter = time.Hour
		b.keeper.ReleaseStale = func(context.Context, string) error { t.Error("asked"); return nil }
		b.annotate(hami.NodeLock, lock)
		node := b.get()
		for range 3 {
			b.keeper.watchLock(t.Context(), &node)
		}
	})
	t.Run("the time is each lock's own", func(t *testing.T) {
		b := newBed(t)
		b.keeper.StaleAfter = time.Minute
		b.keeper.ReleaseStale = func(context.Context, string) error { t.Error("asked"); return nil }
		b.annotate(hami.NodeLock, lock)
		node := b.get()
		b.keeper.watchLock(t.Context(), &node)
		b.keeper.lockSince = b.keeper.lockSince.Add(-time.Hour)
		b.annotate(hami.NodeLock, lock+"-2")
		node = b.get()
		b.keeper.watchLock(t.Context(), &node)
	})
}

func TestWithdraw(t *testing.T) {
	b := newBed(t)
	b.store.Set(cards)
	b.annotate(hami.NodeRegister, cards.Canonical())
	b.annotate(hami.NodeHandshake, "Requesting_2026-12-01 03:00:00")
	b.api.Merge("nodes", "", worker, `{"status":{"capacity":{"nvidia.com/gpumem":"1","nvidia.com/gpucores":"1"},"allocatable":{"nvidia.com/gpumem":"1"}}}`)
	for range 2 { // It can be repeated.
		if err := Withdraw(t.Context(), b.api.Client(t), worker); err != nil {
			t.Fatal(err)
		}
		node := b.get()
		if len(node.Annotations) != 1 || node.Annotations["other"] != "kept" {
			t.Errorf("annotations are %v", node.Annotations)
		}
		if len(node.Status.Capacity) != 1 || len(node.Status.Allocatable) != 1 {
			t.Errorf("capacity is %v, allocatable %v, want cpu only", node.Status.Capacity, node.Status.Allocatable)
		}
	}
	b.api.Delete("nodes", "", worker)
	if err := Withdraw(t.Context(), b.api.Client(t), worker); err != nil {
		t.Errorf("of a node that is gone: %v", err)
	}
}
