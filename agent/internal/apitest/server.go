// Package apitest is a small API server for tests. Unlike client-go's fake
// clientset it has what the agent has to cope with: resource versions that are
// compared, subresources, watches that resume, and requests that are refused,
// get lost or come to nothing.
package apitest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"

	"github.com/gpu-tenants/gpu-tenants/agent/internal/kube"
)

// Kinds of the resources that the server knows.
var kinds = map[string]string{"nodes": "Node", "pods": "Pod", "configmaps": "ConfigMap"}

type object = map[string]any

// Request is one that the server has got.
type Request struct {
	// Verb is that of RBAC.
	Verb string
	// Resource is "pods" or, with a subresource, "nodes/status".
	Resource string
	// Namespace and Name are empty where the request has none. A list or watch
	// that is limited to one name by a field selector has that name, as for
	// RBAC.
	Namespace, Name string
}

// Fault is what is to happen to a request.
type Fault int

// The faults. The zero value is none.
const (
	// Conflict refuses the request with 409.
	Conflict Fault = iota + 1
	// Unavailable refuses it with 503.
	Unavailable
	// Forbidden refuses it with 403.
	Forbidden
	// Hang never answers and does nothing.
	Hang
	// Lose carries the request out and never answers.
	Lose
)

type event struct {
	version  int64
	resource string
	kind     string // ADDED, MODIFIED or DELETED.
	object   object
}

// Server is the API server.
type Server struct {
	// URL is where it listens.
	URL string

	mu       sync.Mutex
	version  int64
	objects  map[string]object // By resource/namespace/name.
	events   []event
	grown    chan struct{} // Closed at the next event.
	requests []Request
	fault    func(Request) Fault
	stop     chan struct{}
}

// New starts a server that ends with the test.
func New(tb testing.TB) *Server {
	tb.Helper()
	s := &Server{objects: map[string]object{}, grown: make(chan struct{}), stop: make(chan struct{})}
	web := httptest.NewServer(s)
	s.URL = web.URL
	tb.Cleanup(func() {
		close(s.stop)
		web.CloseClientConnections()
		web.Close()
	})
	return s
}

// Config is for clients of the server.
func (s *Server) Config() *rest.Config {
	return &rest.Config{Host: s.URL}
}

// Client is a client of the server.
func (s *Server) Client(tb testing.TB) *kube.Client {
	tb.Helper()
	client, err := kube.New(s.Config())
	if err != nil {
		tb.Fatal(err)
	}
	return client
}

