package objects

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// admit plays the webhooks and the quota that an object meets. The caller holds
// the lock.
func (s *Store) admit(c *cluster, object Object) error {
	switch kind := text(object, "kind"); {
	case strings.HasPrefix(text(object, "apiVersion"), "metallb.io/"):
		return c.webhook("metallb-webhook-configuration", "metallb-system", "controller")
	case strings.HasPrefix(text(object, "apiVersion"), "cert-manager.io/"):
		return c.webhook("cert-manager-webhook", "cert-manager", "cert-manager-webhook")
	case kind == "TenantControlPlane":
		if err := c.webhook("kamaji-validating-webhook-configuration", "kamaji-system", "kamaji"); err != nil {
			return err
		}
		if field(object, "spec", "controlPlane", "deployment") == nil {
			return refuse(Refused, "admission webhook \"mtenantcontrolplane.kb.io\" denied the request: spec.controlPlane.deployment is missing")
		}
	case kind == "Pod" && AsksForCards(object):
		return s.admitPod(c, object)
	}
	return nil
}

// webhook fails as a call to a webhook fails whose server is not there. One that
// is not configured is not called.
func (c *cluster) webhook(configuration, namespace, deployment string) error {
	const group = "admissionregistration.k8s.io/v1"
	if c.objects[key(group, "ValidatingWebhookConfiguration", "", configuration)] == nil {
		return nil
	}
	if ready, _ := field(c.objects[key("apps/v1", "Deployment", namespace, deployment)], "status", "readyReplicas").(int); ready > 0 {
		return nil
	}
	if ready, _ := field(c.objects[key("apps/v1", "Deployment", namespace, deployment)], "status", "readyReplicas").(float64); ready > 0 {
		return nil
	}
	return refuse(Refused, "Internal error occurred: failed calling webhook %q: no endpoints available for service %q", configuration, deployment)
}

// AsksForCards reports whether a pod wants a card.
func AsksForCards(pod Object) bool {
	containers, _ := field(pod, "spec", "containers").([]any)
	for _, entry := range containers {
		container, _ := entry.(Object)
		if field(container, "resources", "limits", "nvidia.com/gpu") != nil {
			return true
		}
	}
	return false
}

// admitPod routes a pod with cards to HAMi's scheduler. Its webhook runs on a
// worker, to which the way leads through Konnectivity.
func (s *Store) admitPod(c *cluster, pod Object) error {
	configuration := c.objects[key("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", "", hamiWebhook)]
	if configuration == nil {
		return nil
	}
	if len(c.readyNodes()) == 0 {
		if policy := hamiPolicy(configuration); policy != "Fail" {
			return nil
		}
		return refuse(Refused, "Internal error occurred: failed calling webhook \"vgpu.hami.io\": no agent available")
	}
	child(pod, "spec")["schedulerName"] = "hami-scheduler"
	return nil
}

func hamiPolicy(configuration Object) string {
	hooks, _ := configuration["webhooks"].([]any)
	if len(hooks) == 0 {
		return ""
	}
	hook, _ := hooks[0].(Object)
	return text(hook, "failurePolicy")
}

// readyNodes are the names of the nodes that are Ready.
func (c *cluster) readyNodes() []string {
	var ready []string
	for _, node := range c.all("v1", "Node") {
		if conditionOf(node, "Ready") == "True" {
			ready = append(ready, nameOf(node))
		}
	}
	return ready
}

// all returns the objects of a kind, in a fixed order.
func (c *cluster) all(apiVersion, kind string) []Object {
	prefix := strings.TrimSuffix(key(apiVersion, kind, "", ""), "/")
	var found []Object
	for _, at := range slices.Sorted(maps.Keys(c.objects)) {
		if strings.HasPrefix(at, prefix) {
			found = append(found, c.objects[at])
		}
	}
	return found
}

func conditionOf(object Object, kind string) string {
	conditions, _ := field(object, "status", "conditions").([]any)
	for _, entry := range conditions {
		condition, _ := entry.(Object)
		if condition["type"] == kind {
			return text(condition, "status")
		}
	}
	return ""
}

