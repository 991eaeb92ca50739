package cases

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/lab"
	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/stack"
)

// tunnelDown is TC-10.
func tunnelDown(ctx context.Context, r *run) (detail string, err error) {
	card, err := r.freeCard(ctx)
	if err != nil {
		return "", err
	}
	ask := lab.Ask{MemoryMiB: quarter(card.MemoryMiB), Cores: share}
	for _, worker := range r.Workers {
		if err := r.CutTunnel(ctx, worker); err != nil {
			return "", err
		}
	}
	restore := func(ctx context.Context) error {
		var all []error
		for _, worker := range r.Workers {
			all = append(all, r.RestoreTunnel(ctx, worker))
		}
		return errors.Join(all...)
	}
	defer func() { err = errors.Join(err, restore(context.WithoutCancel(ctx))) }()
	// It is down when what only it carries does not come any more.
	err = lab.Until(ctx, r.patience, "the tunnel to be down", func(ctx context.Context) (string, error) {
		if err := r.throughTunnel(shortly(ctx), r.Workers[0].Node); err != nil {
			return "", nil //nolint:nilerr // this is what is waited for
		}
		return lab.NotYet("logs and exec still work")
	})
	if err != nil {
		return "", err
	}
	const name = "no-tunnel"
	started := time.Now()
	_, refusal := r.Create(ctx, r.Pod(name, r.image, ask))
	said := ""
	if refusal == nil {
		pod, err := r.GetPod(ctx, name)
		if err != nil {
			return "", err
		}
		if pod.Spec.SchedulerName != lab.SchedulerName {
			return "", r.failedPod(ctx, "a GPU pod refused, or left to "+lab.SchedulerName, name, "admitted for %s", pod.Spec.SchedulerName)
		}
		said = "admitted for " + lab.SchedulerName + ", and waits"
	} else {
		said = fmt.Sprintf("refused after %.0f s: %v", time.Since(started).Seconds(), refusal)
	}
	if err := restore(ctx); err != nil {
		return "", err
	}
	var created *corev1.Pod
	err = lab.Until(ctx, r.longPatience, "a GPU pod to be admitted again", func(ctx context.Context) (string, error) {
		made, err := r.Create(ctx, r.Pod("tunnel-again", r.image, ask))
		created = made
		return "", err
	})
	if timeout, late := errors.AsType[*lab.TimeoutError](err); late {
		return "", failed("a GPU pod admitted again with the tunnel up", []string{"kubectl -n kube-system logs daemonset/konnectivity-agent"}, "%s", timeout.Seen)
	} else if err != nil {
		return "", err
	}
	if err := r.routed(ctx, created); err != nil {
		return "", err
	}
	if _, err := r.running(ctx, r.longPatience, created.Name); err != nil {
		return "", err
	}
	return said + "; placed with the tunnel up again", r.DeletePods(ctx)
}

// shortly bounds a question that is expected to get no answer.
func shortly(ctx context.Context) context.Context {
	limited, cancel := context.WithTimeout(ctx, 10*time.Second)
	context.AfterFunc(limited, cancel)
	return limited
}

