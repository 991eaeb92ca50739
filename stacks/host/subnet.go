package host

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"net/netip"
	"strconv"
	"strings"
)

// route is a line of /proc/net/route.
type route struct {
	iface  string
	prefix netip.Prefix
}

// parseRoutes reads /proc/net/route: IPv4, main table. Lines that are down,
// refuse their packets, or make no sense are left out.
func parseRoutes(table []byte) []route {
	const (
		columns = 8
		up      = 0x1
		reject  = 0x200
	)
	var routes []route
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) < columns {
			continue
		}
		destination, err1 := strconv.ParseUint(fields[1], 16, 32)
		flags, err2 := strconv.ParseUint(fields[3], 16, 32)
		mask, err3 := strconv.ParseUint(fields[7], 16, 32)
		if err1 != nil || err2 != nil || err3 != nil || flags&up == 0 || flags&reject != 0 {
			continue
		}
		// The kernel prints the bytes of the address as one native integer.
		var address, maskBytes [4]byte
		binary.NativeEndian.PutUint32(address[:], uint32(destination))
		binary.NativeEndian.PutUint32(maskBytes[:], uint32(mask))
		length := bits.LeadingZeros32(^binary.BigEndian.Uint32(maskBytes[:]))
		routes = append(routes, route{fields[0], netip.PrefixFrom(netip.AddrFrom4(address), length).Masked()})
	}
	return routes
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// FreeSubnet returns a private IPv4 subnet of the size of like that overlaps no
// Docker network, no route of the host and nothing of avoid: like itself when
// it is free, else the next one after it in its private block, else one of
// another block. It is the zero Prefix when there is none.
func FreeSubnet(o *Observed, like netip.Prefix, avoid ...netip.Prefix) netip.Prefix {
	if !like.IsValid() || !like.Addr().Is4() {
		return netip.Prefix{}
	}
	like = like.Masked()
	taken := append([]netip.Prefix(nil), avoid...)
	taken = append(taken, o.Routes...)
	for _, network := range o.OtherNetworks {
		taken = append(taken, network.Subnets...)
	}
	if o.Network != nil {
		taken = append(taken, o.Network.Subnets...)
	}

	blocks := []netip.Prefix{ // 10/8 last: it is where pod and service networks lie
		netip.MustParsePrefix("172.16.0.0/12"),
		netip.MustParsePrefix("192.168.0.0/16"),
		netip.MustParsePrefix("10.0.0.0/8"),
	}
	for _, block := range blocks {
		if block.Bits() <= like.Bits() && block.Contains(like.Addr()) {
			start, end := span(block)
			from, _ := span(like)
			if free := firstFree(from, end, like.Bits(), taken); free.IsValid() {
				return free
			}
			if free := firstFree(start, from, like.Bits(), taken); free.IsValid() {
				return free
			}
		}
	}
	for _, block := range blocks {
		if block.Bits() <= like.Bits() {
			start, end := span(block)
			if free := firstFree(start, end, like.Bits(), taken); free.IsValid() {
				return free
			}
		}
	}
	return netip.Prefix{}
}

// firstFree is the first subnet of the given length in [from, end) that
// overlaps nothing taken.
func firstFree(from, end uint64, length int, taken []netip.Prefix) netip.Prefix {
	size := uint64(1) << (32 - length)
	for from+size <= end {
		candidate := netip.PrefixFrom(address(from), length)
		next := from
		for _, prefix := range taken {
			if prefix.Overlaps(candidate) {
				_, after := span(prefix)
				next = max(next, from+size, after) // both ends are multiples of size
			}
		}
		if next == from {
			return candidate
		}
		from = next
	}
	return netip.Prefix{}
}

// span of an IPv4 prefix as numbers: the first address and the one after the last.
func span(prefix netip.Prefix) (first, after uint64) {
	bytes := prefix.Masked().Addr().As4()
	first = uint64(binary.BigEndian.Uint32(bytes[:]))
	return first, first + uint64(1)<<(32-prefix.Bits())
}

func address(number uint64) netip.Addr {
	var bytes [4]byte
	binary.BigEndian.PutUint32(bytes[:], uint32(number)) //nolint:gosec // at most 32 bits, see span
	return netip.AddrFrom4(bytes)
}
