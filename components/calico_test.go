package components

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// calicoPublished has what Calico's manifest has, in small: the parts that are
// edited, and around them what must come out as it went in.
const calicoPublished = `# As published.
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: calico-node, namespace: kube-system}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other-config, namespace: kube-system}
data:
  calico_backend: "bird"
  enabled: "true"
  old: "on"
  code: "0644"
  script: |
    #!/bin/sh
    echo "a: b"   # not a comment

---
apiVersion: v1
kind: ConfigMap
metadata: {name: calico-config, namespace: kube-system}
data:
  calico_backend: "bird"
  veth_mtu: "0"
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: calico-node, namespace: kube-system}
spec:
  template:
    spec:
      initContainers:
        - name: calico-node
          env: [{name: CALICO_IPV4POOL_CIDR, value: untouched}]
      containers:
        - name: sidecar
          env: [{name: CALICO_IPV4POOL_IPIP, value: untouched}]
        - name: calico-node
          env:
            - name: CALICO_IPV4POOL_IPIP
              value: "Always"
            - name: CALICO_IPV4POOL_VXLAN
              value: "Never"
            - name: CALICO_IPV4POOL_CIDR
              value: "192.168.0.0/16"
            - name: NODENAME
              valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
            - name: CALICO_IPV4POOL_CIDR
              value: "written twice"
          livenessProbe:
            exec: {command: [/bin/calico-node, -felix-live, -bird-live]}
            periodSeconds: 10
          readinessProbe:
            exec: {command: [/bin/calico-node, -felix-ready, -bird-ready]}
          lifecycle:
            preStop: {exec: {command: [/bin/calico-node, -shutdown]}}
      volumes:
        - {name: policysync, hostPath: {path: /var/run, type: DirectoryOrCreate}}
        - {name: certs, secret: {secretName: certs, defaultMode: 0400}}
---
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: calico-node, namespace: kube-system}
spec: {template: {spec: {containers: [{name: calico-node, env: []}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: calico-kube-controllers, namespace: kube-system}
spec: {template: {spec: {containers: [{name: calico-kube-controllers, readinessProbe: {exec: {command: [/usr/bin/check-status, -r]}}}]}}}
`

func TestCalicoManifest(t *testing.T) {
	text, err := calicoManifest(calicoPublished, "10.9.0.0/16")
	if err != nil {
		t.Fatal(err)
	}
	before, after := documentsOf(t, calicoPublished), documentsOf(t, text)
	if len(before) != 6 || len(after) != len(before) {
		t.Fatalf("%d documents became %d", len(before), len(after))
	}
	container := namedContainer(after[3], "calico-node")
	variables := map[string][]any{}
	for _, entry := range container["env"].([]any) {
		variable := entry.(map[string]any)
		name := fmt.Sprint(variable["name"])
		variables[name] = append(variables[name], variable["value"])
	}
	for name, want := range map[string]string{
		"CALICO_IPV4POOL_CIDR": "10.9.0.0/16", "CALICO_IPV4POOL_IPIP": "Never", "CALICO_IPV4POOL_VXLAN": "Always",
		"IP_AUTODETECTION_METHOD": "kubernetes-internal-ip", "FELIX_XDPENABLED": "false", "FELIX_HEALTHENABLED": "true",
	} {
		if got := variables[name]; len(got) != 1 || got[0] != want {
			t.Errorf("%s is %q, want %q once", name, got, want)
		}
	}
	if len(variables["NODENAME"]) != 1 || len(variables) != 7 {
		t.Errorf("the variables are %v", variables)
	}
	// The kubelet asks Felix, at the times of the probe that it was.
	for probe, want := range map[string]map[string]any{
		"livenessProbe":  {"periodSeconds": 10, "httpGet": map[string]any{"host": "127.0.0.1", "port": 9099, "path": "/liveness"}},
		"readinessProbe": {"httpGet": map[string]any{"host": "127.0.0.1", "port": 9099, "path": "/readiness"}},
	} {
		if got := container[probe]; !reflect.DeepEqual(got, want) {
			t.Errorf("the %s is %v, not %v", probe, got, want)
		}
	}
	controllers := namedContainer(after[5], "calico-kube-controllers")["readinessProbe"].(map[string]any)
	if controllers["timeoutSeconds"] != 10 {
		t.Errorf("the readiness probe of calico-kube-controllers is %v", controllers)
	}
	delete(controllers, "timeoutSeconds")

	// With what was to change put back, nothing has changed.
	if data := after[2]["data"].(map[string]any); data["calico_backend"] != "vxlan" {
		t.Errorf("the backend is %q, want vxlan", data["calico_backend"])
	}
	after[2]["data"].(map[string]any)["calico_backend"] = "bird"
	original := namedContainer(before[3], "calico-node")
	for _, key := range []string{"env", "livenessProbe", "readinessProbe"} {
		container[key] = original[key]
	}
	for i := range before {
		if !reflect.DeepEqual(before[i], after[i]) {
			t.Errorf("document %d was\n%v\nand is\n%v", i, before[i], after[i])
		}
	}
}