// workerRestarted is TC-12.
func workerRestarted(ctx context.Context, r *run) (string, error) {
	worker := r.mostSlices()
	before, err := r.Node(ctx, worker.Node)
	if err != nil {
		return "", err
	}
	labels := map[string]string{"app": "survivor"}
	pod := r.Pod("survivor", r.image, lab.Ask{})
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
	used, err := r.Used(ctx)
	if err != nil {
		return "", err
	}
	if cards := unused(worker, used); len(cards) > 0 {
		pod = r.Pod("survivor", r.image, lab.Ask{MemoryMiB: quarter(cards[0].MemoryMiB), Cores: min(share, cards[0].Cores), Card: cards[0].UUID})
	}
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: worker.Node}
	one := int32(1)
	deployments := r.Client.AppsV1().Deployments(r.Namespace)
	_, err = deployments.Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "survivor"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels},
			// The annotations say which card, see Pod.
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: pod.Annotations}, Spec: pod.Spec},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	if err := r.survivorRuns(ctx, worker.Node, time.Time{}); err != nil {
		return "", err
	}
	if _, err := lab.Docker(ctx, "restart", worker.Container); err != nil {
		return "", err
	}
	// From here: what the kubelet says while it is being stopped does not count.
	restarted := time.Now()
	look := []string{"docker logs " + worker.Container, "docker exec " + worker.Container + " journalctl -u kubelet"}
	err = lab.Until(ctx, r.longPatience, "the node to be back", func(ctx context.Context) (string, error) {
		node, err := r.Node(ctx, worker.Node)
		switch {
		case err != nil:
			return "", err
		case node.Status.NodeInfo.BootID == before.Status.NodeInfo.BootID && !heardSince(node, restarted):
			return lab.NotYet("its kubelet has not reported since the restart")
		case !lab.NodeReady(node):
			return lab.NotYet("it is not Ready")
		}
		for _, address := range node.Status.Addresses {
			if address.Type == corev1.NodeInternalIP && address.Address != worker.Address {
				return lab.NotYet("it is at %s, and was at %s", address.Address, worker.Address)
			}
		}
		if _, err := r.inventoryOf(ctx, worker); err != nil {
			return lab.NotYet("%v", err)
		}
		return "", nil
	})
	if timeout, late := errors.AsType[*lab.TimeoutError](err); late {
		return "", failed(worker.Node+" back with its cards and address", look, "%s", timeout.Seen)
	} else if err != nil {
		return "", err
	}
	cardsBack := time.Since(restarted)
	if err := r.survivorRuns(ctx, worker.Node, restarted); err != nil {
		return "", err
	}
	// Only now: until the kubelet has told of its pods, they are Ready as they
	// were before.
	if err := r.systemReady(ctx); err != nil {
		return "", failed("the pods of kube-system back", look, "%v", err)
	}
	detail := fmt.Sprintf("%s: cards and address back after %.0f s, its Deployment's pod runs after %.0f s", worker.Node, cardsBack.Seconds(), time.Since(restarted).Seconds())
	withPods := metav1.DeletePropagationForeground
	if err := deployments.Delete(ctx, "survivor", metav1.DeleteOptions{PropagationPolicy: &withPods}); err != nil {
		return "", err
	}
	return detail, r.DeletePods(ctx)
}

func heardSince(node *corev1.Node, when time.Time) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.LastHeartbeatTime.After(when)
	})
}

