// Package lab reaches what a stack runs: the API servers, the node containers,
// the etcd under all tenants. What it puts there carries a label or a name of
// its own, and is taken away again, at the latest by the next run.
package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/stack"
)

// Label is on every namespace that a run makes.
const Label = "gpu-tenants.io/verify"

// TenantsNamespace of the management cluster holds the control planes.
const TenantsNamespace = "tenants"

// Lab is a running stack, reached.
type Lab struct {
	Stack      *stack.Stack
	Management *Cluster
	Tenants    []*Tenant
}

// Cluster is an API server, reached as administrator.
type Cluster struct {
	Config *rest.Config
	Client kubernetes.Interface
	// Objects reaches kinds that client-go does not know.
	Objects dynamic.Interface
}

// Tenant is a tenant's cluster.
type Tenant struct {
	stack.Tenant
	*Cluster
	// Namespace is this run's own.
	Namespace string
	Lab       *Lab
}

// Open reaches a stack. It asks nothing yet.
func Open(s *stack.Stack) (*Lab, error) {
	l := &Lab{Stack: s}
	var err error
	if l.Management, err = open(s.ManagementKubeconfig); err != nil {
		return nil, fmt.Errorf("the management cluster's kubeconfig: %w", err)
	}
	for _, tenant := range s.Tenants {
		cluster, err := open(tenant.Kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("the kubeconfig of %s: %w", tenant.Name, err)
		}
		l.Tenants = append(l.Tenants, &Tenant{Tenant: tenant, Cluster: cluster, Lab: l})
	}
	return l, nil
}

func open(kubeconfig []byte) (*Cluster, error) {
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, errors.New("it cannot be read") // client-go's words may quote it
	}
	config.QPS, config.Burst = 50, 100
	// A paused node takes connections and answers nothing. Longer than a webhook
	// may take, so that what the API server says of it is heard.
	config.Timeout = time.Minute
	return Reach(config)
}

// Reach makes the clients of a configuration.
func Reach(config *rest.Config) (*Cluster, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfig(config)
	return &Cluster{Config: config, Client: client, Objects: objects}, err
}

// Prepare takes away what a run that was killed left, and makes the namespace.
func (t *Tenant) Prepare(ctx context.Context) error {
	for _, worker := range t.Workers {
		if err := t.RestoreTunnel(ctx, worker); err != nil {
			return err
		}
	}
	if err := t.Clean(ctx); err != nil {
		return err
	}
	made, err := t.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "verify-", Labels: map[string]string{Label: "true"},
	}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("%s: no namespace could be made: %w", t.Name, err)
	}
	t.Namespace = made.Name
	// Pods name it, and the API server refuses them before it exists.
	return Until(ctx, time.Minute, "the namespace's service account", func(ctx context.Context) (string, error) {
		_, err := t.Client.CoreV1().ServiceAccounts(t.Namespace).Get(ctx, "default", metav1.GetOptions{})
		return "", err
	})
}

// Clean deletes every namespace with the label, with what is in it, and waits
// until they are gone: what they held of the cards is then free.
func (t *Tenant) Clean(ctx context.Context) error {
	selector := metav1.ListOptions{LabelSelector: Label}
	list, err := t.Client.CoreV1().Namespaces().List(ctx, selector)
	if err != nil {
		return fmt.Errorf("%s: its API server does not answer: %w", t.Name, err)
	}
	now := int64(0)
	for _, namespace := range list.Items {
		// At once: nothing in them has anything to put in order.
		err := t.Client.CoreV1().Pods(namespace.Name).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
		if err == nil {
			err = t.Client.CoreV1().Namespaces().Delete(ctx, namespace.Name, metav1.DeleteOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("%s: namespace %s could not be deleted: %w", t.Name, namespace.Name, err)
		}
	}
	return Until(ctx, 2*time.Minute, "namespaces of this and earlier runs to be gone", func(ctx context.Context) (string, error) {
		left, err := t.Client.CoreV1().Namespaces().List(ctx, selector)
		if err == nil && len(left.Items) > 0 {
			return fmt.Sprintf("%d are still there, %s among them", len(left.Items), left.Items[0].Name), errNotYet
		}
		return "", err
	})
}

var errNotYet = errors.New("not yet")

// NotYet is what a condition returns that has been looked at and is not met.
func NotYet(format string, arguments ...any) (string, error) {
	return fmt.Sprintf(format, arguments...), errNotYet
}

// TimeoutError says what a wait was for and what was last seen.
type TimeoutError struct {
	For, Seen string
	After     time.Duration
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("waited %s for %s; last seen: %s", e.After.Round(time.Second), e.For, e.Seen)
}

// Until asks a condition, every half second, until it returns no error. An error
// other than NotYet is taken as something that may pass too: an API server that
// is being restarted. At the end it returns a *TimeoutError.
func Until(ctx context.Context, limit time.Duration, what string, condition func(context.Context) (string, error)) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	seen := "nothing"
	for {
		now, err := condition(limited)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, errNotYet):
			seen = now
		case limited.Err() == nil && !strings.Contains(err.Error(), "context deadline"):
			// The latter tells of the wait's own end: client-go does not even ask
			// when the time left is too short.
			seen = err.Error()
		}
		select {
		case <-tick.C:
		case <-limited.Done():
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return &TimeoutError{For: what, Seen: seen, After: limit}
		}
	}
}

