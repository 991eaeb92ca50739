package config

import (
	"slices"
	"strings"
)

// catalogue holds the cards that a configuration can name, sorted by model.
//
// Type and memory are what a driver reports, as in
// `nvidia-smi --query-gpu=name,memory.total`, not what a data sheet says: a
// card of "24 GB" has 23034 MiB. Every figure was read in several outputs of
// nvidia-smi that people published in GitHub repositories, none in a data
// sheet. Two things make other outputs differ: a driver before 510 leaves out
// what it reserves (V100: 32510), and ECC takes a sixteenth of GDDR memory. ECC
// is as the cards come: on for those of servers, off for those of workstations
// (A6000, RTX6000Ada). NVIDIA's own mock profiles (k8s-test-infra) give round
// sizes, which no driver reports, and are not the source.
var catalogue = []Card{
	listed("A10", "NVIDIA A10", 23028),
	listed("A100", "NVIDIA A100-SXM4-80GB", 81920),
	listed("A100-40G", "NVIDIA A100-SXM4-40GB", 40960),
	listed("A16", "NVIDIA A16", 15356), // one of the board's four GPUs
	listed("A2", "NVIDIA A2", 15356),
	listed("A30", "NVIDIA A30", 24576),
	listed("A40", "NVIDIA A40", 46068),
	listed("A6000", "NVIDIA RTX A6000", 49140),
	listed("B200", "NVIDIA B200", 183359),
	listed("B300", "NVIDIA B300 SXM6 AC", 275040),
	listed("H100", "NVIDIA H100 80GB HBM3", 81559), // SXM5
	listed("H100-NVL", "NVIDIA H100 NVL", 95830),
	listed("H100-PCIE", "NVIDIA H100 PCIe", 81559),
	listed("H20", "NVIDIA H20", 97871),
	listed("H200", "NVIDIA H200", 143771),
	listed("L20", "NVIDIA L20", 46068),
	listed("L4", "NVIDIA L4", 23034),
	listed("L40", "NVIDIA L40", 46068),
	listed("L40S", "NVIDIA L40S", 46068),
	listed("RTX3090", "NVIDIA GeForce RTX 3090", 24576),
	listed("RTX4090", "NVIDIA GeForce RTX 4090", 24564),
	listed("RTX5090", "NVIDIA GeForce RTX 5090", 32607),
	listed("RTX6000Ada", "NVIDIA RTX 6000 Ada Generation", 49140),
	listed("RTXPRO6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887),
	listed("T4", "Tesla T4", 15360),
	listed("V100", "Tesla V100-SXM2-32GB", 32768),
	listed("V100-16G", "Tesla V100-SXM2-16GB", 16384),
}

// aliases are other usual names of a card, each of which says all that tells
// it from its relatives.
var aliases = map[string]string{
	"A100-40GB": "A100-40G",
	"A100-80G":  "A100",
	"A100-80GB": "A100",
	"H100-80G":  "H100",
	"H100-80GB": "H100",
	"V100-16GB": "V100-16G",
	"V100-32G":  "V100",
	"V100-32GB": "V100",
}

func listed(model, driverName string, memoryMiB int) Card {
	return Card{Model: model, Type: driverName, MemoryMiB: memoryMiB, Cores: MaxCardCores, Healthy: true}
}

// Catalogue returns one card of every model that a configuration can name,
// sorted by model.
func Catalogue() []Card { return slices.Clone(catalogue) }

// Models returns the models of the catalogue, sorted.
func Models() []string {
	models := make([]string, len(catalogue))
	for i, card := range catalogue {
		models[i] = card.Model
	}
	return models
}

// lookup finds a model, whatever the case of its letters.
func lookup(model string) (Card, bool) {
	if canonical, isAlias := aliases[strings.ToUpper(model)]; isAlias {
		model = canonical
	}
	i := slices.IndexFunc(catalogue, func(card Card) bool { return strings.EqualFold(card.Model, model) })
	if i < 0 {
		return Card{}, false
	}
	return catalogue[i], true
}
