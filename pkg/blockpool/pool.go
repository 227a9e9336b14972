// Package blockpool answers: which KV-cache blocks does a vLLM engine hold
// after a given series of requests, and what does it publish about them?
//
// # Model
//
// A pool has a fixed number of physical blocks. Block 0 is vLLM's null block
// and never holds anything. A [Sequence] is one request: its tokens, the
// chained hashes of its full blocks and, while it runs, the physical blocks
// that it uses. A full block is entered under its hash at the moment the step
// that computes it is scheduled, so another request can reuse it from then on.
//
// A hash can be held by several physical blocks: nothing is deduplicated. A
// lookup takes the copy that was entered first. A block whose last user is gone
// keeps its content and waits in the free queue; the content ends when the
// block is handed out again, and only then a removal is published. So each copy
// is published once as stored and once as removed.
//
// # Invariants
//
//   - A block is in the free queue if and only if no sequence uses it.
//   - A block that is in use keeps its content.
//   - A lookup covers at most ⌊(tokens−1)/block size⌋ blocks: the last token is
//     always computed, because its logits are wanted.
//   - Stores minus removals, per hash, is the number of copies held, as soon as
//     [Pool.TakeEvents] has been drained.
//
// # Limits
//
// One full-attention group. A group of another kind would own its list of
// blocks per sequence and share the physical blocks, the free queue and the
// hashes, which is why those are separate types.
//
// # Concurrency
//
// None: a pool belongs to one goroutine. A [Hasher] can be shared.
package blockpool

