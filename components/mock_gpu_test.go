package components

import (
	"encoding/json"
	"testing"
)

// The fields are those of HAMi's DeviceInfo.
func TestRegisterAnnotation(t *testing.T) {
	cards := []Card{
		{UUID: "GPU-one", Type: "NVIDIA A100-SXM4-80GB", MemoryMiB: 81920, Cores: 100, Slices: 10, Healthy: true},
		{UUID: "GPU-two", Type: "Tesla T4", MemoryMiB: 15360, Cores: 50, Slices: 4, Healthy: false},
		{UUID: "GPU-three", Type: `Home "made" NVIDIA`, MemoryMiB: 1, Cores: 1, Slices: 1, Healthy: true},
	}
	text, err := registerAnnotation(cards)
	if err != nil {
		t.Fatal(err)
	}
	type device struct {
		ID      string `json:"id"`
		Index   uint   `json:"index"`
		Count   int32  `json:"count"`
		Devmem  int32  `json:"devmem"`
		Devcore int32  `json:"devcore"`
		Type    string `json:"type"`
		Numa    int    `json:"numa"`
		Mode    string `json:"mode"`
		Health  bool   `json:"health"`
	}
	var got []device
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	want := []device{
		{"GPU-one", 0, 10, 81920, 100, "NVIDIA A100-SXM4-80GB", 0, "hami-core", true},
		{"GPU-two", 1, 4, 15360, 50, "NVIDIA-Tesla T4", 0, "hami-core", false},
		{"GPU-three", 2, 1, 1, 1, `NVIDIA-Home "made" NVIDIA`, 0, "hami-core", true},
	}
	if len(got) != len(want) {
		t.Fatalf("%d devices, want %d: %s", len(got), len(want), text)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("device %d is %+v, want %+v", i, got[i], want[i])
		}
	}
	// `false` and 0 are written: what reads it would take an absent one for
	// something else.
	var raw []map[string]any
	if err := json.Unmarshal([]byte(text), &raw); err != nil || len(raw[0]) != 9 || len(raw[1]) != 9 {
		t.Errorf("a field is left out (%v): %s", err, text)
	}
	if none, err := registerAnnotation(nil); err != nil || none != "[]" {
		t.Errorf("no cards are %q (%v), want an empty list", none, err)
	}
}

func TestSums(t *testing.T) {
	total, healthy := sums([]Card{{MemoryMiB: 100, Cores: 100, Slices: 10}, {MemoryMiB: 20, Cores: 50, Slices: 3, Healthy: true}, {MemoryMiB: 3, Cores: 2, Slices: 1, Healthy: true}})
	if want := (inventory{slices: 14, memoryMiB: 123, cores: 152}); total != want {
		t.Errorf("all cards are %+v, want %+v", total, want)
	}
	if want := (inventory{slices: 4, memoryMiB: 23, cores: 52}); healthy != want {
		t.Errorf("the healthy cards are %+v, want %+v", healthy, want)
	}
}
