package blockpool

import (
	"cmp"
	"slices"
)

// An Eviction says what one of the Evict methods did.
type Eviction struct {
	Evicted int // blocks that lost their content, each published as removed
	InUse   int // blocks that were meant but are in use, and so kept it
}

// Evict ends the content of the n blocks that would lose it next, as if other
// requests had taken them and left. InUse counts the cached blocks that no
// eviction could reach. It costs a walk of the free queue.
func (p *Pool) Evict(n int) Eviction {
	var ids []int32
	idle := 0
	for id := p.free.first; id != 0; id = p.blocks[id].queued.next {
		if !p.blocks[id].hashed {
			continue
		}
		idle++
		if len(ids) < n {
			ids = append(ids, id)
		}
	}
	e := Eviction{Evicted: len(ids), InUse: p.cached - idle}
	p.empty(ids)
	return e
}

// EvictPrefix ends the content of every block that holds the deepest cached
// block of seq's prompt or something that continues it, and of the blocks
// before it as far as nothing else that is cached continues them. Such a set is
// what memory pressure could take: as in the engine, no block outlives the one
// before it. It costs a walk of all blocks.
func (p *Pool) EvictPrefix(seq *Sequence) Eviction {
	deepest := -1
	for deepest+1 < len(seq.digests) {
		if _, ok := p.held.oldest(seq.digests[deepest+1]); !ok {
			break
		}
		deepest++
	}
	if deepest < 0 {
		return Eviction{}
	}
	doomed := p.subtree(seq.digests[deepest])
	for i := deepest - 1; i >= 0 && p.onlyContinuedBy(seq.digests[i], doomed); i-- {
		doomed[seq.digests[i]] = true
	}

	var e Eviction
	var ids []int32
	for i := range p.blocks {
		b := &p.blocks[i]
		switch {
		case !b.hashed || !doomed[b.digest]:
		case b.refs > 0:
			e.InUse++
		default:
			ids = append(ids, int32(i))
		}
	}
	// A removal never precedes those of the blocks that continue it.
	slices.SortStableFunc(ids, func(a, b int32) int {
		return cmp.Compare(p.blocks[b].depth, p.blocks[a].depth)
	})
	p.empty(ids)
	e.Evicted = len(ids)
	return e
}

// subtree is the set of cached digests that are root or continue it.
func (p *Pool) subtree(root digest) map[digest]bool {
	var ids []int32
	for i := range p.blocks {
		if p.blocks[i].hashed {
			ids = append(ids, int32(i))
		}
	}
	slices.SortFunc(ids, func(a, b int32) int {
		return cmp.Compare(p.blocks[a].depth, p.blocks[b].depth)
	})
	in := map[digest]bool{root: true}
	for _, id := range ids { // parents come before what continues them
		if b := &p.blocks[id]; in[b.parent] { // a first block's parent is no digest
			in[b.digest] = true
		}
	}
	return in
}

// onlyContinuedBy reports whether each cached block that continues d is in set.
func (p *Pool) onlyContinuedBy(d digest, set map[digest]bool) bool {
	for i := range p.blocks {
		if b := &p.blocks[i]; b.hashed && b.parent == d && !set[b.digest] {
			return false
		}
	}
	return true
}

// empty ends the content of the blocks ids, which must be in the free queue,
// and moves them to its front: that is where blocks without content wait.
func (p *Pool) empty(ids []int32) {
	for _, id := range ids {
		p.drop(id)
		p.free.remove(p.blocks, id)
		p.free.pushFront(p.blocks, id)
	}
}
