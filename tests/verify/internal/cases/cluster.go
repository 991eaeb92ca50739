package cases

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/lab"
)

// controlPlane is TC-01.
func controlPlane(ctx context.Context, r *run) (string, error) {
	for _, other := range r.Lab.Tenants {
		if other.Name != r.Name && other.Endpoint == r.Endpoint {
			return "", failed("an address of its own", nil, "%s and %s are both at %s", r.Name, other.Name, r.Endpoint)
		}
		// An API server of its own signs with an authority of its own.
		if other.Name != r.Name && string(other.Config.CAData) == string(r.Config.CAData) {
			return "", failed("an authority of its own", nil, "%s and %s trust the same certificate", r.Name, other.Name)
		}
	}
	plane, err := r.ControlPlane(ctx)
	if err != nil {
		return "", err
	}
	const look = "kubectl -n tenants describe tenantcontrolplane (management cluster)"
	endpoint, _, _ := unstructured.NestedString(plane.Object, "status", "controlPlaneEndpoint")
	if endpoint != r.Endpoint {
		return "", failed("Kamaji to name the endpoint "+r.Endpoint, []string{look}, "%q", endpoint)
	}
	version, err := r.Client.Discovery().ServerVersion()
	if err != nil {
		return "", failed("an API server that answers at "+r.Endpoint, []string{look}, "%v", err)
	}
	if version.GitVersion != r.KubernetesVersion {
		return "", failed("an API server of version "+r.KubernetesVersion, []string{look}, "%s", version.GitVersion)
	}
	pods, err := r.Lab.Management.Client.CoreV1().Pods(lab.TenantsNamespace).List(ctx, metav1.ListOptions{LabelSelector: "kamaji.clastix.io/name=" + r.Name})
	if err != nil {
		return "", err
	}
	wanted := []string{"konnectivity-server", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}
	pods.Items = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
	if len(pods.Items) != r.Replicas {
		return "", failed(fmt.Sprintf("%d pods with the control plane", r.Replicas), []string{"kubectl -n tenants get pods (management cluster)"}, "%d", len(pods.Items))
	}
	for _, pod := range pods.Items {
		var ready []string
		for _, container := range pod.Status.ContainerStatuses {
			if container.Ready {
				ready = append(ready, container.Name)
			}
		}
		slices.Sort(ready)
		if !slices.Equal(ready, wanted) {
			return "", failed(strings.Join(wanted, ", ")+" ready in "+pod.Name, []string{"kubectl -n tenants describe pod " + pod.Name + " (management cluster)"}, "ready are: %s", strings.Join(ready, ", "))
		}
	}
	return fmt.Sprintf("%s at %s, %d x 4 containers ready", version.GitVersion, r.Endpoint, r.Replicas), nil
}

// workers is TC-02.
func workers(ctx context.Context, r *run) (string, error) {
	nodes, err := r.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	var wanted, seen []string
	containers := map[string]string{}
	for _, worker := range r.Workers {
		wanted = append(wanted, worker.Node)
		containers[worker.Node] = worker.Container
	}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		seen = append(seen, node.Name)
		look := []string{"kubectl describe node " + node.Name, "docker exec " + containers[node.Name] + " journalctl -u kubelet"}
		if !lab.NodeReady(node) {
			return "", failed(node.Name+" Ready", look, "it is not")
		}
		if got := node.Status.NodeInfo.KubeletVersion; got != r.KubernetesVersion {
			return "", failed(node.Name+" at "+r.KubernetesVersion, look, "%s", got)
		}
	}
	slices.Sort(wanted)
	slices.Sort(seen)
	if !slices.Equal(wanted, seen) {
		return "", failed("the nodes "+strings.Join(wanted, ", "), []string{"kubectl get nodes"}, "%s", strings.Join(seen, ", "))
	}
	for _, name := range []string{"calico-node", "konnectivity-agent", "kube-proxy"} {
		set, err := r.Client.AppsV1().DaemonSets("kube-system").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", failed("a DaemonSet "+name, []string{"kubectl -n kube-system get daemonsets"}, "%v", err)
		}
		if int(set.Status.NumberReady) != len(wanted) {
			return "", failed(fmt.Sprintf("%s ready on %d nodes", name, len(wanted)), []string{"kubectl -n kube-system describe daemonset " + name}, "on %d", set.Status.NumberReady)
		}
	}
	for _, worker := range r.Workers {
		if err := r.throughTunnel(ctx, worker.Node); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d Ready at %s; logs and exec on each", len(wanted), r.KubernetesVersion), r.podNetwork(ctx)
}

