package index

import (
	"cmp"
	"slices"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// Belief is what one replica is believed to hold. Make one with [NewBelief] or
// [Restore]; the zero value is not usable. It is owned by one goroutine (see the
// package documentation).
type Belief struct {
	// Fixed after NewBelief.
	scheme hashing.Scheme
	model  string

	// entries has every held hash, and no other.
	entries map[kvevents.Hash]*entry
	// byKey has the keyed entries: the first of those with that key, which are
	// linked by next. Equal content under several hashes is one key.
	byKey map[hashing.Key]*entry
	// waiting has the orphans: the first of those with that parent.
	waiting map[kvevents.Hash]*entry

	groups    []GroupSpec // ordered by index
	blockSize int         // of keys and content; 0 while unknown
	rules     []rule      // of groups, for blockSize
	ambiguous string      // see Shape

	stats  Stats
	digest uint64
	log    changeLog
}

// An entry is one held hash: its copies, and its content as far as it is known.
type entry struct {
	hash   kvevents.Hash
	copies []copies // ordered by tier, then group; every n positive

	state  state
	root   bool          // content: the first block of a prompt
	parent kvevents.Hash // content: valid unless root
	local  uint64        // content
	key    hashing.Key   // valid if keyed

	// Links among entries with one key (keyed) or one parent (orphan).
	prev, next *entry
}

// A state says what is known of an entry's content.
type state uint8

const (
	unknown    state = iota // nothing: only masked or refused events named it
	orphan                  // everything but the parent's key
	keyed                   // the key too
	conflicted              // announced with two contents
)

// copies counts an entry's copies in one place.
type copies struct {
	tier  kvevents.Tier
	group int
	n     int
}

// NewBelief returns the belief that a replica serving model holds nothing, with
// keys of scheme.
func NewBelief(scheme hashing.Scheme, model string) *Belief {
	b := &Belief{scheme: scheme, model: model}
	b.reset()
	return b
}

func (b *Belief) reset() {
	b.entries = make(map[kvevents.Hash]*entry)
	b.byKey = make(map[hashing.Key]*entry)
	b.waiting = make(map[kvevents.Hash]*entry)
	b.digest = 0
	s := &b.stats
	s.Hashes, s.Blocks, s.Copies, s.GPUCopies = 0, 0, 0, 0
	s.Keyed, s.Orphans, s.Conflicts = 0, 0, 0
}

// Apply takes one event into account and says what it did. It costs time in
// proportion to the event, and to the orphans that it resolves. Events come from
// an untrusted peer: whatever they say, Apply does not fail.
func (b *Belief) Apply(ev kvevents.Event) Effect {
	switch ev := ev.(type) {
	case *kvevents.BlockStored:
		return b.stored(ev)
	case *kvevents.BlockRemoved:
		return b.removed(ev)
	case *kvevents.AllBlocksCleared:
		b.stats.Clears++
		b.Clear()
		return Effect{Cleared: true}
	default:
		return Effect{}
	}
}

// Clear drops every copy on every tier. What is known of the attention groups
// stays: it belongs to the engine, not to its cache.
func (b *Belief) Clear() {
	b.reset()
	b.log.clear()
}

func (b *Belief) stored(ev *kvevents.BlockStored) Effect {
	var eff Effect
	tier := ev.Medium.Tier()
	if r := refuse(tier, ev.Locality, ev.Ownership, ev.Group); r != IgnoredNone {
		return b.ignore(eff, r)
	}
	if tier == kvevents.TierGPU {
		b.observe(ev)
		switch {
		case ev.BlockSize <= 0, len(ev.TokenIDs)/ev.BlockSize < len(ev.BlockHashes):
			eff = b.ignore(eff, IgnoredTokens)
		case !ev.Aligned():
			b.stats.Masked++
		}
	}
	learn := b.tellsContent(ev, tier)
	for i, h := range ev.BlockHashes {
		e := b.entries[h]
		if e == nil {
			if tier != kvevents.TierGPU && !learn {
				eff = b.ignore(eff, IgnoredPlaceholder)
				continue
			}
			e = &entry{hash: h}
			b.entries[h] = e
			b.stats.Hashes++
		}
		b.count(e, tier, ev.Group, 1)
		eff.Stored++
		if learn && !b.learn(e, b.contentOf(ev, i)) {
			eff.Conflicts++
		}
	}
	return eff
}

func (b *Belief) removed(ev *kvevents.BlockRemoved) Effect {
	var eff Effect
	tier := ev.Medium.Tier()
	if r := refuse(tier, ev.Locality, ev.Ownership, ev.Group); r != IgnoredNone {
		return b.ignore(eff, r)
	}
	for _, h := range ev.BlockHashes {
		e := b.entries[h]
		switch {
		case e != nil && e.held(tier, ev.Group):
			b.count(e, tier, ev.Group, -1)
			eff.Removed++
		case tier == kvevents.TierGPU:
			b.stats.BelowZero++
			eff.BelowZero++
		default:
			b.stats.UnknownRemoved++
		}
	}
	return eff
}

// refuse says why an event's copies are not this replica's to count.
func refuse(tier kvevents.Tier, locality, ownership string, group int) Ignored {
	switch {
	case tier == kvevents.TierUnknown:
		return IgnoredUnknownMedium
	case locality == "REMOTE":
		return IgnoredRemote
	case ownership != "":
		return IgnoredOwner
	case group < 0 || group >= MaxGroups:
		return IgnoredGroup
	default:
		return IgnoredNone
	}
}

func (b *Belief) ignore(eff Effect, r Ignored) Effect {
	b.stats.Ignored[r]++
	eff.Ignored = r
	return eff
}

// held reports whether e has a copy in group on tier.
func (e *entry) held(tier kvevents.Tier, group int) bool {
	_, ok := e.find(tier, group)
	return ok
}

func (e *entry) find(tier kvevents.Tier, group int) (int, bool) {
	return slices.BinarySearchFunc(e.copies, copies{tier: tier, group: group}, func(a, b copies) int {
		return cmp.Or(cmp.Compare(a.tier, b.tier), cmp.Compare(a.group, b.group))
	})
}

// count adds d, 1 or -1, to one of e's counts, which never falls below zero
// since removals are checked before. An entry without copies is released.
func (b *Belief) count(e *entry, tier kvevents.Tier, group, d int) {
	i, ok := e.find(tier, group)
	if !ok {
		e.copies = slices.Insert(e.copies, i, copies{tier: tier, group: group})
		b.stats.Blocks++
	}
	c := &e.copies[i]
	b.digest -= mix(e.hash, *c)
	c.n += d
	b.digest += mix(e.hash, *c)
	b.stats.Copies += d
	if tier == kvevents.TierGPU {
		b.stats.GPUCopies += d
	}
	if c.n == 0 {
		e.copies = slices.Delete(e.copies, i, i+1)
		b.stats.Blocks--
	}
	if len(e.copies) == 0 {
		b.forget(e)
		delete(b.entries, e.hash)
		b.stats.Hashes--
	}
	b.touch(e)
}

// Stats returns the belief's sizes and counts.
func (b *Belief) Stats() Stats { return b.stats }

// Blocks lists all entries, ordered by hash, group and medium. It costs a scan.
func (b *Belief) Blocks() []Block {
	out := make([]Block, 0, b.stats.Blocks)
	for _, e := range b.entries {
		for _, c := range e.copies {
			out = append(out, Block{
				Hash: e.hash, Key: e.key, HasKey: e.state == keyed,
				Group: c.group, Medium: medium(c.tier), Copies: c.n,
			})
		}
	}
	slices.SortFunc(out, func(a, b Block) int {
		return cmp.Or(cmp.Compare(a.Hash, b.Hash), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Medium, b.Medium))
	})
	return out
}

// Digest is a fingerprint of what is held where in how many copies, whatever the
// order in which it came: the sum, modulo 2^64, of [Block.Digest] over
// [Belief.Blocks]. It is kept up to date, so it costs nothing. Unequal digests
// mean unequal sets; equal ones mean equal sets but for chance.
func (b *Belief) Digest() uint64 { return b.digest }
