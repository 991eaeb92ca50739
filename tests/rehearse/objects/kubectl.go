package objects

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/util/jsonpath"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/seam"
)

// kubectl is one run of the command: what this project's scripts ask of it, and
// a failure that names it for anything else.
type kubectl struct {
	client *Client
	words  []string // verb and what it is about
	flags  map[string]string
	stdin  []byte
}

var errNotKnown = errors.New("the stand-in does not know this")

// flags of kubectl that stand alone; all others have a value.
var kubectlSwitches = []string{"all", "ignore-not-found", "overwrite", "ignore-daemonsets", "delete-emptydir-data", "force", "all-namespaces"}

// Answer runs kubectl.
func (s *Store) Answer(_ context.Context, kubeconfig []byte, args []string, stdin []byte) seam.Reply {
	client, err := s.Connect(kubeconfig)
	if err != nil {
		return seam.Failed(1, "error: "+err.Error())
	}
	k := &kubectl{client: client, flags: map[string]string{}, stdin: stdin}
	for i := 0; i < len(args); i++ {
		name, isFlag := strings.CutPrefix(args[i], "--")
		value, hasValue := "", false
		if isFlag {
			name, value, hasValue = strings.Cut(name, "=")
		}
		switch {
		case !isFlag && strings.HasPrefix(args[i], "-") && len(args[i]) > 1:
			return unknownKubectl(args)
		case !isFlag:
			k.words = append(k.words, args[i])
		case hasValue:
			k.flags[name] = value
		case slices.Contains(kubectlSwitches, name):
			k.flags[name] = "true"
		case i+1 < len(args):
			i++
			k.flags[name] = args[i]
		}
	}
	out, err := k.run()
	switch {
	case errors.Is(err, errNotKnown):
		return unknownKubectl(args)
	case Is(err, Unreachable):
		return seam.Failed(1, "Unable to connect to the server: "+err.Error())
	case Is(err, NotFound):
		return seam.Failed(1, "Error from server (NotFound): "+err.Error())
	case err != nil:
		return seam.Failed(1, "error: "+err.Error())
	}
	return seam.Said(out)
}

func unknownKubectl(args []string) seam.Reply {
	return seam.Failed(64, "the stand-in does not know: kubectl "+strings.Join(args, " "))
}

func (k *kubectl) run() (string, error) {
	if len(k.words) == 0 {
		return "", errNotKnown
	}
	verb, about := k.words[0], k.words[1:]
	switch {
	case verb == "get" && k.flags["raw"] == "/readyz":
		return "ok", k.client.Reachable()
	case verb == "get" && len(about) > 0:
		return k.get(about)
	case verb == "wait":
		return k.wait(about)
	case verb == "create" || verb == "apply":
		return k.create(verb)
	case verb == "delete":
		return k.remove(about)
	case verb == "annotate" && len(about) > 2:
		return k.annotate(about)
	case verb == "patch" && len(about) == 2 && k.flags["type"] == "merge":
		return k.patch(about)
	case verb == "drain" && len(about) == 1:
		_, err := k.client.Edit("v1", "Node", "", about[0], func(node Object) Object {
			child(node, "spec")["unschedulable"] = true
			return node
		})
		return "node/" + about[0] + " drained\n", err
	case verb == "describe":
		return "(a stand-in describes nothing)\n", nil
	}
	return "", errNotKnown
}

func (k *kubectl) namespace() string {
	if namespace := k.flags["namespace"]; namespace != "" {
		return namespace
	}
	return "default"
}

// resource finds a kind by name.
func (k *kubectl) resource(name string) (Kind, error) {
	k.client.store.mu.Lock()
	defer k.client.store.mu.Unlock()
	cluster, err := k.client.cluster()
	if err != nil {
		return Kind{}, err
	}
	return cluster.resource(name)
}

// find returns the objects that "KIND NAME", "KIND/NAME" or "KIND" names.
func (k *kubectl) find(about []string) (Kind, []Object, error) {
	if kind, name, oneWord := strings.Cut(about[0], "/"); oneWord {
		about = []string{kind, name}
	}
	known, err := k.resource(about[0])
	if err != nil {
		return known, nil, err
	}
	if len(about) > 1 {
		object, err := k.client.Get(known.APIVersion, known.Kind, k.namespace(), about[1])
		return known, []Object{object}, err
	}
	namespace := ""
	if known.Namespaced && k.flags["all-namespaces"] == "" {
		namespace = k.namespace()
	}
	selector, err := labels.Parse(k.flags["selector"])
	if err != nil {
		return known, nil, err
	}
	found, err := k.client.List(known.APIVersion, known.Kind, namespace)
	return known, slices.DeleteFunc(found, func(object Object) bool { return !selector.Matches(labelsOf(object)) }), err
}

// labelsOf are an object's labels.
func labelsOf(object Object) labels.Set {
	set := labels.Set{}
	metadata, _ := object["metadata"].(Object)
	values, _ := metadata["labels"].(Object)
	for name := range values {
		set[name] = text(object, "metadata", "labels", name)
	}
	return set
}

func (k *kubectl) get(about []string) (string, error) {
	known, found, err := k.find(about)
	if err != nil {
		if Is(err, NotFound) && k.flags["ignore-not-found"] == "true" {
			return "", nil
		}
		return "", err
	}
	if len(about) > 1 || strings.Contains(about[0], "/") {
		return k.print(known, found[0])
	}
	if k.flags["output"] == "wide" || k.flags["output"] == "" {
		var said strings.Builder
		for _, object := range found {
			said.WriteString(nameOf(object) + "\n")
		}
		return said.String(), nil
	}
	items := []any{}
	for _, object := range found {
		items = append(items, object)
	}
	if k.flags["output"] == "name" {
		var said strings.Builder
		for _, object := range found {
			said.WriteString(strings.ToLower(known.Kind) + "/" + nameOf(object) + "\n")
		}
		return said.String(), nil
	}
	return k.print(known, Object{"apiVersion": "v1", "kind": "List", "items": items})
}

