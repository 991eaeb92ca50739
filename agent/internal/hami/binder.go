package hami

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/gpu-tenants/gpu-tenants/agent/internal/kube"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/metrics"
)

// Time limits of one Allocate call, 10 s together. While it runs the kubelet
// admits no other pod.
const (
	defaultBudget  = 7 * time.Second // Finding the pod and taking its slices.
	defaultCleanup = 3 * time.Second // Marking it as failed and unlocking.
	defaultRequest = 2 * time.Second // One request to the API server.
)

// Errors that Complete returns, for errors.Is.
var (
	// ErrNoPod: nothing on this node waits for a card.
	ErrNoPod = errors.New("no pod is being bound to this node by HAMi; was the pod scheduled by hami-scheduler?")
	// ErrVanished: the pod was deleted between binding and allocation.
	ErrVanished = errors.New("the pod has been deleted meanwhile")
)

// Assignment is what one container got.
type Assignment struct {
	Namespace, Pod, Container string
	Slices                    []Slice
}

// Binder carries HAMi's bindings on one node to their end.
type Binder struct {
	client  *kube.Client
	node    string
	metrics *metrics.Metrics
	log     *slog.Logger
	// turn is a mutex that can be given up waiting for. Which pod an allocation
	// is for follows from the state of the node, so there can be one at a time.
	turn chan struct{}

	// Budget, Cleanup and Request are time limits, see the defaults.
	Budget, Cleanup, Request time.Duration
}

// NewBinder returns the binder of a node.
func NewBinder(client *kube.Client, node string, m *metrics.Metrics, log *slog.Logger) *Binder {
	return &Binder{
		client: client, node: node, metrics: m, log: log, turn: make(chan struct{}, 1),
		Budget: defaultBudget, Cleanup: defaultCleanup, Request: defaultRequest,
	}
}

// claim is the pod that an allocation is for.
type claim struct {
	pod *corev1.Pod
	// lock is the value of the node lock if it is the pod's own, else empty.
	// To remove a lock only while it has this very value is what protects the
	// next holder's, even if it is a new pod of the same name.
	lock string
}

// Complete takes the next containers of the pod that is being bound, one for
// each number in want: how many slices the kubelet has set aside for it. The
// check is asked about every slice before anything is written. If nothing of
// the pod is left after that, its binding has succeeded and the node is
// unlocked; if anything goes wrong, it has failed and the node is unlocked.
func (b *Binder) Complete(ctx context.Context, want []int, check func(Slice) error) (_ []Assignment, err error) {
	started := time.Now()
	defer func() {
		result := metrics.ResultSuccess
		switch {
		case errors.Is(err, ErrNoPod):
			result = metrics.ResultNoPod
		case errors.Is(err, ErrVanished):
			result = metrics.ResultVanished
		case err != nil:
			result = metrics.ResultFailed
		}
		b.metrics.Allocations.WithLabelValues(result).Inc()
		b.metrics.AllocationSeconds.Observe(time.Since(started).Seconds())
	}()

	work, cancel := context.WithTimeout(ctx, b.Budget)
	defer cancel()
	select {
	case b.turn <- struct{}{}:
		defer func() { <-b.turn }()
	case <-work.Done():
		return nil, fmt.Errorf("waiting for another allocation: %w", work.Err())
	}

	var found *claim
	err = b.retry(work, func() error { found, err = b.find(work); return err })
	switch {
	case errors.Is(err, ErrVanished):
		b.cleanUp(ctx, found, metrics.ReasonVanished)
		return nil, fmt.Errorf("node lock %q: %w", found.lock, err)
	case err != nil:
		return nil, err
	}

	taken, finished, err := b.take(work, found, want, check)
	pod := found.pod.Namespace + "/" + found.pod.Name
	switch {
	case errors.Is(err, ErrVanished):
		b.cleanUp(ctx, found, metrics.ReasonVanished)
		return nil, fmt.Errorf("pod %s: %w", pod, err)
	case err != nil:
		b.cleanUp(ctx, found, metrics.ReasonFailed)
		return nil, fmt.Errorf("pod %s: %w", pod, err)
	}
	if finished {
		// The pod has what it needs: a lock that cannot be removed now must not
		// keep it from starting. ReleaseStale comes back to it.
		if err := b.release(work, found.lock, metrics.ReasonDone); err != nil {
			b.log.Error("node lock not removed, will be retried", "pod", pod, "error", err)
		}
	}
	return taken, nil
}

