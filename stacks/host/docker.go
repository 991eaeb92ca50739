package host

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// DockerError says why Docker cannot be used and what helps.
type DockerError struct {
	Problem, Remedy string
	Err             error // what it was read from; may be nil
}

func (e *DockerError) Error() string { return e.Problem + "\n" + e.Remedy }

// Unwrap returns what the error was read from.
func (e *DockerError) Unwrap() error { return e.Err }

// commandError is a docker command that failed.
type commandError struct {
	args     []string
	stderr   string
	timedOut time.Duration // 0: it did not
	err      error
}

func (e *commandError) Error() string {
	text := firstLine(e.stderr)
	if text == "" {
		text = e.err.Error()
	}
	return fmt.Sprintf("docker %s: %s", e.args[0], text)
}

func (e *commandError) Unwrap() error { return e.err }

// docker runs one docker command that changes nothing.
func (s *System) docker(ctx context.Context, args ...string) ([]byte, error) {
	limited, cancel := context.WithTimeout(ctx, s.CommandTimeout)
	defer cancel()
	out, err := s.Run(limited, "docker", args...)
	switch {
	case err == nil:
		return out.Stdout, nil
	case ctx.Err() != nil: // the caller's own end, nothing about Docker
		return nil, ctx.Err()
	}
	failed := &commandError{args: args, stderr: out.Stderr, err: err}
	if limited.Err() != nil {
		failed.timedOut = s.CommandTimeout
	}
	return out.Stdout, failed
}

// explain turns the failure of a docker command into what a reader can act on.
func explain(err error) error {
	var failed *commandError
	if !errors.As(err, &failed) {
		return err
	}
	if failed.timedOut > 0 {
		return &DockerError{
			Problem: fmt.Sprintf("docker %s gave no answer within %s", failed.args[0], failed.timedOut),
			Remedy: "The daemon hangs, or the machine is overloaded: see `systemctl status docker` and `uptime`; " +
				"`sudo systemctl restart docker` mends the former.",
			Err: err,
		}
	}
	if errors.Is(err, exec.ErrNotFound) {
		return &DockerError{
			Problem: "the docker command is not on the PATH",
			Remedy: "Install Docker Engine (https://docs.docker.com/engine/install/, or your distribution's package), " +
				"and let your user speak to it: sudo usermod -aG docker $USER",
			Err: err,
		}
	}
	if known := explainText(failed.stderr); known != nil {
		known.Err = err
		return known
	}
	return &DockerError{
		Problem: "Docker cannot be used: " + err.Error(),
		Remedy:  "`docker info` must work for the user who runs Pulumi.",
		Err:     err,
	}
}

// explainText knows what the docker client says when it gets no daemon.
func explainText(text string) *DockerError {
	lower := strings.ToLower(text)
	switch {
	case strings.Contains(lower, "permission denied") &&
		(strings.Contains(lower, "sock") || strings.Contains(lower, "docker api")):
		return &DockerError{
			Problem: "permission denied on Docker's socket: " + firstLine(text),
			Remedy: "Let your user speak to the daemon: sudo usermod -aG docker $USER, then log in anew (or: newgrp docker).\n" +
				"Rootless Docker is no way around it: its networks cannot be reached from the host.",
		}
	case strings.Contains(lower, "cannot connect to the docker daemon"),
		strings.Contains(lower, "is the docker daemon running"),
		strings.Contains(lower, "connection refused"):
		return &DockerError{
			Problem: "the Docker daemon does not run, or not where the docker command looks for it: " + firstLine(text),
			Remedy: "Start it: sudo systemctl enable --now docker\n" +
				"If it runs, see `docker context ls` and the variable DOCKER_HOST.",
		}
	}
	return nil
}

// checkEndpoint refuses a daemon on another machine. `docker context inspect`
// takes DOCKER_HOST into account as well.
func (s *System) checkEndpoint(ctx context.Context) error {
	out, err := s.docker(ctx, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}")
	var failed *commandError
	if ctx.Err() != nil || errors.Is(err, exec.ErrNotFound) || errors.As(err, &failed) && failed.timedOut > 0 {
		return explain(err)
	}
	if err != nil {
		return nil // what is wrong, `docker info` says better
	}
	text := strings.TrimSpace(string(out))
	endpoint, err := url.Parse(text)
	if err != nil || text == "" {
		return nil
	}
	switch endpoint.Scheme {
	case "unix", "npipe", "fd", "":
		return nil
	case "tcp", "http", "https":
		name := endpoint.Hostname()
		addr, err := netip.ParseAddr(name)
		if name == "localhost" || err == nil && addr.IsLoopback() {
			return nil
		}
	}
	return &DockerError{
		Problem: "the docker command speaks to a daemon on another machine: " + endpoint.Redacted(),
		Remedy: "Run Pulumi on that machine: the LoadBalancer addresses lie on its Docker network and must be reachable from here.\n" +
			"For the daemon of this machine: unset DOCKER_HOST DOCKER_CONTEXT; docker context use default",
	}
}

