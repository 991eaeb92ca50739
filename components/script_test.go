package components

import (
	"encoding/base64"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestScriptIsCompleteInItself(t *testing.T) {
	names, err := fs.Glob(scripts, "scripts/*.sh")
	if err != nil || len(names) < 10 {
		t.Fatalf("%d scripts are embedded (%v)", len(names), err)
	}
	for _, path := range names {
		text, err := script(filepath.Base(path))
		if err != nil {
			t.Fatal(err)
		}
		own, err := scripts.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text, "\nretry() {") || !strings.HasSuffix(text, "\n"+string(own)) {
			t.Errorf("%s is not lib.sh and the script", path)
		}
		if output, err := exec.Command("bash", "-n", "-c", text).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", path, err, output)
		}
	}
	if _, err := script("nothing.sh"); err == nil || !strings.Contains(err.Error(), "nothing.sh") {
		t.Errorf("error %v, want one that names nothing.sh", err)
	}
}

// What `make tools` installed wins over what else is on the PATH.
func TestToolsFolderWins(t *testing.T) {
	m := newMachine(t)
	shared, err := scripts.ReadFile("scripts/lib.sh")
	if err != nil {
		t.Fatal(err)
	}
	// The script's folder is made by bash(), so the script itself fills it.
	prepare := `mkdir -p .tools/bin; cp "$BIN/kind" .tools/bin/` + "\n"
	got := m.bash(prepare+string(shared)+"\nkind delete cluster --name lab --kubeconfig x\n", "", map[string]string{"BIN": m.bin})
	m.wantSuccess(got, "")
	if len(m.calls) != 1 || !strings.HasSuffix(m.calls[0].path, "/.tools/bin/kind") {
		t.Errorf("the calls are %v, want one of .tools/bin/kind", m.calls)
	}
}

// retry ends when the time is up, and says only what the last attempt said.
func TestRetry(t *testing.T) {
	m := newMachine(t)
	shared, err := scripts.ReadFile("scripts/lib.sh")
	if err != nil {
		t.Fatal(err)
	}
	const prefix = "sleep() { SECONDS=$((SECONDS + 100)); }\nlooks=0\n"
	for name, test := range map[string]struct {
		script, stdout, stderr string
		code                   int
	}{
		"at once":    {`retry 250 echo words; echo done`, "done\n", "", 0},
		"never":      {`try() { echo "at $SECONDS"; return 1; }; retry 250 try || fail gone`, "", "gone", 1},
		"last words": {`try() { echo "look at $((SECONDS / 100))" >&2; return 1; }; retry 250 try || exit 7`, "", "look at 3\n", 7},
	} {
		t.Run(name, func(t *testing.T) {
			got := m.bash(prefix+string(shared)+"\n"+test.script+"\n", "", nil)
			if got.code != test.code || got.stdout != test.stdout || !strings.Contains(got.stderr, test.stderr) {
				t.Errorf("got %+v, want %+v", got, test)
			}
			if strings.Contains(got.stderr, "look at 0") || strings.Contains(got.stderr, "words") {
				t.Errorf("an attempt before the last one speaks: %s", got.stderr)
			}
		})
	}
}

// sent returns what a script sends into a container: the arguments behind its
// name, of the only docker exec that has the text.
func sent(t *testing.T, m *machine, container, text string) []string {
	t.Helper()
	for _, c := range m.calls {
		if at := slices.Index(c.args, container); at > 0 && strings.Contains(c.line(), text) {
			return c.args[at+1:]
		}
	}
	t.Fatalf("nothing with %q was sent into %s: %v", text, container, m.calls)
	return nil
}

// inside runs what was sent as the container would, with its own files in root.
func inside(f *fakes, arguments []string, root, stdin string, environment map[string]string) result {
	arguments = slices.Clone(arguments)
	for i := range arguments {
		for _, folder := range []string{"/etc/containerd/", "/etc/kubernetes/kubelet.conf", "/run/kubeadm"} {
			arguments[i] = strings.ReplaceAll(arguments[i], folder, root+folder)
		}
	}
	return f.bash(`"$0" "$@"`, stdin, environment, arguments...)
}