// throughTunnel asks a node's kubelet for logs and an exec. kube-proxy's pod is
// on every node, and its image holds one program of which the answer is known.
func (r *run) throughTunnel(ctx context.Context, node string) error {
	list, err := r.Client.CoreV1().Pods("kube-system").List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=kube-proxy", FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return err
	}
	if len(list.Items) == 0 {
		return failed("kube-proxy on "+node, []string{"kubectl -n kube-system get pods -o wide"}, "no pod of it")
	}
	pod, program := list.Items[0].Name, "kube-proxy"
	if command := list.Items[0].Spec.Containers[0].Command; len(command) > 0 {
		program = command[0] // with its path
	}
	look := []string{"kubectl -n kube-system logs daemonset/konnectivity-agent", "kubectl -n tenants logs deploy/" + r.Name + " -c konnectivity-server (management cluster)"}
	limited, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	said, err := r.Logs(limited, "kube-system", pod, "kube-proxy", 20)
	if err != nil || said == "" {
		return failed("the logs of "+pod+" through the tunnel", look, "%d bytes, %v", len(said), err)
	}
	said, err = r.Exec(limited, "kube-system", pod, "kube-proxy", program, "--version")
	if err != nil || !strings.Contains(said, r.KubernetesVersion) {
		return failed("`kube-proxy --version` in "+pod+" to say "+r.KubernetesVersion+" through the tunnel", look, "%q, %v", said, err)
	}
	return nil
}

// podNetwork checks that pods get addresses of the tenant's network.
func (r *run) podNetwork(ctx context.Context) error {
	_, network, err := net.ParseCIDR(r.PodCIDR)
	if err != nil {
		return err
	}
	list, err := r.Client.CoreV1().Pods("kube-system").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	inside := 0
	for _, pod := range list.Items {
		if pod.Spec.HostNetwork || pod.Status.PodIP == "" {
			continue
		}
		if !network.Contains(net.ParseIP(pod.Status.PodIP)) {
			return failed("pods at addresses of "+r.PodCIDR, []string{"kubectl get pods -A -o wide"}, "%s is at %s", pod.Name, pod.Status.PodIP)
		}
		inside++
	}
	if inside == 0 {
		return failed("pods at addresses of "+r.PodCIDR, []string{"kubectl get pods -A -o wide"}, "no pod has one")
	}
	return nil
}

// isolated is TC-08.
func isolated(ctx context.Context, r *run) (string, error) {
	if len(r.Lab.Tenants) < 2 {
		return "", skipAlone
	}
	for _, other := range r.others() {
		if err := r.seesNothingOf(ctx, other); err != nil {
			return "", err
		}
		if err := r.strangerTo(ctx, other); err != nil {
			return "", err
		}
	}
	probes, err := r.cannotReach(ctx)
	if err != nil {
		return "", err
	}
	keys, err := r.cannotReadStore(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("own nodes only; refused by the others' APIs; %d ports out of reach; %d own keys readable in etcd, no other's", probes, keys), r.DeletePods(ctx)
}

// seesNothingOf compares what two API servers list.
func (r *run) seesNothingOf(ctx context.Context, other *lab.Tenant) error {
	mine, err := r.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, node := range mine.Items {
		for _, worker := range other.Workers {
			if node.Name == worker.Node {
				return failed("no node of "+other.Name+" in "+r.Name, []string{"kubectl get nodes"}, "%s", node.Name)
			}
		}
	}
	seen := map[string]bool{}
	pods, err := r.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, pod := range pods.Items {
		seen[string(pod.UID)] = true
	}
	theirs, err := other.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, pod := range theirs.Items {
		if seen[string(pod.UID)] {
			return failed("no pod of "+other.Name+" in "+r.Name, []string{"kubectl get pods -A"}, "%s/%s", pod.Namespace, pod.Name)
		}
	}
	return nil
}

// strangerTo shows the tenant's credentials to another tenant's API server. That
// one must answer, as the other's administrator it does, and say no: an error on
// the way there would prove nothing.
func (r *run) strangerTo(ctx context.Context, other *lab.Tenant) error {
	config := rest.CopyConfig(r.Config)
	config.Host, config.CAData = other.Config.Host, other.Config.CAData
	cluster, err := lab.Reach(config)
	if err != nil {
		return err
	}
	if _, err := other.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{}); err != nil {
		return err
	}
	if _, err = cluster.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{}); !isDenied(err) {
		return failed(r.Name+"'s credentials refused (401 or 403) by "+other.Name+"'s API", nil, "%v", answer(err))
	}
	return r.strangersToken(ctx, other)
}

