// Package clusters runs real API servers for a world: etcd, and for each cluster
// a kube-apiserver with a kube-controller-manager, as processes of this user on
// a loopback address of their own. It takes the place of package objects.
//
// What stands in for what:
//
//   - kubelets, schedulers and container runtimes: a pod is put on a Ready node
//     and runs at once (kubelet.go);
//   - Kamaji, MetalLB and the controllers of cards (controllers.go);
//   - the way from an API server to its webhooks, Konnectivity's tunnel among
//     them, and the webhooks (webhooks.go): a call comes through where a pod
//     behind the Service is ready, and else fails as it does in a real cluster.
//
// Every API server is of the version that tools/kube builds, whatever version a
// tenant asks for.
package clusters

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/pki"
	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/seam"
)

// Set is every cluster of a world.
type Set struct {
	binaries *Binaries
	dir      string // of everything
	sockets  string // of the sockets, whose paths may not be long

	mu    sync.Mutex
	etcd  *process
	state state
}

var _ seam.Clusters = (*Set)(nil)

// state is what is kept beside etcd's data.
type state struct {
	// Loopback is the first three octets of this set's addresses. Every set has
	// its own: ports can then be fixed, and nobody takes them in between.
	Loopback string              `json:"loopback"`
	Clusters map[string]*cluster `json:"clusters"`
}