// kubectl for a tenant reads the credential inside the management node, uses it
// for the one call, and leaves it nowhere.
func TestTenantKubectl(t *testing.T) {
	m := newMachine(t)
	m.containers["lab-control-plane"] = &container{running: true}
	m.kubectl = func(string, []string, string) reply { return reply{} }
	shared, err := scripts.ReadFile("scripts/lib.sh")
	if err != nil {
		t.Fatal(err)
	}
	m.wantSuccess(m.bash(string(shared)+"\ntenant apply --filename - 'two words'\n", "", map[string]string{"MANAGEMENT_NODE": "lab-control-plane", "TENANT": "red"}), "")
	arguments := sent(t, m, "lab-control-plane", "apply")

	const kubeconfig = "the administrator's SECRET-MARK"
	status := 0
	secret := reply{stdout: base64.StdEncoding.EncodeToString([]byte(kubeconfig))}
	var f *fakes
	f = newFakes(t, func(c call) reply {
		switch {
		case strings.Contains(c.line(), "secret"):
			if want := "kubectl --kubeconfig /etc/kubernetes/admin.conf --namespace tenants get secret red-admin-kubeconfig --output jsonpath={.data.admin\\.conf}"; c.line() != want || c.stdin != "" {
				t.Errorf("the credential is read by %q with %q on standard input, want %q", c, c.stdin, want)
			}
			return secret
		case len(c.args) == 8 && slices.Equal(c.args[2:], []string{"--request-timeout", "20s", "apply", "--filename", "-", "two words"}):
			if content, err := os.ReadFile(c.args[1]); err != nil || string(content) != kubeconfig {
				t.Errorf("kubectl is given the kubeconfig %q (%v)", content, err)
			}
			if c.stdin != "kind: Secret" {
				t.Errorf("kubectl reads %q", c.stdin)
			}
			return reply{stdout: "applied", code: status}
		}
		return f.unknown("kubectl", c.args)
	}, "kubectl")
	environment := map[string]string{"TENANT": "red"}
	f.wantSuccess(inside(f, arguments, "", "kind: Secret", environment), "applied")

	status = 7
	if got := inside(f, arguments, "", "kind: Secret", environment); got.code != 7 {
		t.Errorf("kubectl's exit status 7 comes back as %d", got.code)
	}
	secret = reply{stderr: "not found", code: 1}
	if got := inside(f, arguments, "", "kind: Secret", environment); got.code == 0 || f.count("apply") != 2 {
		t.Errorf("without the credential the exit status is %d, and kubectl is called %d times, want 2", got.code, f.count("apply"))
	}
}

// The mirror's settings come and go; those that somebody else wrote stay.
func TestCertsD(t *testing.T) {
	m := newMachine(t)
	m.containers["node"] = &container{running: true}
	shared, err := scripts.ReadFile("scripts/lib.sh")
	if err != nil {
		t.Fatal(err)
	}
	settings := func(mirror string) []string {
		m.calls = nil
		m.wantSuccess(m.bash(string(shared)+"\ncerts_d node\n", "", map[string]string{"MIRROR_HOSTS": mirror}), "")
		return sent(t, m, "node", "certs_d")
	}
	const ours = "# gpu-tenants: x\nserver = \"https://registry.test\"\n"
	for name, test := range map[string]struct{ before, mirror, after string }{
		"none":             {"", "", ""},
		"a new mirror":     {"", ours, ours},
		"another mirror":   {"# gpu-tenants: old\n", ours, ours},
		"no mirror now":    {ours, "", ""},
		"somebody else's":  {"server = \"x\"\n", "", "server = \"x\"\n"},
		"a word in quotes": {"", "# gpu-tenants '\"$(id)\n", "# gpu-tenants '\"$(id)\n"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			file := filepath.Join(root, "etc/containerd/certs.d/_default/hosts.toml")
			if test.before != "" {
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(test.before), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			m.wantSuccess(inside(m.fakes, settings(test.mirror), root, "", nil), "")
			content, err := os.ReadFile(file)
			if string(content) != test.after || test.after != "" && err != nil {
				t.Errorf("hosts.toml is %q (%v), want %q", content, err, test.after)
			}
		})
	}
}