// strangersToken is the same with a token of a service account. What is asked is
// who one is, so that a token that is accepted but may do nothing is noticed.
func (r *run) strangersToken(ctx context.Context, other *lab.Tenant) error {
	lifetime := int64(600)
	token, err := r.Client.CoreV1().ServiceAccounts(r.Namespace).CreateToken(ctx, "default",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &lifetime}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	ask := func(of *lab.Tenant) error {
		config := rest.AnonymousClientConfig(of.Config)
		config.BearerToken = token.Status.Token
		cluster, err := lab.Reach(config)
		if err != nil {
			return err
		}
		_, err = cluster.Client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		return err
	}
	if err := ask(r.Tenant); err != nil {
		return failed("a service account's token of "+r.Name+" to be good there", nil, "%v", err)
	}
	if err := ask(other); !apierrors.IsUnauthorized(err) {
		return failed("a service account's token of "+r.Name+" refused (401) by "+other.Name+"'s API", nil, "%v", answer(err))
	}
	return nil
}

// foreignPort is a port that is none of a tenant's business.
type foreignPort struct {
	what, address string
	port          int
	// own is a node from which it is known to be open.
	own lab.Place
	// gateway is the node through which a route to the address is laid; "" for
	// one that is routed anyway.
	gateway string
}

// cannotReach tries the ports of others from inside a pod of the tenant and from
// its worker, and returns how many ways it tried.
func (r *run) cannotReach(ctx context.Context) (int, error) {
	worker := r.Workers[0]
	pod, err := r.bystander(ctx, worker.Node)
	if err != nil {
		return 0, err
	}
	host, port, err := endpoint(r.Endpoint)
	if err != nil {
		return 0, err
	}
	node := lab.Place{Container: worker.Container}
	inPod, err := lab.PodNetwork(ctx, worker, pod)
	if err != nil {
		return 0, err
	}
	if said, err := lab.Dial(ctx, inPod, host, port); err != nil || said != lab.PortOpen {
		return 0, failed("a pod that reaches its own API server at "+r.Endpoint, nil, "%s %v", said, err)
	}
	ports, err := r.foreignPorts(ctx)
	if err != nil {
		return 0, err
	}
	// What keeps silent is waited for, so they are tried side by side.
	var tried atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for _, port := range ports {
		group.Go(func() error {
			if said, err := lab.Dial(ctx, port.own, port.address, port.port); err != nil || said != lab.PortOpen {
				return failed(port.what+" to answer on its own side", nil, "%s %v", said, err)
			}
			ways := map[string]func() (string, error){
				"a pod":    func() (string, error) { return lab.Dial(ctx, inPod, port.address, port.port) },
				"a worker": func() (string, error) { return lab.Dial(ctx, node, port.address, port.port) },
			}
			if port.gateway != "" {
				ways = map[string]func() (string, error){
					"a worker, through the management node,": func() (string, error) {
						return lab.DialThrough(ctx, node, port.gateway, port.address, port.port)
					},
				}
			}
			for from, dial := range ways {
				said, err := dial()
				if err != nil {
					return fmt.Errorf("%s from %s: %s %w", port.what, from, said, err)
				}
				if said == lab.PortOpen {
					return failed(fmt.Sprintf("%s out of reach of %s of %s", port.what, from, r.Name),
						[]string{"docker exec " + worker.Container + " nft list table inet gpu_tenants", "docker exec " + port.own.Container + " nft list table inet gpu_tenants"},
						"%s:%d takes a connection", port.address, port.port)
				}
				tried.Add(1)
			}
			return nil
		})
	}
	err = group.Wait()
	return int(tried.Load()), err
}

