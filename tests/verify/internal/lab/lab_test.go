package lab

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/stack"
)

func holding(node, slices string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p-" + node, Namespace: "n", Annotations: map[string]string{annotationAllocated: slices}},
		Spec:       corev1.PodSpec{NodeName: node},
	}
}

func TestSlices(t *testing.T) {
	for text, want := range map[string][]Slice{
		"":                        nil,
		";;":                      nil,
		"GPU-1,NVIDIA,20000,30:;": {{"GPU-1", 20000, 30}},
		";GPU-1,NVIDIA,1,2:GPU-2,NVIDIA,3,0:;GPU-1,NVIDIA,5,6:;": {{"GPU-1", 1, 2}, {"GPU-2", 3, 0}, {"GPU-1", 5, 6}},
	} {
		got, err := Slices(holding("a", text))
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"GPU-1,NVIDIA,1:;", "GPU-1,NVIDIA,x,1:;", "GPU-1,NVIDIA,1,y:;"} {
		if got, err := Slices(holding("a", text)); err == nil || !strings.Contains(err.Error(), "n/p-a") {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func TestRegistered(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w", Annotations: map[string]string{
		annotationRegister: `[{"id":"GPU-1","index":0,"count":10,"devmem":81920,"devcore":100,"type":"NVIDIA A","numa":0,"mode":"hami-core","health":true}]`,
	}}}
	want := []stack.Card{{UUID: "GPU-1", Type: "NVIDIA A", MemoryMiB: 81920, Cores: 100, Slices: 10, Healthy: true}}
	if got, err := Registered(node); err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	node.Annotations[annotationRegister] = "["
	if _, err := Registered(node); err == nil || !strings.Contains(err.Error(), "node w") {
		t.Errorf("half an annotation: %v", err)
	}
	if got, err := Registered(&corev1.Node{}); err != nil || got != nil {
		t.Errorf("none: %v, %v", got, err)
	}
}

// TestFreeCard: the largest healthy card of which no bound pod holds anything.
func TestFreeCard(t *testing.T) {
	tenant := &Tenant{Tenant: stack.Tenant{Workers: []stack.Worker{
		{Node: "w0", Cards: []stack.Card{{UUID: "broken", MemoryMiB: 900}, {UUID: "small", MemoryMiB: 10, Healthy: true}, {UUID: "large", MemoryMiB: 50, Healthy: true}}},
		{Node: "w1", Cards: []stack.Card{{UUID: "middle", MemoryMiB: 20, Healthy: true}}},
		{Node: "w2"},
	}}}
	for _, test := range []struct {
		held       []string
		node, card string
	}{
		{nil, "w0", "large"},
		{[]string{"large,NVIDIA,1,1:;"}, "w1", "middle"},
		{[]string{"large,NVIDIA,1,1:;", "middle,NVIDIA,1,1:;"}, "w0", "small"},
		{[]string{"large,NVIDIA,1,1:middle,NVIDIA,1,1:;small,NVIDIA,1,1:;"}, "", ""},
	} {
		client := fake.NewClientset()
		for i, text := range test.held {
			pod := holding("w", text)
			pod.Name += string(rune('a' + i))
			if _, err := client.CoreV1().Pods("n").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		waiting := holding("", "small,NVIDIA,1,1:;") // HAMi annotates before it binds
		if _, err := client.CoreV1().Pods("n").Create(t.Context(), waiting, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		tenant.Cluster = &Cluster{Client: client}
		worker, card, err := tenant.FreeCard(t.Context())
		if err != nil || worker.Node != test.node || card.UUID != test.card {
			t.Errorf("with %q held: %s on %s, %v", test.held, card.UUID, worker.Node, err)
		}
	}
}

func TestUntil(t *testing.T) {
	asked := 0
	err := Until(t.Context(), time.Minute, "it", func(context.Context) (string, error) {
		if asked++; asked < 3 {
			return NotYet("asked %d times", asked)
		}
		return "", nil
	})
	if err != nil || asked != 3 {
		t.Errorf("asked %d times: %v", asked, err)
	}
	var timeout *TimeoutError
	err = Until(t.Context(), 50*time.Millisecond, "it", func(context.Context) (string, error) { return NotYet("only this") })
	if !errors.As(err, &timeout) || timeout.Seen != "only this" {
		t.Errorf("a condition that is not met: %v", err)
	}
	err = Until(t.Context(), 50*time.Millisecond, "it", func(context.Context) (string, error) { return "", errors.New("connection refused") })
	if !errors.As(err, &timeout) || timeout.Seen != "connection refused" {
		t.Errorf("an API server that is away: %v", err)
	}
	asked = 0
	err = Until(t.Context(), 700*time.Millisecond, "it", func(context.Context) (string, error) {
		if asked++; asked == 1 {
			return "", errors.New("no such account")
		}
		return "", errors.New("client rate limiter Wait returned an error: rate: Wait(n=1) would exceed context deadline")
	})
	if !errors.As(err, &timeout) || timeout.Seen != "no such account" {
		t.Errorf("the end of the wait hides what was seen: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("interrupted")
	cancel(reason)
	if err := Until(ctx, time.Minute, "it", func(ctx context.Context) (string, error) { return "", ctx.Err() }); !errors.Is(err, reason) {
		t.Errorf("interrupted: %v", err)
	}
}

// TestPrepare: what a run that was killed left goes, what is others' stays.
func TestPrepare(t *testing.T) {
	left := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "verify-old", Labels: map[string]string{Label: "true"}}}
	others := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "verify-mine"}}
	client := fake.NewClientset(left, others)
	tenant := &Tenant{Tenant: stack.Tenant{Name: "a"}, Cluster: &Cluster{Client: client}}
	if err := tenant.Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err := client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "verify-mine" {
		t.Errorf("left: %v, %v", list.Items, err)
	}
}
