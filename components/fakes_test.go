package components

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/template"
	"time"
)

// call is one run of a faked command.
type call struct {
	path  string // of what ran
	args  []string
	stdin string
}

func (c call) line() string { return filepath.Base(c.path) + " " + strings.Join(c.args, " ") }

// String leaves out scripts among the arguments.
func (c call) String() string {
	var text strings.Builder
	text.WriteString("\n  " + filepath.Base(c.path))
	for _, arg := range c.args {
		if strings.Contains(arg, "\n") {
			arg = "SCRIPT"
		}
		text.WriteString(" " + arg)
	}
	return text.String()
}

// reply is what a faked command does.
type reply struct {
	stdout, stderr string
	code           int
}

// fakes stand in for commands: each hands its arguments and its standard input
// to the test, which answers. Answers are given one after the other, by the
// test's own goroutine, so what they are made from needs no lock.
type fakes struct {
	t        *testing.T
	bin      string // to be put in front of the PATH
	answer   func(call) reply
	calls    []call
	requests chan request
}

type request struct {
	call  call
	reply chan reply
}

// fakeCommand speaks with the test that wrote it. It is a shell script and not
// the test binary again, which takes long to start with Pulumi's SDK in it.
const fakeCommand = `#!%s
exec 3<>/dev/tcp/127.0.0.1/%d
IFS= read -r -d '' stdin
printf '%%s\0' "$#" "$0" "$@" "$stdin" >&3
read -r code <&3
read -r out <&3
read -r err <&3
printf %%b "$out"
printf %%b "$err" >&2
exit "$code"
`

func newFakes(t *testing.T, answer func(call) reply, names ...string) *fakes {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the scripts are for Linux")
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	f := &fakes{t: t, bin: t.TempDir(), answer: answer, requests: make(chan request)}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Appendf(nil, fakeCommand, bash, listener.Addr().(*net.TCPAddr).Port)
	for _, name := range names {
		f.install(filepath.Join(f.bin, name), text)
	}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go f.serve(connection)
		}
	}()
	return f
}

func (f *fakes) install(path string, text []byte) {
	f.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o755); err != nil { //nolint:gosec // a command
		f.t.Fatal(err)
	}
}

// serve passes one call on to during.
func (f *fakes) serve(connection net.Conn) {
	defer connection.Close()
	in := bufio.NewReader(connection)
	next := func() string {
		text, _ := in.ReadString(0)
		return strings.TrimSuffix(text, "\x00")
	}
	count, _ := strconv.Atoi(next())
	r := request{call: call{path: next()}, reply: make(chan reply, 1)}
	for range count {
		r.call.args = append(r.call.args, next())
	}
	r.call.stdin = next()
	select {
	case f.requests <- r:
		got := <-r.reply
		fmt.Fprintf(connection, "%d\n%s\n%s\n", got.code, escaped(got.stdout), escaped(got.stderr))
	case <-f.t.Context().Done():
	}
}

// during answers calls for as long as do runs.
func (f *fakes) during(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	for {
		select {
		case r := <-f.requests:
			f.calls = append(f.calls, r.call)
			r.reply <- f.answer(r.call)
		case <-done:
			return
		}
	}
}

// escaped is a text in one line, as bash's printf %b reads it.
func escaped(text string) string {
	var line []byte
	for _, c := range []byte(text) {
		line = fmt.Appendf(line, `\0%03o`, c)
	}
	return string(line)
}

// unknown is the answer to what the test does not expect.
func (f *fakes) unknown(what string, args []string) reply {
	f.t.Errorf("%s is asked for %q, which the test does not know", what, args)
	return reply{stderr: "unknown to the test", code: 64}
}

// count returns how many calls so far contain the text.
func (f *fakes) count(text string) int {
	count := 0
	for _, c := range f.calls {
		if strings.Contains(c.line(), text) {
			count++
		}
	}
	return count
}

// wantCounts compares how often something was called.
func (f *fakes) wantCounts(want map[string]int) {
	f.t.Helper()
	for text, times := range want {
		if got := f.count(text); got != times {
			f.t.Errorf("%q was called %d times, want %d; all calls: %v", text, got, times, f.calls)
		}
	}
}

// result is what a script did.
type result struct {
	stdout, stderr string
	code           int
}

// run runs a script as newScript has it run, in a folder of its own. When the
// script sleeps, a minute passes, at once.
func (f *fakes) run(name string, environment map[string]string) result {
	f.t.Helper()
	text, err := script(name)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.bash("sleep() { SECONDS=$((SECONDS + 60)); }\n"+text, "", environment)
}

