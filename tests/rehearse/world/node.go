package world

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/seam"
)

// inContainer are the commands of the host that a process in a container may be;
// what else it runs comes from nodeCommands.
var inContainer = []string{"bash", "sh", "test", "mkdir"}

// nodePath is a path in a node's file system, where it begins.
var nodePath = regexp.MustCompile(`(^|[\s"'=>])/(etc|run|kind|var)/`)

// exec is docker exec: a process that sees the container's files under the
// paths of a node, and nothing of the machine's Docker.
func (w *World) exec(ctx context.Context, r seam.Request) seam.Reply {
	args := r.Args[1:]
	var environment []string
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		switch {
		case args[0] == "-i":
			args = args[1:]
		case args[0] == "-e" && len(args) > 1:
			environment = append(environment, args[1])
			args = args[2:]
		default:
			return w.notKnown(lineOf(r))
		}
	}
	if len(args) < 2 {
		return w.notKnown(lineOf(r))
	}
	there := w.Container(args[0])
	switch {
	case there == nil:
		return seam.Failed(1, "Error response from daemon: No such container: "+args[0])
	case !there.Running:
		return seam.Failed(1, fmt.Sprintf("Error response from daemon: container %s is not running", there.ID))
	}
	root := w.root(there)
	command := args[1:]
	for i := range command {
		command[i] = nodePath.ReplaceAllString(command[i], "${1}"+root+"/${2}/")
	}
	if slices.Contains(nodeCommands, command[0]) && (command[0] != "kubectl" || w.clusters.Kubectl() == "") {
		return w.inNode(ctx, there.Name, seam.Request{Name: command[0], Args: command[1:], Stdin: r.Stdin, Dir: root})
	}
	if !slices.Contains(inContainer, command[0]) && command[0] != "kubectl" {
		return w.notKnown(lineOf(r))
	}
	process := exec.CommandContext(ctx, command[0], command[1:]...) //nolint:gosec // what the project's own scripts run in a node
	if command[0] == "kubectl" {
		process.Path = filepath.Join(w.commands.nodeBin, "kubectl")
		process.Err = nil
	}
	process.Dir = root
	process.Env = append([]string{
		"PATH=" + w.commands.nodeBin + ":/usr/local/bin:/usr/bin:/bin", "HOME=" + filepath.Join(root, "root"), "TMPDIR=" + filepath.Join(root, "tmp"),
		"REHEARSE_SOCKET=" + w.commands.socket, "REHEARSE_NODE=" + there.Name,
	}, environment...)
	process.Stdin = bytes.NewReader(r.Stdin)
	var stdout, stderr bytes.Buffer
	process.Stdout, process.Stderr = &stdout, &stderr
	err := process.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return seam.Failed(126, err.Error())
	}
	return seam.Reply{Stdout: stdout.Bytes(), Stderr: stderr.Bytes(), Code: process.ProcessState.ExitCode()}
}

// inNode runs a command that a node image has.
func (w *World) inNode(ctx context.Context, node string, r seam.Request) seam.Reply {
	there := w.Container(node)
	if there == nil {
		return seam.Failed(1, "the container is gone")
	}
	switch r.Name {
	case "kubectl":
		return w.kubectl(ctx, r)
	case "kubeadm":
		return w.kubeadm(ctx, there, r)
	case "crictl":
		return seam.Said("{}\n")
	case "curl":
		return w.curl(ctx, r)
	case "journalctl":
		return seam.Said("(a stand-in's kubelet says nothing)\n")
	case "ctr":
		return w.ctr(ctx, there, r)
	case "nft":
		return w.nft(r)
	case "systemctl":
		return w.systemctl(there, r)
	}
	return w.notKnown(lineOf(r))
}

// curl asks an API server whether it is ready, and knows no other address.
func (w *World) curl(ctx context.Context, r seam.Request) seam.Reply {
	endpoint, asksReady := strings.CutSuffix(r.Args[len(r.Args)-1], "/readyz")
	endpoint, isTLS := strings.CutPrefix(endpoint, "https://")
	if !asksReady || !isTLS {
		return w.notKnown(lineOf(r))
	}
	if err := w.clusters.Serves(ctx, endpoint); err != nil {
		return seam.Failed(7, "curl: (7) "+err.Error())
	}
	return seam.Said("ok")
}

// nft checks no more of rules than that they are there and about a table.
func (w *World) nft(r seam.Request) seam.Reply {
	if len(r.Args) != 3 || r.Args[0] != "--check" || r.Args[1] != "--file" {
		return w.notKnown(lineOf(r))
	}
	rules, err := os.ReadFile(r.Args[2])
	if err != nil || !strings.Contains(string(rules), "table ") {
		return seam.Failed(1, fmt.Sprintf("%s: syntax error or no such file (%v)", r.Args[2], err))
	}
	return seam.Reply{}
}

// systemctl starts only what has a unit.
func (w *World) systemctl(there *Container, r seam.Request) seam.Reply {
	switch r.Args[0] {
	case "daemon-reload":
		return seam.Reply{}
	case "enable", "restart":
		unit := r.Args[len(r.Args)-1]
		if _, err := os.Stat(filepath.Join(w.root(there), "etc/systemd/system", unit)); err != nil {
			return seam.Failed(1, "Failed to "+r.Args[0]+" unit: Unit file "+unit+" does not exist.")
		}
		return seam.Reply{}
	}
	return w.notKnown(lineOf(r))
}

