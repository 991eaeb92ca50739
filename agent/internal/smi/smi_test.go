package smi

import (
	"bytes"
	"maps"
	"reflect"
	"strings"
	"testing"
)

var shares = []Share{
	{Card: "GPU-0a1b2c3d-0000-0000-0000-000000000001", Type: "NVIDIA A100-SXM4-80GB", MemoryMiB: 20000, Cores: 30},
	{Card: "GPU-0a1b2c3d-0000-0000-0000-000000000002", Type: "NVIDIA A100-SXM4-80GB", MemoryMiB: 10000, Cores: 30},
}

func getenv(env map[string]string) func(string) string {
	return func(name string) string { return env[name] }
}

func TestEnvironmentIsReadBack(t *testing.T) {
	if got := Shares(getenv(Env(shares))); !reflect.DeepEqual(got, shares) {
		t.Errorf("got %v, want %v", got, shares)
	}
}

func TestEnvironmentOfNoShares(t *testing.T) {
	if env := Env(nil); !maps.Equal(env, map[string]string{}) {
		t.Errorf("got %v", env)
	}
}

func run(t *testing.T, env map[string]string, args ...string) (out, complaint string, code int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = Run(args, getenv(env), &stdout, &stderr)
	return stdout.String(), stderr.String(), code
}

func TestTable(t *testing.T) {
	out, _, code := run(t, Env(shares))
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{"NVIDIA-SMI mock", "0  NVIDIA A100-SXM4-80GB", shares[0].Card, shares[1].Card, "0MiB / 20000MiB", "0MiB / 10000MiB", "30 %", "no limit is enforced"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for _, line := range lines {
		if len(line) != len(lines[0]) {
			t.Errorf("line %q is not as wide as the frame in\n%s", line, out)
		}
	}
}

func TestList(t *testing.T) {
	out, _, code := run(t, Env(shares[:1]), "-L")
	want := "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-0a1b2c3d-0000-0000-0000-000000000001)\n"
	if out != want || code != 0 {
		t.Errorf("got %q, code %d", out, code)
	}
}

func TestNoDevices(t *testing.T) {
	for _, env := range []map[string]string{
		nil, {"NVIDIA_VISIBLE_DEVICES": "none"}, {"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_DEVICE_MEMORY_LIMIT_0": ""},
	} {
		out, _, code := run(t, env)
		if out != "No devices were found\n" || code == 0 {
			t.Errorf("%v: got %q, code %d", env, out, code)
		}
	}
}

func TestOptions(t *testing.T) {
	if _, complaint, code := run(t, Env(shares), "--query-gpu=name"); code == 0 || !strings.Contains(complaint, "--query-gpu=name") {
		t.Errorf("got %q, code %d", complaint, code)
	}
	if out, _, code := run(t, nil, "-h"); code != 0 || !strings.Contains(out, "usage") {
		t.Errorf("got %q, code %d", out, code)
	}
}
