package node

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/gpu-tenants/gpu-tenants/agent/internal/apitest"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/hami"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/inventory"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/metrics"
)

// scheduler behaves towards one node as HAMi's does, as far as that decides
// which cards it knows. Its clock is its own.
type scheduler struct {
	*bed
	now   time.Time
	asked time.Time // When the question in the handshake was asked.
	gpus  int64     // nvidia.com/gpu as it was last.
	seen  string    // The annotation as it was last.
	knows string    // The annotation that its cards are from, "" for none.
	// What it knows that a pod refused earlier is tried with: kube-scheduler
	// tries it when the Node changes, so here when the handshake does.
	tried string
}

// round is what the scheduler does every 15 s: whether the node is alive
// follows from nvidia.com/gpu and the handshake, and only then does the list
// of cards matter.
func (s *scheduler) round() {
	s.now = s.now.Add(15 * time.Second)
	node := s.get()
	quantity := node.Status.Allocatable["nvidia.com/gpu"]
	gpus := quantity.Value()
	list := node.Annotations[hami.NodeRegister]

	alive, update := true, false
	if strings.Contains(node.Annotations[hami.NodeHandshake], "Requesting") {
		alive = gpus > 0 || s.now.Sub(s.asked) < time.Minute
	} else {
		s.asked, update = s.now, true
		s.annotate(hami.NodeHandshake, "Requesting_"+s.now.Format(time.DateTime))
	}
	switch {
	case gpus == 0 && s.gpus > 0:
		alive = false
	case gpus != s.gpus:
		alive, update = true, true
	case gpus > 0 && list != s.seen:
		update = true
	}
	s.gpus, s.seen = gpus, list
	switch {
	case !alive:
		if s.knows != "" {
			s.annotate(hami.NodeHandshake, nil)
			s.gpus, s.knows = 0, ""
		}
	case list == "" || list == "[]":
		// Not understood, so all stays as it is.
	case update:
		s.knows = list
	}
	if s.asked.Equal(s.now) {
		s.tried = s.knows
	}
}

// newScheduler returns one, and a keeper that is called by hand: tick is what
// it does every Resync.
func newScheduler(t *testing.T) (s *scheduler, tick func(inventory.Inventory)) {
	t.Helper()
	b := &bed{T: t, api: apitest.New(t), store: inventory.NewStore(), metrics: metrics.New(prometheus.NewRegistry())}
	b.keeper = NewKeeper(b.api.Client(t), worker, b.store, b.metrics, slog.New(slog.DiscardHandler))
	b.keeper.writes = rate.NewLimiter(rate.Inf, 1)
	b.putNode()
	return &scheduler{bed: b, now: time.Now()}, func(inv inventory.Inventory) {
		node := b.get()
		b.keeper.see(&node)
		if _, err := b.keeper.reconcile(t.Context(), inv, true); err != nil {
			t.Fatal(err)
		}
	}
}

// kubelet reports the number of healthy slices.
func (s *scheduler) kubelet(inv inventory.Inventory) {
	s.api.Merge("nodes", "", worker, fmt.Sprintf(`{"status":{"capacity":{"nvidia.com/gpu":"%d"},"allocatable":{"nvidia.com/gpu":"%d"}}}`,
		inv.Totals().Slices, inv.Healthy().Slices))
}

func TestHAMiKeepsTheCards(t *testing.T) {
	allIll := ill()
	allIll[0].Health = false
	for name, inv := range map[string]inventory.Inventory{"healthy": cards, "one unhealthy": ill(), "all unhealthy": allIll} {
		t.Run(name, func(t *testing.T) {
			s, tick := newScheduler(t)
			s.kubelet(cards)
			tick(cards)
			s.round()
			if !cards.Matches(s.knows) {
				t.Fatalf("HAMi knows %q", s.knows)
			}
			s.kubelet(inv)
			tick(inv)
			s.round()
			tick(inv)
			s.round()
			// From here on for ten minutes, whether the scheduler or the keeper
			// comes first.
			for i := range 40 {
				if !inv.Matches(s.knows) {
					t.Fatalf("round %d: HAMi knows %q", i, s.knows)
				}
				tick(inv)
				if i%3 != 0 {
					tick(inv)
				}
				s.round()
			}
		})
	}
}

func TestHAMiTakesTheCardsBack(t *testing.T) {
	for name, withdraw := range map[string]func(*scheduler, func(inventory.Inventory)){
		"empty inventory": func(s *scheduler, tick func(inventory.Inventory)) {
			tick(nil)
			s.round() // The kubelet is later than the annotation.
			s.kubelet(nil)
		},
		"withdrawn without an agent": func(s *scheduler, _ func(inventory.Inventory)) {
			if err := Withdraw(s.Context(), s.keeper.client, worker); err != nil {
				s.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, tick := newScheduler(t)
			s.kubelet(cards)
			tick(cards)
			s.round()
			if s.knows == "" {
				t.Fatal("HAMi does not know the cards")
			}
			withdraw(s, tick)
			for range 10 {
				s.round()
				if s.knows != "" {
					t.Fatalf("HAMi still knows %s", s.knows)
				}
				tick(nil)
			}
			s.kubelet(cards)
			tick(cards)
			s.round()
			if !cards.Matches(s.knows) {
				t.Errorf("afterwards HAMi knows %q", s.knows)
			}
		})
	}
}

func TestHandshakeIsNotAnsweredWithoutNeed(t *testing.T) {
	s, tick := newScheduler(t)
	s.kubelet(cards)
	tick(cards)
	s.round()
	// The cards are announced, once.
	tick(cards)
	s.round()
	before := s.patches()
	for range 10 {
		s.round()
		tick(cards)
	}
	if n := s.patches() - before; n != 0 {
		t.Errorf("%d writes", n)
	}
	// Nor is HAMi's question taken away from a node without cards each time.
	s.kubelet(nil)
	tick(nil)
	s.round()
	s.round()
	before = s.patches()
	for range 10 {
		s.round()
		tick(nil)
	}
	if n := s.patches() - before; n != 0 {
		t.Errorf("%d writes of a node without cards", n)
	}
}

// TestRefusedPodsAreTriedAgain: with every new state of the cards, also when HAMi
// had asked before there were any.
func TestRefusedPodsAreTriedAgain(t *testing.T) {
	s, tick := newScheduler(t)
	s.kubelet(nil)
	s.round()
	more := slices.Clone(cards)
	more[0].Count, more[0].Devmem = 5, 40960
	for i, inv := range []inventory.Inventory{cards, ill(), cards, more} {
		tick(inv) // The annotation comes first, and the kubelet's count a moment later.
		s.round()
		s.kubelet(inv)
		for range 3 {
			tick(inv)
			s.round()
		}
		if !inv.Matches(s.tried) {
			t.Errorf("state %d: HAMi knows %s, and pods were tried with %q", i, s.knows, s.tried)
		}
	}
}