func (w *World) kubectl(ctx context.Context, r seam.Request) seam.Reply {
	path, args := kubeconfigOf(r.Args)
	if path == "" {
		return w.notKnown(lineOf(r) + " (without --kubeconfig)")
	}
	kubeconfig, err := os.ReadFile(path)
	if err != nil {
		return seam.Failed(1, "error: stat "+path+": no such file or directory")
	}
	reply := w.clusters.Answer(ctx, kubeconfig, args, r.Stdin)
	if reply.Code == unknownCode {
		return w.notKnown(lineOf(r))
	}
	return reply
}

// kubeconfigOf returns the path that --kubeconfig names, and the other arguments.
func kubeconfigOf(args []string) (path string, others []string) {
	for i := 0; i < len(args); i++ {
		value, inOne := strings.CutPrefix(args[i], "--kubeconfig=")
		switch {
		case inOne:
			path = value
		case args[i] == "--kubeconfig" && i+1 < len(args):
			i++
			path = args[i]
		default:
			others = append(others, args[i])
		}
	}
	return path, others
}

// ctr lists and imports images.
func (w *World) ctr(ctx context.Context, there *Container, r seam.Request) seam.Reply {
	switch line := strings.Join(r.Args, " "); line {
	case "--namespace k8s.io images ls --quiet":
		return seam.Said(strings.Join(append(there.Images, ""), "\n"))
	case "--namespace k8s.io images import --digests -":
		_, image, found := strings.Cut(string(r.Stdin), "by the stand-in: ")
		if !found {
			return seam.Failed(1, "ctr: unrecognized image format")
		}
		image = "docker.io/" + image
		w.mu.Lock()
		if live := w.containers[there.Name]; live != nil && !slices.Contains(live.Images, image) {
			live.Images = append(live.Images, image)
			w.journal.Put("container", live.Name, live)
		}
		w.mu.Unlock()
		if there.Joined != "" {
			if err := w.clusters.ImageLoaded(ctx, there.Joined, there.Hostname, image); err != nil {
				return seam.Failed(1, err.Error())
			}
		}
		return seam.Reply{}
	}
	return w.notKnown(lineOf(r))
}

// joinConfiguration is the part of kubeadm's JoinConfiguration that is used.
type joinConfiguration struct {
	Kind      string `yaml:"kind"`
	Discovery struct {
		BootstrapToken struct {
			Token             string   `yaml:"token"`
			APIServerEndpoint string   `yaml:"apiServerEndpoint"`
			CACertHashes      []string `yaml:"caCertHashes"`
		} `yaml:"bootstrapToken"`
	} `yaml:"discovery"`
	NodeRegistration struct {
		Name string `yaml:"name"`
	} `yaml:"nodeRegistration"`
}

func (w *World) kubeadm(ctx context.Context, there *Container, r seam.Request) seam.Reply {
	kubeletConf := filepath.Join(w.root(there), "etc/kubernetes/kubelet.conf")
	switch {
	case slices.Equal(r.Args, []string{"reset", "--force"}):
		w.setJoined(there.Name, "")
		if err := os.Remove(kubeletConf); err != nil && !errors.Is(err, os.ErrNotExist) {
			return seam.Failed(1, err.Error())
		}
		return seam.Reply{}
	case len(r.Args) != 3 || r.Args[0] != "join" || r.Args[1] != "--config":
		return w.notKnown(lineOf(r))
	}
	text, err := os.ReadFile(r.Args[2])
	if err != nil {
		return seam.Failed(1, "error: "+err.Error())
	}
	var config joinConfiguration
	if err := yaml.Unmarshal(text, &config); err != nil || config.Kind != "JoinConfiguration" || len(config.Discovery.BootstrapToken.CACertHashes) == 0 {
		return seam.Failed(1, "error: the configuration is no JoinConfiguration with a bootstrap token and a CA's hash")
	}
	if _, err := os.Stat(kubeletConf); err == nil {
		return seam.Failed(1, "error execution phase kubelet-start: a kubelet.conf exists already")
	}
	version, err := versionOf(there.Image)
	if err != nil {
		return seam.Failed(1, "error: "+err.Error())
	}
	discovery := config.Discovery.BootstrapToken
	made, err := w.clusters.Join(ctx, seam.Join{
		Endpoint: discovery.APIServerEndpoint, Token: discovery.Token, CACertHash: discovery.CACertHashes[0],
		Node: config.NodeRegistration.Name, Version: version,
	})
	if err != nil {
		return seam.Failed(1, "error execution phase preflight: "+err.Error())
	}
	if err := os.WriteFile(kubeletConf, made, 0o600); err != nil {
		return seam.Failed(1, err.Error())
	}
	w.setJoined(there.Name, discovery.APIServerEndpoint)
	for _, image := range there.Images {
		if err := w.clusters.ImageLoaded(ctx, discovery.APIServerEndpoint, there.Hostname, image); err != nil {
			return seam.Failed(1, err.Error())
		}
	}
	return seam.Said("This node has joined the cluster\n")
}

func (w *World) setJoined(name, endpoint string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if there := w.containers[name]; there != nil {
		there.Joined = endpoint
		w.journal.Put("container", name, there)
	}
}
