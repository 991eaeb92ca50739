package clusters

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/artifacts"
	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/stage"
)

// deployment with a webhook in front of pods, as HAMi's.
const hami = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: hami-scheduler, namespace: kube-system}
spec:
  selector: {matchLabels: {app: hami}}
  template: {metadata: {labels: {app: hami}}, spec: {containers: [{name: a, image: registry.example/stand-in}]}}
---
apiVersion: v1
kind: Service
metadata: {name: hami-scheduler, namespace: kube-system}
spec: {selector: {app: hami}, ports: [{port: 443}]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: hami-webhook}
webhooks:
  - name: vgpu.hami.io
    admissionReviewVersions: [v1]
    sideEffects: None
    failurePolicy: Fail
    clientConfig: {service: {name: hami-scheduler, namespace: kube-system, path: /webhook}}
    namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system]}]}
    rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
`

const gpuPod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"gpu","namespace":"default"},
"spec":{"containers":[{"name":"a","image":"registry.example/a","resources":{"limits":{"nvidia.com/gpu":"1"}}}]}}`

// TestCluster: workloads become ready, a webhook is called through the tunnel,
// and only while something is behind it; what is stopped comes back with its data.
func TestCluster(t *testing.T) {
	if os.Getenv("REHEARSE_LAYER") != "clusters" {
		t.Skip("it needs binaries of Kubernetes, which are built the first time: set REHEARSE_LAYER=clusters")
	}
	repository, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	binaries, err := Build(t.Context(), repository, "0.0.0", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	set, err := Open(t.Context(), dir, binaries)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			showLogs(t, dir)
		}
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	}()
	pins, err := stage.ReadPins("../../..")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := set.Create(t.Context(), "one", pins.Kubernetes.Default)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(file, kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl := func(stdin string, arguments ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		command := exec.CommandContext(ctx, binaries.Kubectl, append([]string{"--kubeconfig", file, "--cache-dir", filepath.Join(dir, "kubectl")}, arguments...)...)
		command.Stdin = strings.NewReader(stdin)
		said, err := command.CombinedOutput()
		return string(said), err
	}
	must := func(stdin string, arguments ...string) string {
		t.Helper()
		said, err := kubectl(stdin, arguments...)
		if err != nil {
			t.Fatalf("kubectl %v: %v\n%s", arguments, err, said)
		}
		return said
	}
	must("", "wait", "--for=condition=Ready", "node/one-control-plane", "--timeout=30s")
	must(hami, "apply", "--filename", "-")
	must("", "--namespace", "kube-system", "rollout", "status", "deployment/hami-scheduler", "--timeout=30s")
	must("", "wait", "--for=jsonpath={.webhooks[0].clientConfig.caBundle}", "mutatingwebhookconfiguration/hami-webhook", "--timeout=30s")
	dryRun := []string{"create", "--dry-run=server", "--filename", "-", "--output", "jsonpath={.spec.schedulerName}"}
	if got := eventually(t, func() (string, bool) { said, err := kubectl(gpuPod, dryRun...); return said, err == nil }); got != "hami-scheduler" {
		t.Errorf("a GPU pod goes to %q", got)
	}
	pins, err = stage.ReadPins(repository)
	if err != nil {
		t.Fatal(err)
	}
	names := pins.Names()
	if err := artifacts.Write(filepath.Join(dir, "artifacts"), names); err != nil {
		t.Fatal(err)
	}
	if err := Publish(t.Context(), pins, filepath.Join(dir, "artifacts")); err != nil {
		t.Fatal(err)
	}
	for _, manifest := range []string{names.CertManager, names.MetalLB} {
		must("", "apply", "--server-side", "--filename", filepath.Join(dir, "artifacts", manifest))
	}
	must("", "--namespace", "metallb-system", "rollout", "status", "deployment/controller", "--timeout=30s")
	must("", "--namespace", "metallb-system", "rollout", "status", "daemonset/speaker", "--timeout=30s")
	pool := `{"apiVersion":"metallb.io/v1beta1","kind":"IPAddressPool","metadata":{"name":"tenants","namespace":"metallb-system"},"spec":{"addresses":["10.1.0.10-10.1.0.20"]}}`
	eventually(t, func() (string, bool) { said, err := kubectl(pool, "apply", "--filename", "-"); return said, err == nil })
	must("", "--namespace", "metallb-system", "get", "ipaddresspool", "tenants")
	if err := set.NodeGone(t.Context(), "127.0.0.1:1", "nobody"); err != nil {
		t.Error(err)
	}
	endpoint := set.state.Clusters["one"].Address + ":6443"
	if err := set.NodeGone(t.Context(), endpoint, "one-control-plane"); err != nil {
		t.Fatal(err)
	}
	must("", "wait", "--for=condition=Ready=Unknown", "node/one-control-plane", "--timeout=30s")
	if said, err := kubectl(gpuPod, dryRun...); err == nil || !strings.Contains(said, "failed calling webhook") {
		t.Errorf("a GPU pod is let in although HAMi's node is gone: %v %s", err, said)
	}
	if err := set.NodeBack(t.Context(), endpoint, "one-control-plane"); err != nil {
		t.Fatal(err)
	}
	if err := set.Stop(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if said, err := kubectl("", "get", "nodes", "--request-timeout=5s"); err == nil {
		t.Errorf("a stopped cluster answers: %s", said)
	}
	if err := set.Start(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	must("", "--namespace", "kube-system", "get", "deployment", "hami-scheduler")
	if err := set.Delete(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if _, err := set.Create(t.Context(), "one", pins.Kubernetes.Default); err != nil {
		t.Fatal(err)
	}
	if said, err := kubectl("", "get", "nodes", "--request-timeout=5s"); err == nil {
		t.Errorf("the cluster made anew takes the old one's administrator: %s", said)
	}
}

// eventually asks until the answer is final.
func eventually(t *testing.T, ask func() (string, bool)) string {
	t.Helper()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-ticker.C {
		said, final := ask()
		if final || time.Now().After(deadline) {
			return said
		}
	}
}

// showLogs prints the ends of all logs.
func showLogs(t *testing.T, dir string) {
	logs, _ := filepath.Glob(filepath.Join(dir, "clusters", "*", "*.log"))
	for _, log := range logs {
		text, _ := os.ReadFile(log)
		const enough = 2500
		t.Logf("%s:\n%s", log, text[max(0, len(text)-enough):])
	}
}
