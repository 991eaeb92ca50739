package stacks

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// Whatever the network, its parts lie inside it, do not meet, and leave out
// what no host may have.
func TestAddressesOfEverySize(t *testing.T) {
	for bits := 16; bits <= 24; bits++ {
		for _, base := range []string{"10.192.0.0", "172.16.0.0", "192.168.255.255"} {
			subnet := netip.PrefixFrom(netip.MustParseAddr(base), bits) // not always masked
			a, err := newAddresses(subnet)
			if err != nil {
				t.Fatal(err)
			}
			subnet = subnet.Masked()
			if a.subnet != subnet || a.dynamic != a.dynamic.Masked() || a.workers != a.workers.Masked() {
				t.Errorf("%s: a part is not masked: %+v", subnet, a)
			}
			broadcast := last(subnet)
			for name, inside := range map[string]bool{
				"the gateway is Docker's":          a.dynamic.Contains(a.gateway) && a.gateway != subnet.Addr(),
				"dynamic and workers apart":        !a.dynamic.Overlaps(a.workers),
				"dynamic inside":                   subnet.Contains(a.dynamic.Addr()) && subnet.Contains(last(a.dynamic)),
				"workers inside":                   subnet.Contains(a.workers.Addr()) && subnet.Contains(last(a.workers)),
				"the pool is behind the others":    last(a.workers).Less(a.poolFirst) && last(a.dynamic).Less(a.poolFirst),
				"the pool is inside":               subnet.Contains(a.poolFirst) && subnet.Contains(a.poolLast),
				"the pool ends before the last":    a.poolLast.Next() == broadcast,
				"the pool is in order":             a.poolFirst.Less(a.poolLast),
				"the pool's size is what it spans": a.poolSize() == int(number(broadcast)-number(a.poolFirst)),
				"nothing is wasted":                a.poolSize()+1+a.workerCount()+1<<(32-a.dynamic.Bits()) == 1<<(32-bits),
				"the pool's text":                  a.pool() == a.poolFirst.String()+"-"+a.poolLast.String(),
			} {
				if !inside {
					t.Errorf("%s: not so: %s; %+v", subnet, name, a)
				}
			}
		}
	}
}

// last is the last address of a prefix, counted one by one.
func last(prefix netip.Prefix) netip.Addr {
	address := prefix.Addr()
	for prefix.Contains(address.Next()) {
		address = address.Next()
	}
	return address
}

func TestAddressesOfWhatWillNotDo(t *testing.T) {
	for _, subnet := range []string{"10.1.0.0/25", "10.1.0.0/32", "fd00::/64", "::ffff:10.1.0.0/120"} {
		if a, err := newAddresses(netip.MustParsePrefix(subnet)); err == nil || !strings.Contains(err.Error(), "/24 or larger") {
			t.Errorf("%s gives %+v, %v", subnet, a, err)
		}
	}
}

