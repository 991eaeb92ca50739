package providers

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"

	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource/plugin"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/world"
)

// docker is pulumi-docker's Network and RemoteImage.
type docker struct {
	base
	machine *Machine
}

const (
	networkType = "docker:index/network:Network"
	imageType   = "docker:index/remoteImage:RemoteImage"
)

// Diff: a network cannot change; an image can only in what becomes of it.
func (d *docker) Diff(_ context.Context, r plugin.DiffRequest) (plugin.DiffResponse, error) {
	return compare(r.OldInputs, r.NewInputs, func(path string) bool { return r.Type == networkType || under(path, "name", "build", "triggers") }), nil
}

func (d *docker) Create(_ context.Context, r plugin.CreateRequest) (plugin.CreateResponse, error) {
	if r.Preview {
		return plugin.CreateResponse{Properties: r.Properties}, nil
	}
	switch r.Type {
	case networkType:
		made, err := d.machine.World.CreateNetwork(networkOf(r.Properties))
		if err != nil {
			return plugin.CreateResponse{}, fmt.Errorf("Unable to create network: Error response from daemon: %w", err) //nolint:staticcheck // the provider's words
		}
		return plugin.CreateResponse{ID: resource.ID(made.ID), Properties: d.networkState(r.Properties, made)}, nil
	case imageType:
		id, err := d.bring(r.Properties)
		return plugin.CreateResponse{ID: resource.ID(id + textOf(r.Properties, "name")), Properties: imageState(r.Properties, id)}, err
	}
	return plugin.CreateResponse{}, notStoodIn(r.URN)
}

func (d *docker) Read(_ context.Context, r plugin.ReadRequest) (plugin.ReadResponse, error) {
	found := plugin.ReadResult{ID: r.ID, Inputs: r.Inputs, Outputs: r.State}
	switch r.Type {
	case networkType:
		if d.machine.World.Network(string(r.ID)) == nil {
			found = plugin.ReadResult{}
		}
	case imageType:
		id := d.machine.World.Image(textOf(r.State, "name"))
		if id == "" {
			found = plugin.ReadResult{}
		} else {
			found.Outputs = imageState(r.State, id)
			found.ID = resource.ID(id + textOf(r.State, "name"))
		}
	default:
		return plugin.ReadResponse{}, notStoodIn(r.URN)
	}
	return plugin.ReadResponse{ReadResult: found}, nil
}

func (d *docker) Update(_ context.Context, r plugin.UpdateRequest) (plugin.UpdateResponse, error) {
	if r.Type != imageType {
		return plugin.UpdateResponse{}, notStoodIn(r.URN)
	}
	if r.Preview {
		return plugin.UpdateResponse{Properties: r.NewInputs}, nil
	}
	return plugin.UpdateResponse{Properties: imageState(r.NewInputs, d.machine.World.Image(textOf(r.NewInputs, "name")))}, nil
}

func (d *docker) Delete(_ context.Context, r plugin.DeleteRequest) (plugin.DeleteResponse, error) {
	switch {
	case r.Type == networkType:
		if err := d.machine.World.RemoveNetwork(string(r.ID)); err != nil {
			return plugin.DeleteResponse{}, fmt.Errorf("Error response from daemon: %w", err) //nolint:staticcheck // Docker's words
		}
	case r.Type == imageType && plain(r.Outputs["keepLocally"]) != true:
		return plugin.DeleteResponse{}, d.machine.World.RemoveImage(textOf(r.Outputs, "name"))
	}
	return plugin.DeleteResponse{}, nil
}

func networkOf(inputs resource.PropertyMap) world.Network {
	values := plainMap(inputs)
	made := world.Network{Name: textOf(inputs, "name"), Driver: textOf(inputs, "driver"), Labels: map[string]string{}, Options: map[string]string{}}
	labels, _ := values["labels"].([]any)
	for _, entry := range labels {
		label, _ := entry.(map[string]any)
		made.Labels[fmt.Sprint(label["label"])] = fmt.Sprint(label["value"])
	}
	options, _ := values["options"].(map[string]any)
	for name, value := range options {
		made.Options[name] = fmt.Sprint(value)
	}
	if configs, _ := values["ipamConfigs"].([]any); len(configs) > 0 {
		config, _ := configs[0].(map[string]any)
		made.Subnet, _ = config["subnet"].(string)
		made.Gateway, _ = config["gateway"].(string)
		made.IPRange, _ = config["ipRange"].(string)
	}
	return made
}

