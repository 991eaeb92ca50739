package objects

import (
	"encoding/base64"
	"errors"

	"gopkg.in/yaml.v3"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/pki"
)

// Identity is a cluster's CA with its administrator's credential.
type Identity struct {
	CA         []byte `json:"ca"` // PEM
	CACertHash string `json:"caCertHash"`
	Kubeconfig []byte `json:"kubeconfig"`
}

// NewIdentity makes a CA and an administrator for an API server.
func NewIdentity(server string) (Identity, error) {
	authority, err := pki.NewAuthority()
	if err != nil {
		return Identity{}, err
	}
	administrator, err := authority.Client("kubernetes-admin", "kubeadm:cluster-admins")
	if err != nil {
		return Identity{}, err
	}
	hash, err := authority.Hash()
	if err != nil {
		return Identity{}, err
	}
	kubeconfig, err := authority.Kubeconfig(server, administrator)
	return Identity{CA: authority.Certificate, CACertHash: hash, Kubeconfig: kubeconfig}, err
}

func encode(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

// target is what a kubeconfig points to.
type target struct{ server, ca string }

func parseKubeconfig(kubeconfig []byte) (target, error) {
	var parsed struct {
		Clusters []struct {
			Cluster struct {
				Server string `yaml:"server"`
				CA     string `yaml:"certificate-authority-data"`
			} `yaml:"cluster"`
		} `yaml:"clusters"`
	}
	if err := yaml.Unmarshal(kubeconfig, &parsed); err != nil || len(parsed.Clusters) == 0 {
		return target{}, errors.New("the kubeconfig names no cluster") // and is not shown: it is secret
	}
	first := parsed.Clusters[0].Cluster
	return target{server: first.Server, ca: first.CA}, nil
}