// OnRequest has f decide the fate of each request but watches. It is called
// before the request is carried out, with no lock held: f may change objects,
// as others do between somebody's read and write. Nil is for no faults.
func (s *Server) OnRequest(f func(Request) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// Requests are those that the server has got so far.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Put creates or replaces an object, given as a typed one. It gets a new
// resourceVersion and, unless it has one, a UID.
func (s *Server) Put(tb testing.TB, resource string, typed any) {
	tb.Helper()
	data, err := json.Marshal(typed)
	if err != nil {
		tb.Fatal(err)
	}
	obj := object{}
	if err := json.Unmarshal(data, &obj); err != nil {
		tb.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	meta := metadata(obj)
	obj["kind"], obj["apiVersion"] = kinds[resource], "v1"
	key := key(resource, text(meta, "namespace"), text(meta, "name"))
	old, exists := s.objects[key]
	if text(meta, "uid") == "" {
		if exists {
			meta["uid"] = metadata(old)["uid"]
		} else {
			meta["uid"] = fmt.Sprintf("uid-%d", s.version+1)
		}
	}
	kind := "ADDED"
	if exists {
		kind = "MODIFIED"
	}
	s.record(kind, resource, key, obj)
}

// Get reads an object into a typed one and reports whether there is one.
func (s *Server) Get(tb testing.TB, resource, namespace, name string, into any) bool {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	obj, ok := s.objects[key(resource, namespace, name)]
	if !ok {
		return false
	}
	data, err := json.Marshal(obj)
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		tb.Error(err)
	}
	return true
}

// Delete removes an object.
func (s *Server) Delete(resource, namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := key(resource, namespace, name)
	if obj, ok := s.objects[key]; ok {
		s.record("DELETED", resource, key, clone(obj))
	}
}

// Merge applies a JSON merge patch, as another client would, and reports
// whether there was anything to apply it to.
func (s *Server) Merge(resource, namespace, name, patch string) bool {
	var p object
	if err := json.Unmarshal([]byte(patch), &p); err != nil {
		panic(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := key(resource, namespace, name)
	obj, ok := s.objects[key]
	if ok {
		s.update(resource, key, obj, merge(clone(obj), p))
	}
	return ok
}

func (s *Server) update(resource, key string, old, updated object) {
	// A patch that changes nothing is not a change.
	if !reflect.DeepEqual(old, updated) {
		s.record("MODIFIED", resource, key, updated)
	}
}

// record is called with the lock held and an object of its own.
func (s *Server) record(kind, resource, key string, obj object) {
	s.version++
	metadata(obj)["resourceVersion"] = strconv.FormatInt(s.version, 10)
	if kind == "DELETED" {
		delete(s.objects, key)
	} else {
		s.objects[key] = obj
	}
	s.events = append(s.events, event{version: s.version, resource: resource, kind: kind, object: clone(obj)})
	close(s.grown)
	s.grown = make(chan struct{})
}

// ServeHTTP answers /api/v1/[namespaces/<namespace>/]<resource>[/<name>[/status]].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/api/v1/"), "/")
	var request Request
	if len(parts) > 2 && parts[0] == "namespaces" {
		request.Namespace, parts = parts[1], parts[2:]
	}
	resource, subresource := parts[0], ""
	if len(parts) > 1 {
		request.Name = parts[1]
	}
	if len(parts) > 2 {
		subresource = parts[2]
	}
	selector, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	if _, known := kinds[resource]; !known || err != nil || len(parts) > 3 || subresource != "" && subresource != "status" {
		refuse(w, http.StatusNotFound, "NotFound", "no such path")
		return
	}
	request.Resource = resource
	if subresource != "" {
		request.Resource += "/" + subresource
	}
	watching := r.URL.Query().Get("watch") == "true"
	switch {
	case r.Method == http.MethodPatch:
		request.Verb = "patch"
	case request.Name != "":
		request.Verb = "get"
	default:
		request.Verb = "list"
		if watching {
			request.Verb = "watch"
		}
		request.Name, _ = selector.RequiresExactMatch("metadata.name")
	}
	s.mu.Lock()
	s.requests = append(s.requests, request)
	decide := s.fault
	s.mu.Unlock()

	var fault Fault
	if decide != nil && !watching {
		fault = decide(request)
	}
	switch fault {
	case Conflict:
		refuse(w, http.StatusConflict, "Conflict", "told to")
		return
	case Unavailable:
		refuse(w, http.StatusServiceUnavailable, "ServiceUnavailable", "told to")
		return
	case Forbidden:
		refuse(w, http.StatusForbidden, "Forbidden", "told to")
		return
	case Hang:
		s.hang(r)
		return
	case Lose:
		defer s.hang(r)
		w = httptest.NewRecorder()
	}
	switch request.Verb {
	case "watch":
		s.watch(w, r, resource, request.Namespace, selector)
	case "list":
		s.list(w, resource, request.Namespace, selector)
	case "get":
		s.get(w, resource, request)
	default:
		s.patch(w, r, resource, subresource, request)
	}
}

// hang keeps the connection until the client or the test gives up.
func (s *Server) hang(r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-s.stop:
	}
	panic(http.ErrAbortHandler)
}

func (s *Server) get(w http.ResponseWriter, resource string, request Request) {
	s.mu.Lock()
	obj, ok := s.objects[key(resource, request.Namespace, request.Name)]
	s.mu.Unlock()
	if !ok {
		refuse(w, http.StatusNotFound, "NotFound", request.Name+" not found")
		return
	}
	answer(w, http.StatusOK, obj)
}

func (s *Server) list(w http.ResponseWriter, resource, namespace string, selector fields.Selector) {
	s.mu.Lock()
	items := s.selected(resource, namespace, selector)
	version := s.version
	s.mu.Unlock()
	answer(w, http.StatusOK, object{
		"kind": kinds[resource] + "List", "apiVersion": "v1",
		"metadata": object{"resourceVersion": strconv.FormatInt(version, 10)}, "items": items,
	})
}

func (s *Server) selected(resource, namespace string, selector fields.Selector) []object {
	items := []object{}
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		if obj := s.objects[key]; strings.HasPrefix(key, resource+"/") && matches(obj, namespace, selector) {
			items = append(items, obj)
		}
	}
	return items
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request, resource, namespace string, selector fields.Selector) {
	flush := w.(http.Flusher).Flush //nolint:forcetypeassert // net/http's has it.
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	encoder := json.NewEncoder(w)
	send := func(kind string, obj object) { _ = encoder.Encode(object{"type": kind, "object": obj}) }

	since, _ := strconv.ParseInt(r.URL.Query().Get("resourceVersion"), 10, 64)
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		s.mu.Lock()
		since = s.version
		initial := s.selected(resource, namespace, selector)
		s.mu.Unlock()
		for _, obj := range initial {
			send("ADDED", obj)
		}
		send("BOOKMARK", object{"kind": kinds[resource], "apiVersion": "v1", "metadata": object{
			"resourceVersion": strconv.FormatInt(since, 10),
			"annotations":     object{"k8s.io/initial-events-end": "true"},
		}})
	}
	for {
		s.mu.Lock()
		var fresh []event
		for _, e := range s.events {
			if e.version > since && e.resource == resource && matches(e.object, namespace, selector) {
				fresh = append(fresh, e)
			}
		}
		since = s.version
		grown := s.grown
		s.mu.Unlock()
		for _, e := range fresh {
			send(e.kind, e.object)
		}
		flush()
		select {
		case <-r.Context().Done():
			return
		case <-s.stop:
			return
		case <-grown:
		}
	}
}

