package inventory

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const twoCards = `[
	{"id":"GPU-b","index":1,"count":2,"devmem":24576,"devcore":100,"type":"NVIDIA L4","numa":0,"mode":"hami-core","health":false},
	{"id":"GPU-a","index":0,"count":3,"devmem":81920,"devcore":100,"type":"NVIDIA A100","numa":0,"mode":"hami-core","health":true}
]`

func parse(t *testing.T, text string) Inventory {
	t.Helper()
	inv, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

func TestParseSortsByIndex(t *testing.T) {
	inv := parse(t, twoCards)
	want := Inventory{
		{ID: "GPU-a", Index: 0, Count: 3, Devmem: 81920, Devcore: 100, Type: "NVIDIA A100", Mode: "hami-core", Health: true},
		{ID: "GPU-b", Index: 1, Count: 2, Devmem: 24576, Devcore: 100, Type: "NVIDIA L4", Mode: "hami-core"},
	}
	if !slices.Equal(inv, want) {
		t.Errorf("got %+v, want %+v", inv, want)
	}
}

func TestParseRejects(t *testing.T) {
	card := func(change string) string {
		base := map[string]string{
			"id": `"GPU-x"`, "index": "0", "count": "1", "devmem": "1000", "devcore": "100", "type": `"NVIDIA L4"`,
			"numa": "0", "mode": `"hami-core"`, "health": "true",
		}
		if name, value, ok := strings.Cut(change, "="); ok {
			base[name] = value
		}
		var fields []string
		for name, value := range base {
			fields = append(fields, fmt.Sprintf("%q:%s", name, value))
		}
		return "{" + strings.Join(fields, ",") + "}"
	}
	if _, err := Parse([]byte("[" + card("") + "]")); err != nil {
		t.Fatalf("the card that the cases start from: %v", err)
	}
	for name, test := range map[string]struct{ text, want string }{
		"nothing":            {"", "not a JSON array"},
		"null":               {"null", "null"},
		"object":             {card(""), "not a JSON array"},
		"cut off":            {"[" + card(""), "not a JSON array"},
		"two documents":      {"[][]", "not a JSON array"},
		"unknown key":        {"[" + card(`memory=1`) + "]", "memory"},
		"other case":         {"[" + card(`ID="GPU-y"`) + "]", "ID"},
		"key twice":          {`[{"id":"a","id":"b"}]`, "duplicate field"},
		"number as text":     {"[" + card(`devmem="1000"`) + "]", "devmem"},
		"fraction":           {"[" + card(`count=1.5`) + "]", "count"},
		"beyond 32 bits":     {"[" + card(`devmem=2147483648`) + "]", "devmem"},
		"empty id":           {"[" + card(`id=""`) + "]", "id is empty"},
		"separator in id":    {"[" + card(`id="GPU:x"`) + "]", "comma, a colon"},
		"duplicate id":       {"[" + card("") + "," + card("index=1") + "]", "id is that of card 0"},
		"duplicate index":    {"[" + card("") + "," + card(`id="GPU-y"`) + "]", "index 0 is that of card 0"},
		"negative index":     {"[" + card("index=-1") + "]", "index -1"},
		"no slices":          {"[" + card("count=0") + "]", "count 0"},
		"negative slices":    {"[" + card("count=-2") + "]", "count -2"},
		"negative memory":    {"[" + card("devmem=-1") + "]", "devmem -1"},
		"negative cores":     {"[" + card("devcore=-1") + "]", "devcore -1"},
		"foreign type":       {"[" + card(`type="Radeon"`) + "]", "NVIDIA"},
		"MIG":                {"[" + card(`mode="mig"`) + "]", `mode "mig"`},
		"too many slices":    {"[" + card("count=15001") + "]", "15001 slices"},
		"all faults at once": {"[" + card(`id=""`) + "," + card("count=0") + "]", "count 0"},
	} {
		t.Run(name, func(t *testing.T) {
			inv, err := Parse([]byte(test.text))
			if err == nil {
				t.Fatalf("accepted as %+v", inv)
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %q does not name %q", err, test.want)
			}
			if inv != nil {
				t.Errorf("an inventory beside the error: %+v", inv)
			}
		})
	}
}

func TestEmptyInventoryIsOne(t *testing.T) {
	inv := parse(t, "[]")
	if inv == nil || len(inv) != 0 || inv.Canonical() != "[]" {
		t.Errorf("got %#v, canonical %s", inv, inv.Canonical())
	}
}

func TestMatchesByMeaning(t *testing.T) {
	inv := parse(t, twoCards)
	for name, test := range map[string]struct {
		annotation string
		want       bool
	}{
		"canonical": {inv.Canonical(), true},
		// As Go's omitempty leaves it in HAMi's own plugin.
		"without zeros, other order": {`[
			{"id":"GPU-b","index":1,"count":2,"devmem":24576,"devcore":100,"type":"NVIDIA L4","mode":"hami-core"},
			{"id":"GPU-a","count":3,"devmem":81920,"devcore":100,"type":"NVIDIA A100","mode":"hami-core","health":true}]`, true},
		"other health": {strings.Replace(inv.Canonical(), "false", "true", 1), false},
		"other memory": {strings.Replace(inv.Canonical(), "24576", "24577", 1), false},
		"one key more": {strings.Replace(inv.Canonical(), `{"id"`, `{"devicevendor":"NVIDIA","id"`, 1), false},
		"absent":       {"", false},
		"no JSON":      {"GPU-a,3:", false},
		"empty":        {"[]", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := inv.Matches(test.annotation); got != test.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestDevices(t *testing.T) {
	got := parse(t, twoCards).Devices()
	want := []Device{
		{"GPU-a-0", true}, {"GPU-a-1", true}, {"GPU-a-2", true}, {"GPU-b-0", false}, {"GPU-b-1", false},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, device := range got {
		if card := CardOf(device.ID); card != "GPU-a" && card != "GPU-b" {
			t.Errorf("device %s is of card %s", device.ID, card)
		}
	}
}

func TestTotals(t *testing.T) {
	inv := parse(t, twoCards)
	if got, want := inv.Totals(), (Totals{Cards: 2, Slices: 5, MemoryMiB: 106496, Cores: 200}); got != want {
		t.Errorf("all: got %+v, want %+v", got, want)
	}
	if got, want := inv.Healthy(), (Totals{Cards: 1, Slices: 3, MemoryMiB: 81920, Cores: 100}); got != want {
		t.Errorf("healthy: got %+v, want %+v", got, want)
	}
}

func TestPercentRoundsUp(t *testing.T) {
	for _, test := range [][3]int64{{0, 100, 0}, {1, 1000, 1}, {500, 1000, 50}, {999, 1000, 100}, {2000, 1000, 100}, {0, 0, 100}} {
		if got := Percent(test[0], test[1]); got != test[2] {
			t.Errorf("Percent(%d, %d) = %d, want %d", test[0], test[1], got, test[2])
		}
	}
}

func TestStore(t *testing.T) {
	isClosed := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	s := NewStore()
	_, known, first := s.Get()
	if known {
		t.Error("an inventory is known before it was set")
	}
	if !s.Set(Inventory{}) || !isClosed(first) {
		t.Error("the first inventory is news even if it is empty")
	}
	_, known, second := s.Get()
	if !known || s.Set(Inventory{}) || isClosed(second) {
		t.Error("the same inventory is no news")
	}
	if !s.Set(parse(t, twoCards)) || !isClosed(second) {
		t.Error("another inventory is news")
	}
	_, _, third := s.Get()
	s.Withdraw()
	if inv, known, _ := s.Get(); len(inv) != 0 || !known || !isClosed(third) {
		t.Error("withdrawn is to be empty")
	}
	if s.Set(parse(t, twoCards)) {
		t.Error("withdrawn is for good")
	}
}
