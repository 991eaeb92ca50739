package clusters

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/objects"
	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/pki"
)

type object = objects.Object

// resource is where objects of a kind are found: "apps/v1", "deployments".
type resource struct{ apiVersion, plural string }

// The resources that the controllers here look at.
var (
	nodes         = resource{"v1", "nodes"}
	namespaces    = resource{"v1", "namespaces"}
	pods          = resource{"v1", "pods"}
	secrets       = resource{"v1", "secrets"}
	configMaps    = resource{"v1", "configmaps"}
	services      = resource{"v1", "services"}
	endpoints     = resource{"discovery.k8s.io/v1", "endpointslices"}
	daemonSets    = resource{"apps/v1", "daemonsets"}
	mutating      = resource{"admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations"}
	validating    = resource{"admissionregistration.k8s.io/v1", "validatingwebhookconfigurations"}
	pools         = resource{"metallb.io/v1beta1", "ipaddresspools"}
	announcements = resource{"metallb.io/v1beta1", "l2advertisements"}
	planes        = resource{"kamaji.clastix.io/v1alpha1", "tenantcontrolplanes"}
	dataStores    = resource{"kamaji.clastix.io/v1alpha1", "datastores"}
)

// path is the URL path of one object, or of all when both are "".
func (r resource) path(namespace, name string) string {
	path := "/apis/" + r.apiVersion
	if !strings.Contains(r.apiVersion, "/") {
		path = "/api/" + r.apiVersion
	}
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	path += "/" + r.plural
	if name != "" {
		path += "/" + name
	}
	return path
}

// refusal is an API server's answer that is not what was asked for.
type refusal struct {
	code    int
	message string
}

func (r *refusal) Error() string { return r.message }

// answered reports whether an error is an API server's answer with a code.
func answered(err error, code int) bool {
	var refused *refusal
	return errors.As(err, &refused) && refused.code == code
}

// client speaks to one API server as a user.
type client struct {
	server string
	http   *http.Client
	token  string
}

// patience is how long an API server may take to answer what is no watch.
const patience = 30 * time.Second

func newClient(server string, ca pki.Credential, user *pki.Credential, token string) (*client, error) {
	config := &tls.Config{RootCAs: ca.Pool(), MinVersion: tls.VersionTLS12}
	if user != nil {
		pair, err := user.Pair()
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return &client{server: server, token: token, http: &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}}, nil
}

// open sends a request and returns the answer's body.
func (c *client) open(ctx context.Context, method, path, contentType string, body any) (io.ReadCloser, error) {
	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		sent = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.server+path, sent)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("User-Agent", "rehearse-controllers")
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= http.StatusMultipleChoices {
		defer response.Body.Close()
		const enough = 4096
		text, _ := io.ReadAll(io.LimitReader(response.Body, enough))
		var status struct{ Message string }
		_ = json.Unmarshal(text, &status)
		if status.Message == "" {
			status.Message = string(text)
		}
		return nil, &refusal{code: response.StatusCode, message: fmt.Sprintf("%s %s: %s: %s", method, path, response.Status, status.Message)}
	}
	return response.Body, nil
}

func (c *client) do(ctx context.Context, method, path, contentType string, body any) (object, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := c.open(ctx, method, path, contentType, body)
	if err != nil {
		return nil, err
	}
	defer answer.Close()
	var got object
	if err := json.NewDecoder(answer).Decode(&got); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return got, nil
}

const (
	plainJSON  = "application/json"
	mergePatch = "application/merge-patch+json"
)

func (c *client) get(ctx context.Context, path string) (object, error) {
	return c.do(ctx, http.MethodGet, path, plainJSON, nil)
}

func (c *client) create(ctx context.Context, path string, body object) (object, error) {
	return c.do(ctx, http.MethodPost, path, plainJSON, body)
}

func (c *client) patch(ctx context.Context, path string, body object) (object, error) {
	return c.do(ctx, http.MethodPatch, path, mergePatch, body)
}

func (c *client) delete(ctx context.Context, path string, options object) error {
	_, err := c.do(ctx, http.MethodDelete, path, plainJSON, options)
	return err
}

// ensure creates an object unless it is there.
func (c *client) ensure(ctx context.Context, path string, body object) error {
	_, err := c.create(ctx, path, body)
	if answered(err, http.StatusConflict) {
		return nil
	}
	return err
}
