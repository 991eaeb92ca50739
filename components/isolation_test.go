package components

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"
)

// verdict reads the chain through which a new packet goes, as far as these
// rules use nftables: the first line that fits decides.
func verdict(t *testing.T, rules, chain string, from, to netip.Addr) string {
	t.Helper()
	_, body, found := strings.Cut(rules, "chain "+chain+" {\n")
	if !found {
		t.Fatalf("no chain %s in\n%s", chain, rules)
	}
	body, _, _ = strings.Cut(body, "  }\n")
	for _, line := range strings.Split(strings.TrimSpace(body), "\n") {
		switch words := strings.Fields(strings.NewReplacer("{", "", "}", "", ",", "").Replace(line)); {
		case words[0] == "type" || words[0] == "iifname" || strings.HasPrefix(strings.Join(words, " "), "ct state established") || words[0] == "ip6":
		case words[0] == "jump":
			return verdict(t, rules, words[1], from, to)
		case strings.HasPrefix(line, "    ct original ip daddr") || strings.Contains(line, "ct original ip daddr"):
			first, last, _ := strings.Cut(words[4], "-")
			if to.Compare(netip.MustParseAddr(first)) >= 0 && to.Compare(netip.MustParseAddr(last)) <= 0 {
				return words[5]
			}
		case words[0] == "ip" && words[1] == "saddr":
			for _, one := range words[2 : len(words)-1] {
				if one == from.String() {
					return words[len(words)-1]
				}
				if prefix, err := netip.ParsePrefix(one); err == nil && prefix.Contains(from) {
					return words[len(words)-1]
				}
			}
		default:
			t.Fatalf("the test does not know the rule %q", line)
		}
	}
	return "accept" // the policy
}

func TestIsolation(t *testing.T) {
	const subnet, gateway = "10.9.0.0/20", "10.9.0.1"
	worker := workerRules(subnet, gateway, []string{"10.9.4.1", "10.9.4.2"})
	management := managementRules(subnet, gateway, "10.9.8.0-10.9.15.254")
	for name, test := range map[string]struct{ rules, chain, from, to, want string }{
		"worker: the host":                     {worker, "input", "10.9.0.1", "10.9.4.1", "accept"},
		"worker: a worker of the same tenant":  {worker, "input", "10.9.4.2", "10.9.4.1", "accept"},
		"worker: its own pod":                  {worker, "input", "10.244.1.7", "10.9.4.1", "accept"},
		"worker: another tenant's worker":      {worker, "input", "10.9.5.1", "10.9.4.1", "drop"},
		"worker: the management node":          {worker, "input", "10.9.0.2", "10.9.4.1", "drop"},
		"worker: another tenant to a pod":      {worker, "forward", "10.9.5.1", "10.244.1.7", "drop"},
		"worker: a pod to outside":             {worker, "forward", "10.244.1.7", "1.1.1.1", "accept"},
		"worker: a pod of the other worker":    {worker, "forward", "10.244.2.7", "10.244.1.7", "accept"},
		"management: the host":                 {management, "input", "10.9.0.1", "10.9.0.2", "accept"},
		"management: a worker":                 {management, "input", "10.9.4.1", "10.9.0.2", "drop"},
		"management: a worker to an endpoint":  {management, "forward", "10.9.4.1", "10.9.8.0", "accept"},
		"management: to the last address":      {management, "forward", "10.9.4.1", "10.9.15.254", "accept"},
		"management: a worker to a Service":    {management, "forward", "10.9.4.1", "10.96.0.10", "drop"},
		"management: a worker to a pod":        {management, "forward", "10.9.4.1", "10.244.0.9", "drop"},
		"management: a pod of its own to etcd": {management, "forward", "10.244.0.5", "10.244.0.9", "accept"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := verdict(t, test.rules, test.chain, netip.MustParseAddr(test.from), netip.MustParseAddr(test.to)); got != test.want {
				t.Errorf("%s, want %s, by\n%s", got, test.want, test.rules)
			}
		})
	}
}

// The kernel's own tool reads the rules, where it is there and may.
func TestIsolationIsNftables(t *testing.T) {
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("nft is not on this machine; the node images have it, and isolation.sh has it check the rules before it uses them")
	}
	if err := exec.Command(nft, "list", "tables").Run(); err != nil {
		t.Skip("nft may not talk to the kernel here: ", err)
	}
	for name, rules := range map[string]string{
		"worker":     workerRules("10.9.0.0/20", "10.9.0.1", []string{"10.9.4.1"}),
		"management": managementRules("10.9.0.0/20", "10.9.0.1", "10.9.8.0-10.9.15.254"),
	} {
		check := exec.Command(nft, "--check", "--file", "-")
		check.Stdin = strings.NewReader(rules)
		if output, err := check.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s\n%s", name, err, output, rules)
		}
	}
}

// The rules reach the node through standard input, as soon as systemd is there
// to load them at each start.
func TestIsolationScript(t *testing.T) {
	m := newMachine(t)
	m.containers["lab-a-worker-0"] = &container{running: true}
	asked := 0
	m.inside = func(name string, args []string, stdin string) reply {
		asked++
		if name != "lab-a-worker-0" || args[0] != "bash" || stdin != "table inet x\n" {
			t.Errorf("%s is asked for %q with %q", name, args, stdin)
		}
		if asked == 1 {
			return reply{stderr: "Failed to connect to bus", code: 1}
		}
		return reply{}
	}
	m.wantSuccess(m.run("isolation.sh", map[string]string{"CONTAINER": "lab-a-worker-0", "RULES": "table inet x\n"}), "")
	if asked != 2 {
		t.Errorf("the node was asked %d times, want once more after it was not ready", asked)
	}
}
