package objects

import (
	"archive/tar"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"gopkg.in/yaml.v3"
)

// Helm plays the helm command's work in a cluster. It renders no templates:
// what the two charts of this project make is known here, and a chart of another
// name makes a release and nothing else. A release is kept as Helm keeps it, in
// a Secret, so that what looks for it there finds it.

const hamiWebhook = "hami-webhook"

// Release is a release to be installed.
type Release struct {
	Name, Namespace, Chart string
	Values                 Object
	CreateNamespace        bool
}

// Install is helm install. It refuses a name that is in use, and objects that
// are not this release's.
func (c *Client) Install(release Release) error {
	chart, version, err := chartOf(release.Chart)
	if err != nil {
		return err
	}
	there, err := c.List("v1", "Secret", release.Namespace)
	if err != nil {
		return fmt.Errorf("Kubernetes cluster unreachable: %w", err) //nolint:staticcheck // Helm's words
	}
	for _, secret := range there {
		if secret["type"] == "helm.sh/release.v1" && text(secret, "metadata", "labels", "name") == release.Name {
			return errors.New("cannot re-use a name that is still in use")
		}
	}
	if release.CreateNamespace {
		_, err := c.Create(Object{"apiVersion": "v1", "kind": "Namespace", "metadata": Object{"name": release.Namespace}}, false)
		if err != nil && !Is(err, AlreadyExists) {
			return err
		}
	}
	if err := c.record(release, chart, version, 1, "pending-install"); err != nil {
		return err
	}
	for _, object := range chartObjects(chart, release) {
		if err := c.own(release, object); err != nil {
			return errors.Join(err, c.record(release, chart, version, 1, "failed"))
		}
	}
	return c.record(release, chart, version, 1, "deployed")
}

// Upgrade is helm upgrade.
func (c *Client) Upgrade(release Release) error {
	chart, version, err := chartOf(release.Chart)
	if err != nil {
		return err
	}
	if _, err := c.Get("v1", "Secret", release.Namespace, releaseSecret(release.Name)); err != nil {
		return fmt.Errorf("%q has no deployed releases", release.Name)
	}
	for _, object := range chartObjects(chart, release) {
		if err := c.own(release, object); err != nil {
			return err
		}
	}
	return c.record(release, chart, version, 2, "deployed")
}

// Uninstall is helm uninstall. CustomResourceDefinitions stay, as with Helm.
func (c *Client) Uninstall(name, namespace string) error {
	secret, err := c.Get("v1", "Secret", namespace, releaseSecret(name))
	if Is(err, NotFound) {
		return fmt.Errorf("uninstall: Release not loaded: %s: release: not found", name)
	}
	if err != nil {
		return err
	}
	chart := text(secret, "metadata", "labels", "chart")
	for _, object := range chartObjects(chart, Release{Name: name, Namespace: namespace}) {
		if object["kind"] == "CustomResourceDefinition" {
			continue
		}
		err := c.Delete(text(object, "apiVersion"), text(object, "kind"), namespaceOf(object), nameOf(object))
		if err != nil && !Is(err, NotFound) {
			return err
		}
	}
	return c.Delete("v1", "Secret", namespace, releaseSecret(name))
}

// Status returns a release's status, or "" when there is none.
func (c *Client) Status(name, namespace string) (string, error) {
	secret, err := c.Get("v1", "Secret", namespace, releaseSecret(name))
	if Is(err, NotFound) {
		return "", nil
	}
	return text(secret, "metadata", "labels", "status"), err
}

func releaseSecret(name string) string { return "sh.helm.release.v1." + name + ".v1" }

func (c *Client) record(release Release, chart, version string, revision int, status string) error {
	values, err := json.Marshal(release.Values)
	if err != nil {
		return err
	}
	secret := Object{
		"apiVersion": "v1", "kind": "Secret", "type": "helm.sh/release.v1",
		"metadata": Object{"name": releaseSecret(release.Name), "namespace": release.Namespace, "labels": Object{
			"owner": "helm", "name": release.Name, "status": status, "chart": chart, "chartVersion": version, "revision": fmt.Sprint(revision),
		}},
		"data": Object{"release": base64.StdEncoding.EncodeToString(values)},
	}
	return c.apply(secret)
}

