package world

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/seam"
)

// commandServer answers the forwarders.
type commandServer struct {
	world    *World
	bin      string // docker and kind: for the PATH
	nodeBin  string // what nodes have
	socket   string
	folder   string // of the socket
	listener net.Listener
	context  context.Context
	stop     context.CancelFunc

	mu     sync.Mutex
	active int
	quiet  *sync.Cond
}

// nodeCommands are those that a node image has and this machine plays.
var nodeCommands = []string{"kubectl", "kubeadm", "crictl", "ctr", "curl", "journalctl", "nft", "systemctl"}

func serveCommands(w *World, bin string) (*commandServer, error) {
	// A socket's path can be 107 bytes long, a world's folder longer.
	folder, err := os.MkdirTemp("", "rehearse-")
	if err != nil {
		return nil, err
	}
	s := &commandServer{world: w, bin: bin, nodeBin: filepath.Join(bin, "node"), socket: filepath.Join(folder, "s"), folder: folder}
	s.quiet = sync.NewCond(&s.mu)
	s.context, s.stop = context.WithCancel(context.Background())
	if err := os.MkdirAll(s.nodeBin, 0o700); err != nil {
		return nil, err
	}
	for _, name := range []string{"docker", "kind"} {
		if err := link(w.options.Forward, filepath.Join(s.bin, name)); err != nil {
			return nil, err
		}
	}
	for _, name := range nodeCommands {
		target := w.options.Forward
		if name == "kubectl" && w.clusters.Kubectl() != "" {
			target = w.clusters.Kubectl()
		}
		if err := link(target, filepath.Join(s.nodeBin, name)); err != nil {
			return nil, err
		}
	}
	if s.listener, err = net.Listen("unix", s.socket); err != nil {
		return nil, err
	}
	go s.serve()
	return s, nil
}

// link makes or renews a symbolic link.
func link(target, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Symlink(target, path)
}

func (s *commandServer) serve() {
	for {
		connection, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.active++
		s.mu.Unlock()
		go func() {
			defer s.done()
			defer connection.Close()
			var request seam.Request
			if err := json.NewDecoder(connection).Decode(&request); err != nil {
				return // who asked is gone
			}
			_ = json.NewEncoder(connection).Encode(s.world.answer(s.context, request))
		}()
	}
}

func (s *commandServer) done() {
	s.mu.Lock()
	s.active--
	s.quiet.Broadcast()
	s.mu.Unlock()
}

func (s *commandServer) idle() {
	s.mu.Lock()
	for s.active > 0 {
		s.quiet.Wait()
	}
	s.mu.Unlock()
}

func (s *commandServer) close() error {
	s.stop()
	return errors.Join(s.listener.Close(), os.RemoveAll(s.folder))
}

// answer runs a command.
func (w *World) answer(ctx context.Context, r seam.Request) seam.Reply {
	node := r.Env["REHEARSE_NODE"]
	var reply seam.Reply
	switch {
	case node != "":
		reply = w.inNode(ctx, node, r)
	case r.Name == "docker":
		reply = w.docker(ctx, r)
	case r.Name == "kind":
		reply = w.kind(ctx, r)
	default:
		reply = w.notKnown(lineOf(r))
	}
	call := Call{What: r.Name, Line: lineOf(r)}
	if reply.Code != 0 {
		call.Failed = strings.TrimSpace(string(reply.Stderr))
	}
	w.Calls.Add(call)
	w.mu.Lock()
	after := w.after
	w.mu.Unlock()
	if after != nil {
		after(call)
	}
	return reply
}

// SetAfter has a function called with each command that has been done, before
// whoever asked for it learns that. nil: none.
func (w *World) SetAfter(after func(Call)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.after = after
}

// lineOf is the command line, with scripts left out: they are the same each time
// and known.
func lineOf(r seam.Request) string {
	words := []string{r.Name}
	for _, arg := range r.Args {
		if strings.Contains(arg, "\n") && !strings.HasPrefix(arg, "-") {
			arg = "SCRIPT"
		}
		words = append(words, arg)
	}
	return strings.Join(words, " ")
}

// newID is a Docker ID.
func newID() string {
	var bytes [32]byte
	_, _ = rand.Read(bytes[:])
	return hex.EncodeToString(bytes[:])
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
