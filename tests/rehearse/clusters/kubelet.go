package clusters

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"slices"
	"time"
)

// kubelets plays the scheduler and every node's kubelet: a node is Ready while
// its kubelet speaks and the CNI's DaemonSet is there; a pod is put on a Ready
// node and runs there at once, or ends at once when it is a job's.
func (k controllers) kubelets(ctx context.Context) error {
	var all error
	ready := map[string]object{}
	known := map[string]object{}
	for _, node := range k.seen.all(nodes) {
		changed, err := k.node(ctx, node)
		all = errors.Join(all, err)
		known[nameOf(node)] = node
		if !changed && is(node, "Ready") {
			ready[nameOf(node)] = node
		}
	}
	for _, pod := range k.seen.all(pods) {
		err := k.pod(ctx, pod, known, ready)
		if err != nil && !answered(err, http.StatusNotFound) && !answered(err, http.StatusConflict) { // who else is at work here will be seen
			all = errors.Join(all, fmt.Errorf("pod %s: %w", nameOf(pod), err))
		}
	}
	return all
}

// silent are the nodes whose kubelets say nothing.
func (k controllers) silent() []string {
	k.set.mu.Lock()
	defer k.set.mu.Unlock()
	return slices.Clone(k.Silent)
}

// node brings a node's condition about, and reports whether that changed it.
func (k controllers) node(ctx context.Context, node object) (changed bool, err error) {
	ready, reason := "False", "KubeletNotReady"
	switch {
	case slices.Contains(k.silent(), nameOf(node)):
		ready, reason = "Unknown", "NodeStatusUnknown"
	case k.Host == "" || k.seen.get(daemonSets, "kube-system", "calico-node") != nil:
		ready, reason = "True", "KubeletReady"
	}
	at := nodes.path("", nameOf(node))
	if ready == "True" {
		// What the node lifecycle controller does, which looks for leases.
		const taint = "node.kubernetes.io/not-ready"
		taints := list(node, "spec", "taints")
		kept := slices.DeleteFunc(slices.Clone(taints), func(one any) bool { fields, _ := one.(object); return fields["key"] == taint })
		if len(kept) < len(taints) {
			if _, err := k.client.patch(ctx, at, object{"spec": object{"taints": kept}}); err != nil {
				return true, err
			}
		}
	}
	if conditionOf(node, "Ready") == ready {
		return false, nil
	}
	now := time.Now().UTC().Format(time.RFC3339)
	_, err = k.client.patch(ctx, at+"/status", object{"status": object{"conditions": []any{
		object{"type": "Ready", "status": ready, "reason": reason, "lastTransitionTime": now, "lastHeartbeatTime": now},
	}}})
	return true, err
}

func (k controllers) pod(ctx context.Context, pod object, known, ready map[string]object) error {
	at := pods.path(namespaceOf(pod), nameOf(pod))
	on := text(pod, "spec", "nodeName")
	switch {
	case isGoing(pod) && (on == "" || ready[on] != nil || known[on] == nil), on != "" && known[on] == nil:
		return k.client.delete(ctx, at, object{"gracePeriodSeconds": 0})
	case isGoing(pod):
		return nil // its kubelet does not hear of it
	case on == "":
		target := placeOf(pod, ready)
		if target == "" {
			return nil
		}
		_, err := k.client.create(ctx, at+"/binding", object{
			"apiVersion": "v1", "kind": "Binding", "metadata": object{"name": nameOf(pod), "namespace": namespaceOf(pod)},
			"target": object{"apiVersion": "v1", "kind": "Node", "name": target},
		})
		return err
	case ready[on] == nil || text(pod, "status", "phase") != "Pending" || !canRun(pod, ready[on]):
		return nil
	}
	return k.run(ctx, at, pod)
}

// placeOf returns the node for a pod: the one that its DaemonSet made it for, or
// the first that takes pods; "" while there is none.
func placeOf(pod object, ready map[string]object) string {
	wanted := ""
	for _, term := range list(pod, "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms") {
		for _, match := range list(term.(object), "matchFields") {
			if values := list(match.(object), "values"); len(values) > 0 {
				wanted = fmt.Sprint(values[0])
			}
		}
	}
	best := ""
	for name, node := range ready {
		switch {
		case wanted != "":
			if name == wanted {
				return name
			}
		case field(node, "spec", "unschedulable") == true:
		case best == "" || name < best:
			best = name
		}
	}
	return best
}

// canRun reports whether the node has the images that a pod may not pull.
func canRun(pod, node object) bool {
	for _, entry := range list(pod, "spec", "containers") {
		container := entry.(object)
		if container["imagePullPolicy"] == "Never" && !hasImage(node, text(container, "image")) {
			return false
		}
	}
	return true
}

// run has a pod run, or be at its end.
func (k controllers) run(ctx context.Context, at string, pod object) error {
	now := time.Now().UTC().Format(time.RFC3339)
	phase, state, ready := "Running", object{"running": object{"startedAt": now}}, true
	if policy := text(pod, "spec", "restartPolicy"); policy != "Always" {
		phase, state, ready = "Succeeded", object{"terminated": object{"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}}, false
	}
	var containers []any
	for _, entry := range list(pod, "spec", "containers") {
		container := entry.(object)
		containers = append(containers, object{
			"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0, "ready": ready, "started": ready, "state": state,
		})
	}
	var conditions []any
	for _, kind := range []string{"PodScheduled", "Initialized", "ContainersReady", "Ready"} {
		status := "True"
		if !ready && (kind == "ContainersReady" || kind == "Ready") {
			status = "False"
		}
		conditions = append(conditions, object{"type": kind, "status": status, "lastTransitionTime": now})
	}
	address := addressOf(pod)
	_, err := k.client.patch(ctx, at+"/status", object{"status": object{
		"phase": phase, "startTime": now, "podIP": address, "podIPs": []any{object{"ip": address}}, "conditions": conditions, "containerStatuses": containers,
	}})
	return err
}

// addressOf makes up a pod's address. Nobody connects to it.
func addressOf(pod object) string {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(text(pod, "metadata", "uid")))
	const third, fourth = 250, 250
	number := sum.Sum32()
	return fmt.Sprintf("10.244.%d.%d", 1+number/fourth%third, 1+number%fourth)
}
