package inventory

import (
	"slices"
	"sync"
)

// Store hands the current inventory from the one who reads the ConfigMap to
// those who publish it.
type Store struct {
	mu        sync.Mutex
	inv       Inventory
	known     bool
	withdrawn bool
	changed   chan struct{}
}

// NewStore returns a store that knows no inventory yet.
func NewStore() *Store {
	return &Store{changed: make(chan struct{})}
}

// Get returns the current inventory, whether there is one at all, and a
// channel that is closed as soon as another takes its place. Before the first
// Set nothing must be published: an agent that has only just started does not
// know that the node has no cards.
func (s *Store) Get() (inv Inventory, known bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inv, s.known, s.changed
}

// Set replaces the inventory and reports whether it was another one.
func (s *Store) Set(inv Inventory) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.withdrawn || s.known && slices.Equal(s.inv, inv) {
		return false
	}
	s.replace(inv)
	return true
}

// Withdraw empties the inventory for the rest of the process's life.
func (s *Store) Withdraw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.withdrawn {
		return
	}
	s.withdrawn = true
	s.replace(Inventory{})
}

func (s *Store) replace(inv Inventory) {
	s.inv, s.known = inv, true
	close(s.changed)
	s.changed = make(chan struct{})
}
