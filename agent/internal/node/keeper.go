package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/gpu-tenants/gpu-tenants/agent/internal/hami"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/inventory"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/kube"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/metrics"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/single"
)

const (
	defaultResync     = 15 * time.Second
	defaultStaleAfter = 30 * time.Second
	requestTimeout    = 5 * time.Second
	// Pauses after an error.
	firstPause = 200 * time.Millisecond
	maxPause   = 30 * time.Second
)

// Values of the "what" label of metrics.Repairs.
const (
	whatRegister = "register"
	whatStatus   = "status"
)

// Keeper keeps the Node object equal to the inventory.
type Keeper struct {
	// Resync is how often the Node is looked at without an event. It paces the
	// answers to HAMi's handshake, which is due within 60 s.
	Resync time.Duration
	// StaleAfter is how long a node lock must have stood before ReleaseStale
	// is asked about it. An allocation takes 10 s at most.
	StaleAfter time.Duration
	// ReleaseStale is called for a lock that has stood for long.
	ReleaseStale func(ctx context.Context, lock string) error

	client  *kube.Client
	node    string
	store   *inventory.Store
	metrics *metrics.Metrics
	log     *slog.Logger
	// writes bounds the quarrel with anyone who keeps writing something else.
	// The kubelet is one: at each of its status updates, every 10 s, it sets
	// allocatable to capacity for all extended resources that no plugin has
	// registered (MachineInfo in
	// https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/nodestatus/setters.go),
	// so with an unhealthy card there is one write of each per 10 s.
	writes *rate.Limiter

	mu     sync.Mutex
	latest *corev1.Node // Nil while there is none.
	event  chan struct{}

	// agreed holds per "what" the wanted value with which the Node was last
	// seen to agree: a deviation from that is somebody else's doing.
	agreed map[string]string

	// announced is what the Node showed when HAMi was last told to look at it.
	announced string

	lock      string // The lock last seen and since when.
	lockSince time.Time

	synced bool // Guarded by mu.
}

// NewKeeper returns the keeper of a node.
func NewKeeper(client *kube.Client, node string, store *inventory.Store, m *metrics.Metrics, log *slog.Logger) *Keeper {
	return &Keeper{
		Resync: defaultResync, StaleAfter: defaultStaleAfter,
		client: client, node: node, store: store, metrics: m, log: log,
		writes: rate.NewLimiter(rate.Every(2*time.Second), 5),
		event:  make(chan struct{}, 1),
		agreed: map[string]string{},
	}
}

// Run publishes until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() {
		single.Watch(ctx, k.client.REST, "nodes", metav1.NamespaceAll, k.node, &corev1.Node{},
			k.see, func() { k.see(nil) })
	})

	resync := time.NewTicker(k.Resync)
	defer resync.Stop()
	again := time.NewTimer(0)
	defer again.Stop()
	pause := firstPause
	tick := false
	for {
		inv, known, changed := k.store.Get()
		delay, err := time.Duration(0), error(nil)
		if known {
			delay, err = k.reconcile(ctx, inv, tick)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			k.log.Error("node not brought up to date", "retryIn", pause, "error", err)
			again.Reset(pause)
			pause = min(2*pause, maxPause)
		default:
			pause = firstPause
			if delay > 0 {
				again.Reset(delay)
			}
		}
		tick = false
		select {
		case <-ctx.Done():
			return
		case <-k.event:
		case <-changed:
		case <-again.C:
		case <-resync.C:
			tick = true
		}
	}
}

// see takes over the Node as the watch brings it; nil if it is gone.
func (k *Keeper) see(node *corev1.Node) {
	k.take(func(latest *corev1.Node) bool {
		return node == nil || latest == nil || node.UID != latest.UID || version(node) >= version(latest)
	}, node)
}

// wrote takes over the Node as a patch has returned it. The watch brings the
// same, sooner or later; an old state taken for the newest one would look like
// somebody else's work, and that of a Node which has been replaced since would
// hide the new one.
func (k *Keeper) wrote(node *corev1.Node) {
	k.take(func(latest *corev1.Node) bool {
		return latest != nil && version(node) >= version(latest)
	}, node)
}

func (k *Keeper) take(newer func(latest *corev1.Node) bool, node *corev1.Node) {
	k.mu.Lock()
	if newer(k.latest) {
		k.latest = node
	}
	k.mu.Unlock()
	select {
	case k.event <- struct{}{}:
	default:
	}
}