func (s *Server) patch(w http.ResponseWriter, r *http.Request, resource, subresource string, request Request) {
	var patch object
	if r.Header.Get("Content-Type") != "application/merge-patch+json" || json.NewDecoder(r.Body).Decode(&patch) != nil {
		refuse(w, http.StatusUnsupportedMediaType, "UnsupportedMediaType", "not a merge patch")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := key(resource, request.Namespace, request.Name)
	old, ok := s.objects[key]
	if !ok {
		refuse(w, http.StatusNotFound, "NotFound", request.Name+" not found")
		return
	}
	for _, field := range []string{"resourceVersion", "uid"} {
		if wanted := text(metadata(patch), field); wanted != "" && wanted != text(metadata(old), field) {
			refuse(w, http.StatusConflict, "Conflict", "the object has been modified")
			return
		}
	}
	updated := merge(clone(old), patch)
	// The status is changed through its subresource only, and nothing else is.
	keep := []string{"status"}
	if subresource == "status" {
		keep = []string{"metadata", "spec", "data"}
	}
	for _, field := range keep {
		delete(updated, field)
		if value, ok := old[field]; ok {
			updated[field] = value
		}
	}
	updated = clone(updated)
	s.update(resource, key, old, updated)
	answer(w, http.StatusOK, s.objects[key])
}

func answer(w http.ResponseWriter, code int, body object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

func refuse(w http.ResponseWriter, code int, reason, message string) {
	answer(w, code, object{
		"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message,
	})
}

func key(resource, namespace, name string) string { return resource + "/" + namespace + "/" + name }

func metadata(obj object) object {
	meta, ok := obj["metadata"].(object)
	if !ok {
		meta = object{}
		obj["metadata"] = meta
	}
	return meta
}

func text(obj object, field string) string {
	value, _ := obj[field].(string)
	return value
}

// matches knows the field selectors that the API server has for these resources.
func matches(obj object, namespace string, selector fields.Selector) bool {
	sub := func(field string) object { value, _ := obj[field].(object); return value }
	return (namespace == "" || namespace == text(metadata(obj), "namespace")) && selector.Matches(fields.Set{
		"metadata.name": text(metadata(obj), "name"),
		"spec.nodeName": text(sub("spec"), "nodeName"),
		"status.phase":  text(sub("status"), "phase"),
	})
}

// clone copies deeply, by way of JSON.
func clone(obj object) object {
	data, err := json.Marshal(obj)
	if err != nil {
		panic(err)
	}
	var copied object
	if err := json.Unmarshal(data, &copied); err != nil {
		panic(err)
	}
	return copied
}

// merge is RFC 7396.
func merge(into object, patch object) object {
	if into == nil {
		into = object{}
	}
	for field, value := range patch {
		switch value := value.(type) {
		case nil:
			delete(into, field)
		case object:
			below, _ := into[field].(object)
			into[field] = merge(below, value)
		default:
			into[field] = value
		}
	}
	return into
}
