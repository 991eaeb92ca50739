package objects

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"math/big"
	"time"

	"gopkg.in/yaml.v3"
)

// Identity is a cluster's CA with its administrator's credential. It is real, so
// that what a cluster is known by, and what is secret about it, is real too.
type Identity struct {
	CA         []byte `json:"ca"` // PEM
	CACertHash string `json:"caCertHash"`
	Kubeconfig []byte `json:"kubeconfig"`
}

// NewIdentity makes a CA and an administrator for an API server.
func NewIdentity(server string) (Identity, error) {
	authority, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Identity{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "kubernetes"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &authority.PublicKey, authority)
	if err != nil {
		return Identity{}, err
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return Identity{}, err
	}
	person, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Identity{}, err
	}
	signed, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano() + 1), Subject: pkix.Name{CommonName: "kubernetes-admin", Organization: []string{"kubeadm:cluster-admins"}},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, certificate, &person.PublicKey, authority)
	if err != nil {
		return Identity{}, err
	}
	privateKey, err := x509.MarshalECPrivateKey(person)
	if err != nil {
		return Identity{}, err
	}
	sum := sha256.Sum256(certificate.RawSubjectPublicKeyInfo)
	identity := Identity{CA: pemOf("CERTIFICATE", der), CACertHash: "sha256:" + hex.EncodeToString(sum[:])}
	identity.Kubeconfig, err = yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "admin",
		"clusters": []any{map[string]any{"name": "cluster", "cluster": map[string]any{"server": server, "certificate-authority-data": base64.StdEncoding.EncodeToString(identity.CA)}}},
		"contexts": []any{map[string]any{"name": "admin", "context": map[string]any{"cluster": "cluster", "user": "admin"}}},
		"users": []any{map[string]any{"name": "admin", "user": map[string]any{
			"client-certificate-data": base64.StdEncoding.EncodeToString(pemOf("CERTIFICATE", signed)),
			"client-key-data":         base64.StdEncoding.EncodeToString(pemOf("EC PRIVATE KEY", privateKey)),
		}}},
	})
	return identity, err
}

func pemOf(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
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
