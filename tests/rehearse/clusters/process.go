package clusters

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/child"
)

// process is one that goes when this one goes.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// begin starts a process, whose words go to a file in the folder.
func begin(folder, name, binary string, arguments ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(folder, name+".log"), done: make(chan struct{})}
	file, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	p.cmd = exec.Command(binary, arguments...) //nolint:gosec // what Build made
	p.cmd.Dir = folder
	p.cmd.Stdout, p.cmd.Stderr = file, file
	if err := child.Start(p.cmd); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // that it ended is seen by who still needs it
		close(p.done)
	}()
	return p, nil
}

// end kills the process and waits until it is gone. Everything that matters is
// in etcd by then, so nothing is asked to come to an end by itself.
func (p *process) end() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Kill() // it may be gone
	<-p.done
}

// gone says why a process ended that should not have.
func (p *process) gone() error {
	text, _ := os.ReadFile(p.log)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	const enough = 8
	return fmt.Errorf("%s ended; its last words, in %s:\n%s", p.name, p.log, strings.Join(lines[max(0, len(lines)-enough):], "\n"))
}
