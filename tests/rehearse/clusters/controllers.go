package clusters

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/objects"
)

func text(of object, path ...string) string     { return objects.Text(of, path...) }
func field(of object, path ...string) any       { return objects.Field(of, path...) }
func conditionOf(of object, kind string) string { return objects.ConditionOf(of, kind) }
func nameOf(of object) string                   { return text(of, "metadata", "name") }
func namespaceOf(of object) string              { return text(of, "metadata", "namespace") }
func is(of object, condition string) bool       { return conditionOf(of, condition) == "True" }
func isGoing(of object) bool                    { return field(of, "metadata", "deletionTimestamp") != nil }
func list(of object, path ...string) (items []any) {
	items, _ = field(of, path...).([]any)
	return items
}
func encode(value []byte) string { return base64.StdEncoding.EncodeToString(value) }
func same(a, b any) bool         { return fmt.Sprint(a) == fmt.Sprint(b) }

// controllers are those of one cluster that this package stands in for.
type controllers struct {
	*cluster

	seen *cache
}

// control starts them. They end with the context.
func control(ctx context.Context, c *cluster, seen *cache) {
	k := controllers{cluster: c, seen: seen}
	followed := []resource{nodes, pods, daemonSets, services, endpoints, mutating, validating}
	work := []func(context.Context) error{k.kubelets, k.trust}
	if c.Host == "" {
		followed = append(followed, secrets, pools, announcements, planes, dataStores)
		work = append(work, k.dataStores, k.planes)
	} else {
		followed = append(followed, configMaps)
		work = append(work, k.cards)
	}
	for _, one := range followed {
		go seen.follow(ctx, one)
	}
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-seen.changed:
			}
			if !seen.listed(followed...) {
				continue
			}
			for _, does := range work {
				if err := does(ctx); err != nil && ctx.Err() == nil {
					k.failed(err)
				}
			}
		}
	}()
}

// failed notes what a controller could not do, and has it try again.
func (k controllers) failed(err error) {
	const again = 300 * time.Millisecond
	time.AfterFunc(again, k.seen.nudge)
	file, openErr := os.OpenFile(filepath.Join(k.folder(), "controllers.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if openErr != nil {
		return // its folder is gone, and with it who would read this
	}
	defer file.Close()
	fmt.Fprintf(file, "%s %v\n", time.Now().Format(time.TimeOnly), err)
}

// dataStores plays Kamaji's controller for DataStores.
func (k controllers) dataStores(ctx context.Context) error {
	var all error
	for _, store := range k.seen.all(dataStores) {
		if field(store, "status", "ready") != true {
			_, err := k.client.patch(ctx, dataStores.path("", nameOf(store))+"/status", object{"status": object{"ready": true}})
			all = errors.Join(all, err)
		}
	}
	return all
}

// finalizer keeps a control plane's object until its API server and its data are
// gone, as Kamaji does.
const finalizer = "finalizer.kamaji.clastix.io"

// planes plays Kamaji: a TenantControlPlane becomes an API server at an address
// of MetalLB's pool, and goes with it.
func (k controllers) planes(ctx context.Context) error {
	var all error
	taken := map[string]bool{}
	wanted := map[string]bool{}
	for _, plane := range k.seen.all(planes) {
		taken[text(plane, "status", "controlPlaneEndpoint")] = true
		wanted[k.Name+"/"+nameOf(plane)] = true
	}
	for _, plane := range k.seen.all(planes) {
		var err error
		if isGoing(plane) {
			err = k.planeGoes(ctx, plane)
		} else {
			err = k.plane(ctx, plane, taken)
		}
		if err != nil {
			all = errors.Join(all, fmt.Errorf("control plane %s: %w", nameOf(plane), err))
		}
	}
	return errors.Join(all, k.set.sweep(ctx, k.Name, wanted))
}

// sweep ends what is hosted and whose object is gone, by force.
func (s *Set) sweep(ctx context.Context, host string, wanted map[string]bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return nil //nolint:nilerr // its host is gone, and sees to it
	}
	var all error
	for _, hosted := range s.hosted(host) {
		if !wanted[hosted.Name] {
			all = errors.Join(all, s.remove(ctx, hosted.Name))
		}
	}
	return all
}

func (k controllers) planeGoes(ctx context.Context, plane object) error {
	if err := k.set.Delete(ctx, k.Name+"/"+nameOf(plane)); err != nil {
		return err
	}
	for _, secret := range k.seen.all(secrets) {
		if text(secret, "metadata", "labels", planeLabel) != nameOf(plane) {
			continue
		}
		if err := k.client.delete(ctx, secrets.path(namespaceOf(secret), nameOf(secret)), nil); err != nil && !answered(err, http.StatusNotFound) {
			return err
		}
	}
	kept := slices.DeleteFunc(slices.Clone(list(plane, "metadata", "finalizers")), func(name any) bool { return name == finalizer })
	_, err := k.client.patch(ctx, planes.path(namespaceOf(plane), nameOf(plane)), object{"metadata": object{"finalizers": kept}})
	if answered(err, http.StatusNotFound) {
		return nil
	}
	return err
}

const planeLabel = "kamaji.clastix.io/name"

