package indextest

import (
	"testing"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

func lookUpOnly(t *testing.T, newBelief New) {
	t.Parallel()
	b := newBelief(hashing.Scheme{}, ModelName)
	keys := casePrompt.Keys(hashing.Scheme{}, caseBlock)
	b.Apply(stored(0, 5))
	b.Match(caseBlock, keys)
	b.Apply(removed("GPU", 0, 1, 2, 3, 4))
	b.Match(caseBlock, keys)
	checkCase(t, b, fixed{})
}

func clearOne(t *testing.T, newBelief New) {
	t.Parallel()
	one, other := newBelief(hashing.Scheme{}, ModelName), newBelief(hashing.Scheme{}, ModelName)
	for _, b := range []Belief{one, other} {
		b.Apply(stored(0, 2))
		b.Apply(placeholder("CPU", 0, 1))
	}
	one.Clear()
	checkCase(t, one, fixed{})
	checkCase(t, other, fixed{want: depths(2, 2, 2), blocks: 4, copies: 4})
	if got := one.Digest(); got != 0 {
		t.Errorf("digest of nothing = %#x, want 0", got)
	}
}

// nothingStays stores and removes in different orders, with unknown parents.
func nothingStays(t *testing.T, newBelief New) {
	t.Parallel()
	b := newBelief(hashing.Scheme{}, ModelName)
	for i := range 5 {
		b.Apply(stored(4-i, 5-i))
		b.Apply(stored(i, i+1))
	}
	for i := range 5 {
		b.Apply(removed("GPU", (i*3)%5))
		b.Apply(removed("GPU", (i*2)%5))
	}
	checkCase(t, b, fixed{})
	if got := b.Stats(); got.Hashes != 0 || got.Keyed != 0 {
		t.Errorf("after every copy was removed %d hashes and %d keys stay", got.Hashes, got.Keyed)
	}
}

// orders are all orders in which three things can go.
var orders = [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}

// twins stores one content under three hashes, as releases do that publish no
// salts: it is held until the last of them goes, whichever that is. Then all
// again with the first one come back in between.
func twins(t *testing.T, newBelief New) {
	t.Parallel()
	store := func(h int) *kvevents.BlockStored {
		ev := stored(0, 1)
		ev.BlockHashes[0] = kvevents.Hash(h)
		return ev
	}
	remove := func(h int) *kvevents.BlockRemoved {
		return &kvevents.BlockRemoved{BlockHashes: []kvevents.Hash{kvevents.Hash(h)}}
	}
	keys := casePrompt.Keys(hashing.Scheme{}, caseBlock)
	for _, order := range orders {
		b := newBelief(hashing.Scheme{}, ModelName)
		check := func(event string, want int) {
			if got := b.Match(caseBlock, keys).GPU; got != want {
				t.Errorf("order %v, %s: Match = %d, want %d", order, event, got, want)
			}
		}
		for h := range 3 {
			b.Apply(store(h))
		}
		b.Apply(remove(order[0]))
		check("one removed", 1)
		b.Apply(store(order[0]))
		b.Apply(remove(order[1]))
		check("another removed", 1)
		b.Apply(remove(order[2]))
		check("the third removed", 1)
		b.Apply(remove(order[0]))
		check("all removed", 0)
	}
}

// siblings stores three children of a block that is not there yet, and removes
// some of them before it comes.
func siblings(t *testing.T, newBelief New) {
	t.Parallel()
	child := func(i int) (*kvevents.BlockStored, Prompt) {
		q := Prompt{Tokens: append(casePrompt.Tokens[:caseBlock:caseBlock], 9, 9, 9, uint32(i))}
		parent := p(0)
		return &kvevents.BlockStored{
			BlockHashes: []kvevents.Hash{hashOf(q, 2*caseBlock)}, Parent: &parent, TokenIDs: q.Tokens[caseBlock:], BlockSize: caseBlock,
		}, q
	}
	for _, order := range orders {
		b := newBelief(hashing.Scheme{}, ModelName)
		for i := range 3 {
			ev, _ := child(i)
			b.Apply(ev)
		}
		for _, i := range order[:2] {
			ev, _ := child(i)
			b.Apply(&kvevents.BlockRemoved{BlockHashes: ev.BlockHashes})
		}
		again, _ := child(order[0])
		b.Apply(again)
		b.Apply(stored(0, 1))
		for n, want := range []int{2, 1, 2} {
			_, q := child(order[n])
			if got := b.Match(caseBlock, q.Keys(hashing.Scheme{}, caseBlock)).GPU; got != want {
				t.Errorf("order %v: Match for child %d = %d, want %d", order, order[n], got, want)
			}
		}
		if s := b.Stats(); s.Orphans != 0 || s.Keyed != 3 {
			t.Errorf("order %v: %d orphans and %d keys, want 0 and 3", order, s.Orphans, s.Keyed)
		}
	}
}

// longChain resolves 20,000 orphans by one store: no recursion.
func longChain(t *testing.T, newBelief New) {
	t.Parallel()
	const n = 20_000
	b := newBelief(hashing.Scheme{}, ModelName)
	prompt := Prompt{Tokens: make([]uint32, n)}
	for i := n - 1; i >= 0; i-- {
		prompt.Tokens[i] = uint32(i)
		ev := &kvevents.BlockStored{BlockHashes: []kvevents.Hash{kvevents.Hash(i + 1)}, TokenIDs: []uint32{uint32(i)}, BlockSize: 1}
		if i > 0 {
			parent := kvevents.Hash(i)
			ev.Parent = &parent
		}
		if i == 0 && b.Stats().Orphans != n-1 {
			t.Errorf("%d orphans before the first block, want %d", b.Stats().Orphans, n-1)
		}
		b.Apply(ev)
	}
	if got := b.Match(1, prompt.Keys(hashing.Scheme{}, 1)); got.GPU != n {
		t.Errorf("Match = %d blocks, want %d", got.GPU, n)
	}
}
