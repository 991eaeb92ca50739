package components

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// calicoManifest returns Calico's manifest with its pool on podCIDR and VXLAN
// between nodes. The manifest as published wants IP-in-IP and BGP, for which
// many a container host lacks the kernel module, and which node containers on
// one Docker network do not need.
func calicoManifest(published, podCIDR string) (string, error) {
	all, err := documents(published)
	if err != nil {
		return "", fmt.Errorf("calico manifest: %w", err)
	}
	var missing []string
	if !editDocument(all, "ConfigMap", "calico-config", func(config map[string]any) bool {
		data, ok := config["data"].(map[string]any)
		if !ok || data["calico_backend"] == nil {
			return false
		}
		data["calico_backend"] = "vxlan"
		return true
	}) {
		missing = append(missing, "ConfigMap calico-config with calico_backend")
	}
	if !editDocument(all, "DaemonSet", "calico-node", func(daemonSet map[string]any) bool {
		container := namedContainer(daemonSet, "calico-node")
		if container == nil {
			return false
		}
		setEnv(container, "CALICO_IPV4POOL_CIDR", podCIDR)
		setEnv(container, "CALICO_IPV4POOL_IPIP", "Never")
		setEnv(container, "CALICO_IPV4POOL_VXLAN", "Always")
		setEnv(container, "IP_AUTODETECTION_METHOD", "kubernetes-internal-ip")
		// XDP speeds up rules for a host's own interfaces. A worker has none
		// such, and where the kernel or its containers cannot do it, Felix tries
		// again for ever: 40 % of a core per worker were seen.
		setEnv(container, "FELIX_XDPENABLED", "false")
		// Without BGP there is no BIRD to be alive or ready. What is left of
		// each probe asks Felix, by a process of its own in the container: half a
		// second of a core each time, a tenth of a core per worker. The kubelet
		// can ask Felix itself
		// (https://docs.tigera.io/calico/latest/reference/felix/configuration, HealthPort).
		setEnv(container, "FELIX_HEALTHENABLED", "true")
		return askFelix(container, "livenessProbe", "/liveness") && askFelix(container, "readinessProbe", "/readiness")
	}) {
		missing = append(missing, "DaemonSet calico-node with a container calico-node and its probes")
	}
	// Its readiness has one second to start a process, which a busy machine has
	// not. It is a nuisance, and so no fault of a manifest that does without.
	editDocument(all, "Deployment", "calico-kube-controllers", func(deployment map[string]any) bool {
		readiness, ok := namedContainer(deployment, "calico-kube-controllers")["readinessProbe"].(map[string]any)
		if ok {
			readiness["timeoutSeconds"] = 10
		}
		return ok
	})
	if len(missing) > 0 {
		return "", errors.New("calico manifest: it lacks " + strings.Join(missing, " and ") + "; is it Calico's own calico.yaml?")
	}
	return manifest(all...)
}

// editDocument applies edit to the document of that kind and name.
func editDocument(all []map[string]any, kind, name string, edit func(map[string]any) bool) bool {
	for _, document := range all {
		metadata, _ := document["metadata"].(map[string]any)
		if document["kind"] == kind && metadata["name"] == name {
			return edit(document)
		}
	}
	return false
}

// namedContainer returns a workload's container by name, or nil.
func namedContainer(workload map[string]any, name string) map[string]any {
	spec, _ := workload["spec"].(map[string]any)
	template, _ := spec["template"].(map[string]any)
	podSpec, _ := template["spec"].(map[string]any)
	containers, _ := podSpec["containers"].([]any)
	for _, entry := range containers {
		if container, _ := entry.(map[string]any); container["name"] == name {
			return container
		}
	}
	return nil
}

// setEnv sets a variable of a container, replacing one of the same name.
func setEnv(container map[string]any, name, value string) {
	env, _ := container["env"].([]any)
	env = slices.DeleteFunc(env, func(entry any) bool {
		variable, _ := entry.(map[string]any)
		return variable["name"] == name
	})
	container["env"] = append(env, map[string]any{"name": name, "value": value})
}

// askFelix makes a probe an HTTP request to Felix, with the probe's own times.
func askFelix(container map[string]any, probe, path string) bool {
	settings, ok := container[probe].(map[string]any)
	if ok {
		delete(settings, "exec")
		settings["httpGet"] = map[string]any{"host": "127.0.0.1", "port": 9099, "path": path}
	}
	return ok
}
