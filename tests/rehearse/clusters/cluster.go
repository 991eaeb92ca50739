package clusters

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/pki"
)

// cluster is one API server.
type cluster struct {
	Name string `json:"name"`
	// Host is the cluster that hosts it, "" for a management cluster.
	Host    string `json:"host,omitempty"`
	Version string `json:"version"` // that it was asked for
	Address string `json:"address"` // at which it listens
	// Endpoint is what Kamaji says where it listens: an address of MetalLB's.
	Endpoint    string         `json:"endpoint,omitempty"`
	ServiceCIDR string         `json:"serviceCIDR"`
	Admission   []string       `json:"admission"` // plugins beside the default ones
	Stopped     bool           `json:"stopped,omitempty"`
	Silent      []string       `json:"silent,omitempty"` // nodes whose kubelets say nothing
	CA          pki.Credential `json:"ca"`
	Admin       pki.Credential `json:"admin"`

	set    *Set
	client *client // as its administrator
	// While it runs. All of it is the set's lock's.
	cache     *cache
	processes []*process
	tunnel    *tunnel
	cancel    context.CancelFunc
}

// adopt makes a cluster one of a set's.
func (c *cluster) adopt(s *Set) error {
	c.set = s
	var err error
	c.client, err = newClient(c.server(), c.CA, &c.Admin, "")
	return err
}

func (c *cluster) server() string { return "https://" + c.Address + ":6443" }

// prefix of its keys in etcd. A hosted cluster's may not lie under its host's.
func (c *cluster) prefix() string { return "/" + strings.ReplaceAll(c.Name, "/", "_") }

func (c *cluster) folder() string {
	return filepath.Join(c.set.dir, strings.ReplaceAll(c.Name, "/", "_"))
}

// controllers of kube-controller-manager that have work here. What kubelets,
// clouds and volumes need is left out.
var managed = strings.Join([]string{
	"bootstrap-signer-controller", "clusterrole-aggregation-controller", "daemonset-controller", "deployment-controller", "disruption-controller",
	"endpointslice-controller", "endpoints-controller", "garbage-collector-controller", "job-controller", "namespace-controller", "replicaset-controller",
	"resourcequota-controller", "serviceaccount-controller", "statefulset-controller", "token-cleaner-controller",
}, ",")

// start starts the cluster and returns when it answers.
func (c *cluster) start(ctx context.Context) error {
	if c.cancel != nil {
		return nil
	}
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel = cancel
	err := c.startProcesses(ctx, background)
	if err != nil {
		c.stop()
	}
	return err
}

func (c *cluster) startProcesses(ctx, background context.Context) error {
	if err := os.MkdirAll(c.folder(), 0o700); err != nil {
		return err
	}
	serving, err := c.CA.Server(c.Address, "kubernetes", "kubernetes.default", "kubernetes.default.svc")
	if err != nil {
		return err
	}
	c.cache = newCache(c.client)
	if c.tunnel, err = openTunnel(c); err != nil {
		return err
	}
	kubeconfig, err := c.CA.Kubeconfig(c.server(), c.Admin)
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"ca.crt": c.CA.Certificate, "ca.key": c.CA.Key, "server.crt": serving.Certificate, "server.key": serving.Key, "admin.conf": kubeconfig,
		"egress.yaml": c.tunnel.configuration(),
	} {
		if err := os.WriteFile(filepath.Join(c.folder(), name), content, 0o600); err != nil {
			return err
		}
	}
	server, err := begin(c.folder(), "kube-apiserver", c.set.binaries.APIServer,
		"--etcd-servers", c.set.etcdURL(), "--etcd-prefix", c.prefix(),
		"--bind-address", c.Address, "--secure-port", "6443", "--endpoint-reconciler-type", "none",
		"--tls-cert-file", "server.crt", "--tls-private-key-file", "server.key", "--client-ca-file", "ca.crt", "--cert-dir", ".",
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", "ca.key", "--service-account-signing-key-file", "ca.key",
		"--service-cluster-ip-range", c.ServiceCIDR, "--allow-privileged",
		"--authorization-mode", "Node,RBAC", "--enable-bootstrap-token-auth",
		"--enable-admission-plugins", strings.Join(c.Admission, ","),
		"--egress-selector-config-file", "egress.yaml", "--profiling=false", "--enable-priority-and-fairness=false")
	if err != nil {
		return err
	}
	c.processes = append(c.processes, server)
	if err := server.answers(ctx, c.serves); err != nil {
		return err
	}
	manager, err := begin(c.folder(), "kube-controller-manager", c.set.binaries.ControllerManager,
		"--kubeconfig", "admin.conf", "--controllers", managed, "--leader-elect=false", "--secure-port", "0", "--profiling=false",
		"--root-ca-file", "ca.crt", "--service-account-private-key-file", "ca.key", "--cluster-signing-cert-file", "ca.crt", "--cluster-signing-key-file", "ca.key")
	if err != nil {
		return err
	}
	c.processes = append(c.processes, manager)
	if err := c.furnish(ctx); err != nil {
		return err
	}
	control(background, c, c.cache)
	return nil
}

// serves asks the API server whether it is ready.
func (c *cluster) serves(ctx context.Context) error {
	answer, err := c.client.open(ctx, http.MethodGet, "/readyz", plainJSON, nil)
	if err != nil {
		return err
	}
	return answer.Close()
}

// furnish makes what kubeadm makes of what is looked at.
func (c *cluster) furnish(ctx context.Context) error {
	for _, namespace := range []string{"kube-system", "kube-public"} {
		if err := c.client.ensure(ctx, namespaces.path("", ""), object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": namespace}}); err != nil {
			return err
		}
	}
	info, err := c.CA.Kubeconfig(c.server(), pki.Credential{})
	if err != nil {
		return err
	}
	return c.client.ensure(ctx, configMaps.path("kube-public", ""), object{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": "cluster-info", "namespace": "kube-public"},
		"data": object{"kubeconfig": string(info)},
	})
}

// register makes a Node, as its kubelet does.
func (c *cluster) register(ctx context.Context, name, version string) error {
	_, err := c.client.create(ctx, nodes.path("", ""), object{
		"apiVersion": "v1", "kind": "Node",
		"metadata": object{"name": name, "labels": object{"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
	})
	if answered(err, http.StatusConflict) {
		there, err := c.client.get(ctx, nodes.path("", name))
		if err == nil && conditionOf(there, "Ready") == "True" {
			return fmt.Errorf("a Node with name %q and status \"Ready\" already exists in the cluster", name)
		}
	} else if err != nil {
		return err
	}
	resources := object{"cpu": "4", "memory": "8Gi", "pods": "110"}
	_, err = c.client.patch(ctx, nodes.path("", name)+"/status", object{"status": object{
		"capacity": resources, "allocatable": resources,
		"nodeInfo": object{
			"kubeletVersion": version, "kubeProxyVersion": "", "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "", "osImage": "",
			"containerRuntimeVersion": "", "operatingSystem": "linux", "architecture": "",
		},
	}})
	return err
}

// stop ends the cluster's processes, and tells its controllers to end: they may be
// waiting for the lock that the caller holds.
func (c *cluster) stop() {
	if c.cancel == nil {
		return
	}
	c.cancel()
	for _, p := range c.processes {
		p.end()
	}
	c.tunnel.close()
	c.processes, c.tunnel, c.cancel = nil, nil, nil
}

// nudge has its controllers look again.
func (c *cluster) nudge() {
	if c.cache != nil {
		c.cache.nudge()
	}
}
