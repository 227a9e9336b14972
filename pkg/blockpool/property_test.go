package blockpool

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// TestProperties drives a small pool with random requests and checks after
// every step that all its parts agree with each other, with the sequences that
// are running, and with what a consumer has counted from the events.
func TestProperties(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		m := &machine{
			hasher: testHasher(t),
			pool:   testPool(t, rapid.IntRange(2, 24).Draw(t, "blocks")),
			counts: map[kvevents.Hash]int{},
		}
		t.Repeat(map[string]func(*rapid.T){
			"admit":  m.admit,
			"grow":   m.grow,
			"free":   m.free,
			"reset":  m.reset,
			"evict":  m.evict,
			"prefix": m.evictPrefix,
			"":       m.check,
		})
	})
}

type machine struct {
	hasher  *Hasher
	pool    *Pool
	running []*Sequence
	counts  map[kvevents.Hash]int
}

// prompt draws from few prompts that share beginnings, so that hits, copies and
// evictions are frequent.
func (m *machine) prompt(t *rapid.T) *Sequence {
	p := tokens(100*rapid.Uint32Range(1, 3).Draw(t, "root"), rapid.IntRange(1, 8*testBlockSize).Draw(t, "length"))
	if rapid.Bool().Draw(t, "branch") {
		p = append(p, tokens(rapid.Uint32Range(1, 2).Draw(t, "tail"), rapid.IntRange(1, 2*testBlockSize).Draw(t, "tail length"))...)
	}
	seq := m.hasher.Sequence(p, Content{Salt: rapid.SampledFrom([]string{"", "", "", "s"}).Draw(t, "salt")})
	if rapid.IntRange(0, 9).Draw(t, "skip") == 0 {
		seq.SkipLookup()
	}
	return seq
}

func (m *machine) admit(t *rapid.T) {
	seq := m.prompt(t)
	free := m.pool.Usable() - m.pool.InUse()
	hit, ok := m.pool.Admit(seq)
	switch {
	case !ok && m.pool.blocksFor(seq.Len()) <= free:
		t.Fatalf("a sequence of %d tokens was refused with %d blocks free", seq.Len(), free)
	case ok && (hit >= seq.Len() || hit%testBlockSize != 0):
		t.Fatalf("hit %d of %d tokens, want whole blocks and less than all", hit, seq.Len())
	case ok:
		m.running = append(m.running, seq)
	}
}

func (m *machine) grow(t *rapid.T) {
	if len(m.running) == 0 {
		t.Skip("nothing runs")
	}
	i := rapid.IntRange(0, len(m.running)-1).Draw(t, "sequence")
	m.running[i].Append(rapid.Uint32Range(0, 2).Draw(t, "token"))
	if !m.pool.Grow(m.running[i]) {
		// As an engine does: whoever came last makes room and comes back later.
		m.pool.Free(m.running[len(m.running)-1])
		m.running = m.running[:len(m.running)-1]
		if i < len(m.running) && !m.pool.Grow(m.running[i]) {
			m.pool.Free(m.running[i])
			m.running = slices.Delete(m.running, i, i+1)
		}
	}
}

func (m *machine) free(t *rapid.T) {
	if len(m.running) == 0 {
		t.Skip("nothing runs")
	}
	i := rapid.IntRange(0, len(m.running)-1).Draw(t, "sequence")
	m.pool.Free(m.running[i])
	m.running = slices.Delete(m.running, i, i+1)
}

func (m *machine) reset(t *rapid.T) {
	if got, want := m.pool.Reset(), len(m.running) == 0; got != want {
		t.Fatalf("Reset() = %v with %d sequences running", got, len(m.running))
	}
}

func (m *machine) evict(t *rapid.T) {
	before, n := m.pool.Cached(), rapid.IntRange(0, 5).Draw(t, "n")
	e := m.pool.Evict(n)
	if e.Evicted > n || m.pool.Cached() != before-e.Evicted {
		t.Fatalf("Evict(%d) = %+v left %d of %d blocks", n, e, m.pool.Cached(), before)
	}
}

func (m *machine) evictPrefix(t *rapid.T) {
	seq := m.prompt(t)
	before := m.pool.Cached()
	e := m.pool.EvictPrefix(seq)
	if m.pool.Cached() != before-e.Evicted {
		t.Fatalf("EvictPrefix = %+v left %d of %d blocks", e, m.pool.Cached(), before)
	}
}

func (m *machine) check(t *rapid.T) {
	count(m.counts, m.pool.TakeEvents())
	if err := verify(m.pool, m.running); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(held(m.pool), m.counts); d != "" {
		t.Fatalf("copies held (-) and counted from events (+):\n%s", d)
	}
}

// verify checks everything that has to hold between two operations.
func verify(p *Pool, running []*Sequence) error {
	refs := make([]int32, len(p.blocks))
	for _, s := range running {
		if got, want := len(s.blocks), p.blocksFor(len(s.tokens)); got > want || len(s.digests) != len(s.tokens)/p.blockSize {
			return fmt.Errorf("a sequence of %d tokens has %d blocks and %d digests", len(s.tokens), got, len(s.digests))
		}
		for i, id := range s.blocks {
			refs[id]++
			if i < s.entered && (!p.blocks[id].hashed || p.blocks[id].digest != s.digests[i]) {
				return fmt.Errorf("block %d lost its content while it is in use", id)
			}
		}
	}
	inQueue, err := verifyQueue(p)
	if err != nil {
		return err
	}
	hashed := 0
	for id := 1; id < len(p.blocks); id++ {
		b := &p.blocks[id]
		if b.refs != refs[id] || inQueue[id] != (b.refs == 0) {
			return fmt.Errorf("block %d: %d references, %d users, in free queue %v", id, b.refs, refs[id], inQueue[id])
		}
		if b.hashed {
			hashed++
		}
	}
	if p.blocks[0] != (block{}) {
		return fmt.Errorf("the null block is %+v", p.blocks[0])
	}
	if hashed != p.cached {
		return fmt.Errorf("%d blocks have content, counter says %d", hashed, p.cached)
	}
	return verifyTable(p, hashed)
}

func verifyQueue(p *Pool) ([]bool, error) {
	in := make([]bool, len(p.blocks))
	n, prev := 0, int32(0)
	for id := p.free.first; id != 0; id = p.blocks[id].queued.next {
		if in[id] || p.blocks[id].queued.prev != prev {
			return nil, fmt.Errorf("free queue is broken at block %d", id)
		}
		in[id], prev = true, id
		n++
	}
	if prev != p.free.last || n != p.free.len {
		return nil, fmt.Errorf("free queue ends at %d after %d blocks, recorded are %d and %d", prev, n, p.free.last, p.free.len)
	}
	return in, nil
}

func verifyTable(p *Pool, hashed int) error {
	n := 0
	for d, c := range p.held {
		prev := int32(0)
		for id := c.first; id != 0; id = p.blocks[id].copies.next {
			if b := &p.blocks[id]; !b.hashed || b.digest != d || b.copies.prev != prev {
				return fmt.Errorf("copies of a hash are broken at block %d", id)
			}
			prev = id
			n++
		}
		if c.first == 0 || prev != c.last {
			return fmt.Errorf("copies of a hash run from %d to %d, recorded end is %d", c.first, prev, c.last)
		}
	}
	if n != hashed {
		return fmt.Errorf("table lists %d blocks, %d have content", n, hashed)
	}
	return nil
}