import (
	"fmt"
	"slices"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// What the events of a full-attention model say in every release that names it.
const (
	medium   = kvevents.Medium("GPU")
	group    = 0
	specKind = "full_attention"
)

// A Pool is the prefix cache of one engine. Call [New].
type Pool struct {
	blocks []block // index = physical block; block 0 is the null block
	free   queue
	held   table

	blockSize int
	cached    int // blocks that hold content

	// events wait here for the step that publishes them, oldest first.
	events []kvevents.Event
}

// A block is one physical block.
type block struct {
	refs int32 // sequences that use it

	// hashed says that the block holds content; what follows describes it and
	// means nothing otherwise.
	hashed bool
	digest digest
	parent digest // of the block before; zero for the first of a prompt
	depth  int32  // position in its prompt, from 0
	key    hashing.Key

	copies links // neighbours among the copies of one hash, in order of entry
	queued links // neighbours in the free queue
}

// New returns a pool of blocks physical blocks, one of which is never usable.
func New(blocks, blockSize int) (*Pool, error) {
	if blocks < 2 {
		return nil, fmt.Errorf("number of blocks is %d, expected at least 2: the first one is never usable", blocks)
	}
	if blockSize < 1 {
		return nil, fmt.Errorf("block size is %d, expected 1 token or more", blockSize)
	}
	p := &Pool{blocks: make([]block, blocks), blockSize: blockSize, held: table{}}
	for id := 1; id < blocks; id++ {
		p.free.pushBack(p.blocks, int32(id))
	}
	return p, nil
}

// Admit gives seq the blocks that all its tokens need, reusing what the cache
// holds, and enters its full blocks into the cache. hit is the number of tokens
// that were reused. If the blocks don't suffice nothing changes and ok is
// false: the sequence has to wait. It panics if seq is admitted already.
func (p *Pool) Admit(seq *Sequence) (hit int, ok bool) {
	if seq.blocks != nil {
		panic("blockpool: sequence is admitted twice")
	}
	reuse := p.lookup(seq)
	idle := 0 // reused blocks that leave the free queue
	for _, id := range reuse {
		if p.blocks[id].refs == 0 {
			idle++
		}
	}
	need := p.blocksFor(len(seq.tokens)) - len(reuse)
	if need+idle > p.free.len {
		return 0, false
	}
	for _, id := range reuse {
		if p.blocks[id].refs == 0 {
			p.free.remove(p.blocks, id)
		}
		p.blocks[id].refs++
	}
	seq.blocks = reuse
	seq.entered = len(reuse)
	p.take(seq, need)
	p.enter(seq)
	return len(reuse) * p.blockSize, true
}

// Grow gives seq the blocks for the tokens that were appended since it was
// admitted, and enters those that are full. If no block is free nothing
// changes and it returns false: somebody has to be preempted.
func (p *Pool) Grow(seq *Sequence) bool {
	need := p.blocksFor(len(seq.tokens)) - len(seq.blocks)
	if need > p.free.len {
		return false
	}
	p.take(seq, need)
	p.enter(seq)
	return true
}

// Free ends the use of seq's blocks: the request is finished, aborted or
// preempted. What they hold stays until they are handed out again. The last
// block is queued first, so that a prompt loses its tail before its head, and
// blocks without content go to the front, before all others.
func (p *Pool) Free(seq *Sequence) {
	var empty []int32
	for _, id := range slices.Backward(seq.blocks) {
		b := &p.blocks[id]
		b.refs--
		switch {
		case b.refs > 0:
		case b.hashed:
			p.free.pushBack(p.blocks, id)
		default:
			empty = append(empty, id)
		}
	}
	for _, id := range slices.Backward(empty) {
		p.free.pushFront(p.blocks, id)
	}
	seq.blocks, seq.entered = nil, 0
}

// Reset forgets all content. As in vLLM it does so only while no block is in
// use, reports whether it did, and leaves the announcement to the batch of the
// next step.
func (p *Pool) Reset() bool {
	if p.InUse() > 0 {
		return false
	}
	for id := range p.blocks {
		p.blocks[id].hashed = false
	}
	clear(p.held)
	p.cached = 0
	p.events = append(p.events, &kvevents.AllBlocksCleared{})
	return true
}

// TakeEvents returns what happened since the last call, in order. The caller
// owns the slice; the token slices inside are shared with the sequences, whose
// tokens never change once appended.
func (p *Pool) TakeEvents() []kvevents.Event {
	events := p.events
	p.events = nil
	return events
}

// Pending is the number of events that TakeEvents would return.
func (p *Pool) Pending() int { return len(p.events) }

// Usable is the number of blocks that sequences can have at once.
func (p *Pool) Usable() int { return len(p.blocks) - 1 }

// InUse is the number of blocks that sequences have now.
func (p *Pool) InUse() int { return p.Usable() - p.free.len }

// Cached is the number of blocks that hold content, in use or not, counting
// every copy.
func (p *Pool) Cached() int { return p.cached }

// lookup returns the blocks that a request for seq reuses.
func (p *Pool) lookup(seq *Sequence) []int32 {
	// Room for all of the prompt: the slice becomes the sequence's block list.
	reuse := make([]int32, 0, p.blocksFor(len(seq.tokens)))
	if seq.skipLookup {
		return reuse
	}
	for _, d := range seq.digests[:hashing.Usable(len(seq.tokens), p.blockSize)] {
		id, ok := p.held.oldest(d)
		if !ok {
			break
		}
		reuse = append(reuse, id)
	}
	return reuse
}

// take hands out n blocks from the front of the free queue, which must have
// them. This is where cached content ends.
func (p *Pool) take(seq *Sequence, n int) {
	for range n {
		id := p.free.popFront(p.blocks)
		p.drop(id)
		p.blocks[id].refs = 1
		seq.blocks = append(seq.blocks, id)
	}
}

// drop ends the content of block id, if it has any, and publishes that.
func (p *Pool) drop(id int32) {
	b := &p.blocks[id]
	if !b.hashed {
		return
	}
	p.held.remove(p.blocks, id)
	b.hashed = false
	p.cached--
	p.events = append(p.events, b.digest.removed())
}

// enter puts the full blocks of seq that aren't in the cache yet under their
// hashes, as one event.
func (p *Pool) enter(seq *Sequence) {
	from, to := seq.entered, len(seq.tokens)/p.blockSize
	if from >= to {
		return
	}
	for i := from; i < to; i++ {
		id := seq.blocks[i]
		b := &p.blocks[id]
		b.hashed, b.digest, b.key, b.depth = true, seq.digests[i], seq.keys[i], int32(i)
		b.parent = digest{}
		if i > 0 {
			b.parent = seq.digests[i-1]
		}
		p.held.add(p.blocks, id)
	}
	p.cached += to - from
	seq.entered = to
	p.events = append(p.events, seq.stored(from, to))
}

// blocksFor is the number of blocks that so many tokens fill or begin.
func (p *Pool) blocksFor(tokens int) int {
	return (tokens + p.blockSize - 1) / p.blockSize
}
