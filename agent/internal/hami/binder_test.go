package hami

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-tenants/gpu-tenants/agent/internal/apitest"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/metrics"
)

const (
	worker = "worker-1"
	ns     = "team-a"
	// sliceA and sliceB are what the pods of the tests are given.
	sliceA = "GPU-a,NVIDIA,20000,30:"
	sliceB = "GPU-b,NVIDIA,10000,0:"
)

// bed is a binder with an API server.
type bed struct {
	*testing.T
	api     *apitest.Server
	binder  *Binder
	metrics *metrics.Metrics
}

func newBed(t *testing.T) *bed {
	t.Helper()
	api := apitest.New(t)
	m := metrics.New(prometheus.NewRegistry())
	b := NewBinder(api.Client(t), worker, m, slog.New(slog.DiscardHandler))
	return &bed{t, api, b, m}
}

func lockOf(pod string) string { return "2026-12-01T03:00:00Z," + ns + "," + pod }

// node makes the worker, locked for a pod unless that is empty.
func (b *bed) node(pod string) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: worker, Annotations: map[string]string{"other": "kept"}}}
	if pod != "" {
		node.Annotations[NodeLock] = lockOf(pod)
	}
	b.api.Put(b.T, "nodes", node)
}

// pod makes one that HAMi has just bound, after changes to it.
func (b *bed) pod(name, slices string, changes ...func(*corev1.Pod)) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns, Annotations: map[string]string{
			PodNode: worker, PodBindPhase: PhaseAllocating, PodBindTime: "1764558000",
			PodToAllocate: slices, PodAllocated: slices,
		}},
		Spec:   corev1.PodSpec{NodeName: worker},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	for i := range strings.Count(slices, ";") {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", i)})
	}
	for _, change := range changes {
		change(pod)
	}
	b.api.Put(b.T, "pods", pod)
}

// complete allocates n slices to each of some containers.
func (b *bed) complete(n ...int) ([]Assignment, error) {
	return b.binder.Complete(b.Context(), n, func(Slice) error { return nil })
}

// expectPod compares what is left and the phase.
func (b *bed) expectPod(name, left, phase string) {
	b.Helper()
	var pod corev1.Pod
	if !b.api.Get(b.T, "pods", ns, name, &pod) {
		b.Errorf("pod %s is gone", name)
		return
	}
	if got := pod.Annotations[PodToAllocate]; got != left {
		b.Errorf("pod %s: left is %q, want %q", name, got, left)
	}
	if got := pod.Annotations[PodBindPhase]; got != phase {
		b.Errorf("pod %s: phase is %q, want %q", name, got, phase)
	}
}

func (b *bed) expectLock(want string) {
	b.Helper()
	var node corev1.Node
	b.api.Get(b.T, "nodes", "", worker, &node)
	if got := node.Annotations[NodeLock]; got != want {
		b.Errorf("lock is %q, want %q", got, want)
	}
	if node.Annotations["other"] != "kept" {
		b.Errorf("annotations of others have been touched: %v", node.Annotations)
	}
}

func (b *bed) expectContainers(got []Assignment, err error, want ...string) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
	names := make([]string, 0, len(got))
	for _, assignment := range got {
		names = append(names, assignment.Container)
	}
	if fmt.Sprint(names) != fmt.Sprint(want) {
		b.Errorf("containers %v, want %v", names, want)
	}
}

func (b *bed) expectCount(counter *prometheus.CounterVec, label string, want float64) {
	b.Helper()
	if got := testutil.ToFloat64(counter.WithLabelValues(label)); got != want {
		b.Errorf("%s counted %v times, want %v", label, got, want)
	}
}

// nth applies a fault to the first n requests of a kind.
func (b *bed) nth(n int, fault apitest.Fault, verb, resource string) {
	var seen atomic.Int32
	b.api.OnRequest(func(r apitest.Request) apitest.Fault {
		if r.Verb == verb && r.Resource == resource && int(seen.Add(1)) <= n {
			return fault
		}
		return 0
	})
}

const forever = 1 << 30

