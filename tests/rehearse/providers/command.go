package providers

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource/plugin"
)

// command is pulumi-command's local.Command: it runs what it is given. The real
// provider is in no module of its own that a Go module proxy would serve.
type command struct {
	base
	machine *Machine
}

func (c *command) Diff(_ context.Context, r plugin.DiffRequest) (plugin.DiffResponse, error) {
	return compare(r.OldInputs, r.NewInputs, func(path string) bool { return under(path, "triggers") }), nil
}

// Create runs the creation's script. When that fails nothing is kept, so no
// deletion will follow.
func (c *command) Create(ctx context.Context, r plugin.CreateRequest) (plugin.CreateResponse, error) {
	var suffix [4]byte
	_, _ = rand.Read(suffix[:])
	// A preview has an identifier too, which is another one than later.
	id := resource.ID(r.URN.Name() + hex.EncodeToString(suffix[:]))
	if r.Preview {
		return plugin.CreateResponse{ID: id, Properties: unknownOutputs(r.Properties)}, nil
	}
	outputs, err := c.run(ctx, r.Properties, "create", nil)
	return plugin.CreateResponse{ID: id, Properties: outputs}, err
}

// Update runs the creation's script again when there is none for updates.
func (c *command) Update(ctx context.Context, r plugin.UpdateRequest) (plugin.UpdateResponse, error) {
	if r.Preview {
		return plugin.UpdateResponse{Properties: unknownOutputs(r.NewInputs)}, nil
	}
	script := resource.PropertyKey("create")
	if r.NewInputs.HasValue("update") {
		script = "update"
	}
	outputs, err := c.run(ctx, r.NewInputs, script, r.OldOutputs)
	return plugin.UpdateResponse{Properties: outputs}, err
}

// Delete runs with what the state holds: scripts and environment of the last
// creation or update.
func (c *command) Delete(ctx context.Context, r plugin.DeleteRequest) (plugin.DeleteResponse, error) {
	_, err := c.run(ctx, r.Outputs, "delete", r.Outputs)
	return plugin.DeleteResponse{}, err
}

// unknownOutputs are what a preview knows: every output depends on every input.
func unknownOutputs(inputs resource.PropertyMap) resource.PropertyMap {
	outputs := inputs.Copy()
	outputs["stdout"] = resource.MakeComputed(resource.NewStringProperty(""))
	outputs["stderr"] = resource.MakeComputed(resource.NewStringProperty(""))
	return outputs
}

// run runs one of the scripts, if there is one.
func (c *command) run(ctx context.Context, inputs resource.PropertyMap, which resource.PropertyKey, before resource.PropertyMap) (resource.PropertyMap, error) {
	outputs := inputs.Copy()
	values := plainMap(inputs)
	text, _ := values[string(which)].(string)
	if text == "" {
		return outputs, nil
	}
	words := []string{"/bin/sh", "-c"}
	if interpreter, ok := values["interpreter"].([]any); ok && len(interpreter) > 0 {
		words = nil
		for _, word := range interpreter {
			words = append(words, fmt.Sprint(word))
		}
	}
	process := exec.CommandContext(ctx, words[0], append(words[1:], text)...) //nolint:gosec // this is what the resource is for
	process.Dir = c.machine.Dir
	process.Env = append(os.Environ(), c.machine.Environment...)
	environment, _ := values["environment"].(map[string]any)
	for name, value := range environment {
		process.Env = append(process.Env, fmt.Sprintf("%s=%v", name, value))
	}
	if values["addPreviousOutputInEnv"] != false {
		process.Env = append(process.Env, "PULUMI_COMMAND_STDOUT="+textOf(before, "stdout"), "PULUMI_COMMAND_STDERR="+textOf(before, "stderr"))
	}
	if stdin, ok := values["stdin"].(string); ok {
		process.Stdin = strings.NewReader(stdin)
	}
	var stdout, stderr, both bytes.Buffer
	together := &lockedWriter{to: &both}
	process.Stdout, process.Stderr = io.MultiWriter(&stdout, together), io.MultiWriter(&stderr, together)
	if err := c.machine.scripts.run(process); err != nil {
		return nil, fmt.Errorf("%w: running %q:\n%s", err, text, both.String())
	}
	secret := inputs.ContainsSecrets()
	for name, output := range map[resource.PropertyKey]string{"stdout": stdout.String(), "stderr": stderr.String()} {
		value := resource.NewStringProperty(strings.TrimSuffix(output, "\n"))
		if secret {
			value = resource.MakeSecret(value)
		}
		outputs[name] = value
	}
	return outputs, nil
}

// lockedWriter lets two streams write into one text.
type lockedWriter struct {
	mu sync.Mutex
	to io.Writer
}

func (w *lockedWriter) Write(text []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(text)
}

// scripts are those that run now, each the leader of a process group.
type scripts struct {
	mu      sync.Mutex
	running map[int]bool
}

func (s *scripts) run(process *exec.Cmd) error {
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	process.Cancel = func() error { return syscall.Kill(-process.Process.Pid, syscall.SIGKILL) }
	process.WaitDelay = 5 * time.Second
	s.mu.Lock()
	if err := process.Start(); err != nil {
		s.mu.Unlock()
		return err
	}
	if s.running == nil {
		s.running = map[int]bool{}
	}
	pid := process.Process.Pid
	s.running[pid] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.running, pid)
		s.mu.Unlock()
	}()
	return process.Wait()
}

func (s *scripts) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for pid := range s.running {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
}
