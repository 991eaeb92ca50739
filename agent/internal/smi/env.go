// Package smi is the container's side: the environment that tells a program
// about its slices of mock cards, and an imitation of nvidia-smi that shows
// them.
package smi

import (
	"slices"
	"strconv"
	"strings"
)

// Environment of a container with slices; <i> counts them from 0. All but
// envType have the names and the meaning that HAMi's device plugin gives them:
// https://github.com/Project-HAMi/HAMi/blob/master/pkg/device-plugin/nvidiadevice/nvinternal/plugin/server.go
//
// That plugin also sets CUDA_DEVICE_MEMORY_SHARED_CACHE, to a file which the
// HAMi-core library in the container keeps its accounts in. Here is no such
// library and no such file, so it is left out.
const (
	// envVisible: the UUIDs of the cards, each once, separated by commas.
	envVisible = "NVIDIA_VISIBLE_DEVICES"
	// envMemory + <i>: the memory of the slice in MiB, followed by "m".
	envMemory = "CUDA_DEVICE_MEMORY_LIMIT_"
	// envCores: compute time in percent of a card; 0 is no limit. HAMi takes it
	// from the first slice, all slices of a container having the same.
	envCores = "CUDA_DEVICE_SM_LIMIT"
	// envType + <i>: the model of the card. This one is our own: without a
	// driver nothing else in the container could tell.
	envType = "MOCK_GPU_TYPE_"
)

// Share is a container's slice of a card.
type Share struct {
	// Card is the UUID, Type the model.
	Card, Type string
	// MemoryMiB is the share of the memory in MiB.
	MemoryMiB int64
	// Cores is the share of the compute time in percent; 0 is no limit.
	Cores int64
}

// Env is the environment of a container with these slices.
func Env(shares []Share) map[string]string {
	env := map[string]string{}
	var cards []string
	for i, share := range shares {
		if !slices.Contains(cards, share.Card) {
			cards = append(cards, share.Card)
		}
		env[envMemory+strconv.Itoa(i)] = strconv.FormatInt(share.MemoryMiB, 10) + "m"
		env[envType+strconv.Itoa(i)] = share.Type
		if i == 0 {
			env[envCores] = strconv.FormatInt(share.Cores, 10)
		}
	}
	if len(cards) > 0 {
		env[envVisible] = strings.Join(cards, ",")
	}
	return env
}

// Shares reads the environment back; getenv is os.Getenv.
func Shares(getenv func(string) string) []Share {
	cards := strings.Split(getenv(envVisible), ",")
	cores, _ := strconv.ParseInt(getenv(envCores), 10, 64)
	var shares []Share
	for i, card := range cards {
		limit := getenv(envMemory + strconv.Itoa(i))
		memory, err := strconv.ParseInt(strings.TrimSuffix(limit, "m"), 10, 64)
		if err != nil {
			break // "none", "all" or nothing: no slice was given.
		}
		shares = append(shares, Share{Card: card, Type: getenv(envType + strconv.Itoa(i)), MemoryMiB: memory, Cores: cores})
	}
	return shares
}
