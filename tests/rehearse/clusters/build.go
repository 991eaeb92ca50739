package clusters

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/tool"
)

// Binaries are the paths of what real clusters are made of.
type Binaries struct {
	APIServer, ControllerManager, Kubectl, Etcd, Provider string
}

// Folder is the environment variable that names a folder with the binaries ready
// in it. They are used as they are, of whatever version.
const Folder = "REHEARSE_BINARIES"

// Build brings the binaries: it builds each from its Go module once and keeps it
// in the project's cache. Progress goes to log. providerVersion is the version
// that the provider's binary calls itself.
func Build(ctx context.Context, repository, providerVersion string, log io.Writer) (*Binaries, error) {
	b := &Binaries{}
	const kubernetes, provider = "k8s.io/kubernetes", "github.com/pulumi/pulumi-kubernetes/provider/v4"
	// Without it they say v0.0.0, and clients take them for servers of long ago.
	const versioned = "-X k8s.io/component-base/version.gitVersion=VERSION"
	for _, one := range []struct {
		tool.Tool
		target *string
	}{
		{tool.Tool{Name: "kube-apiserver", Module: "kube", At: kubernetes, Package: kubernetes + "/cmd/kube-apiserver", Flags: versioned, Minutes: 8}, &b.APIServer},
		{tool.Tool{Name: "kube-controller-manager", Module: "kube", At: kubernetes, Package: kubernetes + "/cmd/kube-controller-manager", Flags: versioned, Minutes: 3}, &b.ControllerManager},
		{tool.Tool{Name: "kubectl", Module: "kube", At: kubernetes, Package: kubernetes + "/cmd/kubectl", Flags: versioned, Minutes: 1}, &b.Kubectl},
		{tool.Tool{Name: "etcd", Module: "etcd", At: "go.etcd.io/etcd/server/v3", Package: ".", Minutes: 1}, &b.Etcd},
		{tool.Tool{
			Name: "pulumi-resource-kubernetes", Module: "pulumi-kubernetes", At: provider, Package: ".", Minutes: 12,
			Flags: fmt.Sprintf("-X %s/pkg/version.Version=%s", provider, providerVersion), Beside: "cmd/pulumi-resource-kubernetes/schema.json",
		}, &b.Provider},
	} {
		if folder := os.Getenv(Folder); folder != "" {
			*one.target = filepath.Join(folder, one.Name)
			if _, err := os.Stat(*one.target); err != nil {
				return nil, fmt.Errorf("%s=%s: %w; unset it to have all binaries built from their Go modules", Folder, folder, err)
			}
			continue
		}
		var err error
		if *one.target, err = one.Bring(ctx, repository, log); err != nil {
			return nil, fmt.Errorf("%s could not be built: %w", one.Name, err)
		}
	}
	return b, nil
}
