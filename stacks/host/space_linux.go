package host

import "syscall"

func diskSpace(path string) (Space, error) {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(path, &stat); err != nil {
		return Space{}, err
	}
	size := uint64(stat.Bsize) //nolint:gosec // a block size is positive
	// As df counts: what is kept for root is neither free nor part of the whole.
	return Space{Free: stat.Bavail * size, Total: (stat.Blocks - stat.Bfree + stat.Bavail) * size}, nil
}
