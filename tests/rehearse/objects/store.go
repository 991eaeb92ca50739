// Package objects plays the API servers of a world: a store of Kubernetes
// objects for each cluster, with as much of admission, and of the controllers
// that are at work there, as this project's program and scripts can see. It is
// one file of JSON lines. Where real API servers are wanted, package clusters
// takes its place.
//
// What stands in for what, and how far it goes:
//
//   - the API server: kinds it has built in and those of CustomResourceDefinitions,
//     scopes, names, namespaces that must be there. Not: schemas and defaults.
//   - kubelets and workload controllers: a workload is ready as soon as a node is
//     there for it; a node is Ready as soon as the CNI's DaemonSet is there.
//   - cert-manager, MetalLB, Kamaji, HAMi: see controllers.go.
package objects

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/seam"
	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/world"
)

// Object is a Kubernetes object.
type Object = map[string]any

// Store is every cluster of a world.
type Store struct {
	mu       sync.Mutex
	journal  *world.Journal
	clusters map[string]*cluster
	serial   int
}

var _ seam.Clusters = (*Store)(nil)

// cluster is one API server with what it holds.
type cluster struct {
	Name string `json:"name"`
	// Host is the cluster that hosts it, "" for a management cluster.
	Host    string `json:"host,omitempty"`
	Server  string `json:"server"` // URL
	Version string `json:"version"`
	Stopped bool   `json:"stopped,omitempty"`
	Identity

	objects map[string]Object // by key
}

// Open opens the store in a folder, or makes one there.
func Open(dir string) (*Store, error) {
	s := &Store{clusters: map[string]*cluster{}}
	var err error
	s.journal, err = world.OpenJournal(filepath.Join(dir, "objects.jsonl"), s.replay)
	return s, err
}

func (s *Store) replay(table, key string, value json.RawMessage) error {
	s.serial++
	if name, isObject := strings.CutPrefix(table, "object "); isObject {
		c := s.clusters[name]
		switch {
		case c == nil:
			return nil
		case value == nil:
			delete(c.objects, key)
			return nil
		}
		var object Object
		if err := json.Unmarshal(value, &object); err != nil {
			return err
		}
		c.objects[key] = object
		return nil
	}
	if value == nil {
		delete(s.clusters, key)
		return nil
	}
	made := &cluster{objects: map[string]Object{}}
	if before := s.clusters[key]; before != nil {
		made.objects = before.objects
	}
	s.clusters[key] = made
	return json.Unmarshal(value, made)
}

// Create starts a management cluster.
func (s *Store) Create(_ context.Context, name, version string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clusters[name] != nil {
		return nil, fmt.Errorf("cluster %s is there already", name)
	}
	s.serial++
	c, err := s.add(name, "", fmt.Sprintf("https://127.0.0.1:%d", 30000+s.serial%30000), version)
	if err != nil {
		return nil, err
	}
	s.put(c, newNode(name+"-control-plane", version, "True"))
	return c.Kubeconfig, nil
}

// add makes a cluster with what every cluster has. The caller holds the lock.
func (s *Store) add(name, host, server, version string) (*cluster, error) {
	identity, err := NewIdentity(server)
	if err != nil {
		return nil, err
	}
	c := &cluster{Name: name, Host: host, Server: server, Version: version, Identity: identity, objects: map[string]Object{}}
	s.clusters[name] = c
	s.journal.Put("cluster", name, c)
	for _, namespace := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		s.put(c, Object{"apiVersion": "v1", "kind": "Namespace", "metadata": Object{"name": namespace}})
	}
	s.put(c, Object{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": Object{"name": "cluster-info", "namespace": "kube-public"},
		"data": Object{"kubeconfig": "apiVersion: v1\nkind: Config\n"},
	})
	return c, nil
}

// Delete ends a cluster and all that it hosts.
func (s *Store) Delete(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(name)
	return nil
}

func (s *Store) drop(name string) {
	for hosted, c := range s.clusters {
		if c.Host == name {
			s.drop(hosted)
		}
	}
	if s.clusters[name] != nil {
		delete(s.clusters, name)
		s.journal.Remove("cluster", name)
	}
}

