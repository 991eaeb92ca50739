package cases

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/lab"
	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/report"
	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/stack"
)

// placed is TC-03.
func placed(ctx context.Context, r *run) (string, error) {
	card, err := r.freeCard(ctx)
	if err != nil {
		return "", err
	}
	ask := lab.Ask{MemoryMiB: quarter(card.MemoryMiB), Cores: share}
	created, err := r.Create(ctx, r.Pod("slice", r.image, ask))
	if err != nil {
		return "", failed("a GPU pod to be admitted", []string{"kubectl get mutatingwebhookconfigurations -o yaml", "kubectl -n kube-system logs daemonset/konnectivity-agent"}, "%v", err)
	}
	if err := r.routed(ctx, created); err != nil {
		return "", err
	}
	pods, err := r.running(ctx, r.patience, created.Name)
	if err != nil {
		return "", err
	}
	pod := pods[0]
	held, err := lab.Slices(pod)
	if err != nil {
		return "", err
	}
	known := r.cardsOf()
	if len(held) != 1 || known[held[0].Card].UUID == "" || !known[held[0].Card].Healthy || held[0].MemoryMiB != ask.MemoryMiB || held[0].Cores != ask.Cores {
		return "", r.failedPod(ctx, fmt.Sprintf("one slice of %d MiB and %d %% of a healthy card of the tenant", ask.MemoryMiB, ask.Cores), pod.Name, "%s", allocated(pod))
	}
	if node, _ := lab.Bound(pod); node != pod.Spec.NodeName {
		return "", r.failedPod(ctx, "the pod on the node that HAMi chose, "+node, pod.Name, "%s", pod.Spec.NodeName)
	}
	if !slices.ContainsFunc(r.Workers, func(w stack.Worker) bool {
		return w.Node == pod.Spec.NodeName && slices.ContainsFunc(w.Cards, func(c stack.Card) bool { return c.UUID == held[0].Card })
	}) {
		return "", r.failedPod(ctx, "a card of the node that the pod is on", pod.Name, "%s is not a card of %s", held[0].Card, pod.Spec.NodeName)
	}
	return fmt.Sprintf("%s on %s", allocated(pod), pod.Spec.NodeName), r.DeletePods(ctx)
}

// share is what a pod takes of a card's cores, in percent of a whole card: three
// fit, four do not.
const share = 30

// quarter is about a quarter of a card's memory, a round number as people write
// it: 20000 of an A100's 81920 MiB.
func quarter(memory int64) int64 {
	part := memory / 4
	for _, round := range []int64{1000, 100, 10} {
		if part > 10*round {
			return part / round * round
		}
	}
	return max(part, 1)
}

// inventory is TC-04.
func inventory(ctx context.Context, r *run) (string, error) {
	if !r.HasCards() {
		return "", skipCardless
	}
	var seen []string
	for _, worker := range r.Workers {
		said, err := r.inventoryOf(ctx, worker)
		if err != nil {
			return "", err
		}
		seen = append(seen, said)
	}
	return strings.Join(seen, "; "), nil
}

