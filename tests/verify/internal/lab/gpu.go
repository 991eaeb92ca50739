package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/stack"
)

// What HAMi is called and what it writes.
// https://github.com/Project-HAMi/HAMi/blob/master/docs/develop/protocol.md
const (
	SchedulerName = "hami-scheduler"

	ResourceGPU    = "nvidia.com/gpu"
	ResourceMemory = "nvidia.com/gpumem"   // MiB
	ResourceCores  = "nvidia.com/gpucores" // percent of one card

	annotationRegister  = "hami.io/node-nvidia-register"
	annotationLock      = "hami.io/mutex.lock"
	annotationNode      = "hami.io/vgpu-node"
	annotationBindPhase = "hami.io/bind-phase"
	annotationAllocated = "hami.io/vgpu-devices-allocated"
	annotationUseUUID   = "nvidia.com/use-gpuuuid"
)

// Ask is what a pod wants of a card.
type Ask struct {
	MemoryMiB int64
	Cores     int64
	Card      string // its UUID; "": any
}

// Pod is a pod of one container that never ends, with what it asks for.
func (t *Tenant) Pod(name, image string, ask Ask) *corev1.Pod {
	nobody, no := int64(65534), false
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: t.Namespace},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: &no,
			SecurityContext:              &corev1.PodSecurityContext{RunAsUser: &nobody},
			Containers: []corev1.Container{{Name: "main", Image: image, Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{
					ResourceGPU:    resource.MustParse("1"),
					ResourceMemory: *resource.NewQuantity(ask.MemoryMiB, resource.DecimalSI),
					ResourceCores:  *resource.NewQuantity(ask.Cores, resource.DecimalSI),
				},
			}}},
		},
	}
	if ask.Card != "" {
		pod.Annotations = map[string]string{annotationUseUUID: ask.Card}
	}
	return pod
}

// Create makes a pod.
func (t *Tenant) Create(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	return t.Client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
}

// DryRun asks what would become of a pod.
func (t *Tenant) DryRun(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	return t.Client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

// GetPod reads a pod of this run.
func (t *Tenant) GetPod(ctx context.Context, name string) (*corev1.Pod, error) {
	return t.Client.CoreV1().Pods(t.Namespace).Get(ctx, name, metav1.GetOptions{})
}

// DeletePods deletes all pods of this run at once, and waits until they are gone.
func (t *Tenant) DeletePods(ctx context.Context) error {
	now := int64(0)
	pods := t.Client.CoreV1().Pods(t.Namespace)
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}); err != nil {
		return err
	}
	return Until(ctx, time.Minute, "this run's pods to be gone", func(ctx context.Context) (string, error) {
		list, err := pods.List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			return NotYet("%d pods are still there", len(list.Items))
		}
		return "", err
	})
}

// Clear deletes all that a case may have left in the run's namespace.
func (t *Tenant) Clear(ctx context.Context) error {
	background := metav1.DeletePropagationBackground
	options, all := metav1.DeleteOptions{PropagationPolicy: &background}, metav1.ListOptions{}
	return errors.Join(
		t.Client.AppsV1().Deployments(t.Namespace).DeleteCollection(ctx, options, all),
		t.Client.CoreV1().ResourceQuotas(t.Namespace).DeleteCollection(ctx, options, all),
		t.DeletePods(ctx),
	)
}

// OpenDoor opens a port on every node of the tenant, as any Service of type
// NodePort does. Behind it is CoreDNS, which every tenant runs and which needs no
// image that is not there.
func (t *Tenant) OpenDoor(ctx context.Context) (int, error) {
	list, err := t.Client.CoreV1().Pods("kube-system").List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=kube-dns"})
	if err != nil {
		return 0, err
	}
	at := slices.IndexFunc(list.Items, func(p corev1.Pod) bool { return Ready(&p) })
	if at < 0 {
		return 0, fmt.Errorf("%s: no pod of CoreDNS is ready", t.Name)
	}
	const dns = 53
	service, err := t.Client.CoreV1().Services(t.Namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "door-"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: dns}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return 0, err
	}
	port, name, protocol := int32(dns), "", corev1.ProtocolTCP
	_, err = t.Client.DiscoveryV1().EndpointSlices(t.Namespace).Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service.Name, Labels: map[string]string{discoveryv1.LabelServiceName: service.Name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{list.Items[at].Status.PodIP}}},
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}, metav1.CreateOptions{})
	return int(service.Spec.Ports[0].NodePort), err
}

// Slice is a container's share of one card, as HAMi writes it onto a pod.
type Slice struct {
	Card             string
	MemoryMiB, Cores int64
}

