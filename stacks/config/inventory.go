package config

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// cards reads what the object n says of a worker's cards: `gpus`, and which of
// them are `unhealthy`.
func (n node) cards(values map[string]any) []Card {
	var cards []Card
	gpus := n.child("gpus", values["gpus"])
	_, written := values["gpus"]
	if written {
		cards = gpus.gpus()
	}
	if unhealthy, marked := values["unhealthy"]; marked {
		child := n.child("unhealthy", unhealthy)
		if n.absent(values, "gpus") {
			child.faultf("needs gpus beside it; move it to where the worker's cards are listed")
		} else {
			child.unhealthy(cards, n.sound(gpus.path))
		}
	}
	return cards
}

// gpus reads a worker's cards: a list of texts such as "A100x2" and of
// objects, each for one or more cards. The result has an element per card.
func (n node) gpus() []Card {
	items, ok := n.list(`a list such as ["A100x1"]`)
	if !ok {
		return nil
	}
	total := 0
	var cards []Card
	for _, item := range items {
		card, count := item.gpu()
		if total += count; total <= MaxCardsPerWorker {
			cards = append(cards, slices.Repeat([]Card{card}, count)...)
		}
	}
	if total > MaxCardsPerWorker {
		n.faultf("has %d cards; a worker has at most %d", total, MaxCardsPerWorker)
	}
	return cards
}

// gpu reads one element of gpus. The count is 0 when there is a fault.
func (n node) gpu() (Card, int) {
	switch value := n.value.(type) {
	case string:
		return n.catalogueGPU(value)
	case map[string]any:
		return n.customGPU()
	default:
		n.wants(`a text such as "A100x2", or an object with a model`)
		return Card{}, 0
	}
}

// catalogueGPU reads "MODEL" or "MODELxCOUNT".
//
// A model's name can hold an x itself (RTX4090), so a text that is a model is
// that, and only another is split, at its last x.
func (n node) catalogueGPU(text string) (Card, int) {
	if card, known := lookup(text); known {
		return card, 1
	}
	model, tail := splitCount(text)
	card, known := lookup(model)
	if !known {
		n.unknownModel(text, model, tail)
		return Card{}, 0
	}
	count, ok := parseInteger(tail)
	if !ok || count < 1 || count > MaxCardsPerWorker {
		n.faultf("%q has the count %q; it must be a whole number from 1 to %d, as in \"%sx2\"",
			text, tail, MaxCardsPerWorker, card.Model)
		return Card{}, 0
	}
	return card, count
}

// splitCount cuts text at its last x.
func splitCount(text string) (model, count string) {
	if i := strings.LastIndexAny(text, "xX"); i >= 0 {
		return text[:i], text[i+1:]
	}
	return text, ""
}

// shortCount tells the x of a count (A1000x2) from one of a model's name
// (RTX5000), when neither way of reading gives a known model.
var shortCount = regexp.MustCompile(`^[0-9]{1,2}$`)

func (n node) unknownModel(text, head, tail string) {
	if _, reversed := lookup(tail); reversed {
		n.faultf("%q has the count first; write \"%sx%s\"", text, tail, head)
		return
	}
	name := text
	if shortCount.MatchString(tail) {
		name = head
	}
	models := Models()
	message := fmt.Sprintf("unknown GPU model %s; ", describe(name))
	if model, found := nearest(name, models); found {
		message += fmt.Sprintf("did you mean %q? ", model)
	}
	n.faultf("%s(known: %s; for a card of your own write an object with model and memory)", message, strings.Join(models, ", "))
}

// modelName keeps names to what a label's value, an environment variable and a
// file's name can hold.
var modelName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,38}[A-Za-z0-9])?$`)

// typeName keeps a comma out, at which HAMi splits its use-gputype annotation.
var typeName = regexp.MustCompile(`^[A-Za-z0-9 ()._/+-]*(NVIDIA|Tesla)[A-Za-z0-9 ()._/+-]*$`)

// customGPU reads a card of one's own, or one of the catalogue with some of
// its fields changed.
func (n node) customGPU() (Card, int) {
	var card Card
	count := 1
	values := n.object(fields{
		"model": func(n node) {
			n.matching(&card.Model, modelName, "a name of at most 40 letters, digits, dots, dashes and underscores")
		},
		"type": func(n node) {
			n.matching(&card.Type, typeName, `the name that NVIDIA's driver prints, such as "NVIDIA L4" or "Tesla T4", without commas`)
		},
		"memory": func(n node) { n.integer(&card.MemoryMiB, 1, MaxCardMemoryMiB) },
		"cores":  func(n node) { n.integer(&card.Cores, 1, MaxCardCores) },
		"count":  func(n node) { n.integer(&count, 1, MaxCardsPerWorker) },
	}, "model")
	listed, known := lookup(card.Model)
	if memory := n.child("memory", nil); card.Model != "" && !known && n.absent(values, "memory") {
		memory.faultf("is missing; %q is not in the catalogue, so say how many MiB it has (%s)",
			card.Model, didYouMean(card.Model, Models()))
	}
	if !n.sound(n.path) {
		return Card{}, 0
	}
	return Card{
		Model:     cmp.Or(listed.Model, card.Model),
		Type:      cmp.Or(card.Type, listed.Type, "NVIDIA "+card.Model),
		MemoryMiB: cmp.Or(card.MemoryMiB, listed.MemoryMiB),
		Cores:     cmp.Or(card.Cores, listed.Cores, MaxCardCores),
		Healthy:   true,
	}, count
}

// unhealthy reads the numbers of the cards that are, and marks them. When the
// cards are not known for a fault in them, it reads only.
func (n node) unhealthy(cards []Card, known bool) {
	items, ok := n.list("a list of cards' numbers, from 0")
	if !ok {
		return
	}
	seen := map[int]bool{}
	for _, item := range items {
		var index int
		switch {
		case !item.integer(&index, 0, MaxCardsPerWorker-1):
		case seen[index]:
			item.faultf("names card %d a second time; name it once", index)
		case known && index >= len(cards):
			item.faultf("there is no card %d; the worker has %d, numbered from 0", index, len(cards))
		case known:
			cards[index].Healthy = false
		}
		seen[index] = true
	}
}
