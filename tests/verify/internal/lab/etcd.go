package lab

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	etcd "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
)

// Store is a way to the etcd that holds all tenants, with somebody's certificate.
type Store struct {
	*etcd.Client
	stop func()
}

// Close ends it.
func (s *Store) Close() error {
	err := s.Client.Close()
	s.stop()
	return err
}

// Storage says where in the etcd a tenant's data is.
type Storage struct {
	DataStore string
	Prefix    string // of every key of the tenant
	User      string
	secret    string // with the tenant's certificate
}

// Storage reads it from the tenant's TenantControlPlane.
func (t *Tenant) Storage(ctx context.Context) (Storage, error) {
	plane, err := t.ControlPlane(ctx)
	if err != nil {
		return Storage{}, err
	}
	var s Storage
	schemaName, _, _ := unstructured.NestedString(plane.Object, "status", "storage", "setup", "schema")
	s.User, _, _ = unstructured.NestedString(plane.Object, "status", "storage", "setup", "user")
	s.DataStore, _, _ = unstructured.NestedString(plane.Object, "status", "storage", "dataStoreName")
	s.secret, _, _ = unstructured.NestedString(plane.Object, "status", "storage", "certificate", "secretName")
	if schemaName == "" || s.DataStore == "" || s.secret == "" {
		return Storage{}, fmt.Errorf("the status of TenantControlPlane %s does not say where its data is", t.Name)
	}
	s.Prefix = "/" + schemaName + "/"
	return s, nil
}

// OpenStore reaches the etcd with the tenant's own certificate.
func (t *Tenant) OpenStore(ctx context.Context, s Storage) (*Store, error) {
	data, err := t.Lab.Management.secret(ctx, TenantsNamespace, s.secret)
	if err != nil {
		return nil, err
	}
	return t.Lab.openStore(ctx, s.DataStore, data["server.crt"], data["server.key"])
}

// OpenStoreAsRoot reaches the etcd with the certificate that Kamaji uses.
func (l *Lab) OpenStoreAsRoot(ctx context.Context, dataStore string) (*Store, error) {
	object, err := l.dataStore(ctx, dataStore)
	if err != nil {
		return nil, err
	}
	certificate, err := l.reference(ctx, object, "clientCertificate", "certificate")
	if err != nil {
		return nil, err
	}
	key, err := l.reference(ctx, object, "clientCertificate", "privateKey")
	if err != nil {
		return nil, err
	}
	return l.openStore(ctx, dataStore, certificate, key)
}

func (l *Lab) dataStore(ctx context.Context, name string) (*unstructured.Unstructured, error) {
	kind := schema.GroupVersionResource{Group: "kamaji.clastix.io", Version: "v1alpha1", Resource: "datastores"}
	return l.Management.Objects.Resource(kind).Get(ctx, name, metav1.GetOptions{})
}

// reference follows one of a DataStore's references to a secret.
func (l *Lab) reference(ctx context.Context, object *unstructured.Unstructured, owner, what string) ([]byte, error) {
	at, _, err := unstructured.NestedStringMap(object.Object, "spec", "tlsConfig", owner, what, "secretReference")
	if err != nil {
		return nil, err
	}
	data, err := l.Management.secret(ctx, at["namespace"], at["name"])
	if err != nil {
		return nil, err
	}
	if len(data[at["keyPath"]]) == 0 {
		return nil, fmt.Errorf("secret %s/%s has no %s", at["namespace"], at["name"], at["keyPath"])
	}
	return data[at["keyPath"]], nil
}

func (c *Cluster) secret(ctx context.Context, namespace, name string) (map[string][]byte, error) {
	secret, err := c.Client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return secret.Data, nil
}

// openStore forwards a port to one of the etcd's pods: it has no address that
// could be reached from outside.
func (l *Lab) openStore(ctx context.Context, dataStore string, certificate, key []byte) (*Store, error) {
	object, err := l.dataStore(ctx, dataStore)
	if err != nil {
		return nil, err
	}
	authority, err := l.reference(ctx, object, "certificateAuthority", "certificate")
	if err != nil {
		return nil, err
	}
	at, err := member(object)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("the authority of DataStore %s is no certificate", dataStore)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, errors.New("the client certificate for the etcd cannot be read")
	}
	local, stop, err := l.Management.forward(ctx, at.namespace, at.pod, at.port)
	if err != nil {
		return nil, err
	}
	client, err := etcd.New(etcd.Config{
		Endpoints: []string{"https://127.0.0.1:" + local}, DialTimeout: 10 * time.Second, Context: ctx, Logger: zap.NewNop(),
		TLS: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, ServerName: at.host, MinVersion: tls.VersionTLS12},
	})
	if err != nil {
		stop()
		return nil, err
	}
	return &Store{Client: client, stop: stop}, nil
}

// place is where a member of the etcd is.
type place struct{ host, namespace, pod, port string }

// member is the first that a DataStore names.
func member(dataStore *unstructured.Unstructured) (place, error) {
	endpoints, _, _ := unstructured.NestedStringSlice(dataStore.Object, "spec", "endpoints")
	if len(endpoints) == 0 {
		return place{}, fmt.Errorf("DataStore %s has no endpoints", dataStore.GetName())
	}
	// pod.service.namespace.svc...:port
	host, port, _ := strings.Cut(endpoints[0], ":")
	names := strings.Split(host, ".")
	if len(names) < 3 || port == "" || net.ParseIP(host) != nil {
		return place{}, fmt.Errorf("endpoint %s of DataStore %s does not name a pod and a port", endpoints[0], dataStore.GetName())
	}
	return place{host: host, namespace: names[2], pod: names[0], port: port}, nil
}

// StoreAddress is the address of a member of the etcd in the management
// cluster's pod network.
func (l *Lab) StoreAddress(ctx context.Context, dataStore string) (address string, port int, err error) {
	object, err := l.dataStore(ctx, dataStore)
	if err != nil {
		return "", 0, err
	}
	at, err := member(object)
	if err != nil {
		return "", 0, err
	}
	pod, err := l.Management.Client.CoreV1().Pods(at.namespace).Get(ctx, at.pod, metav1.GetOptions{})
	if err != nil {
		return "", 0, err
	}
	port, err = strconv.Atoi(at.port)
	return pod.Status.PodIP, port, err
}

// forward makes a port of a pod one of this machine's.
func (c *Cluster) forward(ctx context.Context, namespace, pod, port string) (local string, stop func(), err error) {
	transport, upgrader, err := spdy.RoundTripperFor(c.Config)
	if err != nil {
		return "", nil, err
	}
	url := c.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("portforward").URL()
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	stopped, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	forwarder, err := portforward.New(dialer, []string{"0:" + port}, stopped, ready, io.Discard, io.Discard)
	if err != nil {
		return "", nil, err
	}
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-ended:
		return "", nil, fmt.Errorf("port %s of pod %s/%s cannot be forwarded: %w", port, namespace, pod, err)
	case <-ctx.Done():
		close(stopped)
		return "", nil, context.Cause(ctx)
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		close(stopped)
		return "", nil, err
	}
	return fmt.Sprint(ports[0].Local), func() { close(stopped) }, nil
}