func (r *run) inventoryOf(ctx context.Context, worker stack.Worker) (string, error) {
	node, err := r.Node(ctx, worker.Node)
	if err != nil {
		return "", err
	}
	want := worker.Totals()
	look := []string{"kubectl describe node " + worker.Node, "kubectl -n kube-system get pods -o wide --field-selector spec.nodeName=" + worker.Node}
	number := func(name corev1.ResourceName) int64 {
		quantity := node.Status.Allocatable[name]
		return quantity.Value()
	}
	slices_, memory, cores := number(lab.ResourceGPU), number(lab.ResourceMemory), number(lab.ResourceCores)
	if slices_ != want.Slices || memory < want.MemoryFrom || memory > want.MemoryTo || cores < want.CoresFrom || cores > want.CoresTo {
		return "", failed(fmt.Sprintf("%s to advertise %d slices, %s MiB, %s %%", worker.Node, want.Slices, between(want.MemoryFrom, want.MemoryTo), between(want.CoresFrom, want.CoresTo)),
			look, "%d slices, %d MiB, %d %%", slices_, memory, cores)
	}
	registered, err := lab.Registered(node)
	if err != nil {
		return "", err
	}
	order := func(a, b stack.Card) int { return strings.Compare(a.UUID, b.UUID) }
	wanted := slices.SortedFunc(slices.Values(worker.Cards), order)
	slices.SortFunc(registered, order)
	if r.Lab.Stack.Mock == "agent" && !slices.Equal(wanted, registered) {
		return "", failed(fmt.Sprintf("%s to register with HAMi: %+v", worker.Node, wanted), look, "%+v", registered)
	}
	return fmt.Sprintf("%s: %d cards, %d slices, %d MiB, %d %%", worker.Node, len(worker.Cards), slices_, memory, cores), nil
}

func between(from, to int64) string {
	if from == to {
		return fmt.Sprint(from)
	}
	return fmt.Sprintf("%d to %d", from, to)
}

// fill puts three pods on one card, if they are not there yet.
func (r *run) fill(ctx context.Context) error {
	if len(r.three) > 0 {
		return nil
	}
	card, err := r.freeCard(ctx)
	if err != nil {
		return err
	}
	if card.Cores < 3*share || card.Cores >= 4*share || card.Slices < 4 {
		return report.Skip(fmt.Sprintf("it is written for cards of 100 %% cores and at least 4 slices; %s has %d %% and %d", card.UUID, card.Cores, card.Slices))
	}
	r.card = card
	var three []string
	for i := range 3 {
		name := fmt.Sprintf("share-%d", i+1)
		if _, err := r.Create(ctx, r.Pod(name, r.image, lab.Ask{MemoryMiB: quarter(card.MemoryMiB), Cores: share, Card: card.UUID})); err != nil {
			return err
		}
		three = append(three, name)
	}
	pods, err := r.running(ctx, r.longPatience, three...)
	if err != nil {
		return err
	}
	for _, pod := range pods {
		held, err := lab.Slices(pod)
		if err != nil {
			return err
		}
		if len(held) != 1 || held[0].Card != card.UUID {
			return r.failedPod(ctx, "a slice of "+card.UUID, pod.Name, "%s", allocated(pod))
		}
	}
	r.three = three
	return nil
}

