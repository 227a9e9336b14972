package belief

import (
	"slices"
	"strings"
	"sync"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/replicas"
)

// Fleet is the set of replicas that an indexer follows.
type Fleet struct {
	scheme hashing.Scheme
	list   []*Replica // fixed, ordered by name

	// Guarded by mu.
	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each change
}

// NewFleet returns a fleet of the listed replicas. dirty is called, and must not
// block, when a replica has something that the durable copy lacks.
func NewFleet(list replicas.List, scheme hashing.Scheme, dirty func(*Replica)) *Fleet {
	f := &Fleet{scheme: scheme, changed: make(chan struct{})}
	for _, cfg := range list {
		var r *Replica
		r = NewReplica(cfg, scheme, f.notify, func() { dirty(r) })
		f.list = append(f.list, r)
	}
	slices.SortFunc(f.list, func(a, b *Replica) int { return strings.Compare(a.Name(), b.Name()) })
	return f
}

// Scheme is the key scheme of every replica of the fleet.
func (f *Fleet) Scheme() hashing.Scheme { return f.scheme }

// Replicas returns the replicas ordered by name. The caller must not change the
// slice.
func (f *Fleet) Replicas() []*Replica { return f.list }

// Replica finds a replica by name.
func (f *Fleet) Replica(name string) (*Replica, bool) {
	i, ok := slices.BinarySearchFunc(f.list, name, func(r *Replica, name string) int { return strings.Compare(r.Name(), name) })
	if !ok {
		return nil, false
	}
	return f.list[i], true
}

// Changed returns a channel that is closed at the next change of a replica's
// state, reason, generation, model or shape. Take it before looking, so that no
// change falls between the two.
func (f *Fleet) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

func (f *Fleet) notify() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.changed)
	f.changed = make(chan struct{})
}