func TestCompleteOneContainer(t *testing.T) {
	b := newBed(t)
	b.node("p")
	b.pod("p", sliceA+";")
	got, err := b.complete(1)
	b.expectContainers(got, err, "c0")
	if want := (Slice{"GPU-a", "NVIDIA", 20000, 30}); len(got) == 1 && (len(got[0].Slices) != 1 || got[0].Slices[0] != want) {
		t.Errorf("got %v, want %v", got[0].Slices, want)
	}
	b.expectPod("p", ";", PhaseSuccess)
	b.expectLock("")
	var pod corev1.Pod
	b.api.Get(t, "pods", ns, "p", &pod)
	if pod.Annotations[PodAllocated] != sliceA+";" || pod.Annotations[PodBindTime] != "1764558000" {
		t.Errorf("annotations of the scheduler have been touched: %v", pod.Annotations)
	}
	b.expectCount(b.metrics.Allocations, metrics.ResultSuccess, 1)
	b.expectCount(b.metrics.LockReleases, metrics.ReasonDone, 1)
}

func TestCompleteContainerByContainer(t *testing.T) {
	b := newBed(t)
	b.node("p")
	// A container without a card stands between those with one.
	b.pod("p", sliceA+";;"+sliceB+";"+sliceA+sliceB+";", func(pod *corev1.Pod) {
		pod.Spec.InitContainers = []corev1.Container{{Name: "init"}}
		pod.Spec.Containers = []corev1.Container{{Name: "log"}, {Name: "train"}, {Name: "serve"}}
	})
	for _, step := range []struct {
		slices                 int
		container, left, phase string
		lock                   string
	}{
		{1, "init", ";;" + sliceB + ";" + sliceA + sliceB + ";", PhaseAllocating, lockOf("p")},
		{1, "train", ";;;" + sliceA + sliceB + ";", PhaseAllocating, lockOf("p")},
		{2, "serve", ";;;;", PhaseSuccess, ""},
	} {
		got, err := b.complete(step.slices)
		b.expectContainers(got, err, step.container)
		b.expectPod("p", step.left, step.phase)
		b.expectLock(step.lock)
	}
	b.expectCount(b.metrics.LockReleases, metrics.ReasonDone, 1)
}

func TestCompleteSeveralContainersInOneCall(t *testing.T) {
	b := newBed(t)
	b.node("p")
	b.pod("p", sliceA+";;"+sliceA+sliceB+";")
	got, err := b.complete(1, 2)
	b.expectContainers(got, err, "c0", "c2")
	b.expectPod("p", ";;;", PhaseSuccess)
	b.expectLock("")
}

func TestCompleteFails(t *testing.T) {
	refuse := func(Slice) error { return errors.New("no such card") }
	accept := func(Slice) error { return nil }
	for name, test := range map[string]struct {
		slices string
		want   []int
		check  func(Slice) error
	}{
		"fewer slices than asked for": {sliceA + ";", []int{2}, accept},
		"more slices than asked for":  {sliceA + sliceB + ";", []int{1}, accept},
		"fewer containers":            {sliceA + ";", []int{1, 1}, accept},
		"card refused":                {sliceA + ";", []int{1}, refuse},
		"unreadable list":             {"GPU-a;", []int{1}, accept},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.node("p")
			b.pod("p", test.slices)
			if got, err := b.binder.Complete(t.Context(), test.want, test.check); err == nil {
				t.Errorf("allocated %v", got)
			}
			b.expectPod("p", test.slices, PhaseFailed)
			b.expectLock("")
			b.expectCount(b.metrics.Allocations, metrics.ResultFailed, 1)
			b.expectCount(b.metrics.LockReleases, metrics.ReasonFailed, 1)
		})
	}
}

func TestCompleteFailsInTheSecondContainer(t *testing.T) {
	b := newBed(t)
	b.node("p")
	b.pod("p", sliceA+";"+sliceB+";")
	got, err := b.complete(1)
	b.expectContainers(got, err, "c0")
	if _, err := b.complete(7); err == nil {
		t.Error("7 slices allocated where HAMi has allotted 1")
	}
	b.expectPod("p", ";"+sliceB+";", PhaseFailed)
	b.expectLock("")
}

