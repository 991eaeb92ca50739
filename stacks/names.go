package stacks

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
)

// maxPrefix bounds the part of every physical name that says whose it is.
// Behind it a worker's name has "-<tenant>-worker-<n>", and a container's
// hostname can be 63 characters long.
const maxPrefix = 22

var notAllowed = regexp.MustCompile(`[^a-z0-9]+`)

// names of everything that exists on the host outside Pulumi's state. They come
// from project and stack alone, so that two stacks never meet and the same
// stack finds its own again.
type names struct {
	prefix string
}

func newNames(project, stack string) names {
	full := strings.Trim(notAllowed.ReplaceAllString(strings.ToLower(project+"-"+stack), "-"), "-")
	if len(full) <= maxPrefix && full == project+"-"+stack {
		return names{prefix: full}
	}
	// Shortened or changed, the name could be another stack's: a hash of the
	// whole tells them apart.
	sum := sha256.Sum256([]byte(project + "/" + stack))
	hash := hex.EncodeToString(sum[:])[:5]
	if limit := maxPrefix - len(hash) - 1; len(full) > limit {
		full = strings.TrimRight(full[:limit], "-")
	}
	return names{prefix: full + "-" + hash}
}

func (n names) network() string { return n.prefix }

func (n names) cluster() string { return n.prefix }

func (n names) worker(tenant string, index int) string {
	return fmt.Sprintf("%s-%s-worker-%d", n.prefix, tenant, index)
}

// node is a worker's name inside its tenant's cluster.
func (n names) node(tenant string, index int) string {
	return fmt.Sprintf("%s-worker-%d", tenant, index)
}