// Stop makes a cluster, and what it hosts, unreachable.
func (s *Store) Stop(_ context.Context, name string) error { return s.setStopped(name, true) }

// Start makes it reachable again.
func (s *Store) Start(_ context.Context, name string) error { return s.setStopped(name, false) }

func (s *Store) setStopped(name string, stopped bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clusters[name]
	if c == nil {
		return fmt.Errorf("there is no cluster %s", name)
	}
	c.Stopped = stopped
	s.journal.Put("cluster", name, c)
	return nil
}

// Kubectl says that the store answers kubectl itself.
func (s *Store) Kubectl() string { return "" }

// Provider says that the stand-in for the Kubernetes provider serves the store.
func (s *Store) Provider() string { return "" }

// Close closes the store's file.
func (s *Store) Close() error { return s.journal.Close() }

// Join makes a Node, when the token and the CA are right.
func (s *Store) Join(_ context.Context, join seam.Join) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.at(join.Endpoint)
	if err != nil {
		return nil, err
	}
	id, secret, _ := strings.Cut(join.Token, ".")
	token := c.objects[key("v1", "Secret", "kube-system", "bootstrap-token-"+id)]
	data, _ := token["data"].(Object)
	switch {
	case join.CACertHash != c.CACertHash:
		return nil, fmt.Errorf("the cluster's CA is not the one with hash %s", join.CACertHash)
	case data["token-secret"] != encode(secret) || data["usage-bootstrap-authentication"] != encode("true"):
		return nil, fmt.Errorf("unauthorized: the API server knows no bootstrap token %s", id)
	case c.objects[key("v1", "Node", "", join.Node)] != nil:
		return nil, fmt.Errorf("a Node with name %q and status \"Ready\" already exists in the cluster", join.Node)
	}
	s.put(c, newNode(join.Node, join.Version, "False"))
	s.reconcile()
	return []byte("apiVersion: v1\nkind: Config\n# the kubelet's\n"), nil
}

// at returns the cluster whose API server has an endpoint.
func (s *Store) at(endpoint string) (*cluster, error) {
	for _, c := range s.clusters {
		if strings.TrimPrefix(c.Server, "https://") == endpoint && !s.unreachable(c) {
			return c, nil
		}
	}
	return nil, fmt.Errorf("dial tcp %s: connect: no route to host", endpoint)
}

func (s *Store) unreachable(c *cluster) bool {
	host := s.clusters[c.Host]
	return c.Stopped || host != nil && s.unreachable(host)
}

// Serves says whether there is an API server at an endpoint that can be reached.
func (s *Store) Serves(_ context.Context, endpoint string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.at(endpoint)
	return err
}

// NodeGone makes a Node NotReady, NodeBack Ready again.
func (s *Store) NodeGone(_ context.Context, endpoint, node string) error {
	return s.nodeIs(endpoint, node, true)
}

// NodeBack makes a Node Ready again.
func (s *Store) NodeBack(_ context.Context, endpoint, node string) error {
	return s.nodeIs(endpoint, node, false)
}

// silent marks, on a Node, that its kubelet has stopped.
const silent = "rehearse/kubelet-is-silent"

func (s *Store) nodeIs(endpoint, name string, gone bool) error {
	return s.editNode(endpoint, name, func(annotations Object) {
		delete(annotations, silent)
		if gone {
			annotations[silent] = "true"
		}
	})
}

// images holds, on a Node, the images that were put into its containerd.
const images = "rehearse/images"

// ImageLoaded tells that a node can run an image that is in no registry.
func (s *Store) ImageLoaded(_ context.Context, endpoint, node, image string) error {
	return s.editNode(endpoint, node, func(annotations Object) {
		before, _ := annotations[images].(string)
		annotations[images] = before + " " + image
	})
}

// editNode changes a Node's annotations; that Node or cluster are gone is no error.
func (s *Store) editNode(endpoint, name string, edit func(annotations Object)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.at(endpoint)
	if err != nil {
		return nil //nolint:nilerr // nobody to tell
	}
	if node := c.objects[key("v1", "Node", "", name)]; node != nil {
		node = clone(node)
		edit(child(child(node, "metadata"), "annotations"))
		s.put(c, node)
		s.reconcile()
	}
	return nil
}

