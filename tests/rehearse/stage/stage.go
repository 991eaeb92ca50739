// Package stage runs Pulumi's command on the project, with the providers, the
// host for Go programs and the machine stood in for.
package stage

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/language"
	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/objects"
	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/providers"
	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/seam"
	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/world"
)

// Passphrase of the state that a stage keeps: nothing in it is anybody's.
const Passphrase = "a rehearsal"

// Options of a stage.
type Options struct {
	// Dir holds all that is there: project, state, machine. It is made when it
	// is not there, and taken up when it is.
	Dir   string
	Built *Built
	Stack string
	// Agent is the folder of the mock GPU agent's source; "": a small program
	// that stands for it.
	Agent string
	// CPUs that the machine says it has.
	CPUs int
	// Clusters serve the Kubernetes API; nil: a store that stands in.
	Clusters seam.Clusters
}

// Stage is a project with a stack, and a machine for it.
type Stage struct {
	World *world.World
	// Store is nil when something else serves the Kubernetes API.
	Store    *objects.Store
	Clusters seam.Clusters
	Machine  *providers.Machine
	Host     *language.Host

	options   Options
	servers   *providers.Servers
	languages string
	runs      int
}

// Open sets the stage.
func Open(options Options) (_ *Stage, err error) {
	s := &Stage{options: options, Clusters: options.Clusters}
	for _, folder := range []string{s.path("project"), s.path("state"), s.path("home"), s.path("world"), s.path("logs")} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return nil, err
		}
	}
	if s.Clusters == nil {
		if s.Store, err = objects.Open(s.path("world")); err != nil {
			return nil, err
		}
		s.Clusters = s.Store
	}
	if s.World, err = world.Open(s.path("world"), s.Clusters, world.Options{
		Forward: options.Built.Forward, KindVersion: options.Built.Pins.Tools.Kind, CPUs: options.CPUs,
	}); err != nil {
		return nil, err
	}
	if err := s.project(); err != nil {
		return nil, errors.Join(err, s.World.Close())
	}
	var environment []string
	for name, value := range s.World.Environment() {
		environment = append(environment, name+"="+value)
	}
	s.Machine = &providers.Machine{World: s.World, Store: s.Store, Provider: s.Clusters.Provider(), Dir: s.path("project"), Environment: environment, Versions: options.Built.Pins.Pulumi}
	if s.servers, err = providers.Serve(s.Machine); err != nil {
		return nil, errors.Join(err, s.World.Close())
	}
	if s.Host, s.languages, err = language.Serve(options.Built.Program, environment); err != nil {
		s.servers.Stop()
		return nil, errors.Join(err, s.World.Close())
	}
	return s, nil
}

// Close strikes the stage; what is in its folder stays.
func (s *Stage) Close() error {
	s.Host.Stop()
	s.servers.Stop()
	return s.World.Close()
}

func (s *Stage) path(name string) string { return filepath.Join(s.options.Dir, name) }

// ProjectDir is the folder in which the program runs.
func (s *Stage) ProjectDir() string { return s.path("project") }

// StateDir is the folder of Pulumi's file backend.
func (s *Stage) StateDir() string { return s.path("state") }

// LogDir is the folder in which what was said is kept.
func (s *Stage) LogDir() string { return s.path("logs") }

// WorldDir is the folder of the machine.
func (s *Stage) WorldDir() string { return s.path("world") }

// Artifacts is the folder with the artifacts that stand for the pinned ones.
func (s *Stage) Artifacts() string { return s.path("artifacts") }

