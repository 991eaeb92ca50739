package scenarios

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/providers"
)

// TestSecrets looks for every secret of a stack, in every form, in everything
// that its life leaves behind: state and its history, logs, events, what was said
// on the terminal, and every command line.
func TestSecrets(t *testing.T) {
	r := newRig(t, small())
	faults := &once{fault: providers.FailAfter}
	r.Machine.SetFaults(func(operation providers.Operation) providers.Fault {
		if strings.HasSuffix(operation.URN, "-join") || strings.HasSuffix(operation.URN, "management-cluster") {
			return faults.decide(operation)
		}
		return providers.None
	})
	for range 3 { // two of them fail
		r.pulumi("up", "--yes", "--diff")
	}
	r.Machine.SetFaults(nil)
	r.wantCalm()
	secrets := r.secrets()
	r.pulumi("preview", "--diff", "--json")
	r.pulumi("stack", "output", "--stack", "dev")
	r.pulumi("stack", "export", "--stack", "dev")
	with := small()
	with["tenants"].(list)[0].(config)["workers"] = list{config{"gpus": list{"L4x1"}, "count": 2}}
	delete(with["tenants"].(list)[0].(config), "gpus")
	r.configure(with)
	r.pulumi("up", "--yes", "--diff")
	for name, value := range r.secrets() {
		secrets[name] = value
	}
	r.pulumi("refresh", "--yes", "--diff")
	machine := r.kept()
	r.pulumi("destroy", "--yes", "--diff")

	places := map[string]string{"the terminal": r.outputs.String()}
	for _, folder := range []string{r.StateDir(), r.LogDir(), r.ProjectDir()} {
		read(t, folder, places)
	}
	places["calls.jsonl"] = textOf(t, filepath.Join(r.WorldDir(), "calls.jsonl"))
	// The keys of the management cluster and of the tenant, the tokens of two workers.
	if len(places) < 20 || len(secrets) != 4 {
		t.Fatalf("%d places and the secrets %q: not what such a life has", len(places), slices.Sorted(maps.Keys(secrets)))
	}
	// What holds them all, the machine itself, shows that they would be found.
	for name, secret := range secrets {
		found := false
		for _, form := range forms(secret) {
			found = found || strings.Contains(machine, form)
			for place, text := range places {
				if strings.Contains(text, form) {
					t.Errorf("%s stands in %s", name, place)
				}
			}
		}
		if !found {
			t.Errorf("%s is nowhere, not even where it must be", name)
		}
	}
}

// secrets are those that the stack has now: of each kubeconfig its key, as the
// kubeconfig has it and inside, and of each bootstrap token its secret half.
func (r *rig) secrets() map[string]string {
	r.t.Helper()
	secrets := map[string]string{}
	for cluster, kubeconfig := range r.Clusters.(holder).Kubeconfigs() {
		var parsed struct {
			Users []struct {
				User struct {
					Key string `yaml:"client-key-data"`
				} `yaml:"user"`
			} `yaml:"users"`
		}
		if err := yaml.Unmarshal(kubeconfig, &parsed); err != nil || len(parsed.Users) != 1 {
			r.t.Fatalf("the kubeconfig of %s has no user: %v", cluster, err)
		}
		secrets["the key of "+cluster] = parsed.Users[0].User.Key
	}
	result := r.Pulumi(r.t.Context(), []string{"stack", "export", "--show-secrets", "--stack", "dev"})
	if result.Err != nil {
		r.t.Fatal(result.Err)
	}
	var exported struct {
		Deployment struct {
			Resources []struct {
				URN     string `json:"urn"`
				Outputs struct {
					Result json.RawMessage `json:"result"`
				} `json:"outputs"`
			} `json:"resources"`
		} `json:"deployment"`
	}
	if err := json.Unmarshal([]byte(result.Output), &exported); err != nil {
		r.t.Fatal(err)
	}
	for _, resource := range exported.Deployment.Resources {
		if !strings.HasSuffix(resource.URN, "-token-secret") {
			continue
		}
		var secret struct {
			Plaintext string `json:"plaintext"` // JSON
		}
		var value string
		if err := errors.Join(json.Unmarshal(resource.Outputs.Result, &secret), json.Unmarshal([]byte(secret.Plaintext), &value)); err != nil {
			r.t.Fatalf("%s is no secret in the state: %v", nameOf(resource.URN), err)
		}
		secrets[nameOf(resource.URN)+" "+value[:2]] = value
	}
	return secrets
}

// forms are the ways in which a text can stand somewhere.
func forms(secret string) []string {
	all := []string{secret, url.QueryEscape(secret), base64.StdEncoding.EncodeToString([]byte(secret))}
	if decoded, err := base64.StdEncoding.DecodeString(secret); err == nil && strings.HasPrefix(string(decoded), "-----BEGIN") {
		for line := range strings.Lines(string(decoded)) {
			if line = strings.TrimSpace(line); len(line) > 40 && !strings.HasPrefix(line, "-----") {
				all = append(all, line)
			}
		}
	}
	// Inside a longer text that is encoded as a whole it stands at one of three
	// offsets, without the ends that its neighbours change.
	for offset := range 3 {
		encoded := base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat("-", offset) + secret))
		all = append(all, encoded[4:len(encoded)-4])
	}
	return all
}

func read(t *testing.T, folder string, places map[string]string) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() && filepath.Ext(path) != "" {
			places[path] = textOf(t, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func textOf(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
