package cases

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	fakedynamic "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	ktesting "k8s.io/client-go/testing"

	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/lab"
	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/report"
	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/stack"
)

// expectFailure wants a failure in which something is said; "" wants none.
func expectFailure(t *testing.T, name string, err error, says string) {
	t.Helper()
	var failure *report.Failure
	switch {
	case says == "" && err != nil:
		t.Errorf("%s: %v", name, err)
	case says != "" && !errors.As(err, &failure):
		t.Errorf("%s: not a failure: %v", name, err)
	case says != "" && !strings.Contains(failure.Error(), says):
		t.Errorf("%s: %q is not in %q", name, says, failure.Error())
	}
}

// TestControlPlane: each thing that TC-01 promises, broken.
func TestControlPlane(t *testing.T) {
	for name, test := range map[string]struct {
		change func(r *run, plane *unstructured.Unstructured, pod *corev1.Pod, api *version.Info)
		says   string
	}{
		"as it is to be": {func(*run, *unstructured.Unstructured, *corev1.Pod, *version.Info) {}, ""},
		"the address of another": {func(r *run, _ *unstructured.Unstructured, _ *corev1.Pod, _ *version.Info) {
			r.Lab.Tenants[1].Endpoint = r.Endpoint
		}, "both at"},
		"the authority of another": {func(r *run, _ *unstructured.Unstructured, _ *corev1.Pod, _ *version.Info) {
			r.Lab.Tenants[1].Config.CAData = r.Config.CAData
		}, "trust the same certificate"},
		"Kamaji names another address": {func(_ *run, plane *unstructured.Unstructured, _ *corev1.Pod, _ *version.Info) {
			_ = unstructured.SetNestedField(plane.Object, "10.0.0.9:6443", "status", "controlPlaneEndpoint")
		}, "10.0.0.9"},
		"another version": {func(_ *run, _ *unstructured.Unstructured, _ *corev1.Pod, api *version.Info) {
			api.GitVersion = "v1.2.4"
		}, "v1.2.4"},
		"a container is not ready": {func(_ *run, _ *unstructured.Unstructured, pod *corev1.Pod, _ *version.Info) {
			pod.Status.ContainerStatuses[0].Ready = false
		}, "konnectivity-server"},
		"a container is missing": {func(_ *run, _ *unstructured.Unstructured, pod *corev1.Pod, _ *version.Info) {
			pod.Status.ContainerStatuses = pod.Status.ContainerStatuses[1:]
		}, "konnectivity-server"},
		"a replica is missing": {func(r *run, _ *unstructured.Unstructured, _ *corev1.Pod, _ *version.Info) { r.Replicas = 2 }, "2 pods"},
		"the only replica is on its way out": {func(_ *run, _ *unstructured.Unstructured, pod *corev1.Pod, _ *version.Info) {
			now := metav1.Now()
			pod.DeletionTimestamp, pod.Finalizers = &now, []string{"x"}
		}, "1 pods"},
	} {
		plane := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "kamaji.clastix.io/v1alpha1", "kind": "TenantControlPlane",
			"metadata": map[string]any{"name": "a", "namespace": lab.TenantsNamespace},
			"status":   map[string]any{"controlPlaneEndpoint": "10.0.0.1:6443"},
		}}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a-1", Namespace: lab.TenantsNamespace, Labels: map[string]string{"kamaji.clastix.io/name": "a"}}}
		for _, container := range []string{"konnectivity-server", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: container, Ready: true})
		}
		api := &version.Info{GitVersion: "v1.2.3"}
		client := fake.NewClientset()
		a := &lab.Tenant{
			Tenant:  stack.Tenant{Name: "a", Endpoint: "10.0.0.1:6443", KubernetesVersion: "v1.2.3", Replicas: 1},
			Cluster: &lab.Cluster{Client: client, Config: &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: []byte("a")}}},
		}
		b := &lab.Tenant{
			Tenant:  stack.Tenant{Name: "b", Endpoint: "10.0.0.2:6443"},
			Cluster: &lab.Cluster{Config: &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: []byte("b")}}},
		}
		a.Lab = &lab.Lab{Tenants: []*lab.Tenant{a, b}}
		r := &run{Tenant: a, patience: time.Second}
		test.change(r, plane, pod, api)
		client.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = api
		lists := map[schema.GroupVersionResource]string{{Group: "kamaji.clastix.io", Version: "v1alpha1", Resource: "tenantcontrolplanes"}: "TenantControlPlaneList"}
		a.Lab.Management = &lab.Cluster{Client: fake.NewClientset(pod), Objects: fakedynamic.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, plane)}
		_, err := controlPlane(t.Context(), r)
		expectFailure(t, name, err, test.says)
	}
}

