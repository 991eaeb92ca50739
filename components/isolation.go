package components

import (
	"fmt"
	"strings"

	"github.com/pulumi/pulumi-command/sdk/go/command/local"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

// All nodes of a stack are on one Docker network, where every port of every
// node can be reached: kubelets, node ports, and through the management node
// the addresses of all Services and pods behind it, etcd's among them. So each
// node refuses what does not come from its own side. Of the management cluster
// the tenants see their control planes' addresses and nothing else.

// workerRules let in what comes from the tenant's own workers and from the host.
func workerRules(subnet, gateway string, peers []string) string {
	return rules(subnet, append([]string{gateway}, peers...), "")
}

// managementRules let in what comes from the host, and through to the control
// planes whatever asks for their addresses. pool is "first-last".
func managementRules(subnet, gateway, pool string) string {
	return rules(subnet, []string{gateway}, "    ct original ip daddr "+pool+" accept\n")
}

// rules is a table of its own in nftables' syntax, so that it neither disturbs
// kube-proxy's and the CNI's rules nor is disturbed by them. Answers pass, and
// what the node says to itself; nobody knows a stack's addresses in IPv6.
func rules(subnet string, from []string, through string) string {
	const chain = "  chain %[1]s {\n    type filter hook %[1]s priority filter - 5; policy accept;\n    iifname \"lo\" accept\n" +
		"    ct state established,related accept\n%[2]s    jump strangers\n  }\n"
	return "table inet gpu_tenants\ndelete table inet gpu_tenants\ntable inet gpu_tenants {\n" +
		"  chain strangers {\n" +
		fmt.Sprintf("    ip saddr { %s } accept\n    ip saddr %s drop\n", strings.Join(from, ", "), subnet) +
		"    ip6 saddr fe80::/10 meta l4proto { tcp, udp } drop\n  }\n" +
		fmt.Sprintf(chain, "input", "") + fmt.Sprintf(chain, "forward", through) + "}\n"
}

// newIsolation puts the rules into a node container, for now and for each time
// it starts.
func newIsolation(ctx *pulumi.Context, name, container, rules string, carrier *local.Command, opts ...pulumi.ResourceOption) (*local.Command, error) {
	return newScript(ctx, name, scriptArgs{
		Create:   "isolation.sh",
		Env:      pulumi.StringMap{"CONTAINER": pulumi.String(container), "RULES": pulumi.String(rules)},
		Triggers: pulumi.Array{carrier.ID()},
	}, append(opts, pulumi.DeletedWith(carrier))...)
}
