// Package world plays the machine: its Docker, its kind, and what runs inside
// node containers. It does as the real commands do where this project's program
// and scripts can see a difference, and fails loudly where it is asked for
// something that it does not know.
//
// Everything it holds is on disk after each change. Containers have a folder as
// their file system, and shell commands inside them really run, with the paths
// of a node rewritten to that folder.
package world

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/seam"
)

// Network is a Docker network.
type Network struct {
	ID      string            `json:"id"`
	Name    string            `json:"name"`
	Driver  string            `json:"driver"`
	Subnet  string            `json:"subnet"`
	Gateway string            `json:"gateway"`
	IPRange string            `json:"ipRange"` // what Docker hands out; "": all
	Options map[string]string `json:"options"`
	Labels  map[string]string `json:"labels"`
}

// Container is a Docker container.
type Container struct {
	ID       string            `json:"id"`
	Name     string            `json:"name"`
	Hostname string            `json:"hostname"`
	Image    string            `json:"image"`
	Labels   map[string]string `json:"labels"`
	Network  string            `json:"network"` // its ID
	Address  string            `json:"address"`
	Running  bool              `json:"running"`
	Started  time.Time         `json:"started"` // when it last was
	// Cluster is kind's name of the cluster whose node this is; "": none.
	Cluster string `json:"cluster,omitempty"`
	// Joined is the endpoint of the API server that its kubelet speaks to.
	Joined string `json:"joined,omitempty"`
	// Images that were put into its containerd.
	Images []string `json:"images,omitempty"`
}

// Options of a world.
type Options struct {
	// Forward is the binary that stands in for commands.
	Forward string
	// KindVersion is what the stand-in for kind calls itself.
	KindVersion string
	// CPUs that Docker says it has.
	CPUs int
}

// World is the machine.
type World struct {
	Calls *CallLog

	options  Options
	dir      string
	clusters seam.Clusters
	commands *commandServer

	mu         sync.Mutex
	journal    *Journal
	networks   map[string]*Network   // by ID
	containers map[string]*Container // by name
	images     map[string]string     // ID by reference
	unknown    []string
	after      func(Call)
}

// Open opens the world in a folder, or makes one there.
func Open(dir string, clusters seam.Clusters, options Options) (*World, error) {
	w := &World{
		options: options, dir: dir, clusters: clusters,
		networks: map[string]*Network{}, containers: map[string]*Container{}, images: map[string]string{},
	}
	if err := os.MkdirAll(filepath.Join(dir, "containers"), 0o700); err != nil {
		return nil, err
	}
	var err error
	if w.Calls, err = OpenCallLog(filepath.Join(dir, "calls.jsonl")); err != nil {
		return nil, err
	}
	if w.journal, err = OpenJournal(filepath.Join(dir, "docker.jsonl"), w.replay); err != nil {
		return nil, err
	}
	w.commands, err = serveCommands(w, filepath.Join(dir, "bin"))
	return w, err
}

// Close ends the answering of commands. What the world holds stays on disk.
func (w *World) Close() error {
	return errors.Join(w.commands.close(), w.clusters.Close(), w.journal.Close(), w.Calls.Close())
}

func (w *World) replay(table, key string, value json.RawMessage) error {
	switch table {
	case "network":
		return replayInto(w.networks, key, value)
	case "container":
		return replayInto(w.containers, key, value)
	case "image":
		delete(w.images, key)
		if value != nil {
			var id string
			if err := json.Unmarshal(value, &id); err != nil {
				return err
			}
			w.images[key] = id
		}
		return nil
	}
	return fmt.Errorf("there is no such table")
}

func replayInto[T any](table map[string]*T, key string, value json.RawMessage) error {
	if value == nil {
		delete(table, key)
		return nil
	}
	made := new(T)
	table[key] = made
	return json.Unmarshal(value, made)
}

// Environment is what a process needs to meet this machine instead of its own.
func (w *World) Environment() map[string]string {
	return map[string]string{
		"PATH":            w.commands.bin + string(os.PathListSeparator) + hostPath,
		"REHEARSE_SOCKET": w.commands.socket,
	}
}

// hostPath has the machine's own tools, and no Docker of its own that would be
// met before ours; Go is needed for the agent's binary.
var hostPath = os.Getenv("PATH")

// Idle returns when no command is being answered: one whose caller was killed
// goes on, as a process in a container does.
func (w *World) Idle() { w.commands.idle() }

// Unknown returns what was asked for and is not known here: each is a gap.
func (w *World) Unknown() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.unknown)
}

// unknownCode is the exit status of a command that the stand-ins do not know.
const unknownCode = 64

// notKnown answers what this machine does not know.
func (w *World) notKnown(line string) seam.Reply {
	w.mu.Lock()
	w.unknown = append(w.unknown, line)
	w.mu.Unlock()
	return seam.Failed(unknownCode, "the stand-in does not know: "+line)
}

// Inventory is what is left in Docker, for people and for comparison.
func (w *World) Inventory() (containers, networks, images []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, network := range w.networks {
		networks = append(networks, network.Name)
	}
	slices.Sort(networks)
	return slices.Sorted(maps.Keys(w.containers)), networks, slices.Sorted(maps.Keys(w.images))
}

// Container returns a copy of a container, or nil.
func (w *World) Container(name string) *Container {
	w.mu.Lock()
	defer w.mu.Unlock()
	if there := w.containers[name]; there != nil {
		found := *there
		return &found
	}
	return nil
}