// bash runs a text with nothing but the fakes and the machine's own tools.
func (f *fakes) bash(text, stdin string, environment map[string]string, arguments ...string) result {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 2*time.Minute)
	defer cancel()
	scratch := f.t.TempDir()
	command := exec.CommandContext(ctx, "bash", append([]string{"-euo", "pipefail", "-c", text}, arguments...)...)
	command.Dir = f.t.TempDir()
	command.WaitDelay = time.Second
	command.Env = []string{"PATH=" + f.bin + ":" + os.Getenv("PATH"), "HOME=" + command.Dir, "TMPDIR=" + scratch}
	for key, value := range environment {
		command.Env = append(command.Env, key+"="+value)
	}
	command.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	var err error
	f.during(func() { err = command.Run() })
	if err != nil && command.ProcessState.ExitCode() < 0 {
		f.t.Fatalf("%v; it said %s%s", err, &stdout, &stderr)
	}
	if left, err := os.ReadDir(scratch); err != nil || len(left) > 0 {
		f.t.Errorf("the script left %v in its temporary folder (%v)", left, err)
	}
	return result{stdout.String(), stderr.String(), command.ProcessState.ExitCode()}
}

// wantFailure checks that a script failed, printed no result, and told why.
func (f *fakes) wantFailure(got result, telling ...string) {
	f.t.Helper()
	if got.code == 0 {
		f.t.Error("the script succeeded")
	}
	if got.stdout != "" {
		f.t.Errorf("the script failed and printed %q all the same", got.stdout)
	}
	for _, text := range telling {
		if !strings.Contains(got.stderr, text) {
			f.t.Errorf("%q is not among what the script said:\n%s", text, got.stderr)
		}
	}
}

// wantSuccess checks that a script succeeded and what it printed.
func (f *fakes) wantSuccess(got result, stdout string) {
	f.t.Helper()
	if got.code != 0 || got.stdout != stdout {
		f.t.Errorf("exit status %d and %q printed, want 0 and %q; the script said %s", got.code, got.stdout, stdout, got.stderr)
	}
}

// container is one that the faked Docker holds.
type container struct {
	id      string
	image   string
	running bool
	labels  map[string]string
	flags   map[string][]string // of the docker run that made it
	files   map[string]string
}

// machine is a host with Docker and kind, faked.
type machine struct {
	*fakes

	containers map[string]*container
	made       int
	broken     map[string]bool // commands that fail: "docker run", "kind create"

	// kubectl answers in a tenant's cluster; "" is the management cluster.
	kubectl func(tenant string, args []string, stdin string) reply
	// inside answers for whatever else runs in a container.
	inside func(container string, args []string, stdin string) reply
	// mirrors is what certs_d told each node.
	mirrors map[string]string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{containers: map[string]*container{}, broken: map[string]bool{}, mirrors: map[string]string{}}
	m.kubectl = func(_ string, args []string, _ string) reply { return m.unknown("kubectl", args) }
	m.inside = func(_ string, args []string, _ string) reply { return m.unknown("a container", args) }
	m.fakes = newFakes(t, func(c call) reply {
		if filepath.Base(c.path) == "kind" {
			return m.kind(c)
		}
		return m.docker(c)
	}, "docker", "kind")
	return m
}

func starts(args []string, with ...string) bool {
	return len(args) >= len(with) && slices.Equal(args[:len(with)], with)
}

func (m *machine) docker(c call) reply {
	args := c.args
	name := args[len(args)-1]
	there := m.containers[name]
	absent := reply{stderr: "Error response from daemon: No such container: " + name + "\n", code: 1}
	switch {
	case starts(args, "exec"):
		return m.exec(args[1:], c.stdin)
	case starts(args, "cp"):
		return m.copyOut(args[1])
	case starts(args, "run"):
		return m.runContainer(args[1:])
	case starts(args, "container", "inspect") && there == nil:
		return absent
	case starts(args, "container", "inspect") && len(args) == 3:
		return reply{stdout: "[{}]\n"}
	case starts(args, "container", "inspect", "--format") && len(args) == 5:
		var text bytes.Buffer
		if err := template.Must(template.New("").Parse(args[3])).Execute(&text, map[string]any{
			"Id": there.id, "Config": map[string]any{"Labels": there.labels},
		}); err != nil {
			return reply{stderr: err.Error(), code: 1}
		}
		return reply{stdout: text.String() + "\n"}
	case starts(args, "ps", "--all", "--quiet", "--filter") && m.broken["docker ps"]:
		return reply{stderr: "Cannot connect to the Docker daemon\n", code: 1}
	case starts(args, "ps", "--all", "--quiet", "--filter"):
		// Named containers are removed by name or id; the fake keeps one of both.
		for own := range m.containers {
			if args[4] == "name=^"+own+"$" {
				return reply{stdout: own + "\n"}
			}
		}
		return reply{}
	case starts(args, "start") && there == nil:
		return absent
	case starts(args, "start") && m.broken["docker start"]:
		return reply{stderr: "Error response from daemon: address already in use\n", code: 1}
	case starts(args, "start"):
		there.running = true
		return reply{stdout: name + "\n"}
	case starts(args, "rm", "--force", "--volumes"):
		if there == nil {
			return absent
		}
		delete(m.containers, name)
		return reply{stdout: name + "\n"}
	case starts(args, "logs"):
		return reply{stdout: "the container's last words\n"}
	}
	return m.unknown("docker", args)
}

