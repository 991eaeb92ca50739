package config_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpu-tenants/gpu-tenants/stacks/config"
)

func TestCatalogue(t *testing.T) {
	t.Parallel()
	if !slices.IsSorted(config.Models()) {
		t.Errorf("the models are not sorted: %v", config.Models())
	}
	models, types := map[string]bool{}, map[string]bool{}
	for _, card := range config.Catalogue() {
		if upper := strings.ToUpper(card.Model); models[upper] {
			t.Errorf("%s is there twice", card.Model)
		} else {
			models[upper] = true
		}
		if types[card.Type] {
			t.Errorf("two models have the type %s", card.Type)
		}
		types[card.Type] = true
		checkCard(t, card)
		if !card.Healthy {
			t.Errorf("%s is not healthy", card.Model)
		}
	}
}

// TestEveryModelCanBeWritten in each way that the grammar has.
func TestEveryModelCanBeWritten(t *testing.T) {
	t.Parallel()
	for _, card := range config.Catalogue() {
		ways := map[string]int{
			card.Model:                              1,
			strings.ToLower(card.Model):             1,
			card.Model + "x1":                       1,
			strings.ToLower(card.Model) + "x3":      3,
			strings.ToUpper(card.Model) + "X12":     12,
			"{model: " + card.Model + "}":           1,
			"{count: 2, model: " + card.Model + "}": 2,
		}
		for way, count := range ways {
			cards := mustDecode(t, "tenants: [{name: a, gpus: ["+way+"]}]").Tenants[0].Workers[0].Cards
			if want := slices.Repeat([]config.Card{card}, count); !slices.Equal(cards, want) {
				t.Errorf("%s gives %v, want %v", way, cards, want)
			}
		}
	}
}

func TestOwnCards(t *testing.T) {
	t.Parallel()
	tests := map[string]config.Card{
		"{model: X1, memory: 5}":                        {Model: "X1", Type: "NVIDIA X1", MemoryMiB: 5, Cores: 100, Healthy: true},
		"{model: X1, memory: 5, type: Tesla X1}":        {Model: "X1", Type: "Tesla X1", MemoryMiB: 5, Cores: 100, Healthy: true},
		"{model: X1, memory: 5, cores: 30}":             {Model: "X1", Type: "NVIDIA X1", MemoryMiB: 5, Cores: 30, Healthy: true},
		"{model: l4, memory: 5}":                        {Model: "L4", Type: "NVIDIA L4", MemoryMiB: 5, Cores: 100, Healthy: true},
		"{model: L4, type: NVIDIA L4 (mine), cores: 1}": {Model: "L4", Type: "NVIDIA L4 (mine)", MemoryMiB: 23034, Cores: 1, Healthy: true},
	}
	for written, want := range tests {
		cards := mustDecode(t, "tenants: [{name: a, gpus: ["+written+"]}]").Tenants[0].Workers[0].Cards
		if !slices.Equal(cards, []config.Card{want}) {
			t.Errorf("%s gives %v, want %v", written, cards, want)
		}
	}
}