// Exec runs a command in a container of a pod, through the API server and so,
// in a tenant, through the tunnel.
func (c *Cluster) Exec(ctx context.Context, namespace, pod, container string, command ...string) (string, error) {
	request := c.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(c.Config, "GET", request.URL().String())
	if err != nil {
		return "", err
	}
	var stdout, stderr bytes.Buffer
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr})
	if err != nil {
		return stdout.String(), fmt.Errorf("exec %s in %s/%s: %w %s", command[0], namespace, pod, err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Logs are the last lines of a container's log; through the tunnel, as Exec is.
func (c *Cluster) Logs(ctx context.Context, namespace, pod, container string, lines int64) (string, error) {
	text, err := c.Client.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{Container: container, TailLines: &lines}).DoRaw(ctx)
	return string(text), err
}

// Node returns a node of the tenant.
func (t *Tenant) Node(ctx context.Context, name string) (*corev1.Node, error) {
	return t.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}

// ControlPlane returns the tenant's TenantControlPlane.
func (t *Tenant) ControlPlane(ctx context.Context) (*unstructured.Unstructured, error) {
	kind := schema.GroupVersionResource{Group: "kamaji.clastix.io", Version: "v1alpha1", Resource: "tenantcontrolplanes"}
	return t.Lab.Management.Objects.Resource(kind).Namespace(TenantsNamespace).Get(ctx, t.Name, metav1.GetOptions{})
}

// Events are what the API server tells of an object, oldest first, as "reason: note".
func (t *Tenant) Events(ctx context.Context, kind, name string) []string {
	list, err := t.Client.EventsV1().Events(t.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: "regarding.kind=" + kind + ",regarding.name=" + name,
	})
	if err != nil {
		return []string{"its events cannot be read: " + err.Error()}
	}
	slices.SortStableFunc(list.Items, func(a, b eventsv1.Event) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	var all []string
	for _, event := range list.Items {
		all = append(all, event.Reason+": "+event.Note)
	}
	return all
}

// Ready says whether a pod's Ready condition is true.
func Ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// NodeReady says whether a node's Ready condition is true.
func NodeReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// Docker runs Docker's command. What it wrote to stderr is in the error.
func Docker(ctx context.Context, arguments ...string) (string, error) {
	command := exec.CommandContext(ctx, "docker", arguments...) //nolint:gosec // Docker's
	command.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		return stdout.String(), fmt.Errorf("docker %s: %w: %s", strings.Join(arguments[:min(2, len(arguments))], " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// tunnelTable is a table of packet filter rules that is this command's own.
const tunnelTable = "gpu_tenants_verify"

// CutTunnel lets nothing of the tunnel pass a worker any more. Both ends are told
// so at once, and the konnectivity agent tries again and again.
func (t *Tenant) CutTunnel(ctx context.Context, worker stack.Worker) error {
	plane, err := t.ControlPlane(ctx)
	if err != nil {
		return err
	}
	port, found, err := unstructured.NestedInt64(plane.Object, "spec", "addons", "konnectivity", "server", "port")
	if err != nil || !found {
		return fmt.Errorf("%s has no port for Konnectivity: %w", t.Name, err)
	}
	address, err := netip.ParseAddrPort(t.Endpoint)
	if err != nil {
		return err
	}
	rules := fmt.Sprintf("add table inet %[1]s; flush table inet %[1]s; "+
		// Else the resets that the other two rules send would be caught too.
		"add chain inet %[1]s cut; add rule inet %[1]s cut tcp flags & rst == rst accept; "+
		"add rule inet %[1]s cut ip daddr %[2]s tcp dport %[3]d reject with tcp reset; "+
		"add rule inet %[1]s cut ip saddr %[2]s tcp sport %[3]d reject with tcp reset", tunnelTable, address.Addr(), port)
	// The agent is a pod, so the node forwards what it says; with Kamaji's
	// hostNetwork it would be the node's own.
	for _, hook := range []string{"forward", "output", "input"} {
		rules += fmt.Sprintf("; add chain inet %[1]s %[2]s { type filter hook %[2]s priority -10; }; add rule inet %[1]s %[2]s jump cut", tunnelTable, hook)
	}
	_, err = Docker(ctx, "exec", worker.Container, "nft", rules)
	return err
}

// RestoreTunnel undoes CutTunnel; it is no error when there is nothing to undo.
func (t *Tenant) RestoreTunnel(ctx context.Context, worker stack.Worker) error {
	// The rules went with the network of a container that does not run.
	if running, err := Containers(ctx, worker.Container, "--filter", "status=running"); err != nil || !running {
		return err
	}
	_, err := Docker(ctx, "exec", worker.Container, "nft", fmt.Sprintf("add table inet %[1]s; delete table inet %[1]s", tunnelTable))
	return err
}

// Containers says whether there is a container of that name, for which Docker's
// filters hold.
func Containers(ctx context.Context, name string, filters ...string) (bool, error) {
	said, err := Docker(ctx, append([]string{"ps", "--all", "--quiet", "--filter", "name=^/?" + name + "$"}, filters...)...)
	return strings.TrimSpace(said) != "", err
}

// What Dial says of a port that took a connection, and of others.
const (
	PortOpen        = "open"
	PortRefused     = "refused"
	PortSilent      = "silent"
	PortUnreachable = "unreachable"
)

// Place is where a connection is tried from: a network namespace in a node's
// container. It takes no image: the container brings bash, crictl and nsenter,
// whatever the pods in it are made of.
type Place struct {
	Container string
	netns     string // a path in the container; "": the node's own
}

// PodNetwork is the network of a pod of a worker.
func PodNetwork(ctx context.Context, worker stack.Worker, pod *corev1.Pod) (Place, error) {
	const script = `
sandbox=$(crictl --timeout 30s pods --quiet --no-trunc --namespace "$1" --name "^$2\$" --state Ready | head -n 1)
[ -n "$sandbox" ] || { echo "no sandbox of $1/$2" >&2; exit 1; }
crictl --timeout 30s inspectp --output json "$sandbox" |
  jq --exit-status --raw-output '.info.runtimeSpec.linux.namespaces[] | select(.type == "network") | .path'`
	path, err := Docker(ctx, "exec", worker.Container, "bash", "-o", "pipefail", "-c", script, "netns", pod.Namespace, pod.Name)
	return Place{Container: worker.Container, netns: strings.TrimSpace(path)}, err
}

// Dial tries to connect.
func Dial(ctx context.Context, from Place, address string, port int) (string, error) {
	return dial(ctx, from, address, port, "")
}

// DialThrough is Dial from a node that takes another as the way to the address.
// The route is for this one port, and goes with the question even if nobody waits
// for the answer. Two questions about one address are not to be asked at the same
// time.
func DialThrough(ctx context.Context, from Place, gateway, address string, port int) (string, error) {
	return dial(ctx, from, address, port, gateway)
}

func dial(ctx context.Context, from Place, address string, port int, gateway string) (string, error) {
	const script = `
enter=()
[ -z "$1" ] || enter=(nsenter --net="$1")
if [ -n "$4" ]; then
  route="$2/32"
  rule=(to "$route" ipproto tcp dport "$3" lookup 7001)
  trap 'ip rule del "${rule[@]}"; ip route del "$route" table 7001' EXIT
  ip rule add "${rule[@]}" && ip route replace "$route" via "$4" table 7001 || { echo "no route by way of $4"; exit 1; }
fi
said=$("${enter[@]}" timeout 3 bash -c "exec 3<>/dev/tcp/$2/$3" 2>&1) && { echo open; exit; }
case $? in 124) echo silent; exit ;; esac
case $said in
  *refused*) echo refused ;;
  *"No route"*|*unreachable*|*Unreachable*|*prohibited*) echo unreachable ;;
  *) echo "$said"; exit 1 ;;
esac`
	said, err := Docker(ctx, "exec", from.Container, "bash", "-c", script, "dial", from.netns, address, fmt.Sprint(port), gateway)
	return strings.TrimSpace(said), err
}
