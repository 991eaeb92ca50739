package config

import (
	"fmt"
	"strings"
)

// didYouMean is a clause for a fault's message: the candidate that word was
// probably meant to be, or all of them when none is near.
func didYouMean(word string, candidates []string) string {
	if candidate, found := nearest(word, candidates); found {
		return fmt.Sprintf("did you mean %q?", candidate)
	}
	return "known: " + strings.Join(candidates, ", ")
}

// nearest returns the candidate that word was probably meant to be: one that
// word abbreviates, or that a few slips of the fingers away. Of two as near, it
// takes the one that begins more like word.
func nearest(word string, candidates []string) (string, bool) {
	const shortestAbbreviation = 3
	word = strings.ToLower(word)
	best, bestDistance, bestPrefix := "", 2+len(word)/4, 0
	for _, candidate := range candidates {
		lower := strings.ToLower(candidate)
		distance, prefix := editDistance(word, lower), commonPrefix(word, lower)
		if len(word) >= shortestAbbreviation && prefix == len(word) {
			distance = min(distance, 1)
		}
		if distance < bestDistance || distance == bestDistance && best != "" && prefix > bestPrefix {
			best, bestDistance, bestPrefix = candidate, distance, prefix
		}
	}
	return best, best != ""
}

func commonPrefix(a, b string) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// editDistance is Levenshtein's: how many bytes to insert, delete or replace to
// make b of a.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
