package host

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"time"
)

// System is everything outside the process that this package touches.
type System struct {
	GOOS string
	// Run runs a program to its end. What it wrote is returned with an error too.
	Run        func(ctx context.Context, name string, args ...string) (Output, error)
	ReadFile   func(path string) ([]byte, error)
	DiskSpace  func(path string) (Space, error)
	LookPath   func(file string) (string, error)
	LookupHost func(ctx context.Context, host string) ([]string, error)
	HTTP       interface {
		Do(request *http.Request) (*http.Response, error)
	}
	// CommandTimeout bounds each program, NetworkTimeout each question to
	// another host.
	CommandTimeout, NetworkTimeout time.Duration
	// WakeTimeout bounds how long an API server takes after a start.
	WakeTimeout time.Duration
}

// Output is what a program wrote.
type Output struct {
	Stdout []byte
	Stderr string
}

// Space of a file system, in bytes. Free is what an ordinary user may fill.
type Space struct{ Free, Total uint64 }

// Real is this machine.
func Real() *System {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableKeepAlives = true // one question per host
	return &System{
		GOOS:       runtime.GOOS,
		Run:        run,
		ReadFile:   os.ReadFile,
		DiskSpace:  diskSpace,
		LookPath:   exec.LookPath,
		LookupHost: net.DefaultResolver.LookupHost,
		HTTP: &http.Client{
			Transport: transport,
			// An answer is an answer; where it points to is not asked.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		// Docker answers in well under a second, except on a machine whose
		// cores a starting stack keeps busy.
		CommandTimeout: 30 * time.Second,
		NetworkTimeout: 5 * time.Second,
		WakeTimeout:    5 * time.Minute,
	}
}

func run(ctx context.Context, name string, args ...string) (Output, error) {
	command := exec.CommandContext(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	// `pulumi version` would otherwise ask the network for a newer one.
	command.Env = append(os.Environ(), "PULUMI_SKIP_UPDATE_CHECK=true")
	// A child of the program (Docker starts ssh and credential helpers) can
	// keep the pipes open after the program was killed; do not wait for it.
	command.WaitDelay = time.Second
	err := command.Run()
	return Output{Stdout: stdout.Bytes(), Stderr: stderr.String()}, err
}