// TestWorkers: what TC-02 sees before it goes through the tunnel, broken.
func TestWorkers(t *testing.T) {
	for name, test := range map[string]struct {
		change func(node *corev1.Node, set *appsv1.DaemonSet)
		says   string
	}{
		"not Ready":           {func(n *corev1.Node, _ *appsv1.DaemonSet) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }, "w Ready"},
		"another version":     {func(n *corev1.Node, _ *appsv1.DaemonSet) { n.Status.NodeInfo.KubeletVersion = "v1.2.2" }, "v1.2.2"},
		"a node too many":     {func(n *corev1.Node, _ *appsv1.DaemonSet) { n.Name = "stranger" }, "stranger"},
		"Calico is not ready": {func(_ *corev1.Node, s *appsv1.DaemonSet) { s.Status.NumberReady = 0 }, "calico-node ready on 1"},
		"no Konnectivity":     {func(*corev1.Node, *appsv1.DaemonSet) {}, "konnectivity-agent"},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w"}, Status: corev1.NodeStatus{
			NodeInfo:   corev1.NodeSystemInfo{KubeletVersion: "v1.2.3"},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		}}
		set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "calico-node", Namespace: "kube-system"}, Status: appsv1.DaemonSetStatus{NumberReady: 1}}
		test.change(node, set)
		r := with(stack.Worker{Node: "w"})
		r.Client, r.KubernetesVersion = fake.NewClientset(node, set), "v1.2.3"
		_, err := workers(t.Context(), r)
		expectFailure(t, name, err, test.says)
	}
}

// TestPodNetwork: a pod at an address of another network, and none at all.
func TestPodNetwork(t *testing.T) {
	at := func(ip string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "kube-system"}, Status: corev1.PodStatus{PodIP: ip}}
	}
	host := at("10.1.0.4")
	host.Spec.HostNetwork = true
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		says string
	}{
		"inside": {at("10.244.3.4"), ""}, "outside": {at("10.245.3.4"), "10.245.3.4"}, "only the host's": {host, "no pod has one"},
	} {
		r := with(stack.Worker{}, test.pod)
		r.PodCIDR = "10.244.0.0/16"
		expectFailure(t, name, r.podNetwork(t.Context()), test.says)
	}
}

// TestSeesNothingOf: a node or a pod of the other tenant in this one's API.
func TestSeesNothingOf(t *testing.T) {
	pod := func(uid string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: types.UID(uid)}}
	}
	node := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	other := with(stack.Worker{Node: "b-w"}, pod("b")).Tenant
	for name, test := range map[string]struct {
		r    *run
		says string
	}{
		"apart":               {with(stack.Worker{}, node("a-w"), pod("a")), ""},
		"a node of the other": {with(stack.Worker{}, node("b-w"), pod("a")), "b-w"},
		"a pod of the other":  {with(stack.Worker{}, node("a-w"), pod("b")), "n/p"},
	} {
		expectFailure(t, name, test.r.seesNothingOf(t.Context(), other), test.says)
	}
}

