package belief

import (
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"

	"github.com/prefixroute/prefixroute/pkg/index"
)

// Digest names a payload in a [Position].
func Digest(payload []byte) uint64 { return xxhash.Sum64(payload) }

// Head is what the durable copy says of a replica beside the set itself.
type Head struct {
	Scheme     string
	Model      string
	Generation Generation
	Position   Position
	Doubts     Doubts
	Digest     uint64 // of the set
	Hashes     int    // in the set
	Groups     []index.GroupSpec
}

// Delta turns the durable copy as it was into the present one: Changes lead to
// the set that Head describes.
type Delta struct {
	Head    Head
	Changes index.Changes
}

// TakeDelta returns what the durable copy lacks since the last call, or since
// [Replica.Adopt]. It reports false while there is nothing to keep: a replica
// without a model has no set.
func (r *Replica) TakeDelta() (Delta, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.set == nil || r.gen.Epoch == 0 {
		return Delta{}, false
	}
	ch := r.set.TakeChanges()
	return Delta{Head: r.head(), Changes: ch}, true
}

// TakeAll is TakeDelta for a durable copy that is to be written as a whole.
func (r *Replica) TakeAll() (Delta, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.set == nil || r.gen.Epoch == 0 {
		return Delta{}, false
	}
	r.set.TakeChanges()
	records, groups := r.set.Records()
	return Delta{Head: r.head(), Changes: index.Changes{Cleared: true, Set: records, Groups: groups}}, true
}

// head is called with mu held.
func (r *Replica) head() Head {
	return Head{
		Scheme: r.scheme.Name(), Model: r.model, Generation: r.gen, Position: r.pos, Doubts: r.doubts,
		Digest: r.set.Digest(), Hashes: r.set.Stats().Hashes, Groups: r.set.Shape().Groups,
	}
}

// Stored says that gen is in the durable copy, where others can see it.
func (r *Replica) Stored(gen Generation) {
	r.mu.Lock()
	news := r.gen == gen && !r.shared
	if news {
		r.shared = true
	}
	r.mu.Unlock()
	if news {
		r.changed()
	}
}

// ErrForeign is returned by [Replica.Adopt] for a copy that this replica cannot
// use: it was made for another model or with another key scheme.
var ErrForeign = errors.New("copy of another model or key scheme")

// Adopt makes the durable copy's set and position the replica's own. It must be
// called before the replica is followed. On an error the replica is as before.
func (r *Replica) Adopt(h Head, records []index.Record) error {
	if h.Scheme != r.scheme.Name() || h.Model == "" || r.cfg.Model != "" && h.Model != r.cfg.Model {
		return fmt.Errorf("%w: scheme %q, model %q", ErrForeign, h.Scheme, h.Model)
	}
	if h.Generation.Epoch == 0 {
		return errors.New("copy has no generation")
	}
	set, err := index.Restore(r.scheme, h.Model, records, h.Groups)
	if err != nil {
		return fmt.Errorf("restore set: %w", err)
	}
	if got := set.Digest(); got != h.Digest || len(records) != h.Hashes {
		return fmt.Errorf("copy has %d hashes with digest %016x, its head says %d with %016x",
			len(records), got, h.Hashes, h.Digest)
	}
	r.mu.Lock()
	r.set, r.model, r.gen, r.shared = set, h.Model, h.Generation, true
	r.pos, r.doubts = h.Position, h.Doubts
	r.mu.Unlock()
	r.changed()
	return nil
}
