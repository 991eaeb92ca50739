package providers

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource/plugin"
)

// base is what the providers have in common.
type base struct {
	plugin.UnimplementedProvider
}

func (*base) Handshake(context.Context, plugin.ProviderHandshakeRequest) (*plugin.ProviderHandshakeResponse, error) {
	return &plugin.ProviderHandshakeResponse{AcceptSecrets: true, AcceptResources: true, AcceptOutputs: true}, nil
}

func (*base) CheckConfig(_ context.Context, r plugin.CheckConfigRequest) (plugin.CheckConfigResponse, error) {
	return plugin.CheckConfigResponse{Properties: r.News}, nil
}

func (*base) DiffConfig(_ context.Context, r plugin.DiffConfigRequest) (plugin.DiffConfigResponse, error) {
	return compare(r.OldInputs, r.NewInputs, func(string) bool { return false }), nil
}

func (*base) Configure(context.Context, plugin.ConfigureRequest) (plugin.ConfigureResponse, error) {
	return plugin.ConfigureResponse{}, nil
}

func (*base) Check(_ context.Context, r plugin.CheckRequest) (plugin.CheckResponse, error) {
	return plugin.CheckResponse{Properties: r.News}, nil
}

func (*base) SignalCancellation(context.Context) error { return nil }

func (*base) Close() error { return nil }

// compare says what differs between two sets of inputs, and which of it makes
// another resource.
func compare(olds, news resource.PropertyMap, replaces func(path string) bool) plugin.DiffResult {
	difference := declared(olds).Diff(declared(news))
	if difference == nil {
		return plugin.DiffResult{Changes: plugin.DiffNone}
	}
	result := plugin.DiffResult{Changes: plugin.DiffSome, DetailedDiff: plugin.NewDetailedDiffFromObjectDiff(difference, true)}
	for path, change := range result.DetailedDiff {
		if replaces(path) {
			result.DetailedDiff[path] = change.ToReplace()
		}
	}
	return result
}

// declared leaves out what the engine and the SDK put beside a resource's own
// fields.
func declared(inputs resource.PropertyMap) resource.PropertyMap {
	own := inputs.Copy()
	maps.DeleteFunc(own, func(name resource.PropertyKey, _ resource.PropertyValue) bool {
		return strings.HasPrefix(string(name), "__") || name == "version"
	})
	return own
}

// under reports whether a property path is one of the fields or inside one.
func under(path string, fields ...string) bool {
	return slices.ContainsFunc(fields, func(name string) bool {
		rest, ok := strings.CutPrefix(path, name)
		return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// plain returns a value without secrets around it or in it.
func plain(value resource.PropertyValue) any {
	return value.MapRepl(nil, func(v resource.PropertyValue) (any, bool) {
		if v.IsSecret() {
			return plain(v.SecretValue().Element), true
		}
		if v.IsOutput() {
			return plain(v.OutputValue().Element), true
		}
		return nil, false
	})
}

// plainMap returns properties without secrets around them or in them.
func plainMap(properties resource.PropertyMap) map[string]any {
	values := map[string]any{}
	for name, value := range properties {
		values[string(name)] = plain(value)
	}
	return values
}

// textOf returns a property that is a text, or "".
func textOf(properties resource.PropertyMap, name resource.PropertyKey) string {
	text, _ := plain(properties[name]).(string)
	return text
}