func (k controllers) plane(ctx context.Context, plane object, taken map[string]bool) error {
	at := planes.path(namespaceOf(plane), nameOf(plane))
	if finalizers := list(plane, "metadata", "finalizers"); !slices.Contains(finalizers, any(finalizer)) {
		if _, err := k.client.patch(ctx, at, object{"metadata": object{"finalizers": append(slices.Clone(finalizers), finalizer)}}); err != nil {
			return err
		}
	}
	endpoint := text(plane, "status", "controlPlaneEndpoint")
	if endpoint == "" && len(k.seen.all(announcements)) > 0 {
		endpoint = objects.FreeAddress(k.seen.all(pools), taken)
	}
	if endpoint == "" || field(k.seen.get(dataStores, "", "default"), "status", "ready") != true {
		return k.setStatus(ctx, at, plane, object{"kubernetesResources": object{"version": object{"status": "Provisioning"}}})
	}
	taken[endpoint] = true
	hosted, err := k.set.host(ctx, k.Name, plane, endpoint)
	if err != nil {
		return err
	}
	kubeconfig, err := hosted.CA.Kubeconfig(hosted.server(), hosted.Admin)
	if err != nil {
		return err
	}
	if err := k.secret(ctx, plane, object{"admin.conf": encode(kubeconfig), "super-admin.conf": encode(kubeconfig)}); err != nil {
		return err
	}
	return k.setStatus(ctx, at, plane, objects.ReadyPlane(plane, endpoint))
}

// setStatus changes an object's status when it differs.
func (k controllers) setStatus(ctx context.Context, at string, of, status object) error {
	for name, value := range status {
		if !same(field(of, "status", name), value) {
			_, err := k.client.patch(ctx, at+"/status", object{"status": status})
			return err
		}
	}
	return nil
}

// secret brings about the Secret with the administrator's kubeconfig.
func (k controllers) secret(ctx context.Context, plane, data object) error {
	namespace, name := namespaceOf(plane), nameOf(plane)+"-admin-kubeconfig"
	there := k.seen.get(secrets, namespace, name)
	switch {
	case there == nil:
		return k.client.ensure(ctx, secrets.path(namespace, ""), object{
			"apiVersion": "v1", "kind": "Secret", "data": data,
			"metadata": object{"name": name, "namespace": namespace, "labels": object{planeLabel: nameOf(plane)}},
		})
	case !same(there["data"], data):
		_, err := k.client.patch(ctx, secrets.path(namespace, name), object{"data": data})
		return err
	}
	return nil
}

// host returns the cluster of a control plane, running.
func (s *Set) host(ctx context.Context, host string, plane object, endpoint string) (*cluster, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err // its host was stopped meanwhile
	}
	name, version := host+"/"+nameOf(plane), text(plane, "spec", "kubernetes", "version")
	c := s.state.Clusters[name]
	if c == nil {
		var plugins []string
		for _, plugin := range list(plane, "spec", "kubernetes", "admissionControllers") {
			plugins = append(plugins, fmt.Sprint(plugin))
		}
		made, err := s.add(name, host, version, text(plane, "spec", "networkProfile", "serviceCidr"), plugins)
		if err != nil {
			return nil, err
		}
		c = made
	}
	if c.Endpoint != endpoint || c.Version != version {
		c.Endpoint, c.Version = endpoint, version
		if err := s.save(); err != nil {
			return nil, err
		}
	}
	return c, s.run(ctx, c)
}

// cards plays what shows a node's cards: this project's agent where it runs, or
// HAMi's mock plugin. The agent withdraws nothing when it goes; that is the
// scripts' work.
func (k controllers) cards(ctx context.Context) error {
	var all error
	const namespace = "kube-system"
	for _, node := range k.seen.all(nodes) {
		if !is(node, "Ready") {
			continue
		}
		name := "mock-gpu-" + nameOf(node)
		agent := k.seen.get(daemonSets, namespace, name)
		inventory := text(k.seen.get(configMaps, namespace, name), "data", "inventory.json")
		plugin := k.seen.get(daemonSets, namespace, "hami-mock-device-plugin")
		register := objects.ShownCards(node, agent, hasImage(node, objects.FirstImage(agent)), inventory, plugin)
		if register == "" {
			continue
		}
		at := nodes.path("", nameOf(node))
		if text(node, "metadata", "annotations", objects.Register) != register {
			_, err := k.client.patch(ctx, at, object{"metadata": object{"annotations": object{objects.Register: register}}})
			all = errors.Join(all, err)
		}
		if shown := objects.SumOf(register); !shows(node, shown) {
			_, err := k.client.patch(ctx, at+"/status", object{"status": object{"capacity": shown, "allocatable": shown}})
			all = errors.Join(all, err)
		}
	}
	return all
}

// shows reports whether a node shows resources as they are. The API server
// writes quantities its own way: 20000 as 20k.
func shows(node, resources object) bool {
	for name, value := range resources {
		if quantity(text(node, "status", "allocatable", name)) != fmt.Sprint(value) {
			return false
		}
	}
	return true
}

// quantity writes a whole quantity in full.
func quantity(short string) string {
	for suffix, zeros := range map[string]string{"k": "000", "M": "000000", "G": "000000000"} {
		if digits, ok := strings.CutSuffix(short, suffix); ok {
			return digits + zeros
		}
	}
	return short
}

// hasImage reports whether a node tells of an image.
func hasImage(node object, image string) bool {
	return slices.ContainsFunc(list(node, "status", "images"), func(entry any) bool { return slices.Contains(namesOf(entry), image) })
}