func (d *docker) networkState(inputs resource.PropertyMap, made *world.Network) resource.PropertyMap {
	state := inputs.Copy()
	state["scope"] = resource.NewStringProperty("local")
	state["driver"] = resource.NewStringProperty(made.Driver)
	return state
}

// bring pulls an image, or builds it from a folder.
func (d *docker) bring(inputs resource.PropertyMap) (string, error) {
	name := textOf(inputs, "name")
	build, isBuilt := plain(inputs["build"]).(map[string]any)
	if !isBuilt {
		return d.machine.World.BringImage(name, ""), nil
	}
	folder, _ := build["context"].(string)
	if !filepath.IsAbs(folder) {
		folder = filepath.Join(d.machine.Dir, folder)
	}
	dockerfile, err := os.ReadFile(filepath.Join(folder, fmt.Sprint(build["dockerfile"])))
	if err != nil {
		return "", fmt.Errorf("Error building docker image: %w", err) //nolint:staticcheck // the provider's words
	}
	content := string(dockerfile)
	for line := range strings.Lines(content) {
		words := strings.Fields(line)
		if len(words) < 3 || words[0] != "COPY" {
			continue
		}
		copied, err := os.ReadFile(filepath.Join(folder, words[len(words)-2]))
		if err != nil {
			return "", fmt.Errorf("Error building docker image: COPY failed: %w", err) //nolint:staticcheck // the provider's words
		}
		sum := sha256.Sum256(copied)
		content += hex.EncodeToString(sum[:])
	}
	return d.machine.World.BringImage(name, content), nil
}

func imageState(inputs resource.PropertyMap, id string) resource.PropertyMap {
	state := inputs.Copy()
	state["imageId"] = resource.NewStringProperty(id)
	state["repoDigest"] = resource.NewStringProperty("")
	return state
}

func notStoodIn(urn resource.URN) error {
	return fmt.Errorf("the stand-in for package %s does not know %s", urn.Type().Package(), urn.Type())
}

// random is pulumi-random's RandomString and RandomPassword.
type random struct {
	base
}

const (
	stringType   = "random:index/randomString:RandomString"
	passwordType = "random:index/randomPassword:RandomPassword"
)

// Diff: every input makes another string.
func (*random) Diff(_ context.Context, r plugin.DiffRequest) (plugin.DiffResponse, error) {
	return compare(r.OldInputs, r.NewInputs, func(string) bool { return true }), nil
}

func (*random) Create(_ context.Context, r plugin.CreateRequest) (plugin.CreateResponse, error) {
	outputs := r.Properties.Copy()
	if r.Preview {
		outputs["result"] = resource.MakeComputed(resource.NewStringProperty(""))
		return plugin.CreateResponse{Properties: outputs}, nil
	}
	length, _ := plain(r.Properties["length"]).(float64)
	if length < 1 || plain(r.Properties["special"]) != false || plain(r.Properties["upper"]) != false {
		return plugin.CreateResponse{}, notStoodIn(r.URN)
	}
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	var made strings.Builder
	for range int(length) {
		at, err := rand.Int(rand.Reader, big.NewInt(int64(len(letters))))
		if err != nil {
			return plugin.CreateResponse{}, err
		}
		made.WriteByte(letters[at.Int64()])
	}
	outputs["result"] = resource.NewStringProperty(made.String())
	switch r.Type {
	case stringType:
		// The string is its identifier as well, which is never secret.
		return plugin.CreateResponse{ID: resource.ID(made.String()), Properties: outputs}, nil
	case passwordType:
		outputs["result"] = resource.MakeSecret(outputs["result"])
		return plugin.CreateResponse{ID: "none", Properties: outputs}, nil
	}
	return plugin.CreateResponse{}, notStoodIn(r.URN)
}

func (*random) Read(_ context.Context, r plugin.ReadRequest) (plugin.ReadResponse, error) {
	return plugin.ReadResponse{ReadResult: plugin.ReadResult{ID: r.ID, Inputs: r.Inputs, Outputs: r.State}}, nil
}

func (*random) Delete(context.Context, plugin.DeleteRequest) (plugin.DeleteResponse, error) {
	return plugin.DeleteResponse{}, nil
}

// Read of a Command is what the state holds: the real provider has none, and
// the engine then keeps the state.
func (c *command) Read(_ context.Context, r plugin.ReadRequest) (plugin.ReadResponse, error) {
	return plugin.ReadResponse{ReadResult: plugin.ReadResult{ID: r.ID, Inputs: r.Inputs, Outputs: r.State}}, nil
}
