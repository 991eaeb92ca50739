// Package inventory holds the mock cards of one node: it parses and validates
// the list that the administrator writes, and derives from it everything that
// the agent shows to the kubelet, to HAMi and to people.
package inventory

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	kjson "sigs.k8s.io/json"
)

// MaxSlices bounds the kubelet devices of one node. A ListAndWatch message
// holds all of them and gRPC refuses more than 4 MiB; at some 60 bytes per
// device this stays below a quarter of that.
const MaxSlices = 15000

// modeHAMiCore is the only mode in which HAMi shares a card by memory and core
// limits alone. MIG and MPS need state that a mock card does not have.
const modeHAMiCore = "hami-core"

// Card is one mock card. Fields and keys are those of the entries in the node
// annotation that HAMi's own device plugin writes (DeviceInfo in
// https://github.com/Project-HAMi/HAMi/blob/master/pkg/device/devices.go), so
// an annotation copied from a real node is a valid inventory. As there, a key
// that is missing means zero; in particular no "health" means unhealthy.
type Card struct {
	// ID is the card's UUID, unique in the inventory.
	ID string `json:"id"`
	// Index is the card's number on the node, unique in the inventory.
	Index int `json:"index"`
	// Count is the number of slices: containers that can share the card.
	Count int32 `json:"count"`
	// Devmem is the card's memory in MiB.
	Devmem int32 `json:"devmem"`
	// Devcore is the card's compute capacity in percent, 100 being a whole card.
	Devcore int32 `json:"devcore"`
	// Type is the model name. HAMi looks for "NVIDIA" in it.
	Type string `json:"type"`
	// Numa is the NUMA node that HAMi believes the card to be on.
	Numa int `json:"numa"`
	// Mode is "hami-core" or empty.
	Mode string `json:"mode"`
	// Health is false for a card with which a failure is rehearsed.
	Health bool `json:"health"`
}

// Inventory is the cards of one node in the order of their indices.
type Inventory []Card

// Device is one slice of a card as the kubelet sees it.
type Device struct {
	ID      string
	Healthy bool
}

// Totals are the sums over a set of cards.
type Totals struct {
	// Cards and Slices are counts.
	Cards, Slices int64
	// MemoryMiB is memory in MiB.
	MemoryMiB int64
	// Cores is compute capacity in percent of one card.
	Cores int64
}

// Parse reads an inventory and reports every fault in it, not only the first.
func Parse(data []byte) (Inventory, error) {
	var inv Inventory
	// Not encoding/json: it takes "ID" for "id" and the last of two equal keys.
	strict, err := kjson.UnmarshalStrict(data, &inv)
	if err != nil {
		return nil, fmt.Errorf("inventory is not a JSON array of cards: %w", err)
	}
	if inv == nil {
		return nil, errors.New("inventory is null: write [] for no cards")
	}
	errs := strict
	ids := map[string]int{}
	indices := map[int]int{}
	var total int64
	for i, card := range inv {
		complain := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("card %d (%q): %s", i, card.ID, fmt.Sprintf(format, args...)))
		}
		switch first, seen := ids[card.ID]; {
		case card.ID == "":
			complain("id is empty")
		case seen:
			complain("id is that of card %d", first)
		// The separators of HAMi's pod annotations.
		case strings.ContainsAny(card.ID, ",:; \t\r\n"):
			complain("id contains a comma, a colon, a semicolon or white space")
		}
		if first, seen := indices[card.Index]; seen {
			complain("index %d is that of card %d", card.Index, first)
		}
		if _, seen := ids[card.ID]; !seen {
			ids[card.ID] = i
		}
		if _, seen := indices[card.Index]; !seen {
			indices[card.Index] = i
		}
		if card.Index < 0 {
			complain("index %d is negative", card.Index)
		}
		if card.Count <= 0 {
			complain("count %d: a card has at least one slice", card.Count)
		} else {
			total += int64(card.Count)
		}
		if card.Devmem < 0 {
			complain("devmem %d MiB is negative", card.Devmem)
		}
		if card.Devcore < 0 {
			complain("devcore %d %% is negative", card.Devcore)
		}
		// https://github.com/Project-HAMi/HAMi/blob/master/pkg/scheduler/score.go
		// compares the type with the vendor and never offers a card without it.
		if !strings.Contains(strings.ToLower(card.Type), "nvidia") {
			complain("type %q does not contain NVIDIA: HAMi would never use the card", card.Type)
		}
		if card.Mode != "" && card.Mode != modeHAMiCore {
			complain("mode %q: a mock card knows only %q", card.Mode, modeHAMiCore)
		}
	}
	if total > MaxSlices {
		errs = append(errs, fmt.Errorf("%d slices in all: the kubelet's message holds at most %d", total, MaxSlices))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	slices.SortFunc(inv, func(a, b Card) int { return a.Index - b.Index })
	return inv, nil
}

// Canonical is the inventory as the agent writes it into the node annotation.
func (inv Inventory) Canonical() string {
	if inv == nil {
		inv = Inventory{}
	}
	data, err := json.Marshal(inv)
	if err != nil { // Strings, integers and booleans cannot fail to marshal.
		panic(err)
	}
	return string(data)
}

// Matches reports whether a node annotation means this inventory, however it
// is written: HAMi's plugin leaves out zero values and keeps no order.
func (inv Inventory) Matches(annotation string) bool {
	var got Inventory
	if strict, err := kjson.UnmarshalStrict([]byte(annotation), &got); err != nil || len(strict) > 0 {
		return false
	}
	slices.SortStableFunc(got, func(a, b Card) int { return a.Index - b.Index })
	return slices.Equal(inv, got)
}

// Card finds a card by its ID.
func (inv Inventory) Card(id string) (Card, bool) {
	i := slices.IndexFunc(inv, func(c Card) bool { return c.ID == id })
	if i < 0 {
		return Card{}, false
	}
	return inv[i], true
}

// Devices lists the slices of all cards. Their IDs depend on nothing but the
// card and the number of the slice, so that the kubelet's checkpoint of who
// holds what stays true over a restart of the agent.
func (inv Inventory) Devices() []Device {
	devices := make([]Device, 0, inv.Totals().Slices)
	for _, card := range inv {
		for slice := range card.Count {
			devices = append(devices, Device{ID: card.ID + "-" + strconv.Itoa(int(slice)), Healthy: card.Health})
		}
	}
	return devices
}

// CardOf is the ID of the card that a device of Devices is a slice of.
func CardOf(device string) string {
	if i := strings.LastIndexByte(device, '-'); i >= 0 {
		return device[:i]
	}
	return device
}

// Totals sums over all cards.
func (inv Inventory) Totals() Totals {
	return inv.sum(func(Card) bool { return true })
}

// Healthy sums over the healthy cards.
func (inv Inventory) Healthy() Totals {
	return inv.sum(func(c Card) bool { return c.Health })
}

func (inv Inventory) sum(take func(Card) bool) Totals {
	var t Totals
	for _, card := range inv {
		if take(card) {
			t.Cards++
			t.Slices += int64(card.Count)
			t.MemoryMiB += int64(card.Devmem)
			t.Cores += int64(card.Devcore)
		}
	}
	return t
}

// Percent is used out of whole, in percent and rounded up; it is at most 100.
func Percent(used, whole int64) int64 {
	if whole <= 0 || used >= whole {
		return 100
	}
	return int64(math.Ceil(100 * float64(used) / float64(whole)))
}
