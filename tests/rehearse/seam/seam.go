// Package seam is what the stand-in machine needs of whatever serves the
// Kubernetes API in it. Package objects serves it from a store of its own;
// package clusters runs real API servers.
package seam

import "context"

// Clusters holds the clusters of a world. A management cluster is known by
// kind's name for it; the clusters hosted in it are made and removed by whatever
// stands in for Kamaji there.
type Clusters interface {
	// Create starts a management cluster and returns its administrator's
	// kubeconfig. It comes with one Node, NAME-control-plane, Ready at version.
	Create(ctx context.Context, name, version string) (kubeconfig []byte, err error)
	// Delete ends a management cluster with all that is hosted in it, and their
	// data. That there is none of that name is no error.
	Delete(ctx context.Context, name string) error
	// Stop and Start are a container's that is stopped and started: data stays.
	Stop(ctx context.Context, name string) error
	Start(ctx context.Context, name string) error
	// Join does what kubeadm join does, and returns the kubelet's kubeconfig.
	Join(ctx context.Context, join Join) (kubeconfig []byte, err error)
	// NodeGone tells that a worker's container is gone or stopped: its kubelet
	// says no more. NodeBack tells that it runs again.
	NodeGone(ctx context.Context, endpoint, node string) error
	NodeBack(ctx context.Context, endpoint, node string) error
	// Serves asks the API server at an endpoint, host:port, whether it is ready.
	Serves(ctx context.Context, endpoint string) error
	// ImageLoaded tells that a node can run an image that is in no registry.
	ImageLoaded(ctx context.Context, endpoint, node, image string) error
	// Kubectl is the path of the command that nodes have by that name; "" when
	// the clusters answer it themselves, through Answer.
	Kubectl() string
	// Answer runs kubectl. The kubeconfig is the one that its arguments name.
	Answer(ctx context.Context, kubeconfig []byte, args []string, stdin []byte) Reply
	// Provider is the path of the Kubernetes provider's binary; "" for the
	// stand-in.
	Provider() string
	// Close ends what must not outlive this process.
	Close() error
}

// Join is what a worker knows when it joins.
type Join struct {
	Endpoint   string // host:port of the API server
	Token      string // ID.SECRET
	CACertHash string // sha256:...
	Node       string
	Version    string
}

// Request is one run of a command that the machine stands in for.
type Request struct {
	Name  string            `json:"name"`
	Args  []string          `json:"args"`
	Stdin []byte            `json:"stdin,omitempty"`
	Dir   string            `json:"dir"`
	Env   map[string]string `json:"env,omitempty"`
}

// Reply is what a command did.
type Reply struct {
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`
	Code   int    `json:"code,omitempty"`
}

// Failed is the reply of a command that failed.
func Failed(code int, message string) Reply { return Reply{Stderr: []byte(message + "\n"), Code: code} }

// Said is the reply of a command that succeeded.
func Said(text string) Reply { return Reply{Stdout: []byte(text)} }
