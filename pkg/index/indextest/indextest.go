// Package indextest holds what every belief of the index has to pass, the naive
// one and those that replace it: fixed cases, each of which some index got wrong
// in the field, and a comparison over random engines with a model that is too
// simple to be wrong.
package indextest

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/index"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// Belief is what the suite needs of an implementation. What its methods promise
// is written at [index.Belief].
type Belief interface {
	Apply(ev kvevents.Event) index.Effect
	Clear()
	Match(blockSize int, keys []hashing.Key) index.Depths
	Blocks() []index.Block
	Digest() uint64
	Shape() index.Shape
	Stats() index.Stats
}

// New makes an empty belief, as [index.NewBelief] does.
type New func(scheme hashing.Scheme, model string) Belief

// ModelName is the model that the suite's replicas serve.
const ModelName = "tiny"

// Run runs the whole suite.
func Run(t *testing.T, newBelief New) {
	t.Helper()
	t.Run("cases", func(t *testing.T) {
		t.Parallel()
		runCases(t, newBelief)
	})
	t.Run("random", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(rt *rapid.T) { compare(rt, newBelief) })
	})
}

// compare feeds one random engine's events to a belief and to the model, and
// asks both about random prompts along the way.
func compare(t *rapid.T, newBelief New) {
	engine := NewEngine(t)
	scheme := rapid.SampledFrom([]hashing.Scheme{{}, hashing.NewScheme([]byte("a secret of the fleet"))}).Draw(t, "scheme")
	belief := newBelief(scheme, ModelName)
	truth := newModel()
	for range rapid.IntRange(1, 60).Draw(t, "events") {
		ev := engine.Next(t)
		got, want := belief.Apply(ev), truth.apply(ev)
		if got != want {
			t.Fatalf("Apply(%+v) = %+v, want %+v", ev, got, want)
		}
		if rapid.IntRange(0, 3).Draw(t, "look") == 0 {
			checkMatch(t, belief, truth, scheme, engine.Prompt(t))
		}
	}
	for _, p := range engine.Prompts() {
		checkMatch(t, belief, truth, scheme, p)
	}
	want := truth.blocks(scheme)
	if diff := cmp.Diff(want, belief.Blocks()); diff != "" {
		t.Fatalf("Blocks differ (-want +got):\n%s", diff)
	}
	var digest uint64
	for _, b := range want {
		digest += b.Digest()
	}
	if got := belief.Digest(); got != digest {
		t.Fatalf("Digest() = %#x, want %#x: the sum over %d blocks", got, digest, len(want))
	}
	checkStats(t, belief, truth, want)
}

func checkMatch(t *rapid.T, belief Belief, truth *model, scheme hashing.Scheme, p Prompt) {
	size := truth.size()
	if got := belief.Shape().BlockSize; got != size {
		t.Fatalf("Shape().BlockSize = %d, want %d", got, size)
	}
	if size == 0 {
		return
	}
	keys := p.Keys(scheme, size)
	got, want := belief.Match(size, keys), truth.match(p)
	if got != want {
		t.Fatalf("Match(%d, keys of %+v) = %+v, want %+v", size, p, got, want)
	}
	if got := belief.Match(size+1, keys); got != (index.Depths{}) {
		t.Fatalf("Match with keys of another block size = %+v, want zero", got)
	}
}

func checkStats(t *rapid.T, belief Belief, truth *model, blocks []index.Block) {
	got := belief.Stats()
	want := index.Stats{Blocks: len(blocks), Orphans: truth.orphans(), BelowZero: got.BelowZero}
	hashes := make(map[kvevents.Hash]bool)
	for _, b := range blocks {
		hashes[b.Hash] = true
		want.Copies += b.Copies
		if b.Medium == "GPU" {
			want.GPUCopies += b.Copies
		}
	}
	want.Hashes = len(hashes)
	if got.Hashes != want.Hashes || got.Blocks != want.Blocks || got.Copies != want.Copies ||
		got.GPUCopies != want.GPUCopies || got.Orphans != want.Orphans {
		t.Fatalf("Stats() = %+v, want sizes %+v", got, want)
	}
}

// Prompt is a request's content.
type Prompt struct {
	Tokens []uint32
	Salt   string
}

// Keys returns the keys of all full blocks of p.
func (p Prompt) Keys(scheme hashing.Scheme, blockSize int) []hashing.Key {
	return scheme.Keys(ModelName, blockSize, p.Tokens, func(int) hashing.Extra { return hashing.Extra{Salt: p.Salt} })
}

// clone returns a prompt that shares no memory with p.
func (p Prompt) clone() Prompt { return Prompt{Tokens: slices.Clone(p.Tokens), Salt: p.Salt} }