// shared is TC-05.
func shared(ctx context.Context, r *run) (string, error) {
	if err := r.fill(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("3 x (%d MiB, %d %%) on %s, %s", quarter(r.card.MemoryMiB), share, r.card.Type, r.card.UUID), nil
}

// coresExhausted is TC-06.
func coresExhausted(ctx context.Context, r *run) (string, error) {
	if err := r.fill(ctx); err != nil {
		return "", err
	}
	const name = "fourth"
	// Memory is left for it, so cores are what is missing.
	if _, err := r.Create(ctx, r.Pod(name, r.image, lab.Ask{MemoryMiB: quarter(r.card.MemoryMiB) / 2, Cores: share, Card: r.card.UUID})); err != nil {
		return "", err
	}
	said, err := r.refused(ctx, name, "CardInsufficientCore")
	if err != nil {
		return "", err
	}
	r.three = nil
	return said, r.DeletePods(ctx)
}

// memoryExceeded is TC-07.
func memoryExceeded(ctx context.Context, r *run) (string, error) {
	if !r.HasCards() {
		return "", skipCardless
	}
	used, err := r.Used(ctx)
	if err != nil {
		return "", err
	}
	largest, asked := int64(0), false
	for _, card := range r.cardsOf() {
		largest = max(largest, card.MemoryMiB)
		asked = asked || card.Healthy && int64(used[card.UUID]) < card.Slices
	}
	if !asked {
		return "", report.Skip("no healthy card has a slice left, which HAMi looks at before memory")
	}
	const name = "too-large"
	if _, err := r.Create(ctx, r.Pod(name, r.image, lab.Ask{MemoryMiB: largest + 1, Cores: 1})); err != nil {
		return "", err
	}
	said, err := r.refused(ctx, name, "CardInsufficientMemory")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d MiB: %s", largest+1, said), r.DeletePods(ctx)
}

// manyAtOnce is TC-09.
func manyAtOnce(ctx context.Context, r *run) (string, error) {
	if !r.HasCards() {
		return "", skipCardless
	}
	used, err := r.Used(ctx)
	if err != nil {
		return "", err
	}
	worker, free := r.Workers[0], []stack.Card(nil)
	for _, candidate := range r.Workers {
		if cards := unused(candidate, used); slicesOf(cards) > slicesOf(free) {
			worker, free = candidate, cards
		}
	}
	const wanted = 10
	if slicesOf(free) < wanted {
		return "", report.Skip(fmt.Sprintf("the free cards of %s have %d slices together, and not %d", worker.Node, slicesOf(free), wanted))
	}
	// So little that it fits on whichever cards HAMi takes.
	ask := lab.Ask{MemoryMiB: free[0].MemoryMiB, Cores: free[0].Cores}
	for _, card := range free {
		ask.MemoryMiB, ask.Cores = min(ask.MemoryMiB, card.MemoryMiB), min(ask.Cores, card.Cores)
	}
	ask.MemoryMiB, ask.Cores = max(ask.MemoryMiB/(2*wanted), 1), ask.Cores/wanted
	// HAMi's device plugin is known to keep the lock.
	limit, known := r.longPatience, r.Lab.Stack.Mock == "hami"
	if known {
		limit = r.patience
	}
	var names []string
	started := time.Now()
	for i := range wanted {
		name := fmt.Sprintf("tenth-%d", i+1)
		pod := r.Pod(name, r.image, ask)
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: worker.Node}
		if _, err := r.Create(ctx, pod); err != nil {
			return "", err
		}
		names = append(names, name)
	}
	_, err = r.running(ctx, limit, names...)
	took := time.Since(started).Seconds()
	if err == nil {
		err = r.unlocked(ctx, worker.Node)
	}
	var failure *report.Failure
	if known && errors.As(err, &failure) {
		if err := r.DeletePods(ctx); err != nil {
			return "", err
		}
		return "", report.Limit("HAMi's mock-device-plugin never completes a binding, so the node stays locked after each pod until HAMi's own time-out: " + failure.Seen)
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d Running on %s after %.0f s, no lock left", wanted, worker.Node, took), r.DeletePods(ctx)
}

// unlocked waits until a node is not locked: the binding of all that is on it is
// complete, and with it the lock is due to go.
func (r *run) unlocked(ctx context.Context, name string) error {
	err := lab.Until(ctx, r.patience, "the lock to go", func(ctx context.Context) (string, error) {
		node, err := r.Node(ctx, name)
		if err == nil && lab.Lock(node) != "" {
			return lab.NotYet("%s", lab.Lock(node))
		}
		return "", err
	})
	if timeout, late := errors.AsType[*lab.TimeoutError](err); late {
		return failed("no lock left on "+name, []string{"kubectl get node " + name + " -o yaml"}, "%s", timeout.Seen)
	}
	return err
}

// unused are the healthy cards of a worker that no pod holds anything of.
func unused(worker stack.Worker, used map[string]int) []stack.Card {
	return slices.DeleteFunc(slices.Clone(worker.Cards), func(c stack.Card) bool { return !c.Healthy || used[c.UUID] > 0 })
}

func slicesOf(cards []stack.Card) int64 {
	sum := int64(0)
	for _, card := range cards {
		sum += card.Slices
	}
	return sum
}

// quota is TC-11.
func quota(ctx context.Context, r *run) (string, error) {
	card, err := r.freeCard(ctx)
	if err != nil {
		return "", err
	}
	limit := stack.Quota{GPUMemoryMiB: quarter(card.MemoryMiB), GPUCores: share}
	what := "a quota of this run's own"
	if r.Quota != nil {
		if err := r.configuredQuota(ctx); err != nil {
			return "", err
		}
		what = "the configured quota is in place; " + what
	}
	hard := corev1.ResourceList{
		"limits." + lab.ResourceMemory: *resource.NewQuantity(limit.GPUMemoryMiB, resource.DecimalSI),
		"limits." + lab.ResourceCores:  *resource.NewQuantity(limit.GPUCores, resource.DecimalSI),
	}
	quotas := r.Client.CoreV1().ResourceQuotas(r.Namespace)
	if _, err := quotas.Create(ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}, metav1.CreateOptions{}); err != nil {
		return "", err
	}
	within := lab.Ask{MemoryMiB: limit.GPUMemoryMiB, Cores: limit.GPUCores}
	for name, above := range map[string]lab.Ask{
		"memory": {MemoryMiB: within.MemoryMiB + 1, Cores: within.Cores},
		"cores":  {MemoryMiB: within.MemoryMiB, Cores: within.Cores + 1},
	} {
		if err := r.overQuota(ctx, name, above); err != nil {
			return "", err
		}
	}
	if _, err := r.Create(ctx, r.Pod("within", r.image, within)); err != nil {
		return "", failed("a pod within the quota to be admitted", nil, "%v", err)
	}
	if _, err := r.running(ctx, r.patience, "within"); err != nil {
		return "", err
	}
	if err := r.overQuota(ctx, "a second pod", lab.Ask{MemoryMiB: within.MemoryMiB / 2, Cores: within.Cores / 2}); err != nil {
		return "", err
	}
	if err := quotas.Delete(ctx, "gpu", metav1.DeleteOptions{}); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s: %d MiB, %d %%: the pod above it is refused, \"exceeding resource quota\"", what, limit.GPUMemoryMiB, limit.GPUCores), r.DeletePods(ctx)
}