func TestLockOfAnotherPodStays(t *testing.T) {
	// The other pod has the lock but is not bound to this node yet.
	other := func(pod *corev1.Pod) { pod.Spec.NodeName = "" }
	t.Run("success", func(t *testing.T) {
		b := newBed(t)
		b.node("other")
		b.pod("other", sliceB+";", other)
		b.pod("p", sliceA+";")
		got, err := b.complete(1)
		b.expectContainers(got, err, "c0")
		b.expectPod("p", ";", PhaseSuccess)
		b.expectPod("other", sliceB+";", PhaseAllocating)
		b.expectLock(lockOf("other"))
	})
	t.Run("failure", func(t *testing.T) {
		b := newBed(t)
		b.node("other")
		b.pod("other", sliceB+";", other)
		b.pod("p", sliceA+";")
		if _, err := b.complete(2); err == nil {
			t.Error("2 slices allocated where HAMi has allotted 1")
		}
		b.expectPod("p", sliceA+";", PhaseFailed)
		b.expectPod("other", sliceB+";", PhaseAllocating)
		b.expectLock(lockOf("other"))
	})
	t.Run("taken meanwhile", func(t *testing.T) {
		// The scheduler has given the lock away between the last container and
		// the release.
		b := newBed(t)
		b.node("p")
		b.pod("p", sliceA+";")
		b.api.OnRequest(func(r apitest.Request) apitest.Fault {
			if r.Verb == "patch" && r.Resource == "pods" {
				b.api.Merge("nodes", "", worker, `{"metadata":{"annotations":{"`+NodeLock+`":"`+lockOf("other")+`"}}}`)
			}
			return 0
		})
		got, err := b.complete(1)
		b.expectContainers(got, err, "c0")
		b.expectLock(lockOf("other"))
		b.expectCount(b.metrics.LockReleases, metrics.ReasonDone, 0)
	})
	t.Run("same name, later lock", func(t *testing.T) {
		// A StatefulSet's pod has been made anew and holds a lock of its own.
		later := strings.Replace(lockOf("p"), "03:00:00", "03:00:07", 1)
		b := newBed(t)
		b.node("p")
		b.pod("p", sliceA+";")
		b.api.OnRequest(func(r apitest.Request) apitest.Fault {
			if r.Verb == "patch" && r.Resource == "pods" {
				b.api.Delete("pods", ns, "p")
				b.pod("p", sliceB+";")
				b.api.Merge("nodes", "", worker, `{"metadata":{"annotations":{"`+NodeLock+`":"`+later+`"}}}`)
			}
			return 0
		})
		if _, err := b.complete(1); !errors.Is(err, ErrVanished) {
			t.Errorf("error is %v, want that the pod vanished", err)
		}
		b.expectPod("p", sliceB+";", PhaseAllocating)
		b.expectLock(later)
	})
}

func TestWithoutALockThePodThatWaitsLongest(t *testing.T) {
	at := func(seconds string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Annotations[PodBindTime] = seconds }
	}
	b := newBed(t)
	b.node("")
	b.pod("a", sliceB+";", at("1764558002"))
	b.pod("b", sliceA+";", at("1764558001"))
	// None of these waits for a card here.
	b.pod("c", sliceA+";", at("1"), func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodRunning })
	b.pod("d", sliceA+";", at("1"), func(pod *corev1.Pod) { pod.Annotations[PodBindPhase] = PhaseSuccess })
	b.pod("e", sliceA+";", at("1"), func(pod *corev1.Pod) { pod.Annotations[PodBindPhase] = PhaseFailed })
	b.pod("f", sliceA+";", at("1"), func(pod *corev1.Pod) { pod.Annotations[PodNode] = "worker-2" })
	b.pod("g", sliceA+";", at("1"), func(pod *corev1.Pod) { pod.Spec.NodeName = "worker-2" })
	b.pod("h", ";", at("1"))
	b.pod("i", sliceA+";", at("1"), func(pod *corev1.Pod) {
		now := metav1.Now()
		pod.DeletionTimestamp, pod.Finalizers = &now, []string{"example.com/x"}
	})
	for _, want := range []string{"b", "a"} {
		got, err := b.complete(1)
		b.expectContainers(got, err, "c0")
		if len(got) == 1 && got[0].Pod != want {
			t.Errorf("pod %s, want %s", got[0].Pod, want)
		}
	}
	if _, err := b.complete(1); !errors.Is(err, ErrNoPod) {
		t.Errorf("error is %v, want that no pod waits", err)
	}
	b.expectCount(b.metrics.Allocations, metrics.ResultNoPod, 1)
}

func TestTwoPodsAtOnce(t *testing.T) {
	b := newBed(t)
	b.node("p")
	b.pod("p", sliceA+";")
	b.pod("q", sliceB+";")
	var calls sync.WaitGroup
	pods := make(chan string, 2)
	for range 2 {
		calls.Go(func() {
			got, err := b.complete(1)
			if err != nil {
				t.Error(err)
				return
			}
			pods <- got[0].Pod + " " + got[0].Slices[0].Card
		})
	}
	calls.Wait()
	close(pods)
	seen := map[string]bool{}
	for pod := range pods {
		seen[pod] = true
	}
	if !seen["p GPU-a"] || !seen["q GPU-b"] {
		t.Errorf("allocated %v", seen)
	}
	b.expectPod("p", ";", PhaseSuccess)
	b.expectPod("q", ";", PhaseSuccess)
	b.expectLock("")
}