// Slices of all containers of a pod. The annotation reads
// "<card>,<vendor>,<MiB>,<percent>:" for each slice, and ";" ends a container.
func Slices(pod *corev1.Pod) ([]Slice, error) {
	annotation := pod.Annotations[annotationAllocated]
	var all []Slice
	for text := range strings.FieldsFuncSeq(annotation, func(r rune) bool { return r == ':' || r == ';' }) {
		fields := strings.Split(text, ",")
		if len(fields) != 4 {
			return nil, fmt.Errorf("annotation %s of pod %s/%s: %q is not card,vendor,MiB,percent", annotationAllocated, pod.Namespace, pod.Name, text)
		}
		memory, err := strconv.ParseInt(fields[2], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("annotation %s of pod %s/%s: memory %q", annotationAllocated, pod.Namespace, pod.Name, fields[2])
		}
		cores, err := strconv.ParseInt(fields[3], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("annotation %s of pod %s/%s: cores %q", annotationAllocated, pod.Namespace, pod.Name, fields[3])
		}
		all = append(all, Slice{Card: fields[0], MemoryMiB: memory, Cores: cores})
	}
	return all, nil
}

// Bound says which node HAMi chose, and how far the binding is.
func Bound(pod *corev1.Pod) (node, phase string) {
	return pod.Annotations[annotationNode], pod.Annotations[annotationBindPhase]
}

// Registered are the cards that a node has registered with HAMi.
func Registered(node *corev1.Node) ([]stack.Card, error) {
	var cards []struct {
		ID      string `json:"id"`
		Count   int64  `json:"count"`
		Devmem  int64  `json:"devmem"`
		Devcore int64  `json:"devcore"`
		Type    string `json:"type"`
		Health  bool   `json:"health"`
	}
	text := node.Annotations[annotationRegister]
	if text == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(text), &cards); err != nil {
		return nil, fmt.Errorf("annotation %s of node %s: %w", annotationRegister, node.Name, err)
	}
	var all []stack.Card
	for _, card := range cards {
		all = append(all, stack.Card{UUID: card.ID, Type: card.Type, MemoryMiB: card.Devmem, Cores: card.Devcore, Slices: card.Count, Healthy: card.Health})
	}
	return all, nil
}

// Lock says for whom a node is locked; "" when it is not.
func Lock(node *corev1.Node) string { return node.Annotations[annotationLock] }

// Used is what pods hold of each card, by its UUID.
func (t *Tenant) Used(ctx context.Context) (map[string]int, error) {
	list, err := t.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: fields.AndSelectors(
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
	).String()})
	if err != nil {
		return nil, err
	}
	used := map[string]int{}
	for i := range list.Items {
		if list.Items[i].Spec.NodeName == "" {
			continue
		}
		held, err := Slices(&list.Items[i])
		if err != nil {
			return nil, err
		}
		for _, slice := range held {
			used[slice.Card]++
		}
	}
	return used, nil
}

// FreeCard is the largest healthy card that no pod holds anything of, and its worker.
func (t *Tenant) FreeCard(ctx context.Context) (stack.Worker, stack.Card, error) {
	used, err := t.Used(ctx)
	if err != nil {
		return stack.Worker{}, stack.Card{}, err
	}
	var at stack.Worker
	var best stack.Card
	for _, worker := range t.Workers {
		for _, card := range worker.Cards {
			if card.Healthy && used[card.UUID] == 0 && card.MemoryMiB > best.MemoryMiB {
				at, best = worker, card
			}
		}
	}
	return at, best, nil
}

// HasCards says whether any worker has one.
func (t *Tenant) HasCards() bool {
	return slices.ContainsFunc(t.Workers, func(w stack.Worker) bool { return len(w.Cards) > 0 })
}

// SchedulerSays are the last lines that HAMi's scheduler wrote about a pod.
func (t *Tenant) SchedulerSays(ctx context.Context, pod string) []string {
	const where = "kubectl -n kube-system logs deploy/hami-scheduler -c vgpu-scheduler-extender"
	list, err := t.Client.CoreV1().Pods("kube-system").List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=hami-scheduler"})
	if err != nil || len(list.Items) == 0 {
		return []string{where}
	}
	const recent, shown = 400, 3
	text, err := t.Logs(ctx, "kube-system", list.Items[0].Name, "vgpu-scheduler-extender", recent)
	if err != nil {
		return []string{where + ": " + err.Error()}
	}
	var about []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, pod) {
			about = append(about, strings.TrimSpace(line))
		}
	}
	return append([]string{where}, about[max(0, len(about)-shown):]...)
}
