package components

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

// Labels are Docker labels: All of them, and the name of the one among them by
// whose value a thing is known to be this stack's. A change of any replaces the
// thing.
type Labels struct {
	All   map[string]string
	Owner string
}

// keys returns the label names in a fixed order.
func (l Labels) keys() []string { return slices.Sorted(maps.Keys(l.All)) }

// pairs returns "name=value" in a fixed order.
func (l Labels) pairs() []string {
	var pairs []string
	for _, key := range l.keys() {
		pairs = append(pairs, key+"="+l.All[key])
	}
	return pairs
}

// owner returns "name=value" of the label that says whose a thing is.
func (l Labels) owner() string { return l.Owner + "=" + l.All[l.Owner] }

// removeLeftoverNetwork returns an option that, right before the network is
// created, removes what an interrupted run left under the same name: created in
// Docker, and unknown to state because the run was killed in between. It runs
// only before a creation, so what it finds is never something that state knows.
func removeLeftoverNetwork(ctx *pulumi.Context, hookName, network string, labels Labels) (pulumi.ResourceOption, error) {
	hook, err := ctx.RegisterResourceHook(hookName, func(*pulumi.ResourceHookArgs) error {
		bounded, cancel := context.WithTimeout(ctx.Context(), time.Minute)
		defer cancel()
		return removeNetwork(bounded, network, labels)
	}, nil)
	if err != nil {
		return nil, err
	}
	return pulumi.ResourceHooks(&pulumi.ResourceHookBinding{BeforeCreate: []*pulumi.ResourceHook{hook}}), nil
}

// removeNetwork removes a network of that name if it is this stack's and
// nothing is on it. Anything else is somebody's, and an error.
func removeNetwork(ctx context.Context, network string, labels Labels) error {
	output, err := exec.CommandContext(ctx, "docker", "network", "inspect", network).Output()
	if err != nil {
		return nil //nolint:nilerr // nothing of that name; that Docker answers at all was checked before
	}
	var found []struct {
		ID         string            `json:"Id"`
		Labels     map[string]string `json:"Labels"`
		Containers map[string]any    `json:"Containers"`
	}
	if err := json.Unmarshal(output, &found); err != nil || len(found) == 0 {
		return fmt.Errorf("docker network inspect %s: cannot read the answer %.200q", network, output)
	}
	switch {
	case found[0].Labels[labels.Owner] != labels.All[labels.Owner]:
		return fmt.Errorf("docker network %s exists and is not this stack's (it lacks the label %s): remove it or rename the stack", network, labels.owner())
	case len(found[0].Containers) > 0:
		return fmt.Errorf("docker network %s exists and has %d containers, but this stack's state does not know it: "+
			"either another state of the same stack name is in use, then use that one or another name; "+
			"or the state was lost, then run `make purge` first", network, len(found[0].Containers))
	}
	if output, err := exec.CommandContext(ctx, "docker", "network", "rm", found[0].ID).CombinedOutput(); err != nil {
		return fmt.Errorf("docker network rm %s: %w: %s", network, err, strings.TrimSpace(string(output)))
	}
	return nil
}

// forgetLeftoverRelease returns an option that, right before a release is
// created or updated, drops Helm's records of what a run began that was killed
// meanwhile. Helm refuses to install under a name that is in use, even by a
// half-made release, and to upgrade while "another operation is in progress",
// which it takes an unfinished record for
// (https://github.com/helm/helm/issues/8987). Without them it installs over the
// objects, which it knows by their labels to be this release's, or upgrades from
// the last revision that came to an end. State lets one run at a time begin
// anything, so no record found here is of something that still goes on.
func forgetLeftoverRelease(ctx *pulumi.Context, hookName string, args releaseArgs) (pulumi.ResourceOption, error) {
	text, err := script("release-leftover.sh")
	if err != nil {
		return nil, err
	}
	forget := func(which string) (*pulumi.ResourceHook, error) {
		return ctx.RegisterResourceHook(hookName+"-"+which, func(*pulumi.ResourceHookArgs) error {
			bounded, cancel := context.WithTimeout(ctx.Context(), 2*time.Minute)
			defer cancel()
			command := exec.CommandContext(bounded, "bash", "-euo", "pipefail", "-c", text)
			command.Env = append(os.Environ(), "MANAGEMENT_NODE="+args.ManagementNode, "TENANT="+args.Tenant, "NAMESPACE="+args.Namespace, "RELEASE="+args.Name, "WHICH="+which)
			if output, err := command.CombinedOutput(); err != nil {
				return fmt.Errorf("looking for what a killed run left of release %s: %w\n%s", args.Name, err, strings.TrimSpace(string(output)))
			}
			return nil
		}, nil)
	}
	all, err := forget("all")
	if err != nil {
		return nil, err
	}
	pending, err := forget("pending")
	if err != nil {
		return nil, err
	}
	return pulumi.ResourceHooks(&pulumi.ResourceHookBinding{
		BeforeCreate: []*pulumi.ResourceHook{all}, BeforeUpdate: []*pulumi.ResourceHook{pending},
	}), nil
}
