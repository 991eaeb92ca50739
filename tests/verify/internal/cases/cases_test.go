package cases

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/lab"
	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/report"
	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/stack"
)

func TestCheck(t *testing.T) {
	for _, test := range []struct {
		options Options
		want    []string
	}{
		{Options{}, nil},
		{Options{Only: []string{"TC-03", "TC-11"}}, nil},
		{Options{Only: []string{"TC-12"}, Disrupt: true}, nil},
		{Options{Only: []string{"TC-12", "TC-99"}}, []string{"TC-12", "TC-99"}},
	} {
		test.options.Patience = time.Second
		err := test.options.Check()
		if (err == nil) != (test.want == nil) {
			t.Errorf("%+v: %v", test.options, err)
		}
		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v does not name %s", test.options, err, want)
			}
		}
	}
}

// TestCheckPatience: without any, every case would fail.
func TestCheckPatience(t *testing.T) {
	if err := (Options{Patience: -time.Second}).Check(); err == nil || !strings.Contains(err.Error(), "-1s") {
		t.Errorf("%v", err)
	}
}

// TestChosen: every case is run by exactly one of the two rounds.
func TestChosen(t *testing.T) {
	quiet, loud := chosen(Options{}, false), chosen(Options{}, true)
	if len(quiet)+len(loud) != len(All) || len(loud) != 3 {
		t.Errorf("%d and %d of %d", len(quiet), len(loud), len(All))
	}
	seen := map[string]bool{}
	for _, c := range All {
		if seen[c.ID] {
			t.Errorf("%s twice", c.ID)
		}
		seen[c.ID] = true
	}
}

// TestQuarter: three fit beside each other, and a round number comes out.
func TestQuarter(t *testing.T) {
	for memory, want := range map[int64]int64{81920: 20000, 23034: 5700, 15360: 3800, 100: 25, 4: 1, 1: 1} {
		if got := quarter(memory); got != want {
			t.Errorf("of %d: %d, not %d", memory, got, want)
		}
		if memory >= 4 && 3*quarter(memory) > memory {
			t.Errorf("three quarters of %d do not fit", memory)
		}
	}
}

// with is a run against an API server that holds objects.
func with(worker stack.Worker, objects ...metav1.Object) *run {
	client := fake.NewClientset()
	for _, object := range objects {
		switch object := object.(type) {
		case *corev1.Pod:
			_ = client.Tracker().Add(object)
		case *corev1.Node:
			_ = client.Tracker().Add(object)
		case *eventsv1.Event:
			_ = client.Tracker().Add(object)
		}
	}
	tenant := &lab.Tenant{
		Tenant: stack.Tenant{Name: "a", Workers: []stack.Worker{worker}}, Cluster: &lab.Cluster{Client: client}, Namespace: "n",
		Lab: &lab.Lab{Stack: &stack.Stack{Mock: "agent"}},
	}
	return &run{Tenant: tenant, patience: 2 * time.Second, longPatience: 2 * time.Second}
}

func pod(node, scheduler string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n"}, Spec: corev1.PodSpec{NodeName: node, SchedulerName: scheduler}}
}

func event(note string) *eventsv1.Event {
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "n"}, Reason: "FilteringFailed", Note: note,
		Regarding: corev1.ObjectReference{Kind: "Pod", Name: "p"},
	}
}

// TestRefused: HAMi's reason counts, and that nobody else places the pod.
func TestRefused(t *testing.T) {
	r := with(stack.Worker{}, pod("", lab.SchedulerName), event("0/1 nodes: 1 CardInsufficientCore(w)"))
	if said, err := r.refused(t.Context(), "p", "CardInsufficientCore"); err != nil || !strings.Contains(said, "(w)") {
		t.Errorf("%q, %v", said, err)
	}
	r = with(stack.Worker{}, pod("w", "default-scheduler"), event("0/1 nodes: 1 CardInsufficientCore(w)"))
	var failure *report.Failure
	if _, err := r.refused(t.Context(), "p", "CardInsufficientCore"); !errors.As(err, &failure) || !strings.Contains(failure.Seen, "default-scheduler") {
		t.Errorf("placed behind HAMi's back: %v", err)
	} else if !slices.ContainsFunc(failure.Look, func(look string) bool { return strings.Contains(look, "FilteringFailed") }) {
		t.Errorf("the events are not shown: %q", failure.Look)
	}
}

// TestInventoryOf: each number that differs is a failure.
func TestInventoryOf(t *testing.T) {
	worker := stack.Worker{Node: "w", Cards: []stack.Card{
		{UUID: "GPU-1", Type: "T", MemoryMiB: 20000, Cores: 100, Slices: 10, Healthy: true},
		{UUID: "GPU-2", Type: "T", MemoryMiB: 300, Cores: 100, Slices: 10},
	}}
	const register = `[{"id":"GPU-2","count":10,"devmem":300,"devcore":100,"type":"T","health":false},{"id":"GPU-1","count":10,"devmem":20000,"devcore":100,"type":"T","health":true}]`
	node := func(slices, memory, cores, register string) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "w", Annotations: map[string]string{"hami.io/node-nvidia-register": register}},
			Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
				lab.ResourceGPU: resource.MustParse(slices), lab.ResourceMemory: resource.MustParse(memory), lab.ResourceCores: resource.MustParse(cores),
			}},
		}
	}
	for name, test := range map[string]struct {
		node *corev1.Node
		ok   bool
	}{
		"as it is to be":                 {node("10", "20k", "100", register), true},
		"pods hold of the broken card":   {node("10", "20300", "150", register), true},
		"a slice too few":                {node("9", "20k", "100", register), false},
		"the broken card's slices":       {node("20", "20k", "100", register), false},
		"memory missing":                 {node("10", "19999", "100", register), false},
		"too much memory":                {node("10", "20301", "100", register), false},
		"no cores":                       {node("10", "20k", "0", register), false},
		"registered with another health": {node("10", "20k", "100", strings.ReplaceAll(register, "false", "true")), false},
		"not registered":                 {node("10", "20k", "100", ""), false},
	} {
		_, err := with(worker, test.node).inventoryOf(t.Context(), worker)
		if (err == nil) != test.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPlay: a case that was cut off is not reported.
func TestPlay(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var said strings.Builder
	results := report.New(&said)
	with(stack.Worker{}).play(ctx, Case{ID: "TC-x", Run: func(context.Context, *run) (string, error) { cancel(); return "", ctx.Err() }}, results)
	if len(results.Results()) > 0 {
		t.Errorf("reported: %s", &said)
	}
	with(stack.Worker{}).play(t.Context(), Case{ID: "TC-x", Run: func(context.Context, *run) (string, error) { return "seen", nil }}, results)
	if got := results.Results(); len(got) != 1 || got[0].Status != report.Passed || got[0].Tenant != "a" {
		t.Errorf("%+v", got)
	}
}