// foreignPorts are those of the other tenants' workers, of the management node,
// and of the pods behind that: the etcd, and the other tenants' API servers.
func (r *run) foreignPorts(ctx context.Context) ([]foreignPort, error) {
	const kubelet, proxyHealth, apiServer, etcd = 10250, 10256, 6443, 2379
	var ports []foreignPort
	for _, other := range r.others() {
		door, err := r.doorOf(ctx, other)
		if err != nil {
			return nil, err
		}
		for _, theirs := range other.Workers {
			for what, port := range map[string]int{"a node port": door, "the kubelet": kubelet, "kube-proxy": proxyHealth} {
				ports = append(ports, foreignPort{what: what + " of " + theirs.Node, address: theirs.Address, port: port, own: lab.Place{Container: theirs.Container}})
			}
		}
	}
	management := lab.Place{Container: r.Lab.Stack.ManagementCluster.Node}
	behind, err := r.podPorts(ctx)
	if err != nil {
		return nil, err
	}
	node, err := r.Lab.Management.Client.CoreV1().Nodes().Get(ctx, management.Container, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	for _, address := range node.Status.Addresses {
		if address.Type != corev1.NodeInternalIP || strings.Contains(address.Address, ":") {
			continue
		}
		for what, port := range map[string]int{"the API server": apiServer, "the kubelet": kubelet, "the etcd": etcd} {
			ports = append(ports, foreignPort{what: what + " of the management cluster", address: address.Address, port: port, own: management})
		}
		for _, port := range behind {
			port.own, port.gateway = management, address.Address
			ports = append(ports, port)
		}
	}
	return ports, nil
}

// podPorts are those of pods of the management cluster: the etcd under the
// tenants, and the other tenants' API servers.
func (r *run) podPorts(ctx context.Context) ([]foreignPort, error) {
	storage, err := r.Storage(ctx)
	if err != nil {
		return nil, err
	}
	address, port, err := r.Lab.StoreAddress(ctx, storage.DataStore)
	if err != nil {
		return nil, err
	}
	ports := []foreignPort{{what: "the etcd under the tenants", address: address, port: port}}
	for _, other := range r.others() {
		_, port, err := endpoint(other.Endpoint)
		if err != nil {
			return nil, err
		}
		pods, err := r.Lab.Management.Client.CoreV1().Pods(lab.TenantsNamespace).List(ctx, metav1.ListOptions{LabelSelector: "kamaji.clastix.io/name=" + other.Name})
		if err != nil {
			return nil, err
		}
		for _, pod := range pods.Items {
			if lab.Ready(&pod) {
				ports = append(ports, foreignPort{what: "the pod " + pod.Name, address: pod.Status.PodIP, port: port})
			}
		}
	}
	return ports, nil
}

// doorOf opens a node port of another tenant, and sees it open on each of its
// nodes from that node itself.
func (r *run) doorOf(ctx context.Context, other *lab.Tenant) (int, error) {
	if other.Namespace == "" {
		return 0, failed("a namespace in "+other.Name+", for a node port that is to be out of reach", nil, "there is none; see its other cases")
	}
	door, err := other.OpenDoor(ctx)
	if err != nil {
		return 0, err
	}
	for _, theirs := range other.Workers {
		// kube-proxy hears of it a moment later.
		err := lab.Until(ctx, r.patience, "the node port", func(ctx context.Context) (string, error) {
			said, err := lab.Dial(ctx, lab.Place{Container: theirs.Container}, theirs.Address, door)
			if err == nil && said != lab.PortOpen {
				return lab.NotYet("%s", said)
			}
			return "", err
		})
		if timeout, late := errors.AsType[*lab.TimeoutError](err); late {
			return 0, failed(fmt.Sprintf("the node port %d of %s to answer on its own node", door, theirs.Node), []string{"kubectl -n kube-system logs daemonset/kube-proxy"}, "%s", timeout.Seen)
		} else if err != nil {
			return 0, err
		}
	}
	return door, nil
}

// bystander is a running pod without a card on a node.
func (r *run) bystander(ctx context.Context, node string) (*corev1.Pod, error) {
	pod := r.Pod("bystander", r.image, lab.Ask{})
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
	pod.Spec.NodeName = node
	if _, err := r.Create(ctx, pod); err != nil {
		return nil, err
	}
	err := lab.Until(ctx, r.patience, "the pod", func(ctx context.Context) (string, error) {
		now, err := r.GetPod(ctx, pod.Name)
		if err == nil && !lab.Ready(now) {
			return lab.NotYet("%s", now.Status.Phase)
		}
		pod = now
		return "", err
	})
	if timeout, late := errors.AsType[*lab.TimeoutError](err); late {
		return nil, r.failedPod(ctx, "a pod without a card to run on "+node, pod.Name, "%s", timeout.Seen)
	}
	return pod, err
}

// cannotReadStore reads the shared etcd with the tenant's certificate: what is
// its own it may read, what is others' it may not, and that is there.
func (r *run) cannotReadStore(ctx context.Context) (int64, error) {
	own, err := r.Storage(ctx)
	if err != nil {
		return 0, err
	}
	store, err := r.OpenStore(ctx, own)
	if err != nil {
		return 0, err
	}
	defer store.Close()
	root, err := r.Lab.OpenStoreAsRoot(ctx, own.DataStore)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	readable, err := r.count(ctx, store, own.Prefix)
	if err != nil || readable == 0 {
		return 0, failed(r.Name+"'s certificate to read its own data at "+own.Prefix, nil, "%d keys, %v", readable, err)
	}
	for _, other := range r.others() {
		theirs, err := other.Storage(ctx)
		if err != nil {
			return 0, err
		}
		if there, err := r.count(ctx, root, theirs.Prefix); err != nil || there == 0 {
			return 0, failed("data of "+other.Name+" at "+theirs.Prefix, nil, "%d keys, %v", there, err)
		}
		seen, err := r.count(ctx, store, theirs.Prefix)
		if !isPermissionDenied(err) {
			return 0, failed("the etcd to deny "+r.Name+" the data of "+other.Name, []string{"etcdctl role get (in a pod of the etcd, management cluster)"}, "%d keys, %v", seen, err)
		}
	}
	return readable, nil
}

// systemReady waits until all DaemonSets and Deployments of kube-system are.
func (r *run) systemReady(ctx context.Context) error {
	return lab.Until(ctx, r.longPatience, "the pods of kube-system", func(ctx context.Context) (string, error) {
		sets, err := r.Client.AppsV1().DaemonSets("kube-system").List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		for _, set := range sets.Items {
			if set.Status.NumberReady < set.Status.DesiredNumberScheduled || set.Status.DesiredNumberScheduled == 0 && placeable(set) {
				return lab.NotYet("DaemonSet %s: %d of %d ready", set.Name, set.Status.NumberReady, set.Status.DesiredNumberScheduled)
			}
		}
		deployments, err := r.Client.AppsV1().Deployments("kube-system").List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		for _, deployment := range deployments.Items {
			if deployment.Spec.Replicas != nil && deployment.Status.ReadyReplicas < *deployment.Spec.Replicas {
				return lab.NotYet("Deployment %s: %d of %d ready", deployment.Name, deployment.Status.ReadyReplicas, *deployment.Spec.Replicas)
			}
		}
		return "", nil
	})
}

// placeable: HAMi's chart brings a DaemonSet for nodes with real cards.
func placeable(set appsv1.DaemonSet) bool { return len(set.Spec.Template.Spec.NodeSelector) == 0 }