// survivorRuns waits until the Deployment has a pod whose container was started
// after a point in time. What the kubelet refused when it came back
// (UnexpectedAdmissionError) stays beside it as Failed.
func (r *run) survivorRuns(ctx context.Context, node string, after time.Time) error {
	last := ""
	err := lab.Until(ctx, r.longPatience, "the Deployment's pod", func(ctx context.Context) (string, error) {
		list, err := r.Client.CoreV1().Pods(r.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=survivor"})
		if err != nil {
			return "", err
		}
		seen := "no pod"
		for _, pod := range list.Items {
			last, seen = pod.Name, fmt.Sprintf("%s is %s %s", pod.Name, pod.Status.Phase, pod.Status.Reason)
			for _, container := range pod.Status.ContainerStatuses {
				if running := container.State.Running; lab.Ready(&pod) && pod.Spec.NodeName == node && running != nil && !running.StartedAt.Time.Before(after.Truncate(time.Second)) {
					return "", nil
				}
			}
		}
		return lab.NotYet("%s", seen)
	})
	if timeout, late := errors.AsType[*lab.TimeoutError](err); late {
		return r.failedPod(ctx, "a pod of the Deployment Running on "+node, last, "%s", timeout.Seen)
	}
	return err
}

// removedAndAdded is TC-13.
func removedAndAdded(ctx context.Context, r *run) (detail string, err error) {
	if len(r.Lab.Tenants) < 2 {
		return "", skipAlone
	}
	storage, err := r.Storage(ctx)
	if err != nil {
		return "", err
	}
	neighbours := r.others()
	before, err := podsOf(ctx, neighbours)
	if err != nil {
		return "", err
	}
	added := false
	defer func() {
		if !added { // never leave the stack without it
			ctx := context.WithoutCancel(ctx)
			err = errors.Join(err, r.Lab.Stack.Up(ctx, ""), r.meetAgain(ctx))
		}
	}()
	started := time.Now()
	if err := r.Lab.Stack.Up(ctx, r.Name); err != nil {
		return "", err
	}
	removed := time.Since(started)
	if _, err := r.ControlPlane(ctx); !apierrors.IsNotFound(err) {
		return "", failed("no TenantControlPlane "+r.Name, nil, "%s", cmp.Or(text(err), "it is still there"))
	}
	for _, worker := range r.Workers {
		if there, err := lab.Containers(ctx, worker.Container); err != nil || there {
			return "", failed("no container "+worker.Container, nil, "%s", cmp.Or(text(err), "it is still there"))
		}
	}
	root, err := r.Lab.OpenStoreAsRoot(ctx, storage.DataStore)
	if err != nil {
		return "", err
	}
	defer root.Close()
	if left, err := r.count(ctx, root, storage.Prefix); err != nil || left > 0 {
		return "", failed("no key below "+storage.Prefix+" in the etcd", nil, "%d, %v", left, err)
	}
	if _, err := root.UserGet(ctx, storage.User); !isUserNotFound(err) {
		return "", failed("no user "+storage.User+" in the etcd", nil, "%s", cmp.Or(text(err), "it is still there"))
	}
	started = time.Now()
	if err := r.Lab.Stack.Up(ctx, ""); err != nil {
		return "", err
	}
	added = true
	again := time.Since(started)
	// First of all: whoever comes next, the sweep too, needs to reach it.
	if err := r.meetAgain(ctx); err != nil {
		return "", err
	}
	after, err := podsOf(ctx, neighbours)
	if err != nil {
		return "", err
	}
	for _, name := range keys(before) {
		if before[name] != after[name] {
			return "", failed("the other tenants' pods untouched", nil, "%s was %s, and is %q", name, before[name], after[name])
		}
	}
	if _, err := controlPlane(ctx, r); err != nil {
		return "", err
	}
	if r.HasCards() {
		if _, err := placed(ctx, r); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("removed in %.0f s, no key and no user left in etcd; back in %.0f s; %d pods of others as before", removed.Seconds(), again.Seconds(), len(before)), nil
}

// meetAgain reaches a tenant that was made again: its credentials and perhaps its
// address are others now.
func (r *run) meetAgain(ctx context.Context) error {
	fresh, err := stack.Read(ctx, r.Lab.Stack.Project, r.Lab.Stack.Name)
	if err != nil {
		return err
	}
	reached, err := lab.Open(fresh)
	if err != nil {
		return err
	}
	for _, tenant := range reached.Tenants {
		if tenant.Name == r.Name {
			r.Tenant.Tenant, r.Cluster = tenant.Tenant, tenant.Cluster
		}
	}
	return r.Prepare(ctx)
}

// podsOf are all pods of tenants outside this command's own namespaces: which
// each is, and how often its containers were restarted.
func podsOf(ctx context.Context, tenants []*lab.Tenant) (map[string]string, error) {
	all := map[string]string{}
	for _, tenant := range tenants {
		list, err := tenant.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for _, pod := range list.Items {
			if pod.Namespace == tenant.Namespace {
				continue
			}
			restarts := int32(0)
			for _, container := range pod.Status.ContainerStatuses {
				restarts += container.RestartCount
			}
			all[tenant.Name+"/"+pod.Namespace+"/"+pod.Name] = fmt.Sprintf("%s with %d restarts", pod.UID, restarts)
		}
	}
	return all, nil
}
