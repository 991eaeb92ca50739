package components

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"reflect"
	"strings"
	"testing"
	"time"
)

// authority makes a CA, and returns its certificate (PEM) and the hash of its
// key as kubeadm's documentation has it computed: SHA-256 of the key's
// SubjectPublicKeyInfo. The hash comes from the key, not from the certificate.
func authority(t *testing.T) (ca []byte, hash string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "kubernetes"}, NotAfter: time.Now().Add(time.Hour), IsCA: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), fmt.Sprintf("sha256:%x", sha256.Sum256(public))
}

const kubeconfigTemplate = `apiVersion: v1
kind: Config
clusters:
- name: red
  cluster:
    server: https://10.1.8.1:6443
    certificate-authority-data: %s
users:
- name: kubernetes-admin
  user: {client-key-data: U0VDUkVULU1BUksK}
`

func tenantKubeconfig(ca []byte) string {
	return fmt.Sprintf(kubeconfigTemplate, base64.StdEncoding.EncodeToString(ca))
}

func TestJoinConfiguration(t *testing.T) {
	ca, hash := authority(t)
	text, err := joinConfiguration(tenantKubeconfig(ca), "abcdef.0123456789abcdef", "red-worker-0", map[string]string{"v": "4", "max-pods": "50", "fail-cgroupv1": "false"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"apiVersion": "kubeadm.k8s.io/v1beta4",
		"kind":       "JoinConfiguration",
		"discovery": map[string]any{"bootstrapToken": map[string]any{
			"token": "abcdef.0123456789abcdef", "apiServerEndpoint": "10.1.8.1:6443", "caCertHashes": []any{hash},
		}},
		"nodeRegistration": map[string]any{
			"name": "red-worker-0", "criSocket": "unix:///run/containerd/containerd.sock", "taints": []any{},
			// In v1beta4 a list, and in this order whatever that of the map.
			"kubeletExtraArgs": []any{
				map[string]any{"name": "fail-cgroupv1", "value": "false"},
				map[string]any{"name": "max-pods", "value": "50"},
				map[string]any{"name": "v", "value": "4"},
			},
		},
		"skipPhases": []any{"preflight"},
	}
	if got := documentsOf(t, text); len(got) != 1 || !reflect.DeepEqual(got[0], want) {
		t.Errorf("it is\n%v\nwant\n%v", got, want)
	}
}

// A change of the token is the only one that a new token makes, and a token of
// digits stays a text.
func TestJoinConfigurationQuotes(t *testing.T) {
	ca, _ := authority(t)
	text, err := joinConfiguration(tenantKubeconfig(ca), "123456.1234567890123456", "1e3", nil)
	if err != nil {
		t.Fatal(err)
	}
	got := documentsOf(t, text)[0]
	if token := got["discovery"].(map[string]any)["bootstrapToken"].(map[string]any)["token"]; token != "123456.1234567890123456" {
		t.Errorf("the token is read back as %T %v", token, token)
	}
	registration := got["nodeRegistration"].(map[string]any)
	if registration["name"] != "1e3" {
		t.Errorf("the name is read back as %T %v", registration["name"], registration["name"])
	}
	if flags, ok := registration["kubeletExtraArgs"].([]any); !ok || len(flags) != 0 {
		t.Errorf("no flags are written as %v", registration["kubeletExtraArgs"])
	}
}

// Only the first cluster counts, and only its CA.
func TestDiscovery(t *testing.T) {
	ca, hash := authority(t)
	other, _ := authority(t)
	kubeconfig := tenantKubeconfig(append(ca, other...))
	endpoint, got, err := discovery(kubeconfig)
	if err != nil || endpoint != "10.1.8.1:6443" || got != hash {
		t.Errorf("discovery gives %q, %q, %v; want %q", endpoint, got, err, hash)
	}
}

// A kubeconfig is secret, whole or broken, and so is the token.
func TestErrorsOfJoinConfigurationShowNothing(t *testing.T) {
	ca, _ := authority(t)
	block, _ := pem.Decode(ca)
	encoded := func(text []byte) string { return base64.StdEncoding.EncodeToString(text) }
	const token = "abcdef.sEcReTsEcReTsEcR"
	for name, kubeconfig := range map[string]string{
		"empty":               "",
		"not YAML":            "clusters: [SECRET-MARK-IN-TEXT\n\t- SECRET: MARK: INSIDE",
		"a text":              "SECRET-MARK-IN-TEXT",
		"a list":              "- SECRET-MARK-IN-TEXT\n",
		"clusters is a text":  "clusters: SECRET-MARK-IN-TEXT\n",
		"a cluster is a text": "clusters: [SECRET-MARK-IN-TEXT]\n",
		"no cluster":          "clusters: []\nusers: [SECRET-MARK-IN-TEXT]\n",
		"not base64":          fmt.Sprintf(kubeconfigTemplate, "SECRET-MARK-IN-TEXT"),
		"no CA":               fmt.Sprintf(kubeconfigTemplate, `""`),
		"not PEM":             fmt.Sprintf(kubeconfigTemplate, encoded([]byte("SECRET-MARK-IN-TEXT"))),
		"not a certificate":   fmt.Sprintf(kubeconfigTemplate, encoded(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("SECRET-MARK-IN-TEXT")}))),
		"half a certificate":  fmt.Sprintf(kubeconfigTemplate, encoded(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes[:len(block.Bytes)/2]}))),
	} {
		t.Run(name, func(t *testing.T) {
			text, err := joinConfiguration(kubeconfig, token, "red-worker-0", nil)
			if err == nil {
				t.Fatalf("it gives %q", text)
			}
			message := err.Error()
			if text != "" || !strings.Contains(message, "the tenant's kubeconfig") {
				t.Errorf("it gives %q and %q", text, message)
			}
			for _, word := range append(strings.Fields(kubeconfig), "SECRET", "MARK", token[:6], token[7:]) {
				if len(word) >= 6 && strings.Contains(message, strings.TrimSuffix(word, ":")) && word != "clusters:" && word != "cluster:" {
					t.Errorf("%q shows %q", message, word)
				}
			}
		})
	}
}