// Peek returns the slices of the containers whose turn is next, without taking
// them; nil if that cannot be told.
func (b *Binder) Peek(ctx context.Context) [][]Slice {
	ctx, cancel := context.WithTimeout(ctx, b.Request)
	defer cancel()
	found, err := b.find(ctx)
	if err != nil {
		return nil
	}
	left, err := ParseSlices(found.pod.Annotations[PodToAllocate])
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(left, func(s []Slice) bool { return len(s) == 0 })
}

// find returns the pod that the node is locked for or, if that one is not
// being bound here, the pod that has waited longest. With ErrVanished the claim
// has the lock but no pod.
func (b *Binder) find(ctx context.Context) (*claim, error) {
	node, err := b.getNode(ctx)
	if err != nil {
		return nil, err
	}
	lock := node.Annotations[NodeLock]
	if namespace, name, ok := LockHolder(lock); ok {
		pod, err := b.getPod(ctx, namespace, name)
		switch {
		case apierrors.IsNotFound(err):
			return &claim{lock: lock}, ErrVanished
		case err != nil:
			return nil, err
		case b.waits(pod):
			return &claim{pod: pod, lock: lock}, nil
		}
		// Held for a pod that is not here yet, or through already. The kubelet
		// cannot have meant that one.
		b.log.Warn("node is locked for another pod", "lock", lock)
	}
	ctx, cancel := context.WithTimeout(ctx, b.Request)
	defer cancel()
	pods, err := b.client.Pods(ctx, fields.Set{"spec.nodeName": b.node, "status.phase": string(corev1.PodPending)})
	if err != nil {
		return nil, fmt.Errorf("list the pods of node %s: %w", b.node, err)
	}
	waiting := slices.DeleteFunc(pods, func(p corev1.Pod) bool { return !b.waits(&p) })
	if len(waiting) == 0 {
		return nil, ErrNoPod
	}
	first := slices.MinFunc(waiting, func(x, y corev1.Pod) int {
		return cmp.Or(
			cmp.Compare(bindTime(&x), bindTime(&y)),
			x.CreationTimestamp.Compare(y.CreationTimestamp.Time),
			cmp.Compare(x.Namespace+"/"+x.Name, y.Namespace+"/"+y.Name),
		)
	})
	return &claim{pod: &first}, nil
}

// waits reports whether the pod is one whose containers wait for their cards
// on this node. A list that cannot be read counts as waiting, so that the
// attempt to read it fails the pod instead of leaving it locked.
func (b *Binder) waits(pod *corev1.Pod) bool {
	left, err := ParseSlices(pod.Annotations[PodToAllocate])
	return pod.Spec.NodeName == b.node && pod.Annotations[PodNode] == b.node &&
		pod.Status.Phase == corev1.PodPending && pod.DeletionTimestamp == nil &&
		pod.Annotations[PodBindPhase] == PhaseAllocating &&
		(err != nil || left.Next() >= 0)
}

func bindTime(pod *corev1.Pod) int64 {
	seconds, err := strconv.ParseInt(pod.Annotations[PodBindTime], 10, 64)
	if err != nil {
		return 0
	}
	return seconds
}

