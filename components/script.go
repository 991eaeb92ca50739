package components

import (
	"embed"
	"fmt"

	"github.com/pulumi/pulumi-command/sdk/go/command/local"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

//go:embed scripts/*.sh
var scripts embed.FS

// scriptArgs describes a step that a provider has no resource for. Both
// scripts get the same environment; what is secret in it stays secret in state
// and never becomes part of a command line.
type scriptArgs struct {
	// Create is the script's name. It runs on creation and whenever the
	// environment changes (pulumi-command runs it again when there is no
	// separate update), so it brings about a state and does nothing when that
	// state is there.
	Create string
	// Delete is the script's name; empty when there is nothing to take back.
	// It succeeds when the thing is gone already.
	Delete string
	Env    pulumi.StringMap
	// Triggers replace the step: its deletion runs before its new creation.
	Triggers pulumi.Array
	// SecretOutput keeps the script's standard output encrypted in state.
	SecretOutput bool
}

// newScript registers a step. Standard output is its result and is not
// printed; what it says on standard error is.
func newScript(ctx *pulumi.Context, name string, args scriptArgs, opts ...pulumi.ResourceOption) (*local.Command, error) {
	create, err := script(args.Create)
	if err != nil {
		return nil, err
	}
	command := &local.CommandArgs{
		Create:      pulumi.String(create),
		Interpreter: pulumi.ToStringArray([]string{"bash", "-euo", "pipefail", "-c"}),
		Environment: args.Env,
		Logging:     local.LoggingStderr,
		// The previous output can be a kubeconfig: no script needs it.
		AddPreviousOutputInEnv: pulumi.Bool(false),
		Triggers:               args.Triggers,
	}
	if args.Delete != "" {
		text, err := script(args.Delete)
		if err != nil {
			return nil, err
		}
		command.Delete = pulumi.String(text)
	}
	opts = append(opts, pulumi.DeleteBeforeReplace(true))
	if args.SecretOutput {
		opts = append(opts, pulumi.AdditionalSecretOutputs([]string{"stdout"}))
	}
	return local.NewCommand(ctx, name, command, opts...)
}

// script returns a script with the functions that all of them share. The text
// is complete in itself: a deletion runs from state, long after this program
// and its folder may be gone.
func script(name string) (string, error) {
	shared, err := scripts.ReadFile("scripts/lib.sh")
	if err != nil {
		return "", err
	}
	own, err := scripts.ReadFile("scripts/" + name)
	if err != nil {
		return "", fmt.Errorf("script %s: %w", name, err)
	}
	return string(shared) + "\n" + string(own), nil
}
