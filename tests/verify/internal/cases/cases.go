// Package cases holds the test cases: what each expects of a running stack, and
// how it finds out.
package cases

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/lab"
	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/report"
	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/stack"
)

// Case is one test case. Run returns what was seen, in words, or one of the
// errors that package report knows.
type Case struct {
	ID, Title string
	Kind      Kind
	Run       func(context.Context, *run) (string, error)
}

// Kind is what a case does to a stack.
type Kind int

// The kinds.
const (
	Reads    Kind = iota // It asks only, and so needs no namespace.
	Makes                // It makes objects in the run's own namespace.
	Disrupts             // That too, and what the stack runs notices it.
)

// All cases, in the order in which they run.
var All = []Case{
	{"TC-01", "a control plane of its own, at an address of its own", Reads, controlPlane},
	{"TC-02", "workers joined and Ready; logs and exec through the tunnel", Reads, workers},
	{"TC-03", "a GPU pod is routed to HAMi and placed on a card", Makes, placed},
	{"TC-04", "nodes advertise exactly their cards", Reads, inventory},
	{"TC-05", "three pods share one card", Makes, shared},
	{"TC-06", "the fourth is refused: CardInsufficientCore", Makes, coresExhausted},
	{"TC-07", "more memory than any card has: CardInsufficientMemory", Makes, memoryExceeded},
	{"TC-08", "tenants cannot see or reach each other", Makes, isolated},
	{"TC-09", "ten GPU pods at once, nobody releases a lock", Makes, manyAtOnce},
	{"TC-11", "a quota is enforced", Makes, quota},
	{"TC-10", "with the tunnel down no GPU pod passes HAMi by", Disrupts, tunnelDown},
	{"TC-12", "a restarted worker comes back with its cards and pods", Disrupts, workerRestarted},
	{"TC-13", "a tenant is removed and comes back; the others do not notice", Disrupts, removedAndAdded},
}

// Options of a run.
type Options struct {
	// Image of the pods that are made: it must not end by itself.
	Image string
	// Disrupt runs the cases that disturb the stack too.
	Disrupt bool
	// Only are the cases to run, by their IDs; none: all.
	Only []string
	// Tenants to run for, by name; none: all.
	Tenants []string
	// Patience is how long what usually takes seconds may take. What takes a
	// minute or so, a node's restart, may take three times that.
	Patience time.Duration
}

// Check tells of cases that do not exist, and of those that need Disrupt.
func (o Options) Check() error {
	var all []error
	for _, id := range o.Only {
		at := slices.IndexFunc(All, func(c Case) bool { return c.ID == id })
		switch {
		case at < 0:
			all = append(all, fmt.Errorf("there is no case %q: they are TC-01 to TC-13", id))
		case All[at].Kind == Disrupts && !o.Disrupt:
			all = append(all, fmt.Errorf("%s disturbs the stack: it runs with --disrupt only", id))
		}
	}
	if o.Patience <= 0 {
		all = append(all, fmt.Errorf("a patience of %s lets every case fail: choose more than 0", o.Patience))
	}
	return errors.Join(all...)
}

// run is one tenant's.
type run struct {
	*lab.Tenant
	image string
	// unprepared is why the tenant has no namespace for the run.
	unprepared error
	// How long to wait for what takes seconds, and for what takes a minute.
	patience, longPatience time.Duration

	three []string // pods that share a card, of TC-05
	card  stack.Card
}