// reconcile lets every controller do its work until none has any left. The
// caller holds the lock.
func (s *Store) reconcile() {
	const enough = 50
	for range enough {
		before := s.serial
		for _, name := range slices.Sorted(maps.Keys(s.clusters)) {
			if c := s.clusters[name]; c != nil && !s.unreachable(c) {
				s.nodes(c)
				s.workloads(c)
				s.tokens(c)
				s.datastores(c)
				s.tenants(c)
				s.cards(c)
			}
		}
		if s.serial == before {
			return
		}
	}
	panic("the stand-in's controllers do not come to rest")
}

// set stores an object when it differs.
func (s *Store) set(c *cluster, object Object) {
	before := c.objects[keyOf(object)]
	if before != nil {
		if fmt.Sprint(clone(before)) == fmt.Sprint(clone(object)) {
			return
		}
	}
	s.put(c, object)
}

// nodes plays the kubelets: a node is Ready while its kubelet speaks and the CNI
// is deployed. A management node brings its own CNI.
func (s *Store) nodes(c *cluster) {
	for _, node := range c.all("v1", "Node") {
		ready := "False"
		switch {
		case field(node, "metadata", "annotations", silent) != nil:
			ready = "Unknown"
		case c.Host == "" || c.objects[key("apps/v1", "DaemonSet", "kube-system", "calico-node")] != nil:
			ready = "True"
		}
		if conditionOf(node, "Ready") == ready {
			continue
		}
		node = clone(node)
		child(node, "status")["conditions"] = []any{Object{"type": "Ready", "status": ready}}
		s.set(c, node)
	}
}

// workloads plays the workload controllers, the schedulers and the registries:
// what is wanted is ready once there is a node.
func (s *Store) workloads(c *cluster) {
	if len(c.readyNodes()) == 0 {
		return
	}
	for _, kind := range []string{"Deployment", "StatefulSet"} {
		for _, workload := range c.all("apps/v1", kind) {
			wanted := 1
			if replicas, ok := field(workload, "spec", "replicas").(float64); ok {
				wanted = int(replicas)
			}
			workload = clone(workload)
			workload["status"] = Object{"readyReplicas": wanted, "replicas": wanted, "availableReplicas": wanted, "observedGeneration": field(workload, "metadata", "generation")}
			s.set(c, workload)
		}
	}
}

// tokens plays the token signer of the controller-manager.
func (s *Store) tokens(c *cluster) {
	at := key("v1", "ConfigMap", "kube-public", "cluster-info")
	before := c.objects[at]
	if before == nil {
		return
	}
	info := clone(before)
	data := child(info, "data")
	for name := range data {
		if strings.HasPrefix(name, "jws-kubeconfig-") {
			delete(data, name)
		}
	}
	for _, secret := range c.all("v1", "Secret") {
		if secret["type"] != "bootstrap.kubernetes.io/token" || text(secret, "data", "usage-bootstrap-signing") != encode("true") {
			continue
		}
		if id, err := base64.StdEncoding.DecodeString(text(secret, "data", "token-id")); err == nil {
			data["jws-kubeconfig-"+string(id)] = "signed"
		}
	}
	s.set(c, info)
}

const kamajiGroup = "kamaji.clastix.io/v1alpha1"

// datastores plays Kamaji's controller for DataStores.
func (s *Store) datastores(c *cluster) {
	for _, datastore := range c.all(kamajiGroup, "DataStore") {
		datastore = clone(datastore)
		child(datastore, "status")["ready"] = true
		s.set(c, datastore)
	}
}