// version is the resourceVersion as a number, which orders the states of an object.
func version(node *corev1.Node) uint64 {
	n, err := strconv.ParseUint(node.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Ready reports whether the Node shows the inventory.
func (k *Keeper) Ready() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.synced {
		return errors.New("the node does not show the inventory yet")
	}
	return nil
}

func (k *Keeper) setSynced(synced bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.synced = synced
}

// reconcile writes what differs, if anything. A delay asks to be called again.
func (k *Keeper) reconcile(ctx context.Context, inv inventory.Inventory, tick bool) (delay time.Duration, err error) {
	k.mu.Lock()
	node := k.latest
	k.mu.Unlock()
	if node == nil {
		k.setSynced(false)
		return 0, nil
	}
	if tick {
		k.watchLock(ctx, node)
	}

	annotations, foreign := k.annotations(node, inv, tick)
	status, foreignStatus, err := k.status(ctx, node, inv)
	if err != nil {
		return 0, err
	}
	if len(annotations) == 0 && len(status) == 0 {
		k.setSynced(true)
		return 0, nil
	}
	k.setSynced(false)
	if r := k.writes.Reserve(); r.Delay() > 0 {
		delay := r.Delay()
		r.Cancel()
		return delay, nil
	}
	if len(annotations) > 0 {
		if foreign {
			k.metrics.Repairs.WithLabelValues(whatRegister).Inc()
		}
		k.log.Info("writing node annotations", "annotations", annotations, "repair", foreign)
		written, err := patchNode(ctx, k.client, k.node, map[string]any{"metadata": map[string]any{"annotations": annotations}})
		if err != nil {
			return 0, err
		}
		if annotations[hami.NodeHandshake] != nil {
			k.announced = shown(written)
		}
		k.wrote(written)
	}
	if len(status) > 0 {
		level := slog.LevelInfo
		if foreignStatus {
			k.metrics.Repairs.WithLabelValues(whatStatus).Inc()
			level = slog.LevelDebug // It recurs, see writes.
		}
		k.log.Log(ctx, level, "writing node status", "status", status, "repair", foreignStatus)
		written, err := patchNode(ctx, k.client, k.node, map[string]any{"status": status}, "status")
		if err != nil {
			return 0, err
		}
		k.wrote(written)
	}
	return 0, nil // What was written counts as an event and will be looked at.
}

// annotations is what has to change in the node's annotations, and whether
// that is because somebody else has changed the list of cards.
func (k *Keeper) annotations(node *corev1.Node, inv inventory.Inventory, tick bool) (map[string]any, bool) {
	want := inv.Canonical()
	got, present := node.Annotations[hami.NodeRegister]
	patch := map[string]any{}
	repair := false
	switch {
	case len(inv) > 0 && inv.Matches(got), len(inv) == 0 && !present:
		k.agreed[whatRegister] = want
	case len(inv) > 0:
		patch[hami.NodeRegister] = want
		repair = k.agreed[whatRegister] == want
	default:
		// Without the annotation HAMi has no cards to take over; it drops those
		// it knows as soon as the kubelet reports no nvidia.com/gpu any more.
		// The handshake goes once, with the annotation: HAMi stamps it on every
		// node, with or without cards, so there is no keeping it away.
		patch[hami.NodeRegister] = nil
		if _, present := node.Annotations[hami.NodeHandshake]; present {
			patch[hami.NodeHandshake] = nil
		}
		repair = k.agreed[whatRegister] == want
	}
	if len(inv) > 0 && len(patch) == 0 && k.mustAnswer(node, tick) {
		patch[hami.NodeHandshake] = hami.HandshakeReported + "_" + time.Now().Format(time.DateTime)
	}
	return patch, repair
}

// mustAnswer reports whether HAMi's handshake needs an answer.
//
// HAMi asks by writing "Requesting_<time>". The real plugin never answers, and
// as long as nvidia.com/gpu is allocatable it need not: the cards stay even
// when the question is older than a minute. An answer has two other uses, and is
// given for these only, because each round costs two writes of the Node.
//
// While all cards are unhealthy nothing is allocatable. Then HAMi would forget
// the cards, ask anew, take them over again, and forget them a minute later;
// pods would be refused now as CardNotHealth, now as on a node without cards.
// Any answer in time ends that: HAMi takes the cards over and asks again.
//
// And HAMi looks at the cards every 15 s. A pod that it refused meanwhile, for a
// card that it did not know yet, is tried again when the Node changes, and else
// only after five minutes (podMaxInUnschedulablePodsDuration of kube-scheduler).
// After an answer HAMi asks anew just when it takes the cards over, and that is
// such a change. So each new state of the cards is announced once.
func (k *Keeper) mustAnswer(node *corev1.Node, tick bool) bool {
	if !strings.Contains(node.Annotations[hami.NodeHandshake], hami.HandshakeRequesting) {
		return false
	}
	slices := node.Status.Allocatable[resourceSlices]
	if slices.IsZero() {
		return tick
	}
	return k.announced != shown(node)
}

// shown is what decides which cards HAMi takes over from a Node.
func shown(node *corev1.Node) string {
	slices := node.Status.Allocatable[resourceSlices]
	return fmt.Sprint(node.UID, " ", slices.Value(), " ", node.Annotations[hami.NodeRegister])
}

// status is what has to change in the node's status, and whether that is
// because somebody else has changed it.
func (k *Keeper) status(ctx context.Context, node *corev1.Node, inv inventory.Inventory) (map[string]any, bool, error) {
	var wantCapacity, wantAllocatable amounts
	if len(inv) > 0 {
		var holders map[string]hami.Slice
		if inv.Healthy() != inv.Totals() {
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			pods, err := k.client.Pods(ctx, fields.Set{"spec.nodeName": k.node})
			if err != nil {
				return nil, false, fmt.Errorf("list the pods of node %s: %w", k.node, err)
			}
			holders = held(pods)
		}
		wantCapacity, wantAllocatable = capacity(inv), allocatable(inv, holders)
	}
	patch := map[string]any{}
	if d := difference(node.Status.Capacity, wantCapacity); d != nil {
		patch["capacity"] = d
	}
	if d := difference(node.Status.Allocatable, wantAllocatable); d != nil {
		patch["allocatable"] = d
	}
	want := fmt.Sprint(wantCapacity, wantAllocatable)
	foreign := len(patch) > 0 && k.agreed[whatStatus] == want
	if len(patch) == 0 {
		k.agreed[whatStatus] = want
	}
	return patch, foreign, nil
}

// watchLock asks about a lock that has stood for StaleAfter.
func (k *Keeper) watchLock(ctx context.Context, node *corev1.Node) {
	if lock := node.Annotations[hami.NodeLock]; lock != k.lock {
		k.lock, k.lockSince = lock, time.Now()
	}
	if k.lock == "" || k.ReleaseStale == nil || time.Since(k.lockSince) < k.StaleAfter {
		return
	}
	if err := k.ReleaseStale(ctx, k.lock); err != nil {
		k.log.Error("stale node lock not removed", "lock", k.lock, "error", err)
	}
}

// patchNode sends a merge patch without a resourceVersion: what the agent
// publishes is its own, and the kubelet changes the Node far too often to wait
// for a quiet moment.
func patchNode(ctx context.Context, client *kube.Client, name string, patch map[string]any, subresources ...string,
) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	data, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	node, err := client.PatchNode(ctx, name, data, subresources...)
	if err != nil {
		return nil, fmt.Errorf("patch node %s: %w", name, err)
	}
	return node, nil
}

// Withdraw removes from a node what the agent has published on it, the number
// of slices included. It works without a running agent; with one, the store
// must have been emptied before.
func Withdraw(ctx context.Context, client *kube.Client, name string) error {
	_, err := patchNode(ctx, client, name, map[string]any{"metadata": map[string]any{"annotations": map[string]any{
		hami.NodeRegister: nil, hami.NodeHandshake: nil,
	}}})
	if err == nil {
		gone := map[corev1.ResourceName]any{resourceSlices: nil}
		for _, resource := range ownResources {
			gone[resource] = nil
		}
		_, err = patchNode(ctx, client, name,
			map[string]any{"status": map[string]any{"capacity": gone, "allocatable": gone}}, "status")
	}
	if apierrors.IsNotFound(err) {
		return nil // A node that is gone shows nothing.
	}
	return err
}
