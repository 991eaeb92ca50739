package clusters

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"
)

// cache follows the objects of some resources in an API server.
type cache struct {
	client  *client
	changed chan struct{} // holds one entry when anything has changed

	mu   sync.Mutex
	kept map[resource]map[string]object // by namespace/name; nil: not listed yet
}

func newCache(client *client) *cache {
	return &cache{client: client, changed: make(chan struct{}, 1), kept: map[resource]map[string]object{}}
}

// follow keeps a resource up to date until the context is done.
func (c *cache) follow(ctx context.Context, of resource) {
	for ctx.Err() == nil {
		version, err := c.list(ctx, of)
		if err == nil {
			err = c.watch(ctx, of, version)
		}
		if err == nil {
			continue // a watch ends now and then
		}
		// Its definition may not be there yet, or the API server not. Nobody tells
		// when that changes, so there is nothing to do but ask again.
		const again = 200 * time.Millisecond
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
}

func keyOf(of object) string {
	metadata, _ := of["metadata"].(object)
	return fmt.Sprint(metadata["namespace"]) + "/" + fmt.Sprint(metadata["name"])
}

func (c *cache) list(ctx context.Context, of resource) (version string, err error) {
	all, err := c.client.get(ctx, of.path("", ""))
	if answered(err, http.StatusNotFound) {
		c.put(of, func(map[string]object) map[string]object { return map[string]object{} })
	}
	if err != nil {
		return "", err
	}
	listed := map[string]object{}
	items, _ := all["items"].([]any)
	for _, item := range items {
		one := item.(object)
		listed[keyOf(one)] = one
	}
	c.put(of, func(map[string]object) map[string]object { return listed })
	return text(all, "metadata", "resourceVersion"), nil
}

func (c *cache) watch(ctx context.Context, of resource, version string) error {
	events, err := c.client.open(ctx, http.MethodGet, of.path("", "")+"?watch=1&allowWatchBookmarks=true&resourceVersion="+version, plainJSON, nil)
	if err != nil {
		return err
	}
	defer events.Close()
	// A watch that is too old ends with an error: then all is listed again.
	return eachEvent(events, func(kind string, changed object) bool {
		switch kind {
		case "ADDED", "MODIFIED":
			c.put(of, func(kept map[string]object) map[string]object {
				kept[keyOf(changed)] = changed
				return kept
			})
		case "DELETED":
			c.put(of, func(kept map[string]object) map[string]object {
				delete(kept, keyOf(changed))
				return kept
			})
		}
		return kind != "ERROR"
	})
}

// eachEvent hands over a watch's events until it ends or is told to end.
func eachEvent(events io.Reader, hand func(kind string, of object) bool) error {
	decoder := json.NewDecoder(events)
	for {
		var event struct {
			Type   string
			Object object
		}
		if err := decoder.Decode(&event); err != nil {
			return nil //nolint:nilerr // its end
		}
		if !hand(event.Type, event.Object) {
			return nil
		}
	}
}

func (c *cache) put(of resource, edit func(map[string]object) map[string]object) {
	c.mu.Lock()
	c.kept[of] = edit(c.kept[of])
	c.mu.Unlock()
	c.nudge()
}

// nudge has the controllers look again.
func (c *cache) nudge() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// listed reports whether the resources are known: before, nothing can be told
// from what is not there.
func (c *cache) listed(all ...resource) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !slices.ContainsFunc(all, func(one resource) bool { return c.kept[one] == nil })
}

// all returns the objects of a resource in a fixed order. They are not to be
// changed.
func (c *cache) all(of resource) []object {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []object
	for _, at := range slices.Sorted(maps.Keys(c.kept[of])) {
		found = append(found, c.kept[of][at])
	}
	return found
}

// get returns one, or nil.
func (c *cache) get(of resource, namespace, name string) object {
	c.mu.Lock()
	defer c.mu.Unlock()
	if namespace == "" {
		return c.kept[of]["<nil>/"+name]
	}
	return c.kept[of][namespace+"/"+name]
}
