// Package pki makes what the parts of a cluster know each other by. It is real
// where the cluster is not, so that what is secret about it is real too.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"time"

	"gopkg.in/yaml.v3"
)

// Credential is a certificate with its key, PEM. That of a cluster's CA signs the
// others.
type Credential struct {
	Certificate []byte `json:"certificate"`
	Key         []byte `json:"key"`
}

// NewAuthority returns a CA.
func NewAuthority() (Credential, error) {
	now := time.Now()
	return sign(&x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "kubernetes"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}, nil)
}

// Client returns a credential of a user.
func (a Credential) Client(user string, groups ...string) (Credential, error) {
	now := time.Now()
	return sign(&x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: user, Organization: groups},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, &a)
}

// Server returns a credential of a server under all of its names.
func (a Credential) Server(address string, names ...string) (Credential, error) {
	now := time.Now()
	addresses := []net.IP{net.ParseIP("127.0.0.1")}
	if address != "" {
		addresses = append(addresses, net.ParseIP(address))
	}
	return sign(&x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "server"}, DNSNames: append(names, "localhost"), IPAddresses: addresses,
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, &a)
}

// Pair is the credential as TLS wants it.
func (a Credential) Pair() (tls.Certificate, error) { return tls.X509KeyPair(a.Certificate, a.Key) }

// Pool trusts this authority and nobody else.
func (a Credential) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(a.Certificate)
	return pool
}

// Hash is what kubeadm knows a CA by.
func (a Credential) Hash() (string, error) {
	block, _ := pem.Decode(a.Certificate)
	if block == nil {
		return "", errors.New("the CA is no certificate")
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(certificate.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// Kubeconfig leads a user to an API server of this authority.
func (a Credential) Kubeconfig(server string, user Credential) ([]byte, error) {
	encoded := base64.StdEncoding.EncodeToString
	return yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "user",
		"clusters": []any{map[string]any{"name": "cluster", "cluster": map[string]any{"server": server, "certificate-authority-data": encoded(a.Certificate)}}},
		"contexts": []any{map[string]any{"name": "user", "context": map[string]any{"cluster": "cluster", "user": "user"}}},
		"users":    []any{map[string]any{"name": "user", "user": map[string]any{"client-certificate-data": encoded(user.Certificate), "client-key-data": encoded(user.Key)}}},
	})
}

// sign makes a key with a certificate; nil: one that signs itself.
func sign(template *x509.Certificate, by *Credential) (Credential, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Credential{}, err
	}
	parent, signer := template, crypto.PrivateKey(key)
	if by != nil {
		pair, err := by.Pair()
		if err != nil {
			return Credential{}, err
		}
		parent, signer = pair.Leaf, pair.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return Credential{}, err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return Credential{}, err
	}
	return Credential{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:         pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}),
	}, nil
}

func serial() *big.Int {
	const bits = 120
	number, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), bits))
	return number
}
