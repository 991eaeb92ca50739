// Package child starts processes that go when this one goes, however that ends.
package child

import (
	"os/exec"
	"runtime"
	"syscall"
)

// starts are served by one thread that never ends: the kernel sends the signal
// of Pdeathsig when the thread that started a process ends, not when its process
// does.
var starts = func() chan func() {
	queue := make(chan func())
	go func() {
		runtime.LockOSThread()
		for start := range queue {
			start()
		}
	}()
	return queue
}()

// Start starts a command.
func Start(command *exec.Cmd) error {
	if command.SysProcAttr == nil {
		command.SysProcAttr = &syscall.SysProcAttr{}
	}
	command.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	starts <- func() { started <- command.Start() }
	return <-started
}