// dockerInfo is the part of `docker info --format '{{json .}}'` that is used.
type dockerInfo struct {
	NCPU            int
	MemTotal        int64
	ServerVersion   string
	ServerErrors    []string
	OperatingSystem string
	KernelVersion   string
	CgroupVersion   string
	DockerRootDir   string
	DriverStatus    [][]string
	SecurityOptions []string
	HTTPProxy       string `json:"HttpProxy"`
	HTTPSProxy      string `json:"HttpsProxy"`
	ClientInfo      struct{ Version string }
	RegistryConfig  struct {
		InsecureRegistryCIDRs []string
		IndexConfigs          map[string]struct{ Secure bool }
		Mirrors               []string
	}
}

func (s *System) info(ctx context.Context) (*dockerInfo, error) {
	out, err := s.docker(ctx, "info", "--format", "{{json .}}")
	if err != nil {
		return nil, explain(err)
	}
	var info dockerInfo
	if err := json.Unmarshal(out, &info); err != nil {
		return nil, &DockerError{
			Problem: "docker info cannot be read: " + err.Error(),
			Remedy:  "A docker command of Docker itself is needed, no stand-in for it such as podman-docker: see `docker version`.",
			Err:     err,
		}
	}
	if info.ServerVersion != "" {
		return &info, nil
	}
	// Clients up to 20.10 exit with 0 when there is no daemon.
	text := strings.Join(info.ServerErrors, "\n")
	if known := explainText(text); known != nil {
		return nil, known
	}
	if text == "" {
		text = "docker info names no server version"
	}
	return nil, &DockerError{
		Problem: "Docker cannot be used: " + firstLine(text),
		Remedy:  "A daemon of Docker itself is needed, no stand-in for it such as Podman: see `docker version`.",
	}
}

func (info *dockerInfo) daemon() Daemon {
	d := Daemon{
		ServerVersion:   info.ServerVersion,
		ClientVersion:   info.ClientInfo.Version,
		OperatingSystem: info.OperatingSystem,
		Kernel:          info.KernelVersion,
		CgroupVersion:   info.CgroupVersion,
		RootDir:         info.DockerRootDir,
		Proxied:         info.HTTPProxy != "" || info.HTTPSProxy != "",
		RegistryMirrors: info.RegistryConfig.Mirrors,
	}
	for _, pair := range info.DriverStatus {
		if len(pair) == 2 && pair[0] == "driver-type" && strings.HasPrefix(pair[1], "io.containerd.snapshotter.") {
			d.ContainerdStore = true
		}
	}
	for _, option := range info.SecurityOptions {
		// "name=seccomp,profile=default", "name=rootless", "name=userns"
		fields := strings.Split(option, ",")
		d.Rootless = d.Rootless || slices.Contains(fields, "name=rootless")
		d.UserNamespaces = d.UserNamespaces || slices.Contains(fields, "name=userns")
	}
	for name, index := range info.RegistryConfig.IndexConfigs {
		if !index.Secure {
			d.InsecureRegistries = append(d.InsecureRegistries, name)
		}
	}
	slices.Sort(d.InsecureRegistries)
	for _, text := range info.RegistryConfig.InsecureRegistryCIDRs {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			d.InsecureCIDRs = append(d.InsecureCIDRs, prefix.Masked())
		}
	}
	slices.SortFunc(d.InsecureCIDRs, comparePrefixes)
	return d
}

// dockerNetwork is the part of `docker network inspect` that is used.
type dockerNetwork struct {
	Name       string
	ID         string `json:"Id"`
	Driver     string
	IPAM       struct{ Config []struct{ Subnet string } }
	Containers map[string]struct{ Name string }
	Options    map[string]string
	Labels     map[string]string
}

func (n *dockerNetwork) network() Network {
	network := Network{Name: n.Name, ID: n.ID, Driver: n.Driver, Labels: n.Labels}
	for _, config := range n.IPAM.Config {
		// A network may have an IPv6 subnet beside the IPv4 one, in any order.
		if prefix, err := netip.ParsePrefix(config.Subnet); err == nil && prefix.Addr().Is4() {
			network.Subnets = append(network.Subnets, prefix.Masked())
		}
	}
	for _, container := range n.Containers {
		network.Containers = append(network.Containers, container.Name)
	}
	slices.Sort(network.Containers)
	return network
}

