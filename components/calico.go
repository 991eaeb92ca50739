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
		// Without BGP there is no BIRD to be alive or ready.
		dropProbeArguments(container, "livenessProbe", "-bird-live")
		dropProbeArguments(container, "readinessProbe", "-bird-ready")
		return true
	}) {
		missing = append(missing, "DaemonSet calico-node with a container calico-node")
	}
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

func dropProbeArguments(container map[string]any, probe, argument string) {
	settings, _ := container[probe].(map[string]any)
	exec, _ := settings["exec"].(map[string]any)
	if command, ok := exec["command"].([]any); ok {
		exec["command"] = slices.DeleteFunc(command, func(entry any) bool { return entry == argument })
	}
}