func TestWaitingForATurnIsBounded(t *testing.T) {
	b := newBed(t)
	b.node("p")
	b.pod("p", sliceA+";")
	b.binder.Budget = 20 * time.Millisecond
	b.binder.turn <- struct{}{}
	if _, err := b.complete(1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v, want that the time is up", err)
	}
	b.expectPod("p", sliceA+";", PhaseAllocating)
	b.expectLock(lockOf("p"))
}

func TestVanishedPod(t *testing.T) {
	t.Run("before", func(t *testing.T) {
		b := newBed(t)
		b.node("p")
		// Not even another pod that waits may be served: the kubelet has asked
		// for a pod that it knows, and that is the one with the lock.
		b.pod("q", sliceB+";")
		if _, err := b.complete(1); !errors.Is(err, ErrVanished) {
			t.Errorf("error is %v, want that the pod vanished", err)
		}
		b.expectLock("")
		b.expectPod("q", sliceB+";", PhaseAllocating)
		b.expectCount(b.metrics.Allocations, metrics.ResultVanished, 1)
		b.expectCount(b.metrics.LockReleases, metrics.ReasonVanished, 1)
	})
	t.Run("in between", func(t *testing.T) {
		b := newBed(t)
		b.node("p")
		b.pod("p", sliceA+";")
		b.api.OnRequest(func(r apitest.Request) apitest.Fault {
			if r.Verb == "patch" && r.Resource == "pods" {
				b.api.Delete("pods", ns, "p")
			}
			return 0
		})
		if _, err := b.complete(1); !errors.Is(err, ErrVanished) {
			t.Errorf("error is %v, want that the pod vanished", err)
		}
		b.expectLock("")
	})
}

func TestConflictsAreRetried(t *testing.T) {
	for _, resource := range []string{"pods", "nodes"} {
		t.Run(resource, func(t *testing.T) {
			b := newBed(t)
			b.node("p")
			b.pod("p", sliceA+";")
			var conflicts atomic.Int32
			b.api.OnRequest(func(r apitest.Request) apitest.Fault {
				// Not a pretended conflict: somebody has really been quicker.
				if r.Verb == "patch" && r.Resource == resource && conflicts.Add(1) <= 3 {
					b.api.Merge(resource, r.Namespace, r.Name, fmt.Sprintf(`{"metadata":{"labels":{"n":"%d"}}}`, conflicts.Load()))
				}
				return 0
			})
			got, err := b.complete(1)
			b.expectContainers(got, err, "c0")
			b.expectPod("p", ";", PhaseSuccess)
			b.expectLock("")
			if conflicts.Load() != 4 {
				t.Errorf("%d patches, want 3 conflicts and a success", conflicts.Load())
			}
		})
	}
}

func TestConflictShowsWhatOthersDid(t *testing.T) {
	// While the pod is read and written the scheduler fails it. Nothing may be
	// taken from it then.
	b := newBed(t)
	b.node("p")
	b.pod("p", sliceA+";")
	b.api.OnRequest(func(r apitest.Request) apitest.Fault {
		if r.Verb == "patch" && r.Resource == "pods" {
			b.api.Merge("pods", ns, "p", `{"metadata":{"annotations":{"`+PodBindPhase+`":"failed"}}}`)
		}
		return 0
	})
	if got, err := b.complete(1); err == nil {
		t.Errorf("allocated %v", got)
	}
	b.expectPod("p", sliceA+";", PhaseFailed)
	b.expectLock("")
}