// project writes what the program and Pulumi need of the project's folder.
func (s *Stage) project() error {
	description, err := os.ReadFile(filepath.Join(s.options.Built.Repository, "Pulumi.yaml"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.path("project"), "Pulumi.yaml"), description, 0o600); err != nil {
		return err
	}
	agent := filepath.Join(s.path("project"), "agent")
	if s.options.Agent != "" {
		if err := os.Remove(agent); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return os.Symlink(s.options.Agent, agent)
	}
	if err := os.MkdirAll(agent, 0o700); err != nil {
		return err
	}
	dockerfile, err := os.ReadFile(filepath.Join(s.options.Built.Repository, "agent", "Dockerfile"))
	if err != nil {
		return err
	}
	for name, content := range map[string]string{
		"go.mod": "module agent\n\ngo 1.26\n", "main.go": "package main\n\nfunc main() {}\n", "Dockerfile": string(dockerfile),
	} {
		if err := os.WriteFile(filepath.Join(agent, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// Configure writes the stack's configuration: keys without the project's name.
func (s *Stage) Configure(config map[string]any) error {
	named := map[string]any{}
	for key, value := range config {
		named["gpu-tenants:"+key] = value
	}
	path := filepath.Join(s.path("project"), "Pulumi."+s.options.Stack+".yaml")
	file := map[string]any{}
	if text, err := os.ReadFile(path); err == nil {
		if err := yaml.Unmarshal(text, &file); err != nil {
			return err
		}
	}
	file["config"] = named // beside what Pulumi keeps in this file
	text, err := yaml.Marshal(file)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

// Run is one run of Pulumi's command.
type Run struct {
	Arguments []string
	Output    string
	Err       error
	Events    []Event
	Took      time.Duration
}

// Event is an event of the engine, as far as it is looked at.
type Event struct {
	ResourcePre *struct {
		Metadata struct {
			Op  string `json:"op"`
			URN string `json:"urn"`
			// Diffs and Keys name the inputs that differ and that replace.
			Diffs []string `json:"diffs"`
			Keys  []string `json:"keys"`
		} `json:"metadata"`
	} `json:"resourcePreEvent"`
	Diagnostic *struct {
		Message  string `json:"message"`
		Severity string `json:"severity"`
	} `json:"diagnosticEvent"`
	Summary *struct {
		ResourceChanges map[string]int `json:"resourceChanges"`
	} `json:"summaryEvent"`
}

// Environment is that of Pulumi's command.
func (s *Stage) Environment() []string {
	environment := os.Environ()
	for name, value := range s.World.Environment() {
		environment = append(environment, name+"="+value)
	}
	return append(environment,
		"PULUMI_DEBUG_PROVIDERS="+s.servers.Attach,
		"PULUMI_DEBUG_LANGUAGES="+s.languages,
		// Without metadata, because a kill can leave the sidecar files that hold it
		// empty, and Pulumi does not load a state with such a one.
		"PULUMI_BACKEND_URL=file://"+s.path("state")+"?metadata=skip",
		"PULUMI_HOME="+s.path("home"),
		"PULUMI_CONFIG_PASSPHRASE="+Passphrase,
		"PULUMI_CONFIG_PASSPHRASE_FILE=",
		"PULUMI_SKIP_UPDATE_CHECK=true",
		"PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION=true",
		"PULUMI_DIY_BACKEND_DISABLE_CHECKPOINT_BACKUPS=true",
		"PULUMI_DEBUG_COMMANDS=true",
		"PULUMI_ACCESS_TOKEN=",
		"NO_COLOR=1",
	)
}

// Pulumi runs the command on the stack, which is made when it is not there.
// Operations that the engine plays have their events kept. What it says goes to
// each of the writers too.
func (s *Stage) Pulumi(ctx context.Context, arguments []string, also ...io.Writer) *Run {
	if err := s.stack(ctx); err != nil {
		return &Run{Arguments: arguments, Err: err}
	}
	s.runs++
	events := filepath.Join(s.LogDir(), fmt.Sprintf("%04d-events.json", s.runs))
	arguments = append([]string{}, arguments...)
	switch arguments[0] {
	case "up", "preview", "refresh", "destroy":
		arguments = append(arguments, "--stack", s.options.Stack, "--event-log", events)
	default:
		events = ""
	}
	run := s.run(ctx, arguments, also...)
	if events == "" {
		return run
	}
	var err error
	if run.Events, err = readEvents(events); err != nil {
		run.Err = errors.Join(run.Err, err)
	}
	log := fmt.Sprintf("pulumi %s\n%s\n%v\n", strings.Join(arguments, " "), run.Output, run.Err)
	if err := os.WriteFile(filepath.Join(s.LogDir(), fmt.Sprintf("%04d.log", s.runs)), []byte(log), 0o600); err != nil {
		run.Err = errors.Join(run.Err, err)
	}
	return run
}

// stack makes the stack when it is not there.
func (s *Stage) stack(ctx context.Context) error {
	if _, err := os.Stat(s.StatePath()); err == nil {
		return nil
	}
	return s.run(ctx, []string{"stack", "init", s.options.Stack, "--non-interactive"}).Err
}

// StatePath is the file of the stack's state.
func (s *Stage) StatePath() string {
	return filepath.Join(s.StateDir(), ".pulumi", "stacks", "gpu-tenants", s.options.Stack+".json")
}

// run runs the command in a process group of its own, so that it can be killed
// with all that it started.
func (s *Stage) run(ctx context.Context, arguments []string, also ...io.Writer) *Run {
	run := &Run{Arguments: arguments}
	process := exec.CommandContext(ctx, s.options.Built.CLI, arguments...) //nolint:gosec // Pulumi's
	process.Dir = s.ProjectDir()
	process.Env = s.Environment()
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	process.Cancel = func() error { return syscall.Kill(-process.Process.Pid, syscall.SIGINT) }
	process.WaitDelay = time.Minute
	var said bytes.Buffer
	out := io.MultiWriter(append([]io.Writer{&said}, also...)...)
	process.Stdout, process.Stderr = out, out
	started := time.Now()
	if run.Err = process.Start(); run.Err == nil {
		s.killable(process.Process.Pid)
		run.Err = process.Wait()
	}
	run.Took = time.Since(started)
	run.Output = said.String()
	// What was killed leaves the container's processes, which come to their end.
	s.World.Idle()
	if run.Err != nil {
		run.Err = fmt.Errorf("pulumi %s: %w", strings.Join(arguments, " "), run.Err)
	}
	return run
}

// killable lets the providers' faults kill this run, at once and with all that
// belongs to it: Pulumi, the program, the scripts.
func (s *Stage) killable(pid int) {
	s.Machine.SetKill(func() {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
		s.Host.Kill()
		s.Machine.KillScripts()
	})
}

// Unlock does what `pulumi cancel` does after a run was killed: it removes the
// lock that the run left.
func (s *Stage) Unlock() (locked bool, err error) {
	locks, err := filepath.Glob(filepath.Join(s.StateDir(), ".pulumi", "locks", "*", "*", "*", "*.json"))
	if err != nil {
		return false, err
	}
	for _, lock := range locks {
		if err := os.Remove(lock); err != nil {
			return true, err
		}
	}
	return len(locks) > 0, nil
}

func readEvents(path string) ([]Event, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // it never came to that
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var events []Event
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return events, nil // a line that was cut off is none
		}
		if err != nil {
			return nil, err
		}
		var event Event
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		events = append(events, event)
	}
}
