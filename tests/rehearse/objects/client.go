package objects

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Reason says why an API server refused something.
type Reason string

// The reasons that somebody looks at.
const (
	NotFound      Reason = "NotFound"
	AlreadyExists Reason = "AlreadyExists"
	NoMatch       Reason = "NoMatch"
	Refused       Reason = "Refused"
	Unreachable   Reason = "Unreachable"
)

// Error is an API server's answer.
type Error struct {
	Reason  Reason
	Message string
}

func (e *Error) Error() string { return e.Message }

// Is reports whether an error has a reason.
func Is(err error, reason Reason) bool {
	var refused *Error
	return errors.As(err, &refused) && refused.Reason == reason
}

func refuse(reason Reason, format string, arguments ...any) error {
	return &Error{Reason: reason, Message: fmt.Sprintf(format, arguments...)}
}

// Client speaks to one cluster with the credential of a kubeconfig.
type Client struct {
	store  *Store
	target target
}

// Connect returns a client; Reachable says whether anybody answers.
func (s *Store) Connect(kubeconfig []byte) (*Client, error) {
	target, err := parseKubeconfig(kubeconfig)
	return &Client{store: s, target: target}, err
}

// Reachable returns nil when the API server answers.
func (c *Client) Reachable() error {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	_, err := c.cluster()
	return err
}

// cluster finds the client's cluster. The caller holds the lock.
func (c *Client) cluster() (*cluster, error) {
	host := strings.TrimPrefix(c.target.server, "https://")
	found, err := c.store.at(host)
	if err != nil {
		return nil, refuse(Unreachable, "dial tcp %s: connect: connection refused", host)
	}
	if base64.StdEncoding.EncodeToString(found.CA) != c.target.ca {
		return nil, refuse(Unreachable, "tls: failed to verify certificate: x509: certificate signed by unknown authority")
	}
	return found, nil
}

// Kind is a kind that an API server knows.
type Kind struct {
	APIVersion, Kind, Plural string
	Namespaced               bool
}

// KindOf returns what the API server knows of a kind.
func (c *Client) KindOf(apiVersion, kind string) (Kind, error) {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	cluster, err := c.cluster()
	if err != nil {
		return Kind{}, err
	}
	return cluster.kindOf(apiVersion, kind)
}

// Get returns an object.
func (c *Client) Get(apiVersion, kind, namespace, name string) (Object, error) {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	cluster, err := c.cluster()
	if err != nil {
		return nil, err
	}
	known, err := cluster.kindOf(apiVersion, kind)
	if err != nil {
		return nil, err
	}
	if !known.Namespaced {
		namespace = ""
	}
	found := cluster.objects[key(apiVersion, kind, namespace, name)]
	if found == nil {
		return nil, refuse(NotFound, "%s %q not found", known.Plural, name)
	}
	return clone(found), nil
}

// List returns the objects of a kind, in all namespaces or in one, by name.
func (c *Client) List(apiVersion, kind, namespace string) ([]Object, error) {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	cluster, err := c.cluster()
	if err != nil {
		return nil, err
	}
	if _, err := cluster.kindOf(apiVersion, kind); err != nil {
		return nil, err
	}
	var found []Object
	for _, at := range slices.Sorted(maps.Keys(cluster.objects)) {
		object := cluster.objects[at]
		if strings.HasPrefix(at, key(apiVersion, kind, "", "")[:len(key(apiVersion, kind, "", ""))-1]) && (namespace == "" || namespaceOf(object) == namespace) {
			found = append(found, clone(object))
		}
	}
	return found, nil
}

// Create makes an object, or only says what it would be.
func (c *Client) Create(object Object, dryRun bool) (Object, error) {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	cluster, err := c.cluster()
	if err != nil {
		return nil, err
	}
	object = clone(object)
	known, err := cluster.accept(object)
	if err != nil {
		return nil, err
	}
	if prefix := text(object, "metadata", "generateName"); nameOf(object) == "" && prefix != "" {
		c.store.serial++
		child(object, "metadata")["name"] = fmt.Sprintf("%s%05d", prefix, c.store.serial)
	}
	if cluster.objects[keyOf(object)] != nil {
		return nil, refuse(AlreadyExists, "%s %q already exists", known.Plural, nameOf(object))
	}
	if err := c.store.admit(cluster, object); err != nil {
		return nil, err
	}
	if dryRun {
		return object, nil
	}
	child(object, "metadata")["generation"] = 1
	c.store.put(cluster, object)
	c.store.reconcile()
	return clone(object), nil
}

// Edit changes an object that is there. A change of its specification counts as
// a generation.
func (c *Client) Edit(apiVersion, kind, namespace, name string, edit func(Object) Object) (Object, error) {
	before, err := c.Get(apiVersion, kind, namespace, name)
	if err != nil {
		return nil, err
	}
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	cluster, err := c.cluster()
	if err != nil {
		return nil, err
	}
	specification := fmt.Sprint(before["spec"])
	after := edit(before)
	if _, err := cluster.accept(after); err != nil {
		return nil, err
	}
	metadata := child(after, "metadata")
	if fmt.Sprint(after["spec"]) != specification {
		generation, _ := metadata["generation"].(float64)
		metadata["generation"] = int(generation) + 1
	}
	if err := c.store.admit(cluster, after); err != nil {
		return nil, err
	}
	c.store.put(cluster, clone(after))
	c.store.reconcile()
	return clone(cluster.objects[keyOf(after)]), nil
}

// Delete removes an object.
func (c *Client) Delete(apiVersion, kind, namespace, name string) error {
	found, err := c.Get(apiVersion, kind, namespace, name)
	if err != nil {
		return err
	}
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	cluster, err := c.cluster()
	if err != nil {
		return err
	}
	c.store.remove(cluster, keyOf(found))
	c.store.reconcile()
	return nil
}

// Merge puts the fields of patch into object as a JSON merge patch does.
func Merge(object, patch Object) {
	for name, value := range patch {
		switch fields := value.(type) {
		case nil:
			delete(object, name)
		case Object:
			Merge(child(object, name), fields)
		default:
			object[name] = value
		}
	}
}

// accept checks what an API server checks before admission.
func (c *cluster) accept(object Object) (Kind, error) {
	known, err := c.kindOf(text(object, "apiVersion"), text(object, "kind"))
	if err != nil {
		return Kind{}, err
	}
	metadata := child(object, "metadata")
	if nameOf(object) == "" && text(object, "metadata", "generateName") == "" {
		return known, refuse(Refused, "%s \"\" is invalid: metadata.name: Required value: name or generateName is required", known.Kind)
	}
	if !known.Namespaced {
		delete(metadata, "namespace")
		return known, nil
	}
	if namespaceOf(object) == "" {
		metadata["namespace"] = "default"
	}
	if c.objects[key("v1", "Namespace", "", namespaceOf(object))] == nil {
		return known, refuse(NotFound, "namespaces %q not found", namespaceOf(object))
	}
	if known.Kind == "Secret" {
		// What is given as text is kept encoded.
		if plain, ok := object["stringData"].(Object); ok {
			data := child(object, "data")
			for name, value := range plain {
				data[name] = encode(fmt.Sprint(value))
			}
			delete(object, "stringData")
		}
	}
	return known, nil
}