// api answers as an API server does that knows some credentials: what it says to
// each, by HTTP status.
func api(t *testing.T, knows map[string]int) *rest.Config {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		status, known := knows[strings.TrimPrefix(request.Header.Get("Authorization"), "Bearer ")]
		if !known {
			status = http.StatusUnauthorized
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		switch {
		case status >= 400:
			reasons := map[int]metav1.StatusReason{http.StatusUnauthorized: metav1.StatusReasonUnauthorized, http.StatusForbidden: metav1.StatusReasonForbidden}
			_ = json.NewEncoder(w).Encode(metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(status), Reason: reasons[status],
			})
		case strings.HasSuffix(request.URL.Path, "/token"):
			_, _ = io.WriteString(w, `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","status":{"token":"token-of-a"}}`)
		case strings.HasSuffix(request.URL.Path, "/selfsubjectreviews"):
			_, _ = io.WriteString(w, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}`)
		default:
			_, _ = io.WriteString(w, `{"kind":"NamespaceList","apiVersion":"v1","items":[]}`)
		}
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
}

// TestStrangerTo: only an answer that says no is a no.
func TestStrangerTo(t *testing.T) {
	own := map[string]int{"admin-a": 200, "token-of-a": 200}
	for name, test := range map[string]struct {
		own, others map[string]int
		says        string
	}{
		"both refused":                         {own, map[string]int{"admin-b": 200}, ""},
		"known, and may do nothing":            {own, map[string]int{"admin-b": 200, "admin-a": 403}, ""},
		"the administrator is accepted":        {own, map[string]int{"admin-b": 200, "admin-a": 200}, "they were accepted"},
		"the token is accepted":                {own, map[string]int{"admin-b": 200, "token-of-a": 201}, "they were accepted"},
		"the token is known":                   {own, map[string]int{"admin-b": 200, "token-of-a": 403}, "refused (401)"},
		"an error that says nothing of it":     {own, map[string]int{"admin-b": 200, "admin-a": 500}, "refused (401 or 403)"},
		"a token that is good for nothing":     {map[string]int{"admin-a": 200}, map[string]int{"admin-b": 200}, "to be good there"},
		"the other's API serves nobody at all": {own, map[string]int{}, "-"},
	} {
		tenant := func(name string, knows map[string]int) *lab.Tenant {
			config := api(t, knows)
			config.BearerToken = "admin-" + name
			cluster, err := lab.Reach(config)
			if err != nil {
				t.Fatal(err)
			}
			return &lab.Tenant{Tenant: stack.Tenant{Name: name}, Cluster: cluster, Namespace: "n"}
		}
		r := &run{Tenant: tenant("a", test.own)}
		err := r.strangerTo(t.Context(), tenant("b", test.others))
		if test.says == "-" { // not a pass, and not the tenants' fault
			if err == nil {
				t.Errorf("%s: passed", name)
			}
			continue
		}
		expectFailure(t, name, err, test.says)
	}
	// Nobody there is not a no either.
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	gone, err := lab.Reach(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	r := &run{Tenant: &lab.Tenant{Tenant: stack.Tenant{Name: "a"}, Cluster: gone}}
	if err := r.strangerTo(t.Context(), &lab.Tenant{Cluster: gone}); err == nil {
		t.Error("an API server that is not there refuses nobody")
	}
}

// TestOverQuota: the refusal must come, and must name the quota.
func TestOverQuota(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer error
		says   string
	}{
		"refused for the quota":      {errors.New(`admission webhook "vgpu.hami.io" denied the request: exceeding resource quota`), ""},
		"admitted":                   {nil, "is admitted"},
		"refused for something else": {errors.New("no endpoints available for service"), "no endpoints"},
	} {
		client := fake.NewClientset()
		client.PrependReactor("create", "pods", func(ktesting.Action) (bool, runtime.Object, error) { return true, &corev1.Pod{}, test.answer })
		r := with(stack.Worker{})
		r.Client = client
		expectFailure(t, name, r.overQuota(t.Context(), "memory", lab.Ask{MemoryMiB: 1}), test.says)
	}
}

// TestUnlocked: a lock that nobody takes away is a failure that names its holder.
func TestUnlocked(t *testing.T) {
	t.Parallel()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w"}}
	expectFailure(t, "no lock", with(stack.Worker{}, node).unlocked(t.Context(), "w"), "")
	node.Annotations = map[string]string{"hami.io/mutex.lock": "2026-01-01T00:00:00Z,n,holder"}
	expectFailure(t, "a lock", with(stack.Worker{}, node).unlocked(t.Context(), "w"), "holder")
}

// TestRunning: Running is not enough, HAMi must have bound the pod.
func TestRunning(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		phase corev1.PodPhase
		ready corev1.ConditionStatus
		bound string
		says  string
	}{
		"bound and Ready":      {corev1.PodRunning, corev1.ConditionTrue, "success", ""},
		"waits":                {corev1.PodPending, corev1.ConditionFalse, "", "Pending"},
		"runs past HAMi":       {corev1.PodRunning, corev1.ConditionTrue, "", `bind phase ""`},
		"its binding failed":   {corev1.PodRunning, corev1.ConditionTrue, "failed", `bind phase "failed"`},
		"Running, never Ready": {corev1.PodRunning, corev1.ConditionFalse, "success", "Running"},
	} {
		object := pod("w", lab.SchedulerName)
		object.Annotations = map[string]string{"hami.io/bind-phase": test.bound}
		object.Status = corev1.PodStatus{Phase: test.phase, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: test.ready}}}
		_, err := with(stack.Worker{}, object).running(t.Context(), time.Second, "p")
		expectFailure(t, name, err, test.says)
	}
}

// TestPodsOf: a pod that was made anew or restarted is not as before.
func TestPodsOf(t *testing.T) {
	seen := func(uid string, restarts int32) string {
		t.Helper()
		object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "kube-system", UID: types.UID(uid)}}
		object.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: restarts}}
		all, err := podsOf(t.Context(), []*lab.Tenant{with(stack.Worker{}, object, pod("w", "")).Tenant})
		if err != nil || len(all) != 1 { // the run's own does not count
			t.Fatalf("%v, %v", all, err)
		}
		return all["a/kube-system/p"]
	}
	before := seen("1", 0)
	for name, same := range map[string]bool{seen("1", 0): true, seen("2", 0): false, seen("1", 1): false} {
		if (name == before) != same {
			t.Errorf("%q after %q: as before is %v", name, before, !same)
		}
	}
}

// TestUnused: cards that pods hold slices of, and broken ones, are left alone.
func TestUnused(t *testing.T) {
	worker := stack.Worker{Cards: []stack.Card{{UUID: "1", Slices: 4, Healthy: true}, {UUID: "2", Slices: 5, Healthy: true}, {UUID: "3", Slices: 6}}}
	if got := unused(worker, map[string]int{"1": 1}); len(got) != 1 || got[0].UUID != "2" || slicesOf(got) != 5 {
		t.Errorf("%v", got)
	}
}

// TestMemoryExceededSkips: HAMi looks for a slice before it looks at memory.
func TestMemoryExceededSkips(t *testing.T) {
	var skip report.Skip
	_, err := memoryExceeded(t.Context(), with(stack.Worker{Cards: []stack.Card{{UUID: "1", Slices: 10}}}))
	if !errors.As(err, &skip) || !strings.Contains(string(skip), "healthy") {
		t.Errorf("%v", err)
	}
}

// TestPlayClears: what a case that failed left is not in the way of the next.
func TestPlayClears(t *testing.T) {
	results := report.New(io.Discard)
	for name, test := range map[string]struct {
		err  error
		left int
	}{
		"failed": {errors.New("odd"), 0}, "passed": {nil, 1},
	} {
		r := with(stack.Worker{}, pod("w", ""))
		client := r.Client.(*fake.Clientset) // which deletes no collections by itself
		client.PrependReactor("delete-collection", "pods", func(ktesting.Action) (bool, runtime.Object, error) {
			return true, nil, client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "n", "p")
		})
		r.three = []string{"p"}
		r.play(t.Context(), Case{ID: "TC-x", Kind: Makes, Run: func(context.Context, *run) (string, error) { return "", test.err }}, results)
		list, err := r.Client.CoreV1().Pods("n").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != test.left || len(r.three) != test.left {
			t.Errorf("%s: %d pods, %v, %v", name, len(list.Items), r.three, err)
		}
	}
}

// TestRun: a tenant that cannot be prepared is a result; the others go on, and
// what was made is gone at the end.
func TestRun(t *testing.T) {
	t.Parallel()
	tenant := func(name string, refuses error) *lab.Tenant {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "verify-1"}}
		client := fake.NewClientset(account)
		client.PrependReactor("create", "namespaces", func(action ktesting.Action) (bool, runtime.Object, error) {
			made := action.(ktesting.CreateAction).GetObject().(*corev1.Namespace)
			made.Name = "verify-1" // generateName is the API server's doing
			return refuses != nil, nil, refuses
		})
		return &lab.Tenant{Tenant: stack.Tenant{Name: name}, Cluster: &lab.Cluster{Client: client}}
	}
	l := &lab.Lab{Stack: &stack.Stack{Name: "dev"}, Tenants: []*lab.Tenant{tenant("a", nil), tenant("b", errors.New("connection refused"))}}
	for _, t := range l.Tenants {
		t.Lab = l
	}
	results := report.New(io.Discard)
	if err := Run(t.Context(), l, Options{Patience: time.Second, Only: []string{"TC-03", "TC-04"}}, results); err != nil {
		t.Fatal(err)
	}
	got := map[string]report.Result{}
	for _, result := range results.Results() {
		got[result.Case+" "+result.Tenant] = result
	}
	for at, want := range map[string]report.Status{
		"TC-03 a": report.Skipped, "TC-04 a": report.Skipped, // it has no cards
		"TC-03 b": report.Failed, "TC-04 b": report.Skipped,
	} {
		if got[at].Status != want {
			t.Errorf("%s: %+v", at, got[at])
		}
	}
	if seen := got["TC-03 b"].Seen; !strings.Contains(seen, "connection refused") {
		t.Errorf("why b has no namespace is not said: %q", seen)
	}
	left, err := l.Tenants[0].Client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) != 0 {
		t.Errorf("left: %v, %v", left.Items, err)
	}
	if err := Run(t.Context(), l, Options{Patience: time.Second, Tenants: []string{"a", "z"}}, results); err == nil || !strings.Contains(err.Error(), `"z"`) {
		t.Errorf("a tenant that is not there: %v", err)
	}
}