func TestConflictsForever(t *testing.T) {
	t.Run("pods", func(t *testing.T) {
		b := newBed(t)
		b.node("p")
		b.pod("p", sliceA+";")
		b.binder.Budget, b.binder.Cleanup = 200*time.Millisecond, 300*time.Millisecond
		b.nth(forever, apitest.Conflict, "patch", "pods")
		if got, err := b.complete(1); err == nil {
			t.Errorf("allocated %v", got)
		}
		b.expectPod("p", sliceA+";", PhaseAllocating)
	})
	t.Run("pods, ending with the budget", func(t *testing.T) {
		b := newBed(t)
		b.node("p")
		b.pod("p", sliceA+";")
		b.binder.Budget = 200 * time.Millisecond
		end := time.Now().Add(b.binder.Budget)
		b.api.OnRequest(func(r apitest.Request) apitest.Fault {
			if r.Verb == "patch" && r.Resource == "pods" && time.Now().Before(end) {
				return apitest.Conflict
			}
			return 0
		})
		if got, err := b.complete(1); err == nil {
			t.Errorf("allocated %v", got)
		}
		b.expectPod("p", sliceA+";", PhaseFailed)
		b.expectLock("")
	})
	t.Run("nodes", func(t *testing.T) {
		// The pod has what it needs. Its lock is left to ReleaseStale.
		b := newBed(t)
		b.node("p")
		b.pod("p", sliceA+";")
		b.binder.Budget = 200 * time.Millisecond
		b.nth(forever, apitest.Conflict, "patch", "nodes")
		got, err := b.complete(1)
		b.expectContainers(got, err, "c0")
		b.expectPod("p", ";", PhaseSuccess)
		b.expectLock(lockOf("p"))

		b.api.OnRequest(nil)
		if err := b.binder.ReleaseStale(t.Context(), lockOf("p")); err != nil {
			t.Error(err)
		}
		b.expectLock("")
		b.expectCount(b.metrics.LockReleases, metrics.ReasonStale, 1)
	})
}

func TestServerThatIsSlowOrAway(t *testing.T) {
	for name, fault := range map[string]apitest.Fault{"hangs": apitest.Hang, "is unavailable": apitest.Unavailable} {
		for _, request := range [][2]string{{"get", "nodes"}, {"get", "pods"}, {"patch", "pods"}, {"patch", "nodes"}} {
			t.Run(name+" at "+request[0]+" "+request[1], func(t *testing.T) {
				b := newBed(t)
				b.node("p")
				b.pod("p", sliceA+";")
				b.binder.Request = 100 * time.Millisecond
				b.nth(2, fault, request[0], request[1])
				got, err := b.complete(1)
				b.expectContainers(got, err, "c0")
				b.expectPod("p", ";", PhaseSuccess)
				b.expectLock("")
			})
		}
	}
	t.Run("for good", func(t *testing.T) {
		b := newBed(t)
		b.node("p")
		b.pod("p", sliceA+";")
		b.binder.Budget, b.binder.Cleanup, b.binder.Request = 200*time.Millisecond, 100*time.Millisecond, 50*time.Millisecond
		b.api.OnRequest(func(apitest.Request) apitest.Fault { return apitest.Hang })
		started := time.Now()
		if got, err := b.complete(1); err == nil {
			t.Errorf("allocated %v", got)
		}
		// Far from both the 300 ms that it should take and the time that the
		// defaults would let it.
		if took := time.Since(started); took > 5*time.Second {
			t.Errorf("took %s", took)
		}
		b.expectLock(lockOf("p"))
	})
	t.Run("for good after the pod was read", func(t *testing.T) {
		b := newBed(t)
		b.node("p")
		b.pod("p", sliceA+";")
		b.binder.Budget, b.binder.Cleanup, b.binder.Request = 200*time.Millisecond, 100*time.Millisecond, 50*time.Millisecond
		b.nth(forever, apitest.Hang, "patch", "pods")
		started := time.Now()
		if got, err := b.complete(1); err == nil {
			t.Errorf("allocated %v", got)
		}
		if took := time.Since(started); took > 5*time.Second {
			t.Errorf("took %s", took)
		}
	})
}

func TestLostAnswers(t *testing.T) {
	t.Run("of the pod", func(t *testing.T) {
		// Carried out without an answer, the patch must not be repeated: the
		// next container's slice would be lost.
		b := newBed(t)
		b.node("p")
		b.pod("p", sliceA+";"+sliceB+";")
		b.binder.Request = 100 * time.Millisecond
		b.nth(1, apitest.Lose, "patch", "pods")
		got, err := b.complete(1)
		b.expectContainers(got, err, "c0")
		b.expectPod("p", ";"+sliceB+";", PhaseAllocating)
		b.expectLock(lockOf("p"))

		b.nth(1, apitest.Lose, "patch", "pods")
		got, err = b.complete(1)
		b.expectContainers(got, err, "c1")
		b.expectPod("p", ";;", PhaseSuccess)
		b.expectLock("")
	})
	t.Run("of the lock", func(t *testing.T) {
		b := newBed(t)
		b.node("p")
		b.pod("p", sliceA+";")
		b.binder.Request = 100 * time.Millisecond
		b.nth(1, apitest.Lose, "patch", "nodes")
		got, err := b.complete(1)
		b.expectContainers(got, err, "c0")
		b.expectLock("")
		b.expectCount(b.metrics.LockReleases, metrics.ReasonDone, 1)
	})
}

