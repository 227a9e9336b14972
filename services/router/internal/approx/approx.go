// Package approx answers, from the router's own choices alone, how much of a
// prompt a replica may still hold: the fallback where no event stream tells.
//
// # Model
//
// Per replica there is a least recently used set of block hashes, those of the
// prompts that were sent there (hashing.Approximate, the final partial block
// included). A match is the number of leading hashes of a prompt that are in the
// set. Nothing tells the index when an engine evicts, so a match is a guess.
//
// # Concurrency
//
// Replicas share nothing: each set has its own lock. A match does not make its
// blocks more recent; only what was really sent counts as use.
package approx

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// DefaultCapacity is the number of blocks kept for a replica unless more is
// known, as llm-d has it.
const DefaultCapacity = 31250

// MaxCapacity bounds the blocks kept for one replica, whatever the engine says
// of its own cache: about 150 bytes each, so at most 150 MB a replica.
const MaxCapacity = 1 << 20

// Index holds one set for each replica that was sent something. The zero value
// is not usable; call [New].
type Index struct {
	capacity int // fixed after New

	mu   sync.RWMutex
	sets map[string]*set // guarded by mu
}

// A set is one replica's blocks.
type set struct {
	mu  sync.Mutex
	lru *simplelru.LRU[uint64, struct{}] // guarded by mu
	cap int                              // guarded by mu
}

// New returns an empty index that keeps capacity blocks for each replica, at
// least 1 and at most [MaxCapacity].
func New(capacity int) *Index {
	return &Index{capacity: bounded(capacity), sets: map[string]*set{}}
}

func bounded(capacity int) int { return max(1, min(capacity, MaxCapacity)) }

// Match returns how many leading hashes of chain replica has.
func (x *Index) Match(replica string, chain []uint64) int {
	s := x.set(replica)
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, h := range chain {
		if !s.lru.Contains(h) {
			return i
		}
	}
	return len(chain)
}

// Record says that the prompt of chain was sent to replica, dropping the least
// recent blocks beyond the capacity. Of a chain longer than that the head stays.
func (x *Index) Record(replica string, chain []uint64) {
	s := x.ensure(replica)
	s.mu.Lock()
	defer s.mu.Unlock()
	// From the end: a chain without its head matches nothing, so its tail has to
	// be the first to go.
	for i := min(len(chain), s.cap) - 1; i >= 0; i-- {
		s.lru.Add(chain[i], struct{}{})
	}
}

// Resize sets how many blocks are kept for replica, dropping the least recent
// beyond that. A size of 0 or less means the index's own.
func (x *Index) Resize(replica string, blocks int) {
	if blocks <= 0 {
		blocks = x.capacity
	}
	blocks = bounded(blocks)
	s := x.ensure(replica)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cap != blocks {
		s.lru.Resize(blocks)
		s.cap = blocks
	}
}

// Clear forgets replica's blocks, for an engine that started anew.
func (x *Index) Clear(replica string) {
	s := x.set(replica)
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lru.Purge()
}

// Size returns how many blocks are kept for replica and how many can be.
func (x *Index) Size(replica string) (blocks, capacity int) {
	s := x.set(replica)
	if s == nil {
		return 0, x.capacity
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lru.Len(), s.cap
}

func (x *Index) set(replica string) *set {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.sets[replica]
}

func (x *Index) ensure(replica string) *set {
	if s := x.set(replica); s != nil {
		return s
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.sets[replica]
	if s == nil {
		lru, err := simplelru.NewLRU[uint64, struct{}](x.capacity, nil)
		if err != nil {
			panic(err) // only for a size that is not positive, which New excludes
		}
		s = &set{lru: lru, cap: x.capacity}
		x.sets[replica] = s
	}
	return s
}