// take removes the next containers from the pod's list and, with the last of
// them, marks its binding as successful, in one patch: the pod is never seen
// with nothing left to allocate and yet not through.
func (b *Binder) take(ctx context.Context, c *claim, want []int, check func(Slice) error) ([]Assignment, bool, error) {
	var taken []Assignment
	var rest string
	var finished, unsure bool
	err := b.retry(ctx, func() error {
		if unsure {
			// Either the patch was refused because the pod has changed, or its
			// answer was lost and it may have been carried out.
			fresh, err := b.getPod(ctx, c.pod.Namespace, c.pod.Name)
			switch {
			case apierrors.IsNotFound(err) || err == nil && fresh.UID != c.pod.UID:
				return ErrVanished
			case err != nil:
				return err
			}
			c.pod = fresh
			if taken != nil && fresh.Annotations[PodToAllocate] == rest {
				return nil
			}
			if !b.waits(fresh) {
				return fmt.Errorf("the pod has left phase %s", PhaseAllocating)
			}
		}
		left, err := ParseSlices(c.pod.Annotations[PodToAllocate])
		if err != nil {
			return fmt.Errorf("annotation %s: %w", PodToAllocate, err)
		}
		taken, err = pop(c.pod, left, want, check)
		if err != nil {
			return err
		}
		rest, finished = left.String(), left.Next() < 0
		annotations := map[string]any{PodToAllocate: rest}
		if finished {
			annotations[PodBindPhase] = PhaseSuccess
		}
		unsure = true
		err = b.patchPod(ctx, c.pod, annotations)
		if apierrors.IsNotFound(err) {
			return ErrVanished
		}
		return err
	})
	if err != nil {
		return nil, false, err
	}
	return taken, finished, nil
}

// pop empties the next entries of left and says which containers they are.
func pop(pod *corev1.Pod, left Slices, want []int, check func(Slice) error) ([]Assignment, error) {
	containers := make([]string, 0, len(pod.Spec.InitContainers)+len(pod.Spec.Containers))
	for _, container := range pod.Spec.InitContainers {
		containers = append(containers, container.Name)
	}
	for _, container := range pod.Spec.Containers {
		containers = append(containers, container.Name)
	}
	taken := make([]Assignment, 0, len(want))
	for _, n := range want {
		i := left.Next()
		switch {
		case i < 0:
			return nil, fmt.Errorf("the kubelet asks for %d containers, HAMi has allotted %d", len(want), len(taken))
		case i >= len(containers):
			return nil, fmt.Errorf("HAMi has allotted slices to container %d of %d", i+1, len(containers))
		case len(left[i]) != n:
			return nil, fmt.Errorf("container %s: the kubelet asks for %d slices, HAMi has allotted %d",
				containers[i], n, len(left[i]))
		}
		for _, slice := range left[i] {
			if err := check(slice); err != nil {
				return nil, fmt.Errorf("container %s: %w", containers[i], err)
			}
		}
		taken = append(taken, Assignment{Namespace: pod.Namespace, Pod: pod.Name, Container: containers[i], Slices: left[i]})
		left[i] = nil
	}
	return taken, nil
}

// cleanUp ends a binding that did not succeed: the pod, if it still exists, is
// marked as failed and its lock removed. It has its own time limit, for the
// most common reason to be here is that the other has run out.
func (b *Binder) cleanUp(ctx context.Context, c *claim, reason string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.Cleanup)
	defer cancel()
	if reason == metrics.ReasonFailed {
		err := b.retry(ctx, func() error {
			fresh, err := b.getPod(ctx, c.pod.Namespace, c.pod.Name)
			if apierrors.IsNotFound(err) {
				return nil
			}
			if err != nil {
				return err
			}
			if fresh.UID != c.pod.UID || fresh.Annotations[PodBindPhase] != PhaseAllocating {
				return nil
			}
			return b.patchPod(ctx, fresh, map[string]any{PodBindPhase: PhaseFailed})
		})
		if err != nil {
			b.log.Error("pod not marked as failed", "pod", c.pod.Namespace+"/"+c.pod.Name, "error", err)
		}
	}
	if err := b.release(ctx, c.lock, reason); err != nil {
		b.log.Error("node lock not removed, will be retried", "lock", c.lock, "error", err)
	}
}

