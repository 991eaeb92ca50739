package clusters

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// fleeting are the kinds whose objects come and go by themselves.
var fleeting = []string{
	"APIService", "ControllerRevision", "EndpointSlice", "Endpoints", "Event", "IPAddress", "Job", "Lease", "Pod", "ReplicaSet", "ServiceCIDR",
}

// Inventory returns the keys of all objects by cluster, sorted, without what
// comes and goes by itself: "group/Kind/namespace/name". Of a cluster that does
// not answer it says only that.
func (s *Set) Inventory() map[string][]string {
	all := map[string][]string{}
	for name, c := range s.copied() {
		held, err := c.inventory(context.Background())
		if err != nil {
			held = []string{err.Error()}
		}
		all[name] = held
	}
	return all
}

func (s *Set) copied() map[string]*cluster {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.state.Clusters)
}

// kinds asks the API server what it knows.
func (c *cluster) kinds(ctx context.Context) (map[resource]object, error) {
	versions := []string{"v1"}
	groups, err := c.client.get(ctx, "/apis")
	if err != nil {
		return nil, err
	}
	for _, group := range list(groups, "groups") {
		versions = append(versions, text(group.(object), "preferredVersion", "groupVersion"))
	}
	found := map[resource]object{}
	for _, version := range versions {
		prefix := "/apis/"
		if version == "v1" {
			prefix = "/api/"
		}
		known, err := c.client.get(ctx, prefix+version)
		if err != nil {
			return nil, err
		}
		for _, entry := range list(known, "resources") {
			one := entry.(object)
			if plural := text(one, "name"); !strings.Contains(plural, "/") && slices.Contains(list(one, "verbs"), any("list")) {
				found[resource{version, plural}] = one
			}
		}
	}
	return found, nil
}

func (c *cluster) inventory(ctx context.Context) ([]string, error) {
	kinds, err := c.kinds(ctx)
	if err != nil {
		return nil, err
	}
	var held []string
	for of, kind := range kinds {
		if slices.Contains(fleeting, text(kind, "kind")) {
			continue
		}
		there, err := c.client.get(ctx, of.path("", ""))
		if err != nil {
			return nil, err
		}
		group, _, hasGroup := strings.Cut(of.apiVersion, "/")
		if !hasGroup {
			group = ""
		}
		for _, entry := range list(there, "items") {
			one := entry.(object)
			held = append(held, strings.Join([]string{group, text(kind, "kind"), namespaceOf(one), nameOf(one)}, "/"))
		}
	}
	slices.Sort(held)
	return held, nil
}

// Kubeconfigs returns each cluster's administrator's kubeconfig.
func (s *Set) Kubeconfigs() map[string][]byte {
	all := map[string][]byte{}
	for name, c := range s.copied() {
		if kubeconfig, err := c.CA.Kubeconfig(c.server(), c.Admin); err == nil {
			all[name] = kubeconfig
		}
	}
	return all
}

// find returns a cluster and the resource of a kind in it.
func (s *Set) find(ctx context.Context, name, apiVersion, kind string) (*cluster, resource, error) {
	c := s.copied()[name]
	if c == nil {
		return nil, resource{}, fmt.Errorf("there is no cluster %s", name)
	}
	kinds, err := c.kinds(ctx)
	if err != nil {
		return nil, resource{}, err
	}
	for of, known := range kinds {
		if of.apiVersion == apiVersion && text(known, "kind") == kind {
			return c, of, nil
		}
	}
	return nil, resource{}, fmt.Errorf("cluster %s does not know the kind %s %s", name, apiVersion, kind)
}

// Object returns an object of a cluster, or nil.
func (s *Set) Object(cluster, apiVersion, kind, namespace, name string) map[string]any {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, of, err := s.find(ctx, cluster, apiVersion, kind)
	if err != nil {
		return nil
	}
	there, err := c.client.get(ctx, of.path(namespace, name))
	if err != nil {
		return nil
	}
	return there
}

// Remove deletes an object behind everybody's back, and returns when it is gone.
func (s *Set) Remove(cluster, apiVersion, kind, namespace, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, of, err := s.find(ctx, cluster, apiVersion, kind)
	if err != nil {
		return err
	}
	there, err := c.client.get(ctx, of.path(namespace, name))
	if err != nil {
		return err
	}
	if err := c.client.delete(ctx, of.path(namespace, name), nil); err != nil {
		return err
	}
	return c.gone(ctx, of, namespace, there)
}

// gone waits until an object is not there any more.
func (c *cluster) gone(ctx context.Context, of resource, namespace string, there object) error {
	watch := fmt.Sprintf("%s?watch=1&fieldSelector=metadata.name%%3D%s&resourceVersion=%s", of.path(namespace, ""), nameOf(there), text(there, "metadata", "resourceVersion"))
	events, err := c.client.open(ctx, http.MethodGet, watch, plainJSON, nil)
	if err != nil {
		return err
	}
	defer events.Close()
	err = eachEvent(events, func(kind string, _ object) bool { return kind != "DELETED" })
	return errors.Join(err, ctx.Err())
}