func smallNetwork(t *testing.T) addresses {
	t.Helper()
	a, err := newAddresses(netip.MustParsePrefix("10.9.0.0/24"))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func containersNamed(count int) []string {
	var all []string
	for i := range count {
		all = append(all, fmt.Sprintf("lab-t%d-worker-%d", i/3, i%3))
	}
	return all
}

// assigned is assign where it must not fail: every container has an address of
// its own among the workers'.
func assigned(t *testing.T, a addresses, containers []string, has map[string]netip.Addr) map[string]netip.Addr {
	t.Helper()
	got, err := a.assign(containers, has)
	if err != nil {
		t.Fatal(err)
	}
	by := map[netip.Addr]string{}
	for _, name := range containers {
		address := got[name]
		if !a.workers.Contains(address) {
			t.Errorf("%s has %s, which is not in %s", name, address, a.workers)
		}
		if other, taken := by[address]; taken {
			t.Errorf("%s and %s both have %s", name, other, address)
		}
		by[address] = name
	}
	if len(got) != len(containers) {
		t.Errorf("%d containers have %d addresses", len(containers), len(got))
	}
	return got
}

func TestAssignFillsTheNetwork(t *testing.T) {
	a := smallNetwork(t)
	for _, count := range []int{0, 1, 40, a.workerCount()} {
		assigned(t, a, containersNamed(count), nil)
	}
	if _, err := a.assign(containersNamed(a.workerCount()+1), nil); err == nil || !strings.Contains(err.Error(), "addresses for 64 workers") || !strings.Contains(err.Error(), "have 65") {
		t.Errorf("one more than fits: %v", err)
	}
}

func TestAssignDoesNotGoByTheOrder(t *testing.T) {
	a := smallNetwork(t)
	random := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // a repeatable test
	containers := containersNamed(50)
	want := assigned(t, a, containers, nil)
	for range 20 {
		shuffled := slices.Clone(containers)
		random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		before := slices.Clone(shuffled)
		if got := assigned(t, a, shuffled, nil); !maps.Equal(got, want) {
			t.Fatal("the addresses depend on the order of the list")
		}
		if !slices.Equal(shuffled, before) {
			t.Fatal("the caller's list was sorted")
		}
	}
}

// Whatever comes and goes, nobody who stays moves.
func TestAssignMovesNobody(t *testing.T) {
	a := smallNetwork(t)
	random := rand.New(rand.NewPCG(5, 6)) //nolint:gosec // a repeatable test
	all := containersNamed(90)
	has := map[string]netip.Addr{}
	for round := range 200 {
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		containers := all[:random.IntN(a.workerCount()+1)]
		got := assigned(t, a, containers, has)
		for _, name := range containers {
			if had, there := has[name]; there && got[name] != had {
				t.Fatalf("round %d: %s moved from %s to %s", round, name, had, got[name])
			}
		}
		has = got
	}
}

// What a container has counts only where it can stay.
func TestAssignKeepsOnlyWhatCanStay(t *testing.T) {
	a := smallNetwork(t)
	in := func(text string) netip.Addr { return netip.MustParseAddr(text) }
	got := assigned(t, a, []string{"dynamic", "pool", "elsewhere", "stopped", "first", "second", "kept"}, map[string]netip.Addr{
		"dynamic": in("10.9.0.2"), "pool": in("10.9.0.200"), "elsewhere": in("172.17.0.2"), "stopped": {},
		"first": in("10.9.0.70"), "second": in("10.9.0.70"), // one of them only
		"kept": in("10.9.0.64"), "gone": in("10.9.0.65"),
	})
	if got["kept"] != in("10.9.0.64") || got["first"] != in("10.9.0.70") {
		t.Errorf("an address that can stay is given up: %v", got)
	}
}

// The address of one that is gone is free again when the network is full.
func TestAssignReusesWhatIsFree(t *testing.T) {
	a := smallNetwork(t)
	full := containersNamed(a.workerCount())
	has := assigned(t, a, full, nil)
	next := append(slices.Clone(full[1:]), "new")
	if got := assigned(t, a, next, has); got["new"] != has[full[0]] {
		t.Errorf("the new one has %s, want %s, the only one free", got["new"], has[full[0]])
	}
}

func TestDerivedSubnet(t *testing.T) {
	block := netip.MustParsePrefix("10.192.0.0/11")
	seen := map[netip.Prefix]bool{}
	for i := range 2000 {
		subnet := derivedSubnet(fmt.Sprintf("gpu-tenants-%d", i))
		if subnet.Bits() != 20 || subnet != subnet.Masked() || !block.Contains(subnet.Addr()) || !block.Contains(last(subnet)) {
			t.Fatalf("%s is no /20 in %s", subnet, block)
		}
		seen[subnet] = true
	}
	if len(seen) < 400 {
		t.Errorf("2000 stacks get %d of 512 networks", len(seen))
	}
	dev, again, prod := derivedSubnet("gpu-tenants-dev"), derivedSubnet("gpu-tenants-dev"), derivedSubnet("gpu-tenants-prod")
	if dev != again || dev == prod {
		t.Errorf("dev has %s, and a second time %s; prod has %s", dev, again, prod)
	}
}