// Open opens the clusters in a folder, or makes room for some.
func Open(ctx context.Context, dir string, binaries *Binaries) (*Set, error) {
	s := &Set{binaries: binaries, dir: filepath.Join(dir, "clusters"), state: state{Clusters: map[string]*cluster{}}}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	var err error
	if s.sockets, err = os.MkdirTemp("", "rehearse-"); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(s.statePath())
	switch {
	case errors.Is(err, os.ErrNotExist):
		var octets [3]byte
		_, _ = rand.Read(octets[:])
		const lowest, count = 1, 250
		s.state.Loopback = fmt.Sprintf("127.%d.%d", lowest+int(octets[0])%count, octets[1])
		return s, s.save()
	case err != nil:
		return nil, err
	}
	if err := json.Unmarshal(text, &s.state); err != nil {
		return nil, fmt.Errorf("%s: %w", s.statePath(), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.state.Clusters {
		if err := c.adopt(s); err != nil {
			return nil, err
		}
		// What is hosted is started by its host's controllers.
		if c.Host == "" && !c.Stopped {
			if err := s.run(ctx, c); err != nil {
				return nil, errors.Join(err, s.close())
			}
		}
	}
	return s, nil
}

func (s *Set) statePath() string { return filepath.Join(s.dir, "clusters.json") }

// save writes the state. The caller holds the lock.
func (s *Set) save() error {
	text, err := json.Marshal(s.state)
	if err != nil {
		return err
	}
	partial := s.statePath() + ".new"
	if err := os.WriteFile(partial, text, 0o600); err != nil {
		return err
	}
	return os.Rename(partial, s.statePath())
}

// Create starts a management cluster.
func (s *Set) Create(ctx context.Context, name, version string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.Clusters[name] != nil {
		return nil, fmt.Errorf("cluster %s is there already", name)
	}
	const serviceCIDR = "10.96.0.0/16" // kind's own
	c, err := s.add(name, "", version, serviceCIDR, []string{"NodeRestriction"})
	if err != nil {
		return nil, err
	}
	if err := s.run(ctx, c); err != nil {
		return nil, err
	}
	if err := c.register(ctx, name+"-control-plane", version); err != nil {
		return nil, err
	}
	return c.CA.Kubeconfig(c.server(), c.Admin)
}

// add writes down a cluster that does not run yet. The caller holds the lock.
func (s *Set) add(name, host, version, serviceCIDR string, admission []string) (*cluster, error) {
	c := &cluster{Name: name, Host: host, Version: version, ServiceCIDR: serviceCIDR, Admission: admission}
	taken := map[string]bool{}
	for _, other := range s.state.Clusters {
		taken[other.Address] = true
	}
	const most = 250
	for number := 1; number < most && c.Address == ""; number++ {
		if address := fmt.Sprintf("%s.%d", s.state.Loopback, number); !taken[address] {
			c.Address = address
		}
	}
	if c.Address == "" {
		return nil, fmt.Errorf("there are %d clusters already", most)
	}
	var err error
	if c.CA, err = pki.NewAuthority(); err != nil {
		return nil, err
	}
	if c.Admin, err = c.CA.Client("kubernetes-admin", "system:masters"); err != nil {
		return nil, err
	}
	if err := c.adopt(s); err != nil {
		return nil, err
	}
	s.state.Clusters[name] = c
	return c, s.save()
}

// run starts a cluster's processes and controllers, with etcd before them. The
// caller holds the lock.
func (s *Set) run(ctx context.Context, c *cluster) error {
	if err := s.runEtcd(ctx); err != nil {
		return err
	}
	return c.start(ctx)
}

func (s *Set) etcdURL() string { return "http://" + s.state.Loopback + ".254:2379" }

func (s *Set) runEtcd(ctx context.Context) error {
	if s.etcd != nil {
		return nil
	}
	peers := "http://" + s.state.Loopback + ".254:2380"
	started, err := begin(s.dir, "etcd", s.binaries.Etcd,
		"--data-dir", filepath.Join(s.dir, "etcd"), "--name", "etcd", "--log-level", "error",
		"--listen-client-urls", s.etcdURL(), "--advertise-client-urls", s.etcdURL(),
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "etcd="+peers,
		"--unsafe-no-fsync") // what a crash of the machine loses is a rehearsal
	if err != nil {
		return err
	}
	s.etcd = started
	return started.answers(ctx, func(ctx context.Context) error {
		return s.askEtcd(ctx, http.MethodGet, "/health", nil)
	})
}

// askEtcd speaks to etcd's HTTP gateway.
func (s *Set) askEtcd(ctx context.Context, method, path string, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, method, s.etcdURL()+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd %s: %s", path, response.Status)
	}
	return nil
}

// forget removes a cluster's keys from etcd.
func (s *Set) forget(ctx context.Context, c *cluster) error {
	encoded := base64.StdEncoding.EncodeToString
	prefix := c.prefix() + "/"
	body, err := json.Marshal(map[string]string{"key": encoded([]byte(prefix)), "range_end": encoded([]byte(c.prefix() + "0"))}) // "0" follows "/"
	if err != nil {
		return err
	}
	return s.askEtcd(ctx, http.MethodPost, "/v3/kv/deleterange", body)
}

// Delete ends a cluster and all that it hosts.
func (s *Set) Delete(ctx context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remove(ctx, name)
}

// remove ends a cluster and all that it hosts. The caller holds the lock.
func (s *Set) remove(ctx context.Context, name string) error {
	c := s.state.Clusters[name]
	if c == nil {
		return nil
	}
	c.stop()
	var err error
	for _, hosted := range s.hosted(name) {
		err = errors.Join(err, s.remove(ctx, hosted.Name))
	}
	if s.etcd != nil {
		err = errors.Join(err, s.forget(ctx, c))
	}
	delete(s.state.Clusters, name)
	return errors.Join(err, os.RemoveAll(c.folder()), s.save())
}

// hosted returns the clusters that a cluster hosts. The caller holds the lock.
func (s *Set) hosted(name string) []*cluster {
	var found []*cluster
	for _, c := range s.state.Clusters {
		if c.Host == name {
			found = append(found, c)
		}
	}
	slices.SortFunc(found, func(a, b *cluster) int { return strings.Compare(a.Name, b.Name) })
	return found
}

// Stop ends a cluster's processes, and those of what it hosts.
func (s *Set) Stop(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.state.Clusters[name]
	if c == nil {
		return fmt.Errorf("there is no cluster %s", name)
	}
	c.Stopped = true
	c.stop()
	for _, hosted := range s.hosted(name) {
		hosted.stop()
	}
	return s.save()
}

// Start starts them again. What is hosted follows when its host has seen to it.
func (s *Set) Start(ctx context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.state.Clusters[name]
	if c == nil {
		return fmt.Errorf("there is no cluster %s", name)
	}
	c.Stopped = false
	return errors.Join(s.save(), s.run(ctx, c))
}

// at finds the cluster at an endpoint: where it really listens, or where Kamaji
// says that it does.
func (s *Set) at(endpoint string) (*cluster, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.state.Clusters {
		if c.Address+":6443" == endpoint || c.Endpoint == endpoint {
			return c, nil
		}
	}
	return nil, fmt.Errorf("dial tcp %s: connect: connection refused", endpoint)
}

// Join does what kubeadm join does: it holds the CA against its hash, shows the
// API server the token, and registers a Node.
func (s *Set) Join(ctx context.Context, join seam.Join) ([]byte, error) {
	c, err := s.at(join.Endpoint)
	if err != nil {
		return nil, err
	}
	hash, err := c.CA.Hash()
	if err != nil {
		return nil, err
	}
	if hash != join.CACertHash {
		return nil, fmt.Errorf("cluster CA found in cluster-info ConfigMap is invalid: none of the public keys %q are pinned", hash)
	}
	visitor, err := newClient(c.server(), c.CA, nil, join.Token)
	if err != nil {
		return nil, err
	}
	// Who is asked who he is needs to be somebody, and nothing more.
	if _, err := visitor.create(ctx, "/apis/authentication.k8s.io/v1/selfsubjectreviews", object{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}); err != nil {
		return nil, fmt.Errorf("the token is not accepted: %w", err)
	}
	if err := c.register(ctx, join.Node, join.Version); err != nil {
		return nil, err
	}
	kubelet, err := c.CA.Client("system:node:"+join.Node, "system:nodes")
	if err != nil {
		return nil, err
	}
	return c.CA.Kubeconfig(c.server(), kubelet)
}

// Serves asks the API server at an endpoint whether it is ready.
func (s *Set) Serves(ctx context.Context, endpoint string) error {
	c, err := s.at(endpoint)
	if err != nil {
		return err
	}
	return c.serves(ctx)
}

// NodeGone has a node's kubelet fall silent.
func (s *Set) NodeGone(_ context.Context, endpoint, node string) error {
	return s.setSilent(endpoint, node, true)
}

// NodeBack has it speak again.
func (s *Set) NodeBack(_ context.Context, endpoint, node string) error {
	return s.setSilent(endpoint, node, false)
}

// setSilent notes whether a kubelet speaks; that its cluster is gone is no error.
func (s *Set) setSilent(endpoint, node string, silent bool) error {
	c, err := s.at(endpoint)
	if err != nil {
		return nil //nolint:nilerr // nobody to tell
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.Silent = slices.DeleteFunc(c.Silent, func(name string) bool { return name == node })
	if silent {
		c.Silent = append(c.Silent, node)
	}
	c.nudge()
	return s.save()
}

// ImageLoaded has the node tell of an image, as a kubelet does.
func (s *Set) ImageLoaded(ctx context.Context, endpoint, node, image string) error {
	c, err := s.at(endpoint)
	if err != nil {
		return nil //nolint:nilerr // nobody to tell
	}
	there, err := c.client.get(ctx, nodes.path("", node))
	if answered(err, http.StatusNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	status, _ := there["status"].(object)
	all, _ := status["images"].([]any)
	for _, entry := range all {
		if slices.Contains(namesOf(entry), image) {
			return nil
		}
	}
	_, err = c.client.patch(ctx, nodes.path("", node)+"/status", object{"status": object{"images": append(all, object{"names": []any{image}})}})
	return err
}

// namesOf are the names of an image in a node's status.
func namesOf(image any) []string {
	fields, _ := image.(object)
	all, _ := fields["names"].([]any)
	var names []string
	for _, name := range all {
		names = append(names, fmt.Sprint(name))
	}
	return names
}

// Kubectl is the real one.
func (s *Set) Kubectl() string { return s.binaries.Kubectl }

// Answer is not used where kubectl is real.
func (s *Set) Answer(context.Context, []byte, []string, []byte) seam.Reply {
	return seam.Failed(1, "kubectl is a command of its own here")
}

// Provider is the real one.
func (s *Set) Provider() string { return s.binaries.Provider }

// Close ends every process. Data stays.
func (s *Set) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.close()
}

func (s *Set) close() error {
	for _, c := range s.state.Clusters {
		c.stop()
	}
	s.etcd.end()
	s.etcd = nil
	return os.RemoveAll(s.sockets)
}

// answers waits until what a process serves answers.
func (p *process) answers(ctx context.Context, ask func(context.Context) error) error {
	const (
		within = 3 * time.Minute // on a machine that does much else
		again  = 50 * time.Millisecond
	)
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return p.gone()
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer (%w), see %s", p.name, err, p.log)
		case <-time.After(again): // it says nothing when it begins to listen
		}
	}
}