// tenants plays Kamaji: a TenantControlPlane becomes an API server at an address
// of MetalLB's pool, and what is left of one whose object is gone goes.
func (s *Store) tenants(c *cluster) {
	wanted := map[string]bool{}
	taken := map[string]bool{}
	planes := c.all(kamajiGroup, "TenantControlPlane")
	for _, plane := range planes {
		wanted[c.Name+"/"+nameOf(plane)] = true
		taken[text(plane, "status", "controlPlaneEndpoint")] = true
	}
	for name, hosted := range s.clusters {
		if hosted.Host == c.Name && !wanted[name] {
			s.drop(name)
			s.serial++
			for _, secret := range c.all("v1", "Secret") {
				if text(secret, "metadata", "labels", "kamaji.clastix.io/name") == strings.TrimPrefix(name, c.Name+"/") {
					s.remove(c, keyOf(secret))
				}
			}
		}
	}
	for _, plane := range planes {
		s.tenant(c, clone(plane), taken)
	}
}

func (s *Store) tenant(c *cluster, plane Object, taken map[string]bool) {
	name, version := nameOf(plane), text(plane, "spec", "kubernetes", "version")
	status := child(plane, "status")
	endpoint := text(status, "controlPlaneEndpoint")
	if endpoint == "" {
		endpoint = s.freeAddress(c, taken)
	}
	if endpoint == "" || field(c.objects[key(kamajiGroup, "DataStore", "", "default")], "status", "ready") != true {
		status["kubernetesResources"] = Object{"version": Object{"status": "Provisioning"}}
		s.set(c, plane)
		return
	}
	taken[endpoint] = true
	hosted := s.clusters[c.Name+"/"+name]
	if hosted == nil {
		made, err := s.add(c.Name+"/"+name, c.Name, "https://"+endpoint, version)
		if err != nil {
			panic(err) // no randomness left
		}
		hosted = made
	}
	if hosted.Version != version {
		hosted.Version = version
		s.journal.Put("cluster", hosted.Name, hosted)
	}
	Merge(status, ReadyPlane(plane, endpoint))
	s.set(c, plane)
	s.set(c, Object{
		"apiVersion": "v1", "kind": "Secret",
		"metadata": carryOver(c, Object{"name": name + "-admin-kubeconfig", "namespace": namespaceOf(plane), "labels": Object{"kamaji.clastix.io/name": name}}),
		"data":     Object{"admin.conf": base64.StdEncoding.EncodeToString(hosted.Kubeconfig)},
	})
}

// carryOver adds to an object's metadata what the API server put into that of
// the Secret that is there.
func carryOver(c *cluster, metadata Object) Object {
	before := c.objects[key("v1", "Secret", text(metadata, "namespace"), text(metadata, "name"))]
	for _, name := range []string{"uid", "resourceVersion"} {
		if value := field(before, "metadata", name); value != nil {
			metadata[name] = value
		}
	}
	return metadata
}

// freeAddress plays MetalLB: the first address of the pool that no control plane
// has, once the pool is announced.
func (s *Store) freeAddress(c *cluster, taken map[string]bool) string {
	const group = "metallb.io/v1beta1"
	if len(c.all(group, "L2Advertisement")) == 0 {
		return ""
	}
	return FreeAddress(c.all(group, "IPAddressPool"), taken)
}

// cards plays what shows a node's cards: this project's agent where its objects
// and its image are on the node, or HAMi's mock plugin. The agent withdraws
// nothing when it goes; that is the scripts' work.
func (s *Store) cards(c *cluster) {
	for _, node := range c.all("v1", "Node") {
		if conditionOf(node, "Ready") != "True" {
			continue
		}
		name := "mock-gpu-" + nameOf(node)
		agent := c.objects[key("apps/v1", "DaemonSet", "kube-system", name)]
		inventory := text(c.objects[key("v1", "ConfigMap", "kube-system", name)], "data", "inventory.json")
		plugin := c.objects[key("apps/v1", "DaemonSet", "kube-system", "hami-mock-device-plugin")]
		register := ShownCards(node, agent, hasImage(node, FirstImage(agent)), inventory, plugin)
		if register == "" {
			continue
		}
		shown := SumOf(register)
		node = clone(node)
		child(child(node, "metadata"), "annotations")[Register] = register
		for _, list := range []string{"capacity", "allocatable"} {
			Merge(child(child(node, "status"), list), shown)
		}
		s.set(c, node)
	}
}
