package world

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/seam"
)

// docker is the docker command.
func (w *World) docker(ctx context.Context, r seam.Request) seam.Reply {
	args := r.Args
	starts := func(words ...string) bool { return len(args) >= len(words) && slices.Equal(args[:len(words)], words) }
	switch {
	case starts("exec"):
		return w.exec(ctx, r)
	case starts("run"):
		return w.run(args[1:])
	case starts("rm"):
		return w.each(args[1:], []string{"--force", "--volumes"}, func(name string) error { return w.RemoveContainer(ctx, w.nameOf(name)) })
	case starts("start"):
		return w.each(args[1:], nil, func(name string) error { return w.StartContainer(ctx, name) })
	case starts("stop"):
		return w.each(args[1:], nil, func(name string) error { return w.StopContainer(ctx, name) })
	case starts("ps"):
		return w.ps(r)
	case starts("container", "inspect"):
		return w.inspect(r, "container", func(name string) any { return w.describeContainer(name) })
	case starts("network", "inspect"):
		return w.inspect(r, "network", func(name string) any { return w.describeNetwork(name) })
	case starts("image", "inspect"):
		return w.inspect(r, "image", func(name string) any { return w.describeImage(name) })
	case starts("network", "ls"):
		return w.listNetworks(r)
	case starts("network", "rm"):
		return w.each(args[2:], nil, w.RemoveNetwork)
	case starts("cp") && len(args) == 3 && args[2] == "-":
		return w.copyOut(args[1])
	case starts("logs"):
		return seam.Said("(a stand-in's container says nothing)\n")
	case starts("save") && len(args) == 2:
		if w.Image(args[1]) == "" {
			return seam.Failed(1, "Error response from daemon: reference does not exist")
		}
		return seam.Said("an image's archive, by the stand-in: " + args[1])
	case starts("context", "inspect"):
		return seam.Said("unix:///var/run/docker.sock\n")
	case starts("info"):
		return w.render(r, []any{w.info()})
	}
	return w.notKnown(lineOf(r))
}

// each does something to each named thing, and says which.
func (w *World) each(args, flags []string, do func(name string) error) seam.Reply {
	var said bytes.Buffer
	for _, arg := range args {
		if strings.HasPrefix(arg, "-") {
			if !slices.Contains(flags, arg) {
				return w.notKnown("flag " + arg)
			}
			continue
		}
		if err := do(arg); err != nil {
			return seam.Reply{Stdout: said.Bytes(), Stderr: []byte(err.Error() + "\n"), Code: 1}
		}
		said.WriteString(arg + "\n")
	}
	return seam.Reply{Stdout: said.Bytes()}
}

// nameOf returns the name of a container that is named by its name or ID.
func (w *World) nameOf(name string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, container := range w.containers {
		if container.ID == name {
			return container.Name
		}
	}
	return name
}