// overQuota waits until a pod is refused for the quota's sake: HAMi hears of a
// quota, and of what pods use of it, a moment later than the API server.
func (r *run) overQuota(ctx context.Context, what string, ask lab.Ask) error {
	err := lab.Until(ctx, r.patience, "a refusal", func(ctx context.Context) (string, error) {
		_, err := r.DryRun(ctx, r.Pod("over", r.image, ask))
		switch {
		case err == nil:
			return lab.NotYet("%s above the quota (%d MiB, %d %%) is admitted", what, ask.MemoryMiB, ask.Cores)
		case strings.Contains(strings.ToLower(err.Error()), "quota"):
			return "", nil
		}
		return "", err
	})
	if timeout, late := errors.AsType[*lab.TimeoutError](err); late {
		return failed("a refusal that names the quota", []string{"kubectl -n " + r.Namespace + " describe resourcequota gpu"}, "%s", timeout.Seen)
	}
	return err
}

// configuredQuota compares the object in the namespace "default" with the stack's.
func (r *run) configuredQuota(ctx context.Context) error {
	object, err := r.Client.CoreV1().ResourceQuotas("default").Get(ctx, "gpu", metav1.GetOptions{})
	if err != nil {
		return failed("a ResourceQuota gpu in the namespace default", nil, "%v", err)
	}
	for name, want := range map[corev1.ResourceName]int64{"limits." + lab.ResourceMemory: r.Quota.GPUMemoryMiB, "limits." + lab.ResourceCores: r.Quota.GPUCores} {
		quantity := object.Spec.Hard[name]
		if quantity.Value() != want {
			return failed(fmt.Sprintf("%s: %d in the quota of the namespace default", name, want), []string{"kubectl -n default describe resourcequota gpu"}, "%d", quantity.Value())
		}
	}
	return nil
}