// runContainer is docker run. Where it fails, it does so as Docker does when
// the address is taken: with a container made and not started.
func (m *machine) runContainer(args []string) reply {
	m.made++
	made := &container{id: fmt.Sprintf("id-%d", m.made), running: !m.broken["docker run"], labels: map[string]string{}, flags: map[string][]string{}}
	switches := []string{"--detach", "--privileged", "--tty", "--init=false"}
	for i := 0; i < len(args); i++ {
		switch {
		case slices.Contains(switches, args[i]):
			made.flags[args[i]] = nil
		case strings.HasPrefix(args[i], "--") && i+1 < len(args):
			made.flags[args[i]] = append(made.flags[args[i]], args[i+1])
			i++
		default:
			made.image = args[i]
		}
	}
	for _, label := range made.flags["--label"] {
		key, value, _ := strings.Cut(label, "=")
		made.labels[key] = value
	}
	name := made.flags["--name"][0]
	if m.containers[name] != nil {
		return reply{stderr: "Error response from daemon: Conflict. The container name is already in use\n", code: 125}
	}
	m.containers[name] = made
	if !made.running {
		return reply{stdout: made.id + "\n", stderr: "Error response from daemon: Address already in use\n", code: 125}
	}
	return reply{stdout: made.id + "\n"}
}

func (m *machine) copyOut(from string) reply {
	name, path, _ := strings.Cut(from, ":")
	there := m.containers[name]
	if there == nil {
		return reply{stderr: "No such container\n", code: 1}
	}
	content, ok := there.files[path]
	if !ok {
		return reply{stderr: "Could not find the file\n", code: 1}
	}
	var archive bytes.Buffer
	writer := tar.NewWriter(&archive)
	_ = writer.WriteHeader(&tar.Header{Name: filepath.Base(path), Mode: 0o600, Size: int64(len(content))})
	_, _ = writer.Write([]byte(content))
	_ = writer.Close()
	return reply{stdout: archive.String()}
}

var writesFile = regexp.MustCompile(`^printf %s '([^']*)' >(/\S+)$`)

// exec is docker exec. What the scripts send into a container is taken apart
// here; TestTenantKubectl, TestCertsD and TestJoinInsideTheNode run it.
func (m *machine) exec(args []string, stdin string) reply {
	environment := map[string]string{}
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		if args[0] == "-e" {
			key, value, _ := strings.Cut(args[1], "=")
			environment[key] = value
			args = args[1:]
		}
		args = args[1:]
	}
	name, args := args[0], args[1:]
	there := m.containers[name]
	if there == nil || !there.running {
		return reply{stderr: "Error response from daemon: container " + name + " is not running\n", code: 1}
	}
	isBash := starts(args, "bash", "-euo", "pipefail", "-c") && len(args) > 5
	switch {
	case starts(args, "kubectl", "--kubeconfig", "/etc/kubernetes/admin.conf"):
		return m.kubectl("", args[3:], stdin)
	case isBash && args[5] == "kubectl":
		return m.kubectl(environment["TENANT"], args[6:], stdin)
	case isBash && args[5] == "certs_d":
		m.mirrors[name] = args[6]
		return reply{}
	case starts(args, "sh", "-c") && writesFile.MatchString(args[2]):
		match := writesFile.FindStringSubmatch(args[2])
		if there.files == nil {
			there.files = map[string]string{}
		}
		there.files[match[2]] = match[1]
		return reply{}
	}
	return m.inside(name, args, stdin)
}

// kindKubeconfig is what only a script's standard output may show.
const kindKubeconfig = "apiVersion: v1\nkind: Config\nusers: [{user: {client-key-data: SECRET-MARK}}]\n"

func (m *machine) kind(c call) reply {
	args := slices.DeleteFunc(slices.Clone(c.args), func(arg string) bool { return arg == "--quiet" })
	flag := func(name string) string {
		if at := slices.Index(args, name); at >= 0 && at+1 < len(args) {
			return args[at+1]
		}
		return ""
	}
	node := flag("--name") + "-control-plane"
	there := m.containers[node]
	if !starts(args, "get") && flag("--kubeconfig") == "" {
		m.t.Errorf("%s would touch the user's own kubeconfig", c)
	}
	switch {
	case starts(args, "delete", "cluster"):
		delete(m.containers, node)
		return reply{stderr: "Deleting cluster ...\n"}
	case starts(args, "create", "cluster") && there != nil:
		return reply{stderr: "ERROR: node(s) already exist for a cluster with the name\n", code: 1}
	case starts(args, "create", "cluster") && m.broken["kind create"]:
		return reply{stdout: "half a word on stdout\n", stderr: "ERROR: failed to create cluster: no space left\n", code: 1}
	case starts(args, "create", "cluster"):
		m.made++
		m.containers[node] = &container{id: fmt.Sprintf("id-%d", m.made), image: flag("--image"), running: true, files: map[string]string{"config": c.stdin}}
		return reply{stdout: "kind's words\n"}
	case starts(args, "get", "kubeconfig") && there != nil:
		return reply{stdout: kindKubeconfig}
	}
	return m.unknown("kind", args)
}
