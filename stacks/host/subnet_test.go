package host_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/gpu-tenants/gpu-tenants/stacks/host"
)

func TestFreeSubnet(t *testing.T) {
	own := &host.Network{Subnets: prefixes("172.30.0.0/16")}
	tests := map[string]struct {
		o     host.Observed
		like  string
		avoid []netip.Prefix
		want  string
	}{
		"itself":          {like: "172.29.0.0/16", want: "172.29.0.0/16"},
		"host bits":       {like: "172.29.0.7/16", want: "172.29.0.0/16"},
		"the next":        {o: host.Observed{Routes: prefixes("172.29.5.0/24")}, like: "172.29.0.0/16", want: "172.30.0.0/16"},
		"the next /24":    {o: host.Observed{Routes: prefixes("172.29.5.128/25")}, like: "172.29.5.0/24", want: "172.29.6.0/24"},
		"past a large":    {o: host.Observed{Routes: prefixes("172.24.0.0/13")}, like: "172.29.5.0/24", want: "172.16.0.0/24"},
		"round the block": {o: host.Observed{Network: own, Routes: prefixes("172.31.0.0/16")}, like: "172.30.0.0/16", want: "172.16.0.0/16"},
		"other block":     {o: host.Observed{Routes: prefixes("172.16.0.0/12")}, like: "172.29.0.0/16", want: "192.168.0.0/16"},
		"Docker network": {
			o: host.Observed{OtherNetworks: []host.Network{{Subnets: prefixes("10.0.0.0/8", "192.168.3.0/24")}}}, like: "192.168.3.0/24", want: "192.168.4.0/24",
		},
		"reserved":       {o: host.Observed{Routes: prefixes("172.16.0.0/12", "192.168.0.0/16")}, like: "10.0.0.0/16", avoid: prefixes("10.0.0.0/15", "fd00::/8"), want: "10.2.0.0/16"},
		"large one":      {like: "10.0.0.0/8", want: "10.0.0.0/8"},
		"not private":    {like: "203.0.113.0/24", want: "172.16.0.0/24"},
		"all of IPv4":    {like: "0.0.0.0/0", want: "invalid Prefix"},
		"nothing left":   {o: host.Observed{Routes: prefixes("172.16.0.0/12", "192.168.0.0/16", "10.0.0.0/8")}, like: "10.0.0.0/24", want: "invalid Prefix"},
		"IPv6":           {like: "fd00::/64", want: "invalid Prefix"},
		"single address": {o: host.Observed{Routes: prefixes("10.0.0.0/31")}, like: "10.0.0.0/32", want: "10.0.0.2/32"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := host.FreeSubnet(&test.o, netip.MustParsePrefix(test.like), test.avoid...); got.String() != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
	if got := host.FreeSubnet(&host.Observed{}, netip.Prefix{}); got.IsValid() {
		t.Errorf("zero prefix gave %s", got)
	}
}

// Whatever is taken, the answer overlaps none of it and has the size asked for.
func TestFreeSubnetNeverOverlaps(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test wants the same numbers every time
	blocks := prefixes("172.16.0.0/12", "192.168.0.0/16", "10.0.0.0/8")
	pick := func(shortest, longest int) netip.Prefix {
		block := blocks[random.IntN(len(blocks))]
		address := block.Addr().As4()
		address[1] |= byte(random.IntN(256)) &^ (0xff << max(0, 16-block.Bits()))
		address[2], address[3] = byte(random.IntN(256)), byte(random.IntN(256))
		length := max(block.Bits(), shortest+random.IntN(longest-shortest+1))
		return netip.PrefixFrom(netip.AddrFrom4(address), length)
	}
	found := 0
	for range 2000 {
		var o host.Observed
		var taken []netip.Prefix
		for i := range random.IntN(40) {
			prefix := pick(9, 30)
			taken = append(taken, prefix)
			switch i % 3 {
			case 0:
				o.Routes = append(o.Routes, prefix)
			case 1:
				o.OtherNetworks = append(o.OtherNetworks, host.Network{Subnets: []netip.Prefix{prefix}})
			case 2:
				if o.Network == nil {
					o.Network = &host.Network{}
				}
				o.Network.Subnets = append(o.Network.Subnets, prefix)
			}
		}
		like := pick(12, 28)
		free := host.FreeSubnet(&o, like)
		if !free.IsValid() {
			continue
		}
		found++
		if free.Bits() != like.Bits() || free != free.Masked() || !free.Addr().IsPrivate() {
			t.Fatalf("like %s: %s", like, free)
		}
		for _, prefix := range taken {
			if prefix.Overlaps(free) {
				t.Fatalf("%s overlaps %s", free, prefix)
			}
		}
	}
	if found < 1000 {
		t.Errorf("only %d of 2000 found one", found)
	}
}
