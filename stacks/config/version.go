package config

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-tenants/gpu-tenants/stacks/pins"
)

var versionForm = regexp.MustCompile(`^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)$`)

// version is major, minor and patch.
type version [3]int

func parseVersion(text string) (version, bool) {
	parts := versionForm.FindStringSubmatch(text)
	if parts == nil {
		return version{}, false
	}
	var parsed version
	for i := range parsed {
		number, err := strconv.Atoi(parts[i+1])
		if err != nil {
			return version{}, false
		}
		parsed[i] = number
	}
	return parsed, true
}

// version reads a version of Kubernetes that Kamaji can run. Whether there is
// a node image for it is a rule of validate.go.
func (n node) version(target *string) {
	supported := pins.Load().Kubernetes
	text, ok := n.text(fmt.Sprintf("a version such as %q", supported.Default))
	if !ok {
		return
	}
	parsed, ok := parseVersion(text)
	if !ok {
		n.faultf("%s", noVersion(text))
		return
	}
	if parsed[0] != 1 || parsed[1] < supported.MinimumMinor || parsed[1] > supported.MaximumMinor {
		n.faultf("%s is not supported; Kamaji's release runs v1.%d to v1.%d",
			text, supported.MinimumMinor, supported.MaximumMinor)
		return
	}
	*target = text
}

// noVersion says why text is no version.
func noVersion(text string) string {
	if _, ok := parseVersion("v" + text); ok {
		return fmt.Sprintf("is no version without its v; write %q", "v"+text)
	}
	return fmt.Sprintf("%s is no version; write all of vMAJOR.MINOR.PATCH, such as %q",
		describe(text), pins.Load().Kubernetes.Default)
}

// imageVersions lists the versions that have a node image, newest first.
func (c *Config) imageVersions() []string {
	all := maps.Clone(pins.Load().Kubernetes.NodeImages)
	maps.Copy(all, c.NodeImages)
	return slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		parsedA, _ := parseVersion(a)
		parsedB, _ := parseVersion(b)
		return cmp.Or(slices.Compare(parsedB[:], parsedA[:]), strings.Compare(a, b))
	})
}
