package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// asleep are the names of the nodes that exist and do not run, each under the
// docker command that starts it. Docker leaves kind's nodes so when it is
// restarted itself: https://github.com/kubernetes-sigs/kind/issues/148
func asleep(nodes []Node) map[string][]string {
	commands := map[string][]string{}
	for _, node := range nodes {
		if command := node.wakeCommand(); command != "" {
			commands[command] = append(commands[command], node.Name)
		}
	}
	for _, names := range commands {
		slices.Sort(names)
	}
	return commands
}

// wakeCommand is the docker command that lets a node run; "" for one that runs
// or, restarting or being removed, is on its way somewhere else.
func (n *Node) wakeCommand() string {
	switch n.State {
	case "paused":
		return "unpause"
	case "exited", "created":
		return "start"
	}
	return ""
}

// Wake starts the stack's containers that were stopped, and waits until the API
// servers that a start leaves out of reach for a while answer, whoever started
// their container: what comes after it, a preview too, is to talk to them. What
// it does goes to say. A management cluster that was never whole is left to
// whoever makes it anew.
//
// That the management cluster does not answer is an error. A tenant that does
// not may have been in that state before, and may be what the next update mends.
func (s *System) Wake(ctx context.Context, o *Observed, say func(string)) error {
	var nodes []Node
	for _, worker := range o.Workers {
		nodes = append(nodes, worker)
	}
	whole := o.Cluster != nil && o.Cluster.Incarnation != ""
	if whole {
		nodes = append(nodes, *o.Cluster)
	}
	for command, names := range asleep(nodes) {
		say(fmt.Sprintf("docker %s %s: they did not run", command, strings.Join(names, " ")))
		if _, err := s.docker(ctx, append([]string{command}, names...)...); err != nil {
			return explain(err)
		}
	}
	if !whole {
		return nil
	}
	started := o.Cluster.Started
	if o.Cluster.wakeCommand() != "" {
		started = time.Now()
	}
	deadline := started.Add(s.WakeTimeout)
	if time.Now().After(deadline) {
		return nil // it had its time; what does not answer has another reason
	}
	return s.awaitAPIServers(ctx, o.Cluster.Name, deadline, say)
}

func (s *System) awaitAPIServers(ctx context.Context, node string, deadline time.Time, say func(string)) error {
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, errTooLong)
	defer cancel()
	kubectl := []string{"exec", node, "kubectl", "--kubeconfig=/etc/kubernetes/admin.conf", "get"}
	if _, err := s.await(ctx, append(kubectl, "--raw=/readyz")...); err != nil {
		return fmt.Errorf("%s was started, but its API server does not answer: %w; see: docker logs %s", node, err, node)
	}
	// A cluster without Kamaji does not know the kind, and hosts nobody.
	listed, err := s.docker(ctx, append(kubectl, "tenantcontrolplanes.kamaji.clastix.io", "--all-namespaces", "--output", hosted)...)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for line := range strings.Lines(string(listed)) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[2] == "Provisioning" {
			continue // it never answered, and is not ours to wait for
		}
		name, endpoint := fields[0], fields[1]
		// From the node, where the address is reachable whatever the host's routes
		// are. Anybody may ask for /readyz, and nothing is told or believed here.
		_, err := s.await(ctx, "exec", node, "curl", "--silent", "--show-error", "--fail", "--insecure", "--max-time", "5", "https://"+endpoint+"/readyz")
		switch {
		case errors.Is(err, errTooLong):
			say(fmt.Sprintf("tenant %s: its API server at %s does not answer since the start of %s: %v; see: kubectl --namespace tenants describe pods", name, endpoint, node, err))
		case err != nil:
			return err
		}
	}
	return nil
}

// hosted prints a line of name, endpoint and status for each tenant control plane.
const hosted = `jsonpath={range .items[*]}{.metadata.name} {.status.controlPlaneEndpoint} {.status.kubernetesResources.version.status}{"\n"}{end}`

var errTooLong = errors.New("it took too long")

// await repeats a docker command until it succeeds or ctx ends. Its error is
// the context's cause, with what the command last said.
func (s *System) await(ctx context.Context, args ...string) ([]byte, error) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	said := ""
	for {
		out, err := s.docker(ctx, args...)
		var failed *commandError
		switch {
		case err == nil:
			return out, nil
		case errors.As(err, &failed) && strings.TrimSpace(failed.stderr) != "":
			said = " (last: " + firstLine(failed.stderr) + ")"
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w%s", context.Cause(ctx), said)
		}
	}
}
