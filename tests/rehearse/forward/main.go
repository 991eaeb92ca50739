// Command forward stands in for docker, kind and the commands inside nodes: it
// hands its arguments and standard input to the process that plays the machine,
// and does as that answers. It depends on next to nothing, because it starts
// hundreds of times in one run.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/seam"
)

func main() {
	code, err := run()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s (stand-in): %v\n", filepath.Base(os.Args[0]), err)
		code = 70
	}
	os.Exit(code)
}

func run() (int, error) {
	socket := os.Getenv("REHEARSE_SOCKET")
	if socket == "" {
		return 0, fmt.Errorf("REHEARSE_SOCKET is not set: this command works inside a rehearsal only")
	}
	asked := seam.Request{Name: filepath.Base(os.Args[0]), Args: os.Args[1:], Env: map[string]string{}}
	asked.Dir, _ = os.Getwd()
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "KIND_") || name == "REHEARSE_NODE" {
			asked.Env[name] = value
		}
	}
	if readsStdin(asked.Name, asked.Args) {
		var err error
		if asked.Stdin, err = io.ReadAll(os.Stdin); err != nil {
			return 0, err
		}
	}
	connection, err := net.Dial("unix", socket)
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	if err := json.NewEncoder(connection).Encode(asked); err != nil {
		return 0, err
	}
	var got seam.Reply
	if err := json.NewDecoder(connection).Decode(&got); err != nil {
		return 0, fmt.Errorf("the machine gave no answer: %w", err)
	}
	_, _ = os.Stdout.Write(got.Stdout)
	_, _ = os.Stderr.Write(got.Stderr)
	return got.Code, nil
}

// readsStdin reports whether the real command would read its standard input. One
// that reads it all the same could take another's, or wait for ever.
func readsStdin(name string, args []string) bool {
	switch {
	case name == "docker" && slices.Contains(args, "exec"):
		return slices.Contains(args, "-i") || slices.Contains(args, "--interactive")
	case name == "docker":
		return slices.Contains(args, "load")
	default:
		return slices.Contains(args, "-")
	}
}