// release removes the node lock if it still has the given value.
func (b *Binder) release(ctx context.Context, lock, reason string) error {
	if lock == "" {
		return nil
	}
	var tried, released bool
	err := b.retry(ctx, func() error {
		node, err := b.getNode(ctx)
		if err != nil {
			return err
		}
		if node.Annotations[NodeLock] != lock {
			// After a patch whose answer was lost, gone means that it worked.
			released = tried
			return nil
		}
		patch := annotationPatch(metav1.ObjectMeta{ResourceVersion: node.ResourceVersion}, map[string]any{NodeLock: nil})
		ctx, cancel := context.WithTimeout(ctx, b.Request)
		defer cancel()
		tried = true
		if _, err = b.client.PatchNode(ctx, b.node, patch); err == nil {
			released = true
		}
		return err
	})
	if err != nil {
		return err
	}
	if released {
		b.metrics.LockReleases.WithLabelValues(reason).Inc()
		b.log.Info("node lock removed", "lock", lock, "reason", reason)
	}
	return nil
}

// ReleaseStale removes a lock whose holder has nothing to wait for any more: it
// is gone, has ended, or its binding is over. Such a lock remains when the API
// server was away at the wrong moment, when the agent died there, or when the
// kubelet turned the pod down before it came to Allocate. The scheduler waits
// minutes before it overrides a lock, and meanwhile no pod gets a card here.
func (b *Binder) ReleaseStale(ctx context.Context, lock string) error {
	namespace, name, ok := LockHolder(lock)
	if !ok {
		return nil
	}
	pod, err := b.getPod(ctx, namespace, name)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return err
	case pod.Status.Phase == corev1.PodFailed, pod.Status.Phase == corev1.PodSucceeded:
	case pod.Annotations[PodBindPhase] == PhaseFailed, pod.Annotations[PodBindPhase] == PhaseSuccess:
	default:
		return nil
	}
	return b.release(ctx, lock, metrics.ReasonStale)
}

func (b *Binder) getNode(ctx context.Context) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, b.Request)
	defer cancel()
	node, err := b.client.Node(ctx, b.node)
	if err != nil {
		return nil, fmt.Errorf("get node %s: %w", b.node, err)
	}
	return node, nil
}

// getPod returns the API server's error as it is, for apierrors.
func (b *Binder) getPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, b.Request)
	defer cancel()
	return b.client.Pod(ctx, namespace, name)
}

// patchPod changes annotations of the pod as it was read: the API server
// refuses if it has changed since or is another pod of that name.
func (b *Binder) patchPod(ctx context.Context, pod *corev1.Pod, annotations map[string]any) error {
	ctx, cancel := context.WithTimeout(ctx, b.Request)
	defer cancel()
	patch := annotationPatch(metav1.ObjectMeta{ResourceVersion: pod.ResourceVersion, UID: pod.UID}, annotations)
	return b.client.PatchPod(ctx, pod.Namespace, pod.Name, patch)
}

// annotationPatch is a JSON merge patch; a nil value removes an annotation.
func annotationPatch(precondition metav1.ObjectMeta, annotations map[string]any) []byte {
	metadata := map[string]any{"resourceVersion": precondition.ResourceVersion, "annotations": annotations}
	if precondition.UID != "" {
		metadata["uid"] = precondition.UID
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil { // Strings and nil cannot fail to marshal.
		panic(err)
	}
	return patch
}

// retry repeats what an API server may refuse now and accept later, at growing
// intervals until ctx ends.
func (b *Binder) retry(ctx context.Context, attempt func() error) error {
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := attempt()
		if err == nil || !transient(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("given up: %w", err)
		case <-time.After(pause/2 + rand.N(pause)):
			b.log.Debug("retry", "error", err)
		}
	}
}

func transient(err error) bool {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return apierrors.IsConflict(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) ||
			apierrors.IsTimeout(err) || apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) ||
			apierrors.IsUnexpectedServerError(err)
	}
	// Everything that is not an answer of the API server, and not one of ours,
	// is a connection that failed or took too long.
	var network interface{ Timeout() bool }
	return errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded)
}
