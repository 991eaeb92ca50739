package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Fault is one thing that is wrong with a configuration.
type Fault struct {
	// Path of the value as Pulumi writes it: `tenants[1].gpus[0]`.
	Path string
	// Message says what is wrong with the value and what would be right.
	Message string
}

// Faults is everything that is wrong with a configuration, in reading order.
type Faults []Fault

// Error lists the faults, one per line.
func (f Faults) Error() string {
	var text strings.Builder
	text.WriteString("invalid configuration, nothing was changed:")
	for _, fault := range f {
		fmt.Fprintf(&text, "\n  %s: %s", fault.Path, fault.Message)
	}
	return text.String()
}

// sort puts the faults in reading order. The order of keys in the file is lost
// before the program sees them, so keys go by name, and elements by number.
func (f Faults) sort() {
	slices.SortStableFunc(f, func(a, b Fault) int { return comparePaths(a.Path, b.Path) })
}

// comparePaths compares digits as numbers, so that tenants[2] comes before
// tenants[10], and everything else as text.
func comparePaths(a, b string) int {
	for a != "" && b != "" {
		digitsA, digitsB := leadingDigits(a), leadingDigits(b)
		if digitsA != "" && digitsB != "" {
			order := cmp.Or(cmp.Compare(len(digitsA), len(digitsB)), cmp.Compare(digitsA, digitsB))
			if order != 0 {
				return order
			}
			a, b = a[len(digitsA):], b[len(digitsB):]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

func leadingDigits(text string) string {
	return text[:len(text)-len(strings.TrimLeft(text, "0123456789"))]
}