// Inventory returns the keys of all objects that nobody but the program, or what
// it deployed, can have made: per cluster, sorted.
func (s *Store) Inventory() map[string][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string][]string{}
	for name, c := range s.clusters {
		all[name] = slices.Sorted(maps.Keys(c.objects))
	}
	return all
}

// put stores an object. The caller holds the lock.
func (s *Store) put(c *cluster, object Object) {
	s.serial++
	metadata := child(object, "metadata")
	metadata["resourceVersion"] = fmt.Sprint(s.serial)
	if metadata["uid"] == nil {
		metadata["uid"] = fmt.Sprintf("uid-%d", s.serial)
	}
	at := keyOf(object)
	c.objects[at] = object
	s.journal.Put("object "+c.Name, at, object)
}

// remove removes an object, and with a Namespace what is in it. The caller holds
// the lock.
func (s *Store) remove(c *cluster, at string) {
	object := c.objects[at]
	if object == nil {
		return
	}
	delete(c.objects, at)
	s.journal.Remove("object "+c.Name, at)
	if object["kind"] != "Namespace" {
		return
	}
	for other, inside := range c.objects {
		if namespaceOf(inside) == nameOf(object) {
			s.remove(c, other)
		}
	}
}

// key names an object in its cluster, whatever its version.
func key(apiVersion, kind, namespace, name string) string {
	group, _, hasGroup := strings.Cut(apiVersion, "/")
	if !hasGroup {
		group = ""
	}
	return strings.Join([]string{group, kind, namespace, name}, "/")
}

func keyOf(object Object) string {
	return key(text(object, "apiVersion"), text(object, "kind"), namespaceOf(object), nameOf(object))
}

func nameOf(object Object) string { return text(object, "metadata", "name") }

func namespaceOf(object Object) string { return text(object, "metadata", "namespace") }

// text returns a string inside an object, or "".
func text(object Object, path ...string) string {
	found, _ := field(object, path...).(string)
	return found
}

// field returns what is inside an object, or nil.
func field(object Object, path ...string) any {
	var inside any = object
	for _, name := range path {
		fields, _ := inside.(Object)
		inside = fields[name]
	}
	return inside
}

// child returns a map inside an object, after making it when there is none.
func child(object Object, name string) Object {
	inside, ok := object[name].(Object)
	if !ok {
		inside = Object{}
		object[name] = inside
	}
	return inside
}

// clone copies an object all the way down.
func clone(object Object) Object {
	raw, err := json.Marshal(object)
	if err != nil {
		panic(err) // it came from JSON
	}
	var copied Object
	if err := json.Unmarshal(raw, &copied); err != nil {
		panic(err)
	}
	return copied
}

func newNode(name, version, ready string) Object {
	return Object{
		"apiVersion": "v1", "kind": "Node",
		"metadata": Object{"name": name, "labels": Object{"kubernetes.io/hostname": name}},
		"status": Object{
			"nodeInfo":   Object{"kubeletVersion": version},
			"conditions": []any{Object{"type": "Ready", "status": ready}},
		},
	}
}

// Object returns an object of a cluster, or nil.
func (s *Store) Object(cluster, apiVersion, kind, namespace, name string) Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clusters[cluster]
	if c == nil || c.objects[key(apiVersion, kind, namespace, name)] == nil {
		return nil
	}
	return clone(c.objects[key(apiVersion, kind, namespace, name)])
}

// Remove removes an object behind everybody's back.
func (s *Store) Remove(cluster, apiVersion, kind, namespace, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clusters[cluster]
	if c == nil || c.objects[key(apiVersion, kind, namespace, name)] == nil {
		return fmt.Errorf("cluster %s has no %s %s/%s", cluster, kind, namespace, name)
	}
	s.remove(c, key(apiVersion, kind, namespace, name))
	s.reconcile()
	return nil
}

// Kubeconfigs returns each cluster's administrator's kubeconfig.
func (s *Store) Kubeconfigs() map[string][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string][]byte{}
	for name, c := range s.clusters {
		all[name] = c.Kubeconfig
	}
	return all
}
