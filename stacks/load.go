package stacks

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"

	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"

	"github.com/gpu-tenants/gpu-tenants/stacks/config"
)

// Load returns the stack's configuration, decoded and checked as a whole.
//
// The SDK can read a key that one knows, but not list those that are set, and a
// misspelt key must not pass in silence. The language host hands all of them to
// the program in one environment variable; a program that runs inside another
// (Automation API) has none of it and is asked for the keys that exist.
func Load(ctx *pulumi.Context) (*config.Config, error) {
	raw, err := allKeys(ctx.Project(), os.Getenv(pulumi.EnvConfig))
	if err != nil {
		return nil, err
	}
	for _, key := range config.Keys() {
		if value, ok := ctx.GetConfig(ctx.Project() + ":" + key); ok {
			raw[key] = value
		}
	}
	// Pulumi demands a default of every key in Pulumi.yaml; where the real one
	// depends on something else, "" stands for it.
	maps.DeleteFunc(raw, func(_, value string) bool { return value == "" })
	return config.Decode(raw)
}

// allKeys returns the project's keys, without its name, from the language
// host's JSON.
func allKeys(project, environment string) (map[string]string, error) {
	raw := map[string]string{}
	if environment == "" {
		return raw, nil
	}
	var all map[string]string
	if err := json.Unmarshal([]byte(environment), &all); err != nil {
		return nil, fmt.Errorf("%s: %w", pulumi.EnvConfig, err)
	}
	for key, value := range all {
		if name, ok := strings.CutPrefix(key, project+":"); ok {
			raw[name] = value
		}
	}
	return raw, nil
}
