package world

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/seam"
)

const kindLabel = "io.x-k8s.kind.cluster"

// kind is the kind command.
func (w *World) kind(ctx context.Context, r seam.Request) seam.Reply {
	if len(r.Args) == 1 && r.Args[0] == "version" {
		return seam.Said("kind v" + w.options.KindVersion + " go1.0 linux/amd64\n")
	}
	flags, words, unknown := parseFlags(r.Args, []string{"-q", "--quiet", "--retain"}, []string{"--name", "--image", "--config", "--kubeconfig", "--wait"})
	if unknown != "" {
		return w.notKnown(lineOf(r))
	}
	name := "kind"
	if given := flags["--name"]; given != nil {
		name = given[0]
	}
	if words[0] != "get" && words[0] != "version" && flags["--kubeconfig"] == nil {
		return w.notKnown(lineOf(r) + " (it would change the user's own kubeconfig)")
	}
	switch strings.Join(words, " ") {
	case "version":
		return seam.Said(w.options.KindVersion + "\n")
	case "create cluster":
		return w.createCluster(ctx, name, flags["--image"], r)
	case "delete cluster":
		return w.deleteCluster(ctx, name)
	case "get clusters":
		return w.kindClusters()
	case "get kubeconfig":
		there := w.Container(name + "-control-plane")
		if there == nil {
			return seam.Failed(1, fmt.Sprintf("ERROR: could not locate any control plane nodes for cluster named '%s'", name))
		}
		kubeconfig, err := os.ReadFile(filepath.Join(w.root(there), "etc/kubernetes/admin.conf"))
		if err != nil {
			return seam.Failed(1, "ERROR: "+err.Error())
		}
		return seam.Reply{Stdout: kubeconfig}
	}
	return w.notKnown(lineOf(r))
}

// imageVersion is the Kubernetes version in a node image's name.
var imageVersion = regexp.MustCompile(`:(v\d+\.\d+\.\d+)(?:@|$)`)

// versionOf reads a node image's Kubernetes version off its name.
func versionOf(image string) (string, error) {
	match := imageVersion.FindStringSubmatch(image)
	if match == nil {
		return "", fmt.Errorf("the stand-in cannot tell the Kubernetes version of node image %s: name it with a tag vX.Y.Z", image)
	}
	return match[1], nil
}

func (w *World) createCluster(ctx context.Context, name string, image []string, r seam.Request) seam.Reply {
	if image == nil {
		return w.notKnown(lineOf(r) + " (without --image kind takes a version of its own)")
	}
	version, err := versionOf(image[0])
	if err != nil {
		return seam.Failed(1, "ERROR: "+err.Error())
	}
	if !strings.Contains(string(r.Stdin), "kind: Cluster") {
		return seam.Failed(1, "ERROR: failed to create cluster: unknown apiVersion or kind in the configuration")
	}
	node := name + "-control-plane"
	made := &Container{
		Name: node, Hostname: node, Image: image[0], Running: true, Started: time.Now().UTC(), Cluster: name,
		Labels: map[string]string{kindLabel: name, "io.x-k8s.kind.role": "control-plane"},
	}
	network := r.Env["KIND_EXPERIMENTAL_DOCKER_NETWORK"]
	if network == "" {
		return w.notKnown(lineOf(r) + " (on kind's own network)")
	}
	w.mu.Lock()
	if w.containers[node] != nil {
		w.mu.Unlock()
		return seam.Failed(1, fmt.Sprintf("ERROR: failed to create cluster: node(s) already exist for a cluster with the name %q", name))
	}
	err = w.attach(made, network, "")
	w.mu.Unlock()
	if err != nil {
		return seam.Failed(1, "ERROR: failed to create cluster: "+err.Error())
	}
	kubeconfig, err := w.clusters.Create(ctx, name, version)
	if err == nil {
		err = os.WriteFile(filepath.Join(w.root(made), "etc/kubernetes/admin.conf"), kubeconfig, 0o600)
	}
	if err != nil {
		return seam.Failed(1, "ERROR: failed to create cluster: "+err.Error())
	}
	return seam.Reply{Stderr: []byte("Creating cluster \"" + name + "\" ...\n")}
}

func (w *World) deleteCluster(ctx context.Context, name string) seam.Reply {
	for container := range maps.Values(w.kindNodes(name)) {
		if err := w.RemoveContainer(ctx, container); err != nil {
			return seam.Failed(1, "ERROR: "+err.Error())
		}
	}
	return seam.Reply{Stderr: []byte("Deleting cluster \"" + name + "\" ...\n")}
}

// kindNodes returns the containers that kind takes for a cluster's.
func (w *World) kindNodes(name string) map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	found := map[string]string{}
	for _, container := range w.containers {
		if container.Labels[kindLabel] == name {
			found[container.Name] = container.Name
		}
	}
	return found
}

func (w *World) kindClusters() seam.Reply {
	w.mu.Lock()
	defer w.mu.Unlock()
	names := map[string]bool{}
	for _, container := range w.containers {
		if name := container.Labels[kindLabel]; name != "" {
			names[name] = true
		}
	}
	return seam.Said(strings.Join(append(slices.Sorted(maps.Keys(names)), ""), "\n"))
}
