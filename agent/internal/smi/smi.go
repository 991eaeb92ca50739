package smi

import (
	"fmt"
	"io"
	"strings"
)

// Name is what the binary is called by when it stands in for nvidia-smi.
const Name = "nvidia-smi"

// exitNoDevices is nvidia-smi's exit code when it finds nothing to show.
const exitNoDevices = 6

const usage = `usage: nvidia-smi [-L]

This is a mock: it shows the slices of mock cards that this container was given
and knows no other options.
`

// Run prints what nvidia-smi would, in its manner, and returns the exit code.
func Run(args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	list := false
	for _, arg := range args {
		switch arg {
		case "-L", "--list-gpus":
			list = true
		case "-h", "--help":
			fmt.Fprint(stdout, usage)
			return 0
		default:
			fmt.Fprintf(stderr, "option %s is not known to this mock\n\n%s", arg, usage)
			return 2
		}
	}
	shares := Shares(getenv)
	switch {
	case len(shares) == 0:
		fmt.Fprintln(stdout, "No devices were found")
		return exitNoDevices
	case list:
		for i, s := range shares {
			fmt.Fprintf(stdout, "GPU %d: %s (UUID: %s)\n", i, s.Type, s.Card)
		}
	default:
		table(stdout, shares)
	}
	return 0
}

// table has the width and the columns of the real one's first half, with dashes
// for what a card that does not exist cannot have.
func table(w io.Writer, shares []Share) {
	const width = 89
	line := func(fill string) { fmt.Fprintf(w, "+%s+\n", strings.Repeat(fill, width)) }
	row := func(left, middle, right string) {
		fmt.Fprintf(w, "| %-45.45s | %-19.19s | %-17.17s |\n", left, middle, right)
	}

	line("-")
	fmt.Fprintf(w, "| %-*s |\n", width-2, "NVIDIA-SMI mock            Driver Version: none            CUDA Version: none")
	line("-")
	row("GPU  Name", "Bus-Id", "Compute")
	row("     UUID", "Memory-Usage", "Limit")
	line("=")
	for i, s := range shares {
		limit := "none"
		if s.Cores > 0 {
			limit = fmt.Sprintf("%d %%", s.Cores)
		}
		row(fmt.Sprintf("%3d  %s", i, s.Type), "--------:--:--.-", "Default")
		row("     "+s.Card, fmt.Sprintf("0MiB / %dMiB", s.MemoryMiB), limit)
		line("-")
	}
	fmt.Fprintf(w, "| %-*s |\n", width-2, "Mock cards: nothing runs on them, and no limit is enforced.")
	line("-")
}
