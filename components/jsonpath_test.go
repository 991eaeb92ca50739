package components

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// get answers a `kubectl get` of one object or list with the output that args
// ask for.
func get(t *testing.T, object string, args []string) reply {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(object))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		t.Errorf("the test's own object: %v", err)
	}
	output := args[slices.Index(args, "--output")+1]
	if template, ok := strings.CutPrefix(output, "jsonpath="); ok {
		return reply{stdout: jsonPath(t, template, value)}
	}
	return reply{stdout: "kind/name\n"}
}

// jsonPath evaluates as much of kubectl's JSONPath as the scripts use. As
// kubectl has it, a key that is missing gives nothing, and an element that
// lacks the key of a filter does not pass, whatever the operator is.
func jsonPath(t *testing.T, template string, value any) string {
	t.Helper()
	var text strings.Builder
	for template != "" {
		if template[0] != '{' {
			text.WriteByte(template[0])
			template = template[1:]
			continue
		}
		block, rest, ok := strings.Cut(template[1:], "}")
		if !ok {
			t.Errorf("jsonpath: a brace is not closed in %q", template)
			return ""
		}
		template = rest
		switch path, isRange := strings.CutPrefix(block, "range "); {
		case isRange:
			body, rest, _ := strings.Cut(template, "{end}")
			template = rest
			for _, element := range lookUp(t, path, value) {
				text.WriteString(jsonPath(t, body, element))
			}
		case strings.HasPrefix(block, `"`):
			text.WriteString(strings.ReplaceAll(strings.Trim(block, `"`), `\n`, "\n"))
		default:
			var found []string
			for _, element := range lookUp(t, block, value) {
				found = append(found, fmt.Sprint(element))
			}
			text.WriteString(strings.Join(found, " "))
		}
	}
	return text.String()
}

// lookUp returns what a path leads to.
func lookUp(t *testing.T, path string, value any) []any {
	t.Helper()
	values := []any{value}
	for path != "" {
		var step func(any) []any
		switch {
		case strings.HasPrefix(path, "[*]"):
			path = path[len("[*]"):]
			step = func(value any) []any { list, _ := value.([]any); return list }
		case strings.HasPrefix(path, "[?(@"):
			condition, rest, _ := strings.Cut(path[len("[?(@"):], ")]")
			path = rest
			step = func(value any) []any {
				list, _ := value.([]any)
				return slices.DeleteFunc(slices.Clone(list), func(element any) bool { return !passes(t, condition, element) })
			}
		case path[0] == '.':
			var key string
			key, path = cutKey(path[1:])
			step = func(value any) []any {
				if object, ok := value.(map[string]any); ok && object[key] != nil {
					return []any{object[key]}
				}
				return nil
			}
		default:
			t.Errorf("jsonpath: the test cannot read %q", path)
			return nil
		}
		var next []any
		for _, value := range values {
			next = append(next, step(value)...)
		}
		values = next
	}
	return values
}

func passes(t *testing.T, condition string, element any) bool {
	t.Helper()
	for _, operator := range []string{"!=", "=="} {
		path, literal, ok := strings.Cut(condition, operator)
		if !ok {
			continue
		}
		found := lookUp(t, path, element)
		return len(found) == 1 && (fmt.Sprint(found[0]) == strings.Trim(literal, `"`)) == (operator == "==")
	}
	t.Errorf("jsonpath: the test cannot read the condition %q", condition)
	return false
}

// cutKey cuts behind a key, in which `\.` is a dot.
func cutKey(path string) (key, rest string) {
	for i := 0; i < len(path); i++ {
		switch path[i] {
		case '\\':
			i++
			if i < len(path) {
				key += path[i : i+1]
			}
		case '.', '[':
			return key, path[i:]
		default:
			key += path[i : i+1]
		}
	}
	return key, ""
}

// The values are those that k8s.io/client-go/util/jsonpath gives.
func TestJSONPath(t *testing.T) {
	const list = `{"items":[{"name":"a","spec":{}},{"name":"b","spec":{"off":true}}],"status":{"x.y/z":"20k","n":3}}`
	for template, want := range map[string]string{
		`{.status.x\.y/z}|{.status.n}|{.none.at.all}`:     "20k|3|",
		`{range .items[*]}{.name} {.spec.off}{"\n"}{end}`: "a \nb true\n",
		`{.items[?(@.spec.off==true)].name}`:              "b",
		`{.items[?(@.spec.off!=true)].name}`:              "", // a lacks the key
		`{.items[?(@.name=="a")].name}`:                   "a",
		`{.items[*].name}`:                                "a b",
	} {
		if got := get(t, list, []string{"get", "--output", "jsonpath=" + template}).stdout; got != want {
			t.Errorf("%s gives %q, want %q", template, got, want)
		}
	}
}
