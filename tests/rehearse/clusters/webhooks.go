package clusters

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/objects"
)

// trust plays what puts a CA into the webhook configurations: cert-manager's
// injector, MetalLB's rotation, the hook jobs of HAMi's chart.
func (k controllers) trust(ctx context.Context) error {
	var all error
	for _, of := range []resource{mutating, validating} {
		for _, configuration := range k.seen.all(of) {
			hooks := list(configuration, "webhooks")
			missing := false
			for _, entry := range hooks {
				to, _ := field(entry.(object), "clientConfig").(object)
				missing = missing || (to != nil && to["service"] != nil && text(to, "caBundle") != encode(k.CA.Certificate))
			}
			if !missing {
				continue
			}
			// What was read is changed and sent back as a whole, with its
			// resourceVersion: somebody else's change in between is not undone.
			err := k.bundle(ctx, of, nameOf(configuration))
			if !answered(err, http.StatusConflict) {
				all = errors.Join(all, err)
			}
		}
	}
	return all
}

func (k controllers) bundle(ctx context.Context, of resource, name string) error {
	configuration, err := k.client.get(ctx, of.path("", name))
	if err != nil {
		return err
	}
	for _, entry := range list(configuration, "webhooks") {
		if to, _ := field(entry.(object), "clientConfig").(object); to != nil && to["service"] != nil {
			to["caBundle"] = encode(k.CA.Certificate)
		}
	}
	_, err = k.client.do(ctx, http.MethodPut, of.path("", name), plainJSON, configuration)
	return err
}

// tunnel is the way from an API server to what runs in its cluster. Of a tenant
// it plays Konnectivity, of a management cluster the network between its pods.
type tunnel struct {
	cluster  *cluster
	seen     *cache
	socket   string
	listener net.Listener
	server   *http.Server
}

func openTunnel(c *cluster) (*tunnel, error) {
	t := &tunnel{cluster: c, seen: c.cache, socket: filepath.Join(c.set.sockets, c.Address)}
	if err := os.Remove(t.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var err error
	if t.listener, err = net.Listen("unix", t.socket); err != nil {
		return nil, err
	}
	t.server = &http.Server{Handler: http.HandlerFunc(t.connect)} //nolint:gosec // its only caller is ours
	go func() { _ = t.server.Serve(t.listener) }()
	return t, nil
}

func (t *tunnel) close() {
	if t != nil {
		_ = t.server.Close()
	}
}

// configuration tells the API server to go this way.
func (t *tunnel) configuration() []byte {
	text, _ := json.Marshal(object{
		"apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration",
		"egressSelections": []any{object{"name": "cluster", "connection": object{
			"proxyProtocol": "HTTPConnect", "transport": object{"uds": object{"udsName": t.socket}},
		}}},
	})
	return text
}

// connect leads to a Service, if a pod behind it is ready.
func (t *tunnel) connect(w http.ResponseWriter, r *http.Request) {
	seen := t.seen
	host, _, err := net.SplitHostPort(r.Host)
	if r.Method != http.MethodConnect || err != nil {
		http.Error(w, "only CONNECT host:port leads anywhere", http.StatusBadRequest)
		return
	}
	service := serviceAt(seen, host)
	if service == nil {
		http.Error(w, "no Service has the address "+host, http.StatusBadGateway)
		return
	}
	if !hasPods(seen, service) {
		http.Error(w, fmt.Sprintf("no pod of Service %s/%s is ready on a node that answers", namespaceOf(service), nameOf(service)), http.StatusServiceUnavailable)
		return
	}
	credential, err := t.cluster.CA.Server("", nameOf(service)+"."+namespaceOf(service)+".svc")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	pair, err := credential.Pair()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	connection, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if _, err := connection.Write([]byte("HTTP/1.1 200 Connection established\r\n\r\n")); err != nil {
		_ = connection.Close()
		return
	}
	secured := tls.Server(connection, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})
	one := &oneListener{connection: secured, closed: make(chan struct{})}
	answers := &http.Server{Handler: admission{service: nameOf(service)}, ConnState: func(_ net.Conn, state http.ConnState) { //nolint:gosec // its only caller is ours
		if state == http.StateClosed {
			one.end()
		}
	}}
	// Each call goes the whole way: what was reached once may be gone.
	answers.SetKeepAlivesEnabled(false)
	_ = answers.Serve(one)
}

// serviceAt returns the Service with an address or a name, or nil.
func serviceAt(seen *cache, host string) object {
	for _, service := range seen.all(services) {
		if text(service, "spec", "clusterIP") == host || host == nameOf(service)+"."+namespaceOf(service)+".svc" {
			return service
		}
	}
	return nil
}

// hasPods reports whether a pod behind a Service is ready on a Ready node.
func hasPods(seen *cache, service object) bool {
	for _, slice := range seen.all(endpoints) {
		if namespaceOf(slice) != namespaceOf(service) || text(slice, "metadata", "labels", "kubernetes.io/service-name") != nameOf(service) {
			continue
		}
		for _, entry := range list(slice, "endpoints") {
			endpoint := entry.(object)
			if field(endpoint, "conditions", "ready") == true && is(seen.get(nodes, "", text(endpoint, "nodeName")), "Ready") {
				return true
			}
		}
	}
	return false
}

// oneListener serves one connection.
type oneListener struct {
	connection net.Conn
	taken      bool
	closed     chan struct{}
}

func (l *oneListener) Accept() (net.Conn, error) {
	if !l.taken {
		l.taken = true
		return l.connection, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *oneListener) end() {
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
}

func (l *oneListener) Close() error   { l.end(); return nil }
func (l *oneListener) Addr() net.Addr { return l.connection.LocalAddr() }

// admission plays the webhooks.
type admission struct{ service string }

func (a admission) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review struct {
		Request struct {
			UID    string `json:"uid"`
			Object object `json:"object"`
		} `json:"request"`
	}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer := object{"uid": review.Request.UID, "allowed": true}
	if patch := a.patch(review.Request.Object); patch != "" {
		answer["patchType"], answer["patch"] = "JSONPatch", base64.StdEncoding.EncodeToString([]byte(patch))
	}
	w.Header().Set("Content-Type", plainJSON)
	_ = json.NewEncoder(w).Encode(object{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer})
}

// patch is what HAMi's webhook changes; the others change nothing that is seen.
func (a admission) patch(of object) string {
	if !strings.HasPrefix(a.service, "hami-") || !objects.AsksForCards(of) {
		return ""
	}
	return `[{"op":"add","path":"/spec/schedulerName","value":"hami-scheduler"}]`
}
