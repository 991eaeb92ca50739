package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// reader gathers the faults of one configuration while it is read.
type reader struct {
	faults Faults
	// meant holds the paths of absent values that an unknown key may have been
	// meant to be: what such a value is has to be taken as not known.
	meant map[string]bool
}

func (r *reader) faultf(path, format string, args ...any) {
	r.faults = append(r.faults, Fault{Path: path, Message: fmt.Sprintf(format, args...)})
}

// sound reports whether the values at paths were read without a fault in, at or
// around them, so that a rule over several values can say something about them
// and a first fault has no others in its wake.
func (r *reader) sound(paths ...string) bool {
	for _, path := range paths {
		related := func(f Fault) bool { return within(f.Path, path) || within(path, f.Path) }
		if r.meant[path] || slices.ContainsFunc(r.faults, related) {
			return false
		}
	}
	return true
}

// within reports whether path is root or a value inside it.
func within(path, root string) bool {
	rest, found := strings.CutPrefix(path, root)
	return found && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// node is one value of the configuration: nil, bool, string, json.Number,
// []any, map[string]any, or raw.
//
// Its methods that read into a pointer leave the pointer's target alone when
// they find a fault, so that a default stays in place.
type node struct {
	*reader
	path  string
	value any
}

// raw is a value as Pulumi hands it over: a scalar as plain text, an object or
// a list as JSON. Which of the two is known from what is asked of the node.
type raw string

// fields says how to read the value of each key that an object may have.
type fields map[string]func(node)

// readElsewhere stands in fields for a key whose value is read together with
// its neighbour's.
func readElsewhere(node) {}

func (n node) faultf(format string, args ...any) { n.reader.faultf(n.path, format, args...) }

func (n node) wants(want string) { n.faultf("must be %s, not %s", want, describe(n.value)) }

var plainKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

func (n node) child(key string, value any) node {
	switch {
	case !plainKey.MatchString(key):
		key = fmt.Sprintf("[%q]", key)
	case n.path != "":
		key = "." + key
	}
	return node{n.reader, n.path + key, value}
}

func (n node) item(index int, value any) node {
	return node{n.reader, fmt.Sprintf("%s[%d]", n.path, index), value}
}

// parsed turns raw JSON into a value. Text that is not JSON stays text.
func (n node) parsed() (node, bool) {
	text, isRaw := n.value.(raw)
	if !isRaw {
		return n, true
	}
	value, err := parseJSON(string(text))
	if err != nil && strings.ContainsAny(string(text[:min(1, len(text))]), "[{") {
		n.faultf("is not valid JSON: %v", err)
		return n, false
	}
	if err == nil {
		n.value = value
	}
	return n, true
}

func parseJSON(text string) (any, error) {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is something after its end")
	}
	return value, nil
}

// list returns the elements of a list.
func (n node) list(want string) ([]node, bool) {
	n, ok := n.parsed()
	if !ok {
		return nil, false
	}
	values, ok := n.value.([]any)
	if !ok {
		n.wants(want)
		return nil, false
	}
	items := make([]node, len(values))
	for i, value := range values {
		items[i] = n.item(i, value)
	}
	return items, true
}

// entries returns the values of an object whose keys are free, sorted by key.
func (n node) entries(want string) (keys []string, values map[string]any, ok bool) {
	n, ok = n.parsed()
	if !ok {
		return nil, nil, false
	}
	values, ok = n.value.(map[string]any)
	if !ok {
		n.wants(want)
		return nil, nil, false
	}
	return slices.Sorted(maps.Keys(values)), values, true
}

// object reads an object that may have the keys of known and no others. It
// returns the values, nil when it is no object.
func (n node) object(known fields, required ...string) map[string]any {
	keys, values, ok := n.entries("an object with the keys " + strings.Join(slices.Sorted(maps.Keys(known)), ", "))
	if !ok {
		return nil
	}
	for _, key := range keys {
		child := n.child(key, values[key])
		if read, isKnown := known[key]; isKnown {
			read(child)
		} else {
			n.unknownKey(child, key, known, values)
		}
	}
	for _, key := range required {
		if n.absent(values, key) {
			n.child(key, nil).faultf("is missing; every element needs one")
		}
	}
	return values
}

// unknownKey reports a key, and notes which absent ones it may stand for.
func (n node) unknownKey(child node, key string, known fields, values map[string]any) {
	candidates := slices.Sorted(maps.Keys(known))
	child.faultf("unknown key; %s", didYouMean(key, candidates))
	if candidate, found := nearest(key, candidates); found {
		candidates = []string{candidate}
	}
	for _, candidate := range candidates {
		if _, present := values[candidate]; !present {
			n.meant[n.child(candidate, nil).path] = true
		}
	}
}

// absent reports whether an object has no value for key, and no unknown key
// that may stand for it.
func (n node) absent(values map[string]any, key string) bool {
	_, present := values[key]
	return !present && !n.meant[n.child(key, nil).path]
}

// text reads a text. want says in a fault what it should have been.
func (n node) text(want string) (string, bool) {
	switch value := n.value.(type) {
	case raw:
		return string(value), true
	case string:
		return value, true
	default:
		n.wants(want)
		return "", false
	}
}

// matching reads a text of a certain form.
func (n node) matching(target *string, form *regexp.Regexp, want string) {
	text, ok := n.text(want)
	if !ok {
		return
	}
	if !form.MatchString(text) {
		n.wants(want)
		return
	}
	*target = text
}

// oneOf reads one of a few words.
func (n node) oneOf(target *string, words ...string) {
	want := fmt.Sprintf("one of %q", words)
	text, ok := n.text(want)
	if !ok {
		return
	}
	if !slices.Contains(words, text) {
		n.wants(want)
		return
	}
	*target = text
}

// wholeNumber is what can be read in one way only: no "010", no "1e3".
var wholeNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)

// integer reads a whole number. `pulumi config set --path` makes texts of
// numbers, so a text that is one counts as one.
func (n node) integer(target *int, low, high int) bool {
	number, ok := parseInteger(n.digits())
	if !ok || number < low || number > high {
		n.wants(fmt.Sprintf("a whole number from %d to %d", low, high))
		return false
	}
	*target = number
	return true
}

func parseInteger(text string) (int, bool) {
	number, err := strconv.Atoi(text)
	return number, err == nil && wholeNumber.MatchString(text)
}

// factor reads a number above 0.
func (n node) factor(target *float64, high float64) {
	number, err := strconv.ParseFloat(n.digits(), 64)
	if err != nil || !(number > 0 && number <= high) { // so put, it refuses NaN
		n.wants(fmt.Sprintf("a number above 0, at most %g", high))
		return
	}
	*target = number
}

func (n node) digits() string {
	switch value := n.value.(type) {
	case raw:
		return string(value)
	case string:
		return value
	case json.Number:
		return value.String()
	default:
		return ""
	}
}

// describe names a value in a fault's message.
func describe(value any) string {
	const longest = 60
	switch value := value.(type) {
	case nil:
		return "empty"
	case raw:
		return describe(string(value))
	case string:
		if len(value) > longest {
			value = value[:longest] + "..."
		}
		return fmt.Sprintf("%q", value)
	case []any:
		return "a list"
	case map[string]any:
		return "an object"
	default:
		return fmt.Sprint(value)
	}
}