func TestKubeletThatHangsUp(t *testing.T) {
	// It does not wait for the answer any more, but the pod has to be failed
	// and the node unlocked all the same.
	b := newBed(t)
	b.node("p")
	b.pod("p", sliceA+";")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var once sync.Once
	b.api.OnRequest(func(r apitest.Request) apitest.Fault {
		fault := apitest.Fault(0)
		if r.Verb == "patch" && r.Resource == "pods" {
			once.Do(func() {
				cancel()
				fault = apitest.Hang
			})
		}
		return fault
	})
	if got, err := b.binder.Complete(ctx, []int{1}, func(Slice) error { return nil }); err == nil {
		t.Errorf("allocated %v", got)
	}
	b.expectPod("p", sliceA+";", PhaseFailed)
	b.expectLock("")
}

func TestForbiddenIsNotRetried(t *testing.T) {
	b := newBed(t)
	b.node("p")
	b.pod("p", sliceA+";")
	b.nth(forever, apitest.Forbidden, "get", "nodes")
	if got, err := b.complete(1); err == nil {
		t.Errorf("allocated %v", got)
	}
	if n := len(b.api.Requests()); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}

func TestReleaseStale(t *testing.T) {
	change := func(f func(*corev1.Pod)) func(*bed) {
		return func(b *bed) { b.pod("p", sliceA+";", f) }
	}
	for name, test := range map[string]struct {
		setup    func(*bed)
		released bool
	}{
		"pod is gone":       {func(*bed) {}, true},
		"pod has failed":    {change(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), true},
		"pod has succeeded": {change(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), true},
		"binding is over":   {change(func(p *corev1.Pod) { p.Annotations[PodBindPhase] = PhaseSuccess }), true},
		"binding failed":    {change(func(p *corev1.Pod) { p.Annotations[PodBindPhase] = PhaseFailed }), true},
		"pod waits":         {change(func(*corev1.Pod) {}), false},
		"pod is not bound": {change(func(p *corev1.Pod) {
			p.Spec.NodeName = ""
			delete(p.Annotations, PodBindPhase)
		}), false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.node("p")
			test.setup(b)
			if err := b.binder.ReleaseStale(t.Context(), lockOf("p")); err != nil {
				t.Fatal(err)
			}
			if test.released {
				b.expectLock("")
			} else {
				b.expectLock(lockOf("p"))
			}
		})
	}
	t.Run("lock is another by now", func(t *testing.T) {
		b := newBed(t)
		b.node("q")
		if err := b.binder.ReleaseStale(t.Context(), lockOf("p")); err != nil {
			t.Fatal(err)
		}
		b.expectLock(lockOf("q"))
	})
	t.Run("lock without a holder", func(t *testing.T) {
		b := newBed(t)
		b.node("p")
		b.api.Merge("nodes", "", worker, `{"metadata":{"annotations":{"`+NodeLock+`":"2026-12-01T03:00:00Z"}}}`)
		if err := b.binder.ReleaseStale(t.Context(), "2026-12-01T03:00:00Z"); err != nil {
			t.Fatal(err)
		}
		b.expectLock("2026-12-01T03:00:00Z")
	})
	t.Run("server is away", func(t *testing.T) {
		b := newBed(t)
		b.node("p")
		b.nth(1, apitest.Unavailable, "get", "pods")
		if err := b.binder.ReleaseStale(t.Context(), lockOf("p")); err == nil {
			t.Error("no error")
		}
		b.expectLock(lockOf("p"))
	})
}

func TestPeekTakesNothing(t *testing.T) {
	b := newBed(t)
	b.node("p")
	b.pod("p", ";"+sliceA+";;"+sliceA+sliceB+";")
	next := b.binder.Peek(t.Context())
	if len(next) != 2 || len(next[0]) != 1 || len(next[1]) != 2 || next[1][1].Card != "GPU-b" {
		t.Errorf("got %v", next)
	}
	b.expectPod("p", ";"+sliceA+";;"+sliceA+sliceB+";", PhaseAllocating)
	b.expectLock(lockOf("p"))
	b.api.Delete("pods", ns, "p")
	if next := b.binder.Peek(t.Context()); next != nil {
		t.Errorf("got %v of a pod that is gone", next)
	}
	b.expectLock(lockOf("p"))
}
