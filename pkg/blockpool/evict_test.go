package blockpool

import (
	"slices"
	"testing"

	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

func TestEvictTakesWhatWouldGoNext(t *testing.T) {
	t.Parallel()

	h, p := testHasher(t), testPool(t, 32)
	serve(t, p, h, tokens(100, 13)) // 3 full blocks, the oldest
	serve(t, p, h, tokens(500, 13))
	if got, want := p.Evict(2), (Eviction{Evicted: 2}); got != want {
		t.Errorf("Evict(2) = %+v, want %+v", got, want)
	}
	if hit := serve(t, p, h, tokens(500, 13)); hit != 12 {
		t.Errorf("the younger prompt hits %d tokens, want all 12", hit)
	}
	if hit := serve(t, p, h, tokens(100, 13)); hit != 4 {
		t.Errorf("the older prompt hits %d tokens, want the 4 of its first block", hit)
	}
}

func TestEvictSparesBlocksInUse(t *testing.T) {
	t.Parallel()

	h, p := testHasher(t), testPool(t, 32)
	running := h.Sequence(tokens(100, 13), Content{})
	if _, ok := p.Admit(running); !ok {
		t.Fatal("no room in an empty pool")
	}
	serve(t, p, h, tokens(500, 13))
	if got, want := p.Evict(p.Usable()), (Eviction{Evicted: 3, InUse: 3}); got != want {
		t.Errorf("Evict(all) = %+v, want %+v", got, want)
	}
	if got := p.EvictPrefix(h.Sequence(tokens(100, 13), Content{})); got != (Eviction{InUse: 3}) {
		t.Errorf("EvictPrefix of a running prompt = %+v, want 3 in use", got)
	}
}

func TestEvictPrefix(t *testing.T) {
	t.Parallel()

	shared := tokens(100, 8)
	withTail := func(root uint32) []uint32 { return append(slices.Clone(shared), tokens(root, 9)...) }
	tests := []struct {
		name   string
		prefix []uint32
		// blocks that the two prompts of 4 blocks each, with 2 in common, still hit
		want      Eviction
		one, two  int
		unrelated int
	}{
		{"one prompt", withTail(500), Eviction{Evicted: 2}, 2, 4, 2},
		{"what they share", shared, Eviction{Evicted: 6}, 0, 0, 2},
		{"not cached", tokens(900, 20), Eviction{}, 4, 4, 2},
		{"shorter than a block", shared[:3], Eviction{}, 4, 4, 2},
		{"longer than what is cached", append(withTail(500), tokens(1, 40)...), Eviction{Evicted: 2}, 2, 4, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h, p := testHasher(t), testPool(t, 64)
			serve(t, p, h, withTail(500))
			serve(t, p, h, withTail(600))
			serve(t, p, h, tokens(7000, 9))
			if got := p.EvictPrefix(h.Sequence(slices.Clone(tt.prefix), Content{})); got != tt.want {
				t.Errorf("EvictPrefix = %+v, want %+v", got, tt.want)
			}
			for _, c := range []struct {
				prompt []uint32
				want   int
			}{{withTail(500), tt.one}, {withTail(600), tt.two}, {tokens(7000, 9), tt.unrelated}} {
				seq := h.Sequence(c.prompt, Content{})
				if got := len(p.lookup(seq)); got != c.want {
					t.Errorf("prompt %v hits %d blocks afterwards, want %d", c.prompt, got, c.want)
				}
			}
		})
	}
}

func TestEvictPrefixRemovesChildrenFirst(t *testing.T) {
	t.Parallel()

	h, p := testHasher(t), testPool(t, 64)
	seq := h.Sequence(tokens(100, 40), Content{})
	if _, ok := p.Admit(seq); !ok {
		t.Fatal("no room in an empty pool")
	}
	p.Free(seq)
	p.TakeEvents()
	p.EvictPrefix(h.Sequence(tokens(100, 4), Content{}))
	events := p.TakeEvents()
	if len(events) != 10 {
		t.Fatalf("%d removals, want 10", len(events))
	}
	for i, ev := range events {
		removed, ok := ev.(*kvevents.BlockRemoved)
		if want := seq.digests[9-i].external(); !ok || removed.BlockHashes[0] != want {
			t.Errorf("event %d is %+v, want the removal of block %d", i, ev, 9-i)
		}
	}
}
