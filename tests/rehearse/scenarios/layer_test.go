package scenarios

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/clusters"
)

// layerVariable is the environment variable that says which layer the scenarios
// run on: "engine", where a store plays the API servers, or "clusters", where real
// ones run and the real Kubernetes provider speaks to them.
const layerVariable = "REHEARSE_LAYER"

// binaries of the cluster layer; nil: the scenarios run on the engine layer.
var binaries *clusters.Binaries

// engineOnly skips a scenario on the cluster layer, and says why.
func engineOnly(t *testing.T, why string) {
	t.Helper()
	if binaries != nil {
		t.Skipf("on the engine layer only: %s", why)
	}
}

// holder is what looks into the clusters of a world behind everybody's back.
type holder interface {
	Inventory() map[string][]string
	Kubeconfigs() map[string][]byte
	Remove(cluster, apiVersion, kind, namespace, name string) error
	Object(cluster, apiVersion, kind, namespace, name string) map[string]any
}

// kept is what the machine keeps of its clusters on its disk, as one text.
func (r *rig) kept() string {
	r.t.Helper()
	if r.Store != nil {
		return textOf(r.t, filepath.Join(r.WorldDir(), "objects.jsonl"))
	}
	var all strings.Builder
	for _, pattern := range []string{"clusters.json", "etcd/member/wal/*.wal", "*/admin.conf"} {
		files, err := filepath.Glob(filepath.Join(r.WorldDir(), "clusters", pattern))
		if err != nil {
			r.t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				r.t.Fatal(err)
			}
			all.Write(text)
		}
	}
	return all.String()
}