// Run runs the cases, the tenants side by side, and those that disturb one
// tenant after the other. Whatever ends it, it cleans up.
func Run(ctx context.Context, l *lab.Lab, options Options, to *report.Report) error {
	var runs, all []*run
	for _, tenant := range l.Tenants {
		r := &run{Tenant: tenant, image: options.Image, patience: options.Patience, longPatience: 3 * options.Patience}
		all = append(all, r)
		if len(options.Tenants) == 0 || slices.Contains(options.Tenants, tenant.Name) {
			runs = append(runs, r)
		}
	}
	for _, name := range options.Tenants {
		if !slices.ContainsFunc(runs, func(r *run) bool { return r.Name == name }) {
			return fmt.Errorf("stack %s has no tenant %q", l.Stack.Name, name)
		}
	}
	// All, for a tenant that is not chosen is a neighbour of those that are. One
	// that cannot be prepared is a result, and the others go on.
	_ = together(all, func(r *run) error {
		r.unprepared = r.Prepare(ctx)
		return nil
	})
	_ = together(runs, func(r *run) error {
		for _, c := range chosen(options, false) {
			r.play(ctx, c, to)
		}
		return nil
	})
	if options.Disrupt {
		for _, c := range chosen(options, true) {
			for _, r := range runs {
				r.play(ctx, c, to)
			}
		}
	}
	// ctx may be what ended it.
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Minute)
	defer cancel()
	return errors.Join(context.Cause(ctx), together(all, func(r *run) error {
		if r.Namespace == "" {
			return nil // nothing was made there
		}
		var all []error
		for _, worker := range r.Workers {
			all = append(all, r.RestoreTunnel(clean, worker))
		}
		return errors.Join(append(all, r.Clean(clean))...)
	}))
}

func chosen(options Options, disrupting bool) []Case {
	return slices.DeleteFunc(slices.Clone(All), func(c Case) bool {
		return (c.Kind == Disrupts) != disrupting || len(options.Only) > 0 && !slices.Contains(options.Only, c.ID)
	})
}

func (r *run) play(ctx context.Context, c Case, to *report.Report) {
	if ctx.Err() != nil {
		return
	}
	started := time.Now()
	detail, err := "", error(nil)
	if c.Kind != Reads && r.unprepared != nil {
		err = failed("a namespace for what the case makes", nil, "%v", r.unprepared)
	} else {
		detail, err = c.Run(ctx, r)
	}
	if ctx.Err() != nil {
		return // cut off: neither passed nor failed
	}
	result := report.ResultOf(detail, err)
	if result.Status == report.Failed && c.Kind != Reads && r.Namespace != "" {
		// What it left would be in the way of the next.
		r.three = nil
		if err := r.Clear(ctx); err != nil {
			result.Look = append(result.Look, "what the case made is still there: "+err.Error())
		}
	}
	result.Case, result.Title, result.Tenant, result.Seconds = c.ID, c.Title, r.Name, time.Since(started).Seconds()
	to.Add(result)
}