// CreateNetwork is docker network create.
func (w *World) CreateNetwork(made Network) (*Network, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	subnet, err := netip.ParsePrefix(made.Subnet)
	if err != nil {
		return nil, fmt.Errorf("invalid subnet %q: %w", made.Subnet, err)
	}
	for _, other := range w.networks {
		if other.Name == made.Name {
			return nil, fmt.Errorf("network with name %s already exists", made.Name)
		}
		if taken, err := netip.ParsePrefix(other.Subnet); err == nil && taken.Overlaps(subnet) {
			return nil, errors.New("invalid pool request: Pool overlaps with other one on this address space")
		}
	}
	made.ID = newID()
	w.networks[made.ID] = &made
	w.journal.Put("network", made.ID, made)
	return &made, nil
}

// Network returns a copy of a network, by ID or name, or nil.
func (w *World) Network(name string) *Network {
	w.mu.Lock()
	defer w.mu.Unlock()
	if there := w.network(name); there != nil {
		found := *there
		return &found
	}
	return nil
}

func (w *World) network(name string) *Network {
	if there := w.networks[name]; there != nil {
		return there
	}
	for _, network := range w.networks {
		if network.Name == name {
			return network
		}
	}
	return nil
}

// RemoveNetwork is docker network rm; that there is none is no error.
func (w *World) RemoveNetwork(id string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	network := w.network(id)
	if network == nil {
		return nil
	}
	for _, container := range w.containers {
		if container.Network == network.ID && container.Running {
			return fmt.Errorf("error while removing network: network %s id %s has active endpoints", network.Name, network.ID)
		}
	}
	delete(w.networks, network.ID)
	w.journal.Remove("network", network.ID)
	return nil
}

// BringImage is docker pull, or docker build where a name is built: the content
// is another at each build of another source.
func (w *World) BringImage(reference, content string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := "sha256:" + hash(reference+"\n"+content)
	if w.images[reference] != id {
		w.images[reference] = id
		w.journal.Put("image", reference, id)
	}
	return id
}

// Image returns an image's ID, or "".
func (w *World) Image(reference string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.images[reference]
}

// RemoveImage is docker rmi.
func (w *World) RemoveImage(reference string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, container := range w.containers {
		if container.Image == reference {
			return fmt.Errorf("unable to remove repository reference %q: container %s is using it", reference, container.Name)
		}
	}
	if _, there := w.images[reference]; there {
		delete(w.images, reference)
		w.journal.Remove("image", reference)
	}
	return nil
}

// addContainer makes a container with the node image's folders. The caller
// holds the lock.
func (w *World) addContainer(made *Container) error {
	made.ID = newID()
	root := w.root(made)
	for _, folder := range []string{"etc/kubernetes", "etc/containerd/certs.d", "etc/systemd/system", "run", "kind", "var", "tmp", "root"} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o700); err != nil {
			return err
		}
	}
	w.containers[made.Name] = made
	w.journal.Put("container", made.Name, made)
	return nil
}

func (w *World) root(container *Container) string {
	return filepath.Join(w.dir, "containers", container.ID, "rootfs")
}

// RemoveContainer is docker rm --force --volumes, and also what somebody does
// by hand behind Pulumi's back.
func (w *World) RemoveContainer(ctx context.Context, name string) error {
	w.mu.Lock()
	there := w.containers[name]
	if there == nil {
		w.mu.Unlock()
		return fmt.Errorf("Error response from daemon: No such container: %s", name) //nolint:staticcheck // Docker's words
	}
	delete(w.containers, name)
	w.journal.Remove("container", name)
	removed := *there
	w.mu.Unlock()

	err := os.RemoveAll(filepath.Dir(w.root(&removed)))
	switch {
	case removed.Cluster != "":
		err = errors.Join(err, w.clusters.Delete(ctx, removed.Cluster))
	case removed.Joined != "":
		err = errors.Join(err, w.clusters.NodeGone(ctx, removed.Joined, removed.Hostname))
	}
	return err
}

// StopContainer is docker stop.
func (w *World) StopContainer(ctx context.Context, name string) error {
	return w.setRunning(ctx, name, false)
}

// StartContainer is docker start.
func (w *World) StartContainer(ctx context.Context, name string) error {
	return w.setRunning(ctx, name, true)
}

func (w *World) setRunning(ctx context.Context, name string, running bool) error {
	w.mu.Lock()
	there := w.containers[name]
	if there == nil {
		w.mu.Unlock()
		return fmt.Errorf("Error response from daemon: No such container: %s", name) //nolint:staticcheck // Docker's words
	}
	if there.Running == running {
		w.mu.Unlock()
		return nil
	}
	there.Running = running
	if running {
		there.Started = time.Now().UTC()
	}
	w.journal.Put("container", name, there)
	changed := *there
	w.mu.Unlock()
	switch {
	case changed.Cluster != "" && running:
		return w.clusters.Start(ctx, changed.Cluster)
	case changed.Cluster != "":
		return w.clusters.Stop(ctx, changed.Cluster)
	case changed.Joined != "" && running:
		return w.clusters.NodeBack(ctx, changed.Joined, changed.Hostname)
	case changed.Joined != "":
		return w.clusters.NodeGone(ctx, changed.Joined, changed.Hostname)
	}
	return nil
}

// File returns what a file in a container holds, or "".
func (w *World) File(container, path string) string {
	there := w.Container(container)
	if there == nil {
		return ""
	}
	content, err := os.ReadFile(filepath.Join(w.root(there), path))
	if err != nil {
		return ""
	}
	return string(content)
}
