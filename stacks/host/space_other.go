//go:build !linux

package host

import "errors"

// Elsewhere than on Linux the preflight stops short of the disk.
func diskSpace(string) (Space, error) { return Space{}, errors.ErrUnsupported }