func together(runs []*run, do func(*run) error) error {
	errs := make([]error, len(runs))
	var group sync.WaitGroup
	for i, r := range runs {
		group.Go(func() { errs[i] = do(r) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// failed is a failure with where to look.
func failed(expected string, look []string, seen string, arguments ...any) error {
	return &report.Failure{Expected: expected, Seen: fmt.Sprintf(seen, arguments...), Look: look}
}

// failedPod adds what the API server and HAMi say of a pod.
func (r *run) failedPod(ctx context.Context, expected, pod, seen string, arguments ...any) error {
	var look []string
	for _, event := range r.Events(ctx, "Pod", pod) {
		look = append(look, "event "+event)
	}
	return failed(expected, append(look, r.SchedulerSays(ctx, pod)...), seen, arguments...)
}

// routed says whether the webhook has handed a pod to HAMi's scheduler, which
// proves the way through the tunnel.
func (r *run) routed(ctx context.Context, pod *corev1.Pod) error {
	if pod.Spec.SchedulerName != lab.SchedulerName {
		return r.failedPod(ctx, "the webhook to route the pod to "+lab.SchedulerName, pod.Name, "it goes to %s", pod.Spec.SchedulerName)
	}
	return nil
}

// running waits until pods are Running and bound by HAMi, and returns them.
func (r *run) running(ctx context.Context, limit time.Duration, names ...string) ([]*corev1.Pod, error) {
	pods := make([]*corev1.Pod, len(names))
	expected := fmt.Sprintf("%s Running within %s", strings.Join(names, ", "), limit)
	worst := names[0]
	err := lab.Until(ctx, limit, "pods to run", func(ctx context.Context) (string, error) {
		for i, name := range names {
			pod, err := r.GetPod(ctx, name)
			if err != nil {
				return "", err
			}
			worst, pods[i] = name, pod
			_, phase := lab.Bound(pod)
			if pod.Status.Phase != corev1.PodRunning || !lab.Ready(pod) || phase != "success" {
				return lab.NotYet("%s is %s %s, HAMi's bind phase %q", name, pod.Status.Phase, pod.Status.Reason, phase)
			}
		}
		return "", nil
	})
	if timeout, late := errors.AsType[*lab.TimeoutError](err); late {
		return nil, r.failedPod(ctx, expected, worst, "%s", timeout.Seen)
	}
	return pods, err
}

// refused waits until HAMi says why it does not place a pod, and makes sure that
// nobody else did.
func (r *run) refused(ctx context.Context, pod, reason string) (string, error) {
	said := ""
	expected := fmt.Sprintf("%s refused by HAMi with %s", pod, reason)
	var bound *corev1.Pod
	err := lab.Until(ctx, r.patience, reason, func(ctx context.Context) (string, error) {
		now, err := r.GetPod(ctx, pod)
		if err != nil {
			return "", err
		}
		if now.Spec.NodeName != "" {
			bound = now
			return "", nil
		}
		events := r.Events(ctx, "Pod", pod)
		for _, event := range events {
			if strings.Contains(event, reason) {
				said = event
				return "", nil
			}
		}
		return lab.NotYet("%s with %d events", now.Status.Phase, len(events))
	})
	timeout, late := errors.AsType[*lab.TimeoutError](err)
	switch {
	case late:
		return "", r.failedPod(ctx, expected, pod, "%s", timeout.Seen)
	case err != nil:
		return "", err
	case bound != nil:
		return "", r.failedPod(ctx, expected, pod, "placed on %s by %s, with %s", bound.Spec.NodeName, bound.Spec.SchedulerName, cmp.Or(allocated(bound), "no card"))
	}
	return said, nil
}

func allocated(pod *corev1.Pod) string {
	slices, err := lab.Slices(pod)
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, slice := range slices {
		all = append(all, fmt.Sprintf("%d MiB, %d %% of %s", slice.MemoryMiB, slice.Cores, slice.Card))
	}
	return strings.Join(all, "; ")
}

// others are the stack's other tenants.
func (r *run) others() []*lab.Tenant {
	return slices.DeleteFunc(slices.Clone(r.Lab.Tenants), func(t *lab.Tenant) bool { return t.Name == r.Name })
}

// freeCard is a card to try things on.
func (r *run) freeCard(ctx context.Context) (stack.Card, error) {
	if !r.HasCards() {
		return stack.Card{}, skipCardless
	}
	_, card, err := r.FreeCard(ctx)
	if err == nil && card.UUID == "" {
		err = report.Skip("no healthy card is free: pods hold slices of each (hami.io/vgpu-devices-allocated on pods)")
	}
	return card, err
}

// mostSlices is the worker with the most slices, which may be none.
func (r *run) mostSlices() stack.Worker {
	return slices.MaxFunc(r.Workers, func(a, b stack.Worker) int { return cmp.Compare(a.Totals().Slices, b.Totals().Slices) })
}

// cardsOf are all cards of the tenant by UUID.
func (r *run) cardsOf() map[string]stack.Card {
	all := map[string]stack.Card{}
	for _, worker := range r.Workers {
		for _, card := range worker.Cards {
			all[card.UUID] = card
		}
	}
	return all
}

// names of a map, sorted.
func keys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
