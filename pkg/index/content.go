package index

import (
	"slices"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// content is what a stored event tells about one block.
type content struct {
	root   bool
	parent kvevents.Hash // unless root
	local  uint64
}

// contentOf reads block i of an aligned event: its own tokens, and as parent the
// block before it in the event or else the event's. Without a parent it is a
// first block, and so is a child of 0 where no block 0 is held: some engines
// (llm-d-inference-sim, in its array form) write 0 for "none", while a real block
// gets that hash once in 2^64.
func (b *Belief) contentOf(ev *kvevents.BlockStored, i int) content {
	var c content
	switch {
	case i > 0:
		c.parent = ev.BlockHashes[i-1]
	case ev.Parent != nil && (*ev.Parent != 0 || b.entries[0] != nil):
		c.parent = *ev.Parent
	default:
		c.root = true
	}
	var keys []kvevents.ExtraKey
	if i < len(ev.ExtraKeys) {
		keys = ev.ExtraKeys[i]
	}
	tokens := ev.TokenIDs[i*ev.BlockSize : (i+1)*ev.BlockSize]
	c.local = b.scheme.Local(tokens, kvevents.Extra(ev.LoRAName, keys))
	return c
}

// tellsContent reports whether the blocks of ev can be believed to be what its
// tokens say: lengths agree, so that tokens can be dealt out by position; the
// size is that of the keys; no block is its own ancestor; and the event has extra
// keys if this engine's GPU events do. Connectors leave them out, and a salted
// block would pass for a plain one.
func (b *Belief) tellsContent(ev *kvevents.BlockStored, tier kvevents.Tier) bool {
	if !ev.Aligned() || ev.BlockSize != b.blockSize {
		return false
	}
	if ev.Parent != nil && slices.Contains(ev.BlockHashes, *ev.Parent) {
		b.stats.SelfParents++
		return false
	}
	return tier == kvevents.TierGPU || ev.ExtraKeys != nil || !b.extraKeys()
}

// learn gives e its content, or checks it against what is known. It returns
// false if the two contradict each other. The first content can't be told from
// the second by hash, so neither may be promised until every copy is gone.
func (b *Belief) learn(e *entry, c content) bool {
	switch {
	case !c.root && c.parent == e.hash:
		b.stats.SelfParents++
		return true
	case e.state == unknown:
		e.root, e.parent, e.local = c.root, c.parent, c.local
		b.place(e)
		return true
	case e.root == c.root && e.parent == c.parent && e.local == c.local:
		return true
	default:
		b.stats.Conflicted++
		if e.state != conflicted {
			b.unlink(e)
			e.state = conflicted
			b.stats.Conflicts++
		}
		return false
	}
}

// place keys an entry that has just got its content, and then whatever waited
// for it, without recursion; or it parks the entry until its parent is keyed.
func (b *Belief) place(e *entry) {
	parent, ok := b.parentKey(e)
	if !ok {
		b.park(e)
		return
	}
	b.setKey(e, b.scheme.Chain(parent, e.local))
	for todo := []*entry{e}; len(todo) > 0; {
		p := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for {
			child := b.waiting[p.hash]
			if child == nil {
				break
			}
			b.unlink(child)
			b.setKey(child, b.scheme.Chain(p.key, child.local))
			b.touch(child)
			todo = append(todo, child)
		}
	}
}

func (b *Belief) parentKey(e *entry) (hashing.Key, bool) {
	if e.root {
		return b.scheme.Root(b.model, b.blockSize), true
	}
	if p := b.entries[e.parent]; p != nil && p.state == keyed {
		return p.key, true
	}
	return 0, false
}

func (b *Belief) park(e *entry) {
	if b.stats.Orphans >= MaxOrphans {
		b.stats.OrphansDropped++
		e.root, e.parent, e.local = false, 0, 0
		return
	}
	e.state = orphan
	b.stats.Orphans++
	push(b.waiting, e.parent, e)
}

func (b *Belief) setKey(e *entry, k hashing.Key) {
	e.state, e.key = keyed, k
	b.stats.Keyed++
	push(b.byKey, k, e)
}

// push makes e the first of the entries listed under k.
func push[K comparable](lists map[K]*entry, k K, e *entry) {
	if first := lists[k]; first != nil {
		e.next, first.prev = first, e
	}
	lists[k] = e
}

// unlink takes e off the list that its state puts it on, and leaves it unknown.
// Its content fields stay as they are.
func (b *Belief) unlink(e *entry) {
	switch e.state {
	case keyed:
		b.stats.Keyed--
		drop(b.byKey, e.key, e)
		e.key = 0
	case orphan:
		b.stats.Orphans--
		drop(b.waiting, e.parent, e)
	case conflicted:
		b.stats.Conflicts--
	case unknown:
	}
	e.state = unknown
}

func drop[K comparable](lists map[K]*entry, k K, e *entry) {
	if e.next != nil {
		e.next.prev = e.prev
	}
	switch {
	case e.prev != nil:
		e.prev.next = e.next
	case e.next != nil:
		lists[k] = e.next
	default:
		delete(lists, k)
	}
	e.prev, e.next = nil, nil
}

// forget drops what is known of e's content.
func (b *Belief) forget(e *entry) {
	b.unlink(e)
	e.root, e.parent, e.local = false, 0, 0
}

// forgetAll drops all content, because the size of the keys has changed. It
// costs a scan; the sizes of a model settle with its first prompts.
func (b *Belief) forgetAll() {
	for _, e := range b.entries {
		if e.state != unknown {
			b.forget(e)
			b.touch(e)
		}
	}
}