// print prints an object as --output says.
func (k *kubectl) print(known Kind, object Object) (string, error) {
	format := k.flags["output"]
	path, isPath := strings.CutPrefix(format, "jsonpath=")
	switch {
	case format == "name":
		return strings.ToLower(known.Kind) + "/" + nameOf(object) + "\n", nil
	case isPath:
		return jsonPath(path, object)
	case format == "json":
		text, err := json.Marshal(object)
		return string(text) + "\n", err
	case format == "wide" || format == "":
		return nameOf(object) + "\n", nil
	}
	return "", errNotKnown
}

// jsonPath prints what a template finds; what is missing prints as nothing.
func jsonPath(template string, object Object) (string, error) {
	parsed := jsonpath.New("").AllowMissingKeys(true)
	if err := parsed.Parse(template); err != nil {
		return "", err
	}
	var said bytes.Buffer
	err := parsed.Execute(&said, clone(object))
	return said.String(), err
}

// wait looks once: what does not hold now, the scripts ask for again. A
// stand-in's controllers have done their work before anybody can ask.
func (k *kubectl) wait(about []string) (string, error) {
	if len(about) == 0 {
		return "", errNotKnown
	}
	known, found, err := k.find(about)
	if err != nil {
		return "", err
	}
	condition, isCondition := strings.CutPrefix(k.flags["for"], "condition=")
	path, isPath := strings.CutPrefix(k.flags["for"], "jsonpath=")
	for _, object := range found {
		holds := false
		switch {
		case isCondition:
			holds = conditionOf(object, condition) == "True"
		case isPath:
			template, value, _ := strings.Cut(path, "=")
			got, err := jsonPath(template, object)
			holds = err == nil && got == value
		default:
			return "", errNotKnown
		}
		if !holds {
			return "", fmt.Errorf("timed out waiting for the condition on %s/%s", known.Plural, nameOf(object))
		}
	}
	if len(found) == 0 {
		return "", errors.New("no matching resources found")
	}
	return "condition met\n", nil
}

// documents decodes the standard input.
func (k *kubectl) documents() ([]Object, error) {
	if k.flags["filename"] != "-" {
		return nil, errNotKnown
	}
	decoder := yaml.NewDecoder(bytes.NewReader(k.stdin))
	var all []Object
	for {
		var document Object
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, errors.New("the standard input is no YAML") // and is not shown
		}
		if len(document) > 0 {
			all = append(all, clone(document))
		}
	}
}

func (k *kubectl) create(verb string) (string, error) {
	documents, err := k.documents()
	if err != nil {
		return "", err
	}
	dryRun := k.flags["dry-run"] == "server"
	if k.flags["dry-run"] != "" && !dryRun {
		return "", errNotKnown
	}
	var said strings.Builder
	for _, document := range documents {
		known, err := k.client.KindOf(text(document, "apiVersion"), text(document, "kind"))
		if err != nil {
			return "", err
		}
		var made Object
		if verb == "apply" && !dryRun {
			err = k.client.apply(document)
			made = document
		} else {
			made, err = k.client.Create(document, dryRun)
		}
		if err != nil {
			return "", err
		}
		printed, err := k.print(known, made)
		if err != nil {
			return "", err
		}
		said.WriteString(printed)
	}
	return said.String(), nil
}

func (k *kubectl) remove(about []string) (string, error) {
	ignore := func(err error) error {
		if Is(err, NotFound) && k.flags["ignore-not-found"] == "true" {
			return nil
		}
		return err
	}
	if k.flags["filename"] != "" {
		documents, err := k.documents()
		if err != nil {
			return "", err
		}
		for _, document := range documents {
			if err := ignore(k.client.Delete(text(document, "apiVersion"), text(document, "kind"), namespaceOf(document), nameOf(document))); err != nil {
				return "", err
			}
		}
		return "deleted\n", nil
	}
	if len(about) == 0 || len(about) == 1 && k.flags["selector"] == "" && !strings.Contains(about[0], "/") {
		return "", errNotKnown
	}
	known, found, err := k.find(about)
	if err != nil {
		return "", ignore(err)
	}
	for _, object := range found {
		if err := ignore(k.client.Delete(known.APIVersion, known.Kind, namespaceOf(object), nameOf(object))); err != nil {
			return "", err
		}
	}
	return "deleted\n", nil
}

// annotate is kubectl annotate KIND NAME key=value key- ...
func (k *kubectl) annotate(about []string) (string, error) {
	known, err := k.resource(about[0])
	if err != nil {
		return "", err
	}
	_, err = k.client.Edit(known.APIVersion, known.Kind, k.namespace(), about[1], func(object Object) Object {
		annotations := child(child(object, "metadata"), "annotations")
		for _, word := range about[2:] {
			name, value, sets := strings.Cut(word, "=")
			if sets {
				annotations[name] = value
			} else {
				delete(annotations, strings.TrimSuffix(name, "-"))
			}
		}
		return object
	})
	return "annotated\n", err
}

func (k *kubectl) patch(about []string) (string, error) {
	known, err := k.resource(about[0])
	if err != nil {
		return "", err
	}
	var patch Object
	if err := json.Unmarshal([]byte(k.flags["patch"]), &patch); err != nil {
		return "", err
	}
	_, err = k.client.Edit(known.APIVersion, known.Kind, k.namespace(), about[1], func(object Object) Object {
		Merge(object, patch)
		return object
	})
	return "patched\n", err
}
