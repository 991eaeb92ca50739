package stacks

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
)

// addresses divides the stack's IPv4 subnet: the first quarter is Docker's to
// hand out (the management node), the second holds the workers at fixed
// addresses, and the upper half is MetalLB's, one address for each control
// plane. What Docker hands out and what MetalLB announces never meet.
type addresses struct {
	subnet  netip.Prefix
	dynamic netip.Prefix
	gateway netip.Addr
	workers netip.Prefix
	// poolFirst and poolLast bound MetalLB's pool, both included.
	poolFirst, poolLast netip.Addr
}

func newAddresses(subnet netip.Prefix) (addresses, error) {
	subnet = subnet.Masked()
	if !subnet.Addr().Is4() || subnet.Bits() > 24 {
		return addresses{}, fmt.Errorf("network %s: an IPv4 subnet of /24 or larger is needed", subnet)
	}
	base := number(subnet.Addr())
	size := uint32(1) << (32 - subnet.Bits())
	return addresses{
		subnet:    subnet,
		dynamic:   netip.PrefixFrom(subnet.Addr(), subnet.Bits()+2),
		gateway:   address(base + 1),
		workers:   netip.PrefixFrom(address(base+size/4), subnet.Bits()+2),
		poolFirst: address(base + size/2),
		poolLast:  address(base + size - 2), // the last one is the broadcast address
	}, nil
}

// poolSize is how many control planes can have an address.
func (a addresses) poolSize() int { return int(number(a.poolLast)-number(a.poolFirst)) + 1 }

func (a addresses) pool() string { return a.poolFirst.String() + "-" + a.poolLast.String() }

// workerCount is how many workers can have an address.
func (a addresses) workerCount() int { return 1 << (32 - a.workers.Bits()) }

// assign gives every container an address among the workers'. One that a
// container has already stays its own, so that no change of the list moves a
// running worker; a new one is found from its name, so that the order of the
// list does not matter.
func (a addresses) assign(containers []string, has map[string]netip.Addr) (map[string]netip.Addr, error) {
	if len(containers) > a.workerCount() {
		return nil, fmt.Errorf("network %s has addresses for %d workers, and the tenants have %d: choose a larger network", a.subnet, a.workerCount(), len(containers))
	}
	assigned := map[string]netip.Addr{}
	taken := map[netip.Addr]bool{}
	sorted := slices.Sorted(slices.Values(containers))
	for _, name := range sorted {
		if own := has[name]; own.IsValid() && a.workers.Contains(own) && !taken[own] {
			assigned[name] = own
			taken[own] = true
		}
	}
	base := number(a.workers.Addr())
	for _, name := range sorted {
		if assigned[name].IsValid() {
			continue
		}
		hash := fnv.New32a()
		hash.Write([]byte(name))
		slot := hash.Sum32() % uint32(a.workerCount())
		for taken[address(base+slot)] {
			slot = (slot + 1) % uint32(a.workerCount())
		}
		assigned[name] = address(base + slot)
		taken[address(base+slot)] = true
	}
	return assigned, nil
}

// derivedSubnet is a stack's network when its configuration names none: one of
// 512 /20 networks in 10.192.0.0/11, chosen by the stack's name.
func derivedSubnet(prefix string) netip.Prefix {
	hash := fnv.New32a()
	hash.Write([]byte(prefix))
	index := hash.Sum32() % 512
	return netip.PrefixFrom(address(number(netip.MustParseAddr("10.192.0.0"))+index<<12), 20)
}

func number(a netip.Addr) uint32 {
	four := a.As4()
	return binary.BigEndian.Uint32(four[:])
}

func address(n uint32) netip.Addr {
	var four [4]byte
	binary.BigEndian.PutUint32(four[:], n)
	return netip.AddrFrom4(four)
}