// run is docker run --detach.
func (w *World) run(args []string) seam.Reply {
	switches := []string{"--detach", "--privileged", "--tty", "--init=false"}
	values := []string{"--name", "--hostname", "--security-opt", "--cgroups", "--cgroupns", "--tmpfs", "--volume", "--network", "--ip", "--restart", "--label", "--env"}
	made := &Container{Labels: map[string]string{}, Running: true, Started: time.Now().UTC()}
	var network, address string
	for i := 0; i < len(args); i++ {
		arg := args[i]
		switch {
		case slices.Contains(switches, arg):
			continue
		case !strings.HasPrefix(arg, "--"):
			made.Image = arg
			continue
		case !slices.Contains(values, arg) || i+1 == len(args):
			return w.notKnown("docker run " + arg)
		}
		i++
		switch value := args[i]; arg {
		case "--name":
			made.Name = value
		case "--hostname":
			made.Hostname = value
		case "--network":
			network = value
		case "--ip":
			address = value
		case "--label":
			key, text, _ := strings.Cut(value, "=")
			made.Labels[key] = text
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.attach(made, network, address); err != nil {
		return seam.Failed(125, "docker: Error response from daemon: "+err.Error())
	}
	return seam.Said(made.ID + "\n")
}

// attach puts a new container on a network, at an address of its own or at one
// that Docker chooses. The caller holds the lock.
func (w *World) attach(made *Container, network, address string) error {
	if w.containers[made.Name] != nil {
		return fmt.Errorf("Conflict. The container name %q is already in use", "/"+made.Name) //nolint:staticcheck // Docker's words
	}
	on := w.network(network)
	if on == nil {
		return fmt.Errorf("network %s not found", network)
	}
	if w.images[made.Image] == "" {
		return fmt.Errorf("No such image: %s", made.Image) //nolint:staticcheck // Docker's words
	}
	taken := map[string]bool{on.Gateway: true}
	for _, other := range w.containers {
		if other.Network == on.ID {
			taken[other.Address] = true
		}
	}
	subnet := netip.MustParsePrefix(on.Subnet) // checked when it was made
	if address == "" {
		within := subnet
		if on.IPRange != "" {
			within = netip.MustParsePrefix(on.IPRange)
		}
		for next := within.Addr().Next(); within.Contains(next); next = next.Next() {
			if !taken[next.String()] {
				address = next.String()
				break
			}
		}
	}
	parsed, err := netip.ParseAddr(address)
	switch {
	case err != nil || !subnet.Contains(parsed):
		return fmt.Errorf("user specified IP address %q is not in the network's subnet %s", address, subnet)
	case taken[address]:
		return errors.New("Address already in use") //nolint:staticcheck // Docker's words
	}
	made.Network, made.Address = on.ID, address
	return w.addContainer(made)
}

// ps is docker ps --all: IDs, or a template over names and labels.
func (w *World) ps(r seam.Request) seam.Reply {
	flags, _, unknown := parseFlags(r.Args[1:], []string{"--all", "--quiet", "--no-trunc"}, []string{"--filter", "--format"})
	if unknown != "" {
		return w.notKnown("docker ps " + unknown)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var said bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(w.containers)) {
		container := w.containers[name]
		if matches(container, flags["--filter"]) {
			said.WriteString(container.ID + "\n")
		}
	}
	return seam.Reply{Stdout: said.Bytes()}
}

func matches(container *Container, filters []string) bool {
	for _, filter := range filters {
		what, value, _ := strings.Cut(filter, "=")
		switch what {
		case "label":
			key, text, hasValue := strings.Cut(value, "=")
			if got, ok := container.Labels[key]; !ok || hasValue && got != text {
				return false
			}
		case "name":
			if value != "^"+container.Name+"$" {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// parseFlags takes a command line apart: values by flag, and what is no flag.
func parseFlags(args, switches, valued []string) (flags map[string][]string, rest []string, unknown string) {
	flags = map[string][]string{}
	for i := 0; i < len(args); i++ {
		name, value, inOne := strings.Cut(args[i], "=")
		switch {
		case !strings.HasPrefix(args[i], "-"):
			rest = append(rest, args[i])
		case slices.Contains(switches, args[i]):
			flags[args[i]] = append(flags[args[i]], "true")
		case slices.Contains(valued, name) && inOne:
			flags[name] = append(flags[name], value)
		case slices.Contains(valued, args[i]) && i+1 < len(args):
			flags[args[i]] = append(flags[args[i]], args[i+1])
			i++
		default:
			return flags, rest, args[i]
		}
	}
	return flags, rest, ""
}

// inspect is docker KIND inspect.
func (w *World) inspect(r seam.Request, kind string, describe func(name string) any) seam.Reply {
	_, names, unknown := parseFlags(r.Args[2:], nil, []string{"--format"})
	if unknown != "" {
		return w.notKnown(lineOf(r))
	}
	var found []any
	var missing []string
	for _, name := range names {
		if one := describe(name); one != nil {
			found = append(found, one)
		} else {
			missing = append(missing, fmt.Sprintf("Error response from daemon: No such %s: %s", kind, name))
		}
	}
	reply := w.render(r, found)
	if len(missing) > 0 && reply.Code == 0 {
		reply.Stderr = []byte(strings.Join(missing, "\n") + "\n")
		reply.Code = 1
	}
	return reply
}

// render prints things by the template of --format, or all of them as JSON.
func (w *World) render(r seam.Request, things []any) seam.Reply {
	format := ""
	if at := slices.Index(r.Args, "--format"); at >= 0 && at+1 < len(r.Args) {
		format = r.Args[at+1]
	}
	var said bytes.Buffer
	if format == "" {
		if things == nil {
			things = []any{}
		}
		text, err := json.MarshalIndent(things, "", "    ")
		if err != nil {
			return seam.Failed(1, err.Error())
		}
		return seam.Said(string(text) + "\n")
	}
	parsed, err := template.New("").Funcs(template.FuncMap{"json": func(v any) (string, error) {
		text, err := json.Marshal(v)
		return string(text), err
	}}).Parse(format)
	if err != nil {
		return seam.Failed(64, "template parsing error: "+err.Error())
	}
	for _, thing := range things {
		if err := parsed.Execute(&said, thing); err != nil {
			return seam.Failed(1, "template: "+err.Error())
		}
		said.WriteString("\n")
	}
	return seam.Reply{Stdout: said.Bytes()}
}

func (w *World) describeContainer(name string) any {
	w.mu.Lock()
	defer w.mu.Unlock()
	there := w.containers[name]
	for _, container := range w.containers {
		if container.ID == name {
			there = container
		}
	}
	if there == nil {
		return nil
	}
	networkName := ""
	if network := w.networks[there.Network]; network != nil {
		networkName = network.Name
	}
	state, address := "running", there.Address
	if !there.Running {
		state, address = "exited", ""
	}
	return map[string]any{
		"Id": there.ID, "Name": "/" + there.Name, "State": map[string]any{"Status": state, "Running": there.Running, "StartedAt": there.Started},
		"Config": map[string]any{"Labels": maps.Clone(there.Labels), "Image": there.Image, "Hostname": there.Hostname},
		"NetworkSettings": map[string]any{"Networks": map[string]any{networkName: map[string]any{
			"NetworkID": there.Network, "IPAddress": address, "IPAMConfig": map[string]any{"IPv4Address": there.Address},
		}}},
	}
}

func (w *World) describeNetwork(name string) any {
	w.mu.Lock()
	defer w.mu.Unlock()
	there := w.network(name)
	if there == nil {
		return nil
	}
	attached := map[string]any{}
	for _, container := range w.containers {
		if container.Network == there.ID && container.Running {
			attached[container.ID] = map[string]any{"Name": container.Name}
		}
	}
	return map[string]any{
		"Id": there.ID, "Name": there.Name, "Driver": there.Driver, "Labels": maps.Clone(there.Labels), "Options": maps.Clone(there.Options),
		"IPAM": map[string]any{"Config": []any{map[string]any{"Subnet": there.Subnet, "Gateway": there.Gateway, "IPRange": there.IPRange}}}, "Containers": attached,
	}
}

func (w *World) describeImage(name string) any {
	if id := w.Image(name); id != "" {
		return map[string]any{"Id": id, "RepoTags": []string{name}}
	}
	return nil
}

func (w *World) listNetworks(r seam.Request) seam.Reply {
	if _, _, unknown := parseFlags(r.Args[2:], []string{"--quiet", "--no-trunc"}, nil); unknown != "" {
		return w.notKnown(lineOf(r))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var said strings.Builder
	for _, id := range slices.Sorted(maps.Keys(w.networks)) {
		said.WriteString(id + "\n")
	}
	return seam.Said(said.String())
}

// copyOut is docker cp CONTAINER:FILE -, which works for a stopped one too.
func (w *World) copyOut(from string) seam.Reply {
	name, file, _ := strings.Cut(from, ":")
	there := w.Container(name)
	if there == nil {
		return seam.Failed(1, "Error response from daemon: No such container: "+name)
	}
	content, err := os.ReadFile(filepath.Join(w.root(there), file))
	if err != nil {
		return seam.Failed(1, fmt.Sprintf("Error response from daemon: Could not find the file %s in container %s", file, name))
	}
	var archive bytes.Buffer
	writer := tar.NewWriter(&archive)
	err = writer.WriteHeader(&tar.Header{Name: path.Base(file), Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))})
	if err == nil {
		_, err = writer.Write(content)
	}
	if err = errors.Join(err, writer.Close()); err != nil {
		return seam.Failed(1, err.Error())
	}
	return seam.Reply{Stdout: archive.Bytes()}
}

// info is docker info: a daemon with nothing wrong on this very kernel.
func (w *World) info() map[string]any {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	const memory = 64 << 30
	return map[string]any{
		"NCPU": w.options.CPUs, "MemTotal": memory, "ServerVersion": "28.0.0", "OperatingSystem": "the stand-in for Docker",
		"OSType": runtime.GOOS, "KernelVersion": strings.TrimSpace(string(kernel)), "CgroupVersion": "2", "DockerRootDir": w.dir,
		"DriverStatus": []any{}, "SecurityOptions": []string{"name=seccomp,profile=builtin", "name=cgroupns"},
		"ClientInfo":     map[string]any{"Version": "28.0.0"},
		"RegistryConfig": map[string]any{"InsecureRegistryCIDRs": []string{"127.0.0.0/8"}, "IndexConfigs": map[string]any{}, "Mirrors": []string{}},
	}
}
