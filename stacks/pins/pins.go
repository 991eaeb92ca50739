// Package pins says which version, image, chart, manifest and commit of
// everything foreign this project uses. All of it stands in versions.yaml.
package pins

import (
	"bytes"
	_ "embed"
	"fmt"
	"sync"

	"gopkg.in/yaml.v3"
)

//go:embed versions.yaml
var versionsYAML []byte

// Pins is versions.yaml.
type Pins struct {
	Tools struct {
		Pulumi            string `yaml:"pulumi"`
		PulumiSHA256X64   string `yaml:"pulumiSHA256-x64"`
		PulumiSHA256ARM64 string `yaml:"pulumiSHA256-arm64"`
		Kind              string `yaml:"kind"`
	} `yaml:"tools"`
	Kubernetes Kubernetes `yaml:"kubernetes"`
	Artifacts  Artifacts  `yaml:"artifacts"`
	Images     Images     `yaml:"images"`
	Pulumi     Plugins    `yaml:"pulumi"`
}

// Kubernetes says which versions a node or a tenant can have.
type Kubernetes struct {
	Default      string            `yaml:"default"`
	MinimumMinor int               `yaml:"minimumMinor"`
	MaximumMinor int               `yaml:"maximumMinor"`
	NodeImages   map[string]string `yaml:"nodeImages"` // version -> image reference with digest
}

// Artifacts are the manifests and charts.
type Artifacts struct {
	CertManager Artifact `yaml:"certManager"`
	MetalLB     Artifact `yaml:"metallb"`
	Calico      Artifact `yaml:"calico"`
	HAMi        Artifact `yaml:"hami"`
	Kamaji      Artifact `yaml:"kamaji"`
	KamajiEtcd  Artifact `yaml:"kamajiEtcd"`
}

// Artifact is one manifest or chart: a file at a URL with a digest, or a
// folder of a git commit.
type Artifact struct {
	Version string `yaml:"version"`
	File    string `yaml:"file"` // name in the artifacts folder and in the cache
	URL     string `yaml:"url"`
	SHA256  string `yaml:"sha256"` // "" when not known
	Git     string `yaml:"git"`
	Commit  string `yaml:"commit"`
	Path    string `yaml:"path"` // folder inside the commit
}

// Images are those that no artifact fixes.
type Images struct {
	Kamaji               string `yaml:"kamaji"`
	KamajiKubectl        string `yaml:"kamajiKubectl"`
	HAMiMockDevicePlugin string `yaml:"hamiMockDevicePlugin"`
	KubeScheduler        string `yaml:"kubeScheduler"` // without a tag: it is the tenant's version
	Probe                string `yaml:"probe"`
}

// Plugins are the Pulumi provider plugins' versions.
type Plugins struct {
	Kubernetes string `yaml:"kubernetes"`
	Docker     string `yaml:"docker"`
	Command    string `yaml:"command"`
	Random     string `yaml:"random"`
}

// Load returns the project's pins. The file is part of the binary, so a fault
// in it is a programming error, which the package's test finds.
var Load = sync.OnceValue(func() *Pins {
	decoder := yaml.NewDecoder(bytes.NewReader(versionsYAML))
	decoder.KnownFields(true)
	pins := new(Pins)
	if err := decoder.Decode(pins); err != nil {
		panic(fmt.Errorf("versions.yaml: %w", err))
	}
	return pins
})