// bridge is the name of the network's interface on the host, if it has one.
func (n *dockerNetwork) bridge() string {
	const prefixLength = 12 // of the identifier, in the interface's name
	switch {
	case n.Driver != "bridge":
		return ""
	case n.Options["com.docker.network.bridge.name"] != "":
		return n.Options["com.docker.network.bridge.name"]
	case len(n.ID) >= prefixLength:
		return "br-" + n.ID[:prefixLength]
	}
	return ""
}

// dockerContainer is the part of `docker container inspect` that is used.
type dockerContainer struct {
	ID    string `json:"Id"`
	Name  string
	State struct {
		Status    string
		StartedAt time.Time
	}
	Config          struct{ Labels map[string]string }
	NetworkSettings struct {
		Networks map[string]struct {
			NetworkID  string
			IPAddress  string
			IPAMConfig *struct{ IPv4Address string }
		}
	}
}

// node reads a container; network is the stack's, and networkID "" while it is absent.
func (c *dockerContainer) node(network, networkID string) Node {
	node := Node{
		Name:        strings.TrimPrefix(c.Name, "/"),
		ID:          c.ID,
		State:       c.State.Status,
		Running:     c.State.Status == "running",
		Started:     c.State.StartedAt,
		Labels:      c.Config.Labels,
		Incarnation: c.Config.Labels[LabelIncarnation],
	}
	for name, endpoint := range c.NetworkSettings.Networks {
		if name != network && (networkID == "" || endpoint.NetworkID != networkID) {
			continue
		}
		address := endpoint.IPAddress // "" while stopped
		if address == "" && endpoint.IPAMConfig != nil {
			address = endpoint.IPAMConfig.IPv4Address
		}
		if parsed, err := netip.ParseAddr(address); err == nil && parsed.Is4() {
			node.IPv4 = parsed
		}
	}
	return node
}

// list runs a docker command that prints one identifier per line.
func (s *System) list(ctx context.Context, args ...string) ([]string, error) {
	out, err := s.docker(ctx, args...)
	if err != nil {
		return nil, explain(err)
	}
	return strings.Fields(string(out)), nil
}

// inspect runs `docker KIND inspect` for all names in one call. What does not
// exist (any more) is left out.
func inspect[T any](ctx context.Context, s *System, kind string, names []string) ([]T, error) {
	if len(names) == 0 {
		return nil, nil // docker would call that a fault
	}
	out, err := s.docker(ctx, append([]string{kind, "inspect", "--format", "{{json .}}"}, names...)...)
	var failed *commandError
	if err != nil && !(errors.As(err, &failed) && onlyMissing(failed.stderr)) {
		return nil, explain(err)
	}
	var found []T
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var one T
		switch err := decoder.Decode(&one); {
		case errors.Is(err, io.EOF):
			return found, nil
		case err != nil:
			return nil, &DockerError{
				Problem: fmt.Sprintf("docker %s inspect cannot be read: %v", kind, err),
				Remedy:  "A docker command of Docker itself is needed: see `docker version`.",
				Err:     err,
			}
		}
		found = append(found, one)
	}
}

// onlyMissing reports whether docker complained of nothing but objects that do
// not exist.
func onlyMissing(stderr string) bool {
	complaints := 0
	for line := range strings.Lines(stderr) {
		line = strings.ToLower(strings.TrimSpace(line))
		if line == "" || strings.HasPrefix(line, "warning") {
			continue
		}
		if !strings.Contains(line, "no such") && !strings.Contains(line, "not found") {
			return false
		}
		complaints++
	}
	return complaints > 0
}

// incarnation reads IncarnationFile of a container, running or not. A missing
// container or file gives "". Any other failure is an error and not "": who
// took a cluster for another one would replace it.
func (s *System) incarnation(ctx context.Context, container string) (string, error) {
	out, err := s.docker(ctx, "cp", container+":"+IncarnationFile, "-")
	if err != nil {
		var failed *commandError
		if errors.As(err, &failed) &&
			(onlyMissing(failed.stderr) || strings.Contains(failed.stderr, "Could not find the file")) {
			return "", nil
		}
		return "", explain(err)
	}
	const limit = 4096
	reader := tar.NewReader(bytes.NewReader(out))
	header, err := reader.Next()
	if err == nil && header.Typeflag != tar.TypeReg {
		err = errors.New("it is no regular file")
	}
	var content []byte
	if err == nil {
		content, err = io.ReadAll(io.LimitReader(reader, limit))
	}
	if err != nil {
		return "", &DockerError{
			Problem: fmt.Sprintf("%s in container %s cannot be read: %v", IncarnationFile, container, err),
			Remedy:  fmt.Sprintf("See `docker cp %s:%s - | tar -xO`.", container, IncarnationFile),
			Err:     err,
		}
	}
	return strings.TrimSpace(string(content)), nil
}

// firstLine of a text, for messages.
func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(line)
}
