package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Asleep are the names of the stack's containers that exist and do not run,
// sorted. Docker leaves kind's nodes so when it is restarted itself:
// https://github.com/kubernetes-sigs/kind/issues/148
func (o *Observed) Asleep() []string {
	nodes := slices.Collect(maps.Values(o.Workers))
	if o.Cluster != nil {
		nodes = append(nodes, *o.Cluster)
	}
	var names []string
	for _, node := range nodes {
		if node.asleep() {
			names = append(names, node.Name)
		}
	}
	slices.Sort(names)
	return names
}

// asleep: what is restarting or being removed is on its way somewhere else.
func (n *Node) asleep() bool {
	return n.State == "exited" || n.State == "created" || n.State == "paused"
}

// Wake starts what is Asleep, and waits until the management cluster's API server
// answers: what comes after it is to talk to that. A cluster that was never
// whole is left to whoever makes it anew.
func (s *System) Wake(ctx context.Context, o *Observed) error {
	var paused, stopped []string
	for _, node := range o.Workers {
		paused, stopped = node.sort(paused, stopped)
	}
	cluster := o.Cluster != nil && o.Cluster.asleep() && o.Cluster.Incarnation != ""
	if cluster {
		paused, stopped = o.Cluster.sort(paused, stopped)
	}
	for command, names := range map[string][]string{"start": stopped, "unpause": paused} {
		if len(names) == 0 {
			continue
		}
		slices.Sort(names)
		if _, err := s.docker(ctx, append([]string{command}, names...)...); err != nil {
			return explain(err)
		}
	}
	if !cluster {
		return nil
	}
	return s.answers(ctx, o.Cluster.Name)
}

func (n *Node) sort(paused, stopped []string) (_, _ []string) {
	switch {
	case !n.asleep():
	case n.State == "paused":
		paused = append(paused, n.Name)
	default:
		stopped = append(stopped, n.Name)
	}
	return paused, stopped
}

// answers waits until a control plane node's API server says that it is ready.
func (s *System) answers(ctx context.Context, node string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.WakeTimeout, errors.New("it took too long"))
	defer cancel()
	tick := time.NewTicker(s.WakeTimeout / 100)
	defer tick.Stop()
	for {
		_, err := s.docker(ctx, "exec", node, "kubectl", "--kubeconfig=/etc/kubernetes/admin.conf", "get", "--raw=/readyz")
		if err == nil {
			return nil
		}
		last := err
		select {
		case <-tick.C:
		case <-ctx.Done():
			var failed *commandError
			said := ""
			if errors.As(last, &failed) {
				said = ": " + strings.TrimSpace(failed.stderr)
			}
			return fmt.Errorf("%s was started, but its API server does not answer (%w)%s; see: docker logs %s", node, context.Cause(ctx), said, node)
		}
	}
}