// A text that looks like another type keeps its quotes: Kubernetes refuses a
// ConfigMap with a number in it.
func TestCalicoManifestKeepsTexts(t *testing.T) {
	text, err := calicoManifest(calicoPublished, "10.9.0.0/16")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`enabled: "true"`, `old: "on"`, `code: "0644"`, `veth_mtu: "0"`, `defaultMode: 256`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in\n%s", want, text)
		}
	}
}

// It is the same for every tenant but for the pool, and again for its own
// result.
func TestCalicoManifestIsStable(t *testing.T) {
	once, err := calicoManifest(calicoPublished, "10.9.0.0/16")
	if err != nil {
		t.Fatal(err)
	}
	twice, err := calicoManifest(once, "10.9.0.0/16")
	if err != nil || twice != once {
		t.Errorf("done twice it is another (%v)", err)
	}
	other, err := calicoManifest(calicoPublished, "10.8.0.0/16")
	if err != nil || strings.ReplaceAll(other, "10.8.0.0/16", "10.9.0.0/16") != once {
		t.Errorf("another pool changes more than the pool (%v)", err)
	}
}

func TestCalicoManifestLacks(t *testing.T) {
	const config, node = "ConfigMap calico-config", "DaemonSet calico-node"
	for name, test := range map[string]struct {
		manifest string
		lacks    []string
		has      []string
	}{
		"empty":                 {"", []string{config, node}, nil},
		"another manifest":      {"kind: Namespace\nmetadata: {name: calico-node}\n", []string{config, node}, nil},
		"no DaemonSet":          {"kind: ConfigMap\nmetadata: {name: calico-config}\ndata: {calico_backend: bird}\n", []string{node}, []string{config}},
		"no backend":            {strings.ReplaceAll(calicoPublished, "calico_backend", "backend"), []string{config}, []string{node}},
		"another container":     {strings.ReplaceAll(calicoPublished, "- name: calico-node", "- name: node"), []string{node}, []string{config}},
		"a DaemonSet of nobody": {"kind: DaemonSet\nmetadata: {name: calico-node}\nspec: words\n", []string{config, node}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := calicoManifest(test.manifest, "10.9.0.0/16")
			if err == nil {
				t.Fatalf("it gives %q", text)
			}
			for _, want := range test.lacks {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v does not name %s", err, want)
				}
			}
			for _, not := range test.has {
				if strings.Contains(err.Error(), not) {
					t.Errorf("%v names %s, which is there", err, not)
				}
			}
		})
	}
	for name, manifest := range map[string]string{"not YAML": "a: b: c", "not objects": "- a\n- b\n"} {
		if _, err := calicoManifest(manifest, "10.9.0.0/16"); err == nil || !strings.Contains(err.Error(), "calico manifest") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func documentsOf(t *testing.T, manifest string) []map[string]any {
	t.Helper()
	all, err := documents(manifest)
	if err != nil {
		t.Fatal(err)
	}
	return all
}
