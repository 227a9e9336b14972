package blockpool

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

const testBlockSize = 4

func testHasher(t rapid.TB) *Hasher {
	t.Helper()
	engine, err := hashing.NewEngine(hashing.SHA256CBOR, nil, hashing.Tagged)
	if err != nil {
		t.Fatal(err)
	}
	h, err := NewHasher(engine, hashing.Scheme{}, "m", testBlockSize)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func testPool(t rapid.TB, blocks int) *Pool {
	t.Helper()
	p, err := New(blocks, testBlockSize)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// tokens returns n tokens that start with root.
func tokens(root uint32, n int) []uint32 {
	s := make([]uint32, n)
	for i := range s {
		s[i] = root + uint32(i)
	}
	return s
}

// serve runs a prompt through the pool and returns the reused tokens.
func serve(t *testing.T, p *Pool, h *Hasher, prompt []uint32) int {
	t.Helper()
	seq := h.Sequence(prompt, Content{})
	hit, ok := p.Admit(seq)
	if !ok {
		t.Fatalf("a prompt of %d tokens found no room in a pool of %d blocks with %d in use", len(prompt), p.Usable(), p.InUse())
	}
	p.Free(seq)
	return hit
}

func TestHitLeavesLastTokenToCompute(t *testing.T) {
	t.Parallel()

	h := testHasher(t)
	f := func(n, want int) {
		t.Helper()
		p := testPool(t, 32)
		serve(t, p, h, tokens(100, n))
		if got := serve(t, p, h, tokens(100, n)); got != want {
			t.Errorf("a prompt of %d tokens sent again hit %d tokens, want %d", n, got, want)
		}
	}
	f(1, 0)
	f(testBlockSize, 0)
	f(testBlockSize+1, testBlockSize)
	f(2*testBlockSize, testBlockSize)
	f(2*testBlockSize+1, 2*testBlockSize)
}

func TestRunningPrefillCanBeHit(t *testing.T) {
	t.Parallel()

	h, p := testHasher(t), testPool(t, 32)
	first := h.Sequence(tokens(100, 13), Content{})
	second := h.Sequence(tokens(100, 13), Content{})
	if _, ok := p.Admit(first); !ok {
		t.Fatal("no room for the first prompt")
	}
	if hit, ok := p.Admit(second); !ok || hit != 12 {
		t.Errorf("Admit of the same prompt while the first runs = %d, %v; want 12, true", hit, ok)
	}
	if got, want := p.InUse(), 5; got != want {
		t.Errorf("blocks in use = %d, want %d: three shared, one tail each", got, want)
	}
}

func TestAdmitWaitsForBlocksAndChangesNothing(t *testing.T) {
	t.Parallel()

	h, p := testHasher(t), testPool(t, 5)
	running := h.Sequence(tokens(100, 9), Content{}) // 3 of 4 blocks
	if _, ok := p.Admit(running); !ok {
		t.Fatal("no room in an empty pool")
	}
	p.TakeEvents()
	before := p.Blocks()

	waiting := h.Sequence(tokens(500, 5), Content{}) // needs 2
	if _, ok := p.Admit(waiting); ok {
		t.Fatal("a prompt of two blocks was admitted with one block free")
	}
	if d := cmp.Diff(before, p.Blocks()); d != "" || p.Pending() != 0 {
		t.Errorf("a refused admission changed the pool (%d events):\n%s", p.Pending(), d)
	}
	p.Free(running)
	if _, ok := p.Admit(waiting); !ok {
		t.Error("still no room after the running sequence ended")
	}
}

// What a prompt reuses is no longer free for the rest of it.
func TestAdmitDoesNotCountItsHitsAsFree(t *testing.T) {
	t.Parallel()

	h, p := testHasher(t), testPool(t, 5)
	serve(t, p, h, tokens(100, 9))
	if hit, ok := p.Admit(h.Sequence(tokens(100, 20), Content{})); ok {
		t.Errorf("a prompt of 5 blocks was admitted to a pool of 4, hitting %d tokens", hit)
	}
}

// The pool is full of cached blocks; those of the prompt itself count as free
// and would be taken away if they were handed out before they are reused.
func TestAdmitKeepsItsOwnHits(t *testing.T) {
	t.Parallel()

	h, p := testHasher(t), testPool(t, 5)
	serve(t, p, h, tokens(100, 9))
	if hit := serve(t, p, h, tokens(100, 16)); hit != 8 {
		t.Errorf("hit %d tokens, want 8", hit)
	}
}

func TestPromptLosesTailFirst(t *testing.T) {
	t.Parallel()

	h, p := testHasher(t), testPool(t, 6) // 5 usable
	serve(t, p, h, tokens(100, 16))       // 4 full blocks
	serve(t, p, h, tokens(500, 8))        // one empty block, then the tail's
	if hit := serve(t, p, h, tokens(100, 16)); hit != 12 {
		t.Errorf("hit %d tokens after one block was taken, want the first 12", hit)
	}
}

func TestCopiesAreStoredAndRemovedOneByOne(t *testing.T) {
	t.Parallel()

	h, p := testHasher(t), testPool(t, 9)
	prompt := tokens(100, 8) // the second block is recomputed every time
	for range 3 {
		serve(t, p, h, slices.Clone(prompt))
	}
	counts := map[kvevents.Hash]int{}
	count(counts, p.TakeEvents())
	last := h.Sequence(prompt, Content{}).digests[1].external()
	if got := counts[last]; got != 3 {
		t.Fatalf("%d copies of the last block, want 3", got)
	}
	p.Evict(1)
	count(counts, p.TakeEvents())
	if got := serve(t, p, h, append(slices.Clone(prompt), 1)); got != 8 {
		t.Errorf("hit %d tokens with two of three copies left, want 8", got)
	}
	if d := cmp.Diff(held(p), counts); d != "" {
		t.Errorf("copies held (-) and counted from events (+):\n%s", d)
	}
}

func TestResetIsRefusedWhileInUse(t *testing.T) {
	t.Parallel()

	h, p := testHasher(t), testPool(t, 16)
	seq := h.Sequence(tokens(100, 9), Content{})
	if _, ok := p.Admit(seq); !ok {
		t.Fatal("no room in an empty pool")
	}
	p.TakeEvents()
	if p.Reset() || p.Pending() > 0 {
		t.Error("reset with a sequence running succeeded or published something, want neither")
	}
	p.Free(seq)
	if !p.Reset() || p.Cached() != 0 {
		t.Errorf("reset of an idle pool failed or left %d blocks", p.Cached())
	}
	// The announcement waits for a step and comes first in it.
	if hit := serve(t, p, h, tokens(100, 9)); hit != 0 {
		t.Errorf("hit %d tokens after a reset, want 0", hit)
	}
	events := p.TakeEvents()
	if _, first := events[0].(*kvevents.AllBlocksCleared); !first || len(events) != 2 {
		t.Errorf("events after a reset and one request are %v, want AllBlocksCleared and one BlockStored", events)
	}
}

func TestSkipLookupStoresAgain(t *testing.T) {
	t.Parallel()

	h, p := testHasher(t), testPool(t, 16)
	serve(t, p, h, tokens(100, 9))
	seq := h.Sequence(tokens(100, 9), Content{})
	seq.SkipLookup()
	if hit, _ := p.Admit(seq); hit != 0 {
		t.Errorf("hit %d tokens without a lookup", hit)
	}
	for _, b := range p.Blocks() {
		if b.Copies != 2 {
			t.Errorf("block %#x has %d copies, want 2", uint64(b.Hash), b.Copies)
		}
	}
}

func TestContentSeparatesPrompts(t *testing.T) {
	t.Parallel()

	h, p := testHasher(t), testPool(t, 64)
	contents := []Content{
		{},
		{Salt: "a"},
		{Salt: "b"},
		{LoRA: &Adapter{ID: 1, Name: "a", Path: "/x"}},
		{LoRA: &Adapter{ID: 1, Name: "a", Path: "/x"}, Salt: "a"},
	}
	for i, c := range contents {
		seq := h.Sequence(tokens(100, 9), c)
		if hit, _ := p.Admit(seq); hit != 0 {
			t.Errorf("content %d hit %d tokens of another's", i, hit)
		}
		p.Free(seq)
	}
	keys := map[hashing.Key]bool{}
	for _, b := range p.Blocks() {
		keys[b.Key] = true
	}
	if got, want := len(keys), 2*len(contents); got != want {
		t.Errorf("%d distinct block keys, want %d", got, want)
	}
}

// count adds up events as a consumer does.
func count(counts map[kvevents.Hash]int, events []kvevents.Event) {
	for _, ev := range events {
		switch ev := ev.(type) {
		case *kvevents.BlockStored:
			for _, h := range ev.BlockHashes {
				counts[h]++
			}
		case *kvevents.BlockRemoved:
			for _, h := range ev.BlockHashes {
				if counts[h]--; counts[h] == 0 {
					delete(counts, h)
				}
			}
		case *kvevents.AllBlocksCleared:
			clear(counts)
		}
	}
}

func held(p *Pool) map[kvevents.Hash]int {
	m := map[kvevents.Hash]int{}
	for _, b := range p.Blocks() {
		m[b.Hash] += b.Copies
	}
	return m
}
