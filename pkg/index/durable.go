package index

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// minChanges is the number of changed hashes up to which they are listed one by
// one, however small the belief is.
const minChanges = 1 << 16

// A changeLog remembers which hashes differ from the durable copy. The zero
// value has no durable copy yet: everything differs, and nothing need be listed.
type changeLog struct {
	listing bool // false: the durable copy is to be replaced as a whole
	cleared bool // since the last TakeChanges
	groups  bool // a group's spec has changed
	hashes  map[kvevents.Hash]struct{}
}

func (l *changeLog) clear() {
	l.cleared = true
	clear(l.hashes)
}

// touch notes that e differs from the durable copy. A log that nobody takes, as
// while the store is away, is given up for a whole copy before it outgrows the
// belief itself.
func (b *Belief) touch(e *entry) {
	if !b.log.listing {
		return
	}
	b.log.hashes[e.hash] = struct{}{}
	if len(b.log.hashes) > max(minChanges, 2*len(b.entries)) {
		b.log.listing, b.log.hashes = false, nil
	}
}

// TakeChanges returns what changed since the last call, or since [Restore]. The
// first call of a new belief returns all of it, and so does a call after more
// changes than are worth listing: Cleared is set, and Set has every record.
// Taking costs time in proportion to what is returned.
func (b *Belief) TakeChanges() Changes {
	var ch Changes
	if b.log.groups || !b.log.listing {
		ch.Groups = slices.Clone(b.groups)
	}
	if !b.log.listing {
		ch.Cleared = true
		ch.Set = b.records()
	} else {
		ch.Cleared = b.log.cleared
		for h := range b.log.hashes {
			if e := b.entries[h]; e != nil {
				ch.Set = append(ch.Set, b.record(e))
			} else if !ch.Cleared {
				ch.Deleted = append(ch.Deleted, h)
			}
		}
		slices.SortFunc(ch.Set, byHash)
		slices.Sort(ch.Deleted)
	}
	b.log = changeLog{listing: true, hashes: make(map[kvevents.Hash]struct{})}
	return ch
}

// Records returns the whole durable form: records ordered by hash, and the
// groups. It does not disturb [Belief.TakeChanges].
func (b *Belief) Records() ([]Record, []GroupSpec) {
	return b.records(), slices.Clone(b.groups)
}

func (b *Belief) records() []Record {
	all := make([]Record, 0, len(b.entries))
	for _, e := range b.entries {
		all = append(all, b.record(e))
	}
	slices.SortFunc(all, byHash)
	return all
}

func byHash(a, b Record) int { return cmp.Compare(a.Hash, b.Hash) }

func (b *Belief) record(e *entry) Record {
	r := Record{Hash: e.hash, Copies: make([]Copies, 0, len(e.copies))}
	for _, c := range e.copies {
		r.Copies = append(r.Copies, Copies{Medium: medium(c.tier), Group: c.group, N: c.n})
	}
	if e.state == unknown {
		return r
	}
	r.BlockSize, r.Local = b.blockSize, e.local
	if !e.root {
		parent := e.parent
		r.Parent = &parent
	}
	r.Key, r.HasKey = e.key, e.state == keyed
	r.Conflict = e.state == conflicted
	return r
}

// Restore builds the belief that [Belief.Records] returned the records of. Its
// counters start at zero; its sizes, digest and answers are those of the
// original, and its next [Belief.TakeChanges] starts from these records. It
// returns an error, which names the record, if they do not fit together or were
// made with another scheme or for another model.
func Restore(scheme hashing.Scheme, model string, records []Record, groups []GroupSpec) (*Belief, error) {
	b := NewBelief(scheme, model)
	if err := b.restoreGroups(groups); err != nil {
		return nil, err
	}
	for i := range records {
		if err := b.restore(&records[i]); err != nil {
			return nil, fmt.Errorf("record of hash %d: %w", records[i].Hash, err)
		}
	}
	b.log = changeLog{listing: true, hashes: make(map[kvevents.Hash]struct{})}
	return b, nil
}

func (b *Belief) restoreGroups(groups []GroupSpec) error {
	for i, g := range groups {
		switch {
		case g.Index < 0 || g.Index >= MaxGroups:
			return fmt.Errorf("group %d: index must be from 0 to %d", g.Index, MaxGroups-1)
		case i > 0 && g.Index <= groups[i-1].Index:
			return fmt.Errorf("group %d: must come in order of index and once", g.Index)
		case g.BlockSize <= 0:
			return fmt.Errorf("group %d: block size is %d, must be positive", g.Index, g.BlockSize)
		}
	}
	b.groups = slices.Clone(groups)
	if len(groups) > 0 {
		b.reshape()
	}
	return nil
}

func (b *Belief) restore(r *Record) error {
	if _, dup := b.entries[r.Hash]; dup {
		return errors.New("hash appears twice")
	}
	if len(r.Copies) == 0 {
		return errors.New("no copies, must have at least one")
	}
	e := &entry{hash: r.Hash}
	for _, c := range r.Copies {
		if err := b.restoreCopies(e, c); err != nil {
			return err
		}
	}
	b.entries[r.Hash] = e
	b.stats.Hashes++
	return b.restoreContent(e, r)
}

func (b *Belief) restoreCopies(e *entry, c Copies) error {
	tier := tierOf(c.Medium)
	i, dup := e.find(tier, c.Group)
	switch {
	case tier == kvevents.TierUnknown:
		return fmt.Errorf("medium is %q, must be GPU, CPU or DISK", c.Medium)
	case c.Group < 0 || c.Group >= MaxGroups:
		return fmt.Errorf("group is %d, must be from 0 to %d", c.Group, MaxGroups-1)
	case c.N <= 0:
		return fmt.Errorf("%d copies on %s, must be positive", c.N, c.Medium)
	case dup:
		return fmt.Errorf("medium %s and group %d appear twice", c.Medium, c.Group)
	}
	held := copies{tier: tier, group: c.Group, n: c.N}
	e.copies = slices.Insert(e.copies, i, held)
	b.digest += mix(e.hash, held)
	b.stats.Blocks++
	b.stats.Copies += c.N
	if tier == kvevents.TierGPU {
		b.stats.GPUCopies += c.N
	}
	return nil
}

func (b *Belief) restoreContent(e *entry, r *Record) error {
	if r.BlockSize == 0 {
		return nil
	}
	if r.BlockSize != b.blockSize {
		return fmt.Errorf("block size is %d, the groups' is %d", r.BlockSize, b.blockSize)
	}
	e.local, e.root = r.Local, r.Parent == nil
	if !e.root {
		e.parent = *r.Parent
	}
	switch {
	case r.Conflict:
		e.state = conflicted
		b.stats.Conflicts++
	case r.HasKey:
		if want := b.scheme.Chain(b.scheme.Root(b.model, b.blockSize), r.Local); e.root && r.Key != want {
			return errors.New("key is not that of this scheme and model")
		}
		b.setKey(e, r.Key)
	default:
		b.park(e)
	}
	return nil
}
