package host

import (
	"cmp"
	"context"
	"slices"
	"sync"
)

// Observe looks at the machine. Its error means that Docker cannot be used, and
// is a *DockerError unless ctx ended.
func (s *System) Observe(ctx context.Context, names Names) (*Observed, error) {
	if err := s.checkEndpoint(ctx); err != nil {
		return nil, err
	}
	// Three round trips of the docker command: the one above, and two rounds
	// of questions that do not depend on each other.
	var info *dockerInfo
	var networkIDs, containerIDs []string
	err := together(
		func() (err error) { info, err = s.info(ctx); return },
		func() (err error) {
			networkIDs, err = s.list(ctx, "network", "ls", "--quiet", "--no-trunc")
			return
		},
		func() (err error) {
			containerIDs, err = s.list(ctx, "ps", "--all", "--quiet", "--no-trunc",
				"--filter", "label="+LabelStack+"="+names.StackLabel)
			return
		},
	)
	if err != nil {
		return nil, err
	}
	var networks []dockerNetwork
	var containers []dockerContainer
	var incarnation string
	// The kind node has no label of ours; it is asked for by its name, whether
	// it exists or not.
	controlPlane := names.ControlPlane()
	err = together(
		func() (err error) { networks, err = inspect[dockerNetwork](ctx, s, "network", networkIDs); return },
		func() (err error) {
			containers, err = inspect[dockerContainer](ctx, s, "container", append(containerIDs, controlPlane))
			return
		},
		func() (err error) { incarnation, err = s.incarnation(ctx, controlPlane); return },
	)
	if err != nil {
		return nil, err
	}

	o := &Observed{
		Names:       names,
		CPUs:        info.NCPU,
		MemoryBytes: info.MemTotal,
		Docker:      info.daemon(),
		Workers:     map[string]Node{},
	}
	o.takeNetworks(networks)
	networkID := ""
	if o.Network != nil {
		networkID = o.Network.ID
	}
	for _, container := range containers {
		node := container.node(names.Network, networkID)
		if node.Name == controlPlane {
			node.Incarnation = incarnation
			o.Cluster = &node
		} else {
			o.Workers[node.Name] = node
		}
	}
	// Unreadable (not Linux): no routes known, and nothing follows from that.
	if table, err := s.ReadFile("/proc/net/route"); err == nil {
		o.takeRoutes(parseRoutes(table), networks)
	}
	return o, nil
}

// takeNetworks tells the stack's network from the others.
func (o *Observed) takeNetworks(networks []dockerNetwork) {
	own := -1
	for i, network := range networks {
		if network.Name != o.Names.Network {
			continue
		}
		// Docker allows two networks of one name.
		if own < 0 || network.Labels[LabelStack] == o.Names.StackLabel {
			own = i
		}
	}
	for i := range networks {
		network := networks[i].network()
		switch {
		case i == own:
			o.Network = &network
		case len(network.Subnets) > 0:
			o.OtherNetworks = append(o.OtherNetworks, network)
		}
	}
	slices.SortFunc(o.OtherNetworks, func(a, b Network) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
}

// takeRoutes keeps the routes that are not Docker's, and sees whether Docker's
// are there at all.
func (o *Observed) takeRoutes(routes []route, networks []dockerNetwork) {
	const everywhere = 8 // routes shorter than this stand for the default route
	bridges := map[string]bool{}
	for i := range networks {
		if name := networks[i].bridge(); name != "" && len(networks[i].network().Subnets) > 0 {
			bridges[name] = true
		}
	}
	o.Docker.Elsewhere = len(bridges) > 0
	for _, route := range routes {
		switch {
		case bridges[route.iface]:
			o.Docker.Elsewhere = false
		case route.prefix.Bits() >= everywhere:
			o.Routes = append(o.Routes, route.prefix)
		}
	}
	slices.SortFunc(o.Routes, comparePrefixes)
	o.Routes = slices.Compact(o.Routes)
}

// together runs the functions at the same time and returns the first error in
// their order, so that the same fault always reads the same.
func together(functions ...func() error) error {
	errs := make([]error, len(functions))
	var group sync.WaitGroup
	for i, function := range functions {
		group.Go(func() { errs[i] = function() })
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