// apply makes or replaces an object.
func (c *Client) apply(object Object) error {
	_, err := c.Create(object, false)
	if Is(err, AlreadyExists) {
		_, err = c.Edit(text(object, "apiVersion"), text(object, "kind"), namespaceOf(object), nameOf(object), func(before Object) Object {
			Merge(before, object)
			return before
		})
	}
	return err
}

// own applies an object of a release, unless it is somebody else's.
func (c *Client) own(release Release, object Object) error {
	const annotation = "meta.helm.sh/release-name"
	before, err := c.Get(text(object, "apiVersion"), text(object, "kind"), namespaceOf(object), nameOf(object))
	if err == nil && text(before, "metadata", "annotations", annotation) != release.Name {
		return fmt.Errorf("%s %q exists and cannot be imported into the current release: invalid ownership metadata", text(object, "kind"), nameOf(object))
	}
	child(child(object, "metadata"), "annotations")[annotation] = release.Name
	return c.apply(object)
}

// chartOf reads a chart's name and version, from a folder or an archive.
func chartOf(path string) (name, version string, err error) {
	var text []byte
	if info, statErr := os.Stat(path); statErr == nil && info.IsDir() {
		text, err = os.ReadFile(filepath.Join(path, "Chart.yaml"))
	} else {
		text, err = fromArchive(path, "Chart.yaml")
	}
	if err != nil {
		return "", "", fmt.Errorf("chart %s: %w", path, err)
	}
	var chart struct{ Name, Version string }
	if err := yaml.Unmarshal(text, &chart); err != nil || chart.Name == "" {
		return "", "", fmt.Errorf("chart %s: Chart.yaml names no chart", path)
	}
	return chart.Name, chart.Version, nil
}

// fromArchive reads a file in the top folder of a packaged chart.
func fromArchive(path, file string) ([]byte, error) {
	archive, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer archive.Close()
	unpacked, err := gzip.NewReader(archive)
	if err != nil {
		return nil, err
	}
	for reader := tar.NewReader(unpacked); ; {
		header, err := reader.Next()
		if err != nil {
			return nil, fmt.Errorf("%s is not in it: %w", file, err)
		}
		if _, inside, _ := strings.Cut(header.Name, "/"); inside == file {
			return io.ReadAll(reader)
		}
	}
}

// chartObjects are what a chart makes, as far as anybody here looks at it.
func chartObjects(chart string, release Release) []Object {
	deployment := func(name string) Object {
		return Object{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": Object{"name": name, "namespace": release.Namespace}, "spec": Object{"replicas": 1}}
	}
	switch chart {
	case "kamaji":
		return []Object{
			definition("kamaji.clastix.io", "v1alpha1", "TenantControlPlane", "Namespaced"),
			definition("kamaji.clastix.io", "v1alpha1", "DataStore", "Cluster"),
			{"apiVersion": "cert-manager.io/v1", "kind": "Issuer", "metadata": Object{"name": "kamaji-selfsigned-issuer", "namespace": release.Namespace}, "spec": Object{"selfSigned": Object{}}},
			deployment("kamaji"),
			{"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": Object{"name": "kamaji-etcd", "namespace": release.Namespace}, "spec": Object{"replicas": field(release.Values, "kamaji-etcd", "replicas")}},
			{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": Object{"name": "kamaji-validating-webhook-configuration"}},
			{"apiVersion": kamajiGroup, "kind": "DataStore", "metadata": Object{"name": "default"}, "spec": Object{"driver": "etcd"}},
		}
	case "hami":
		objects := []Object{
			deployment("hami-scheduler"),
			{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": Object{"name": hamiWebhook},
				"webhooks": []any{Object{"name": "vgpu.hami.io", "failurePolicy": field(release.Values, "scheduler", "admissionWebhook", "failurePolicy")}}},
		}
		if field(release.Values, "mockDevicePlugin", "enabled") == true {
			objects = append(objects, Object{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": Object{"name": "hami-mock-device-plugin", "namespace": release.Namespace}})
		}
		return objects
	}
	return nil
}

// definition is a CustomResourceDefinition without a schema.
func definition(group, version, kind, scope string) Object {
	return Object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": Object{"name": plural(kind) + "." + group},
		"spec": Object{
			"group": group, "scope": scope, "names": Object{"kind": kind, "plural": plural(kind)},
			"versions": []any{Object{"name": version, "served": true, "storage": true}},
		},
	}
}
