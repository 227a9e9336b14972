package index_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/index"
	"github.com/prefixroute/prefixroute/pkg/index/indextest"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

func TestBeliefContract(t *testing.T) {
	t.Parallel()
	indextest.Run(t, func(scheme hashing.Scheme, model string) indextest.Belief {
		return index.NewBelief(scheme, model)
	})
}

// TestShape follows how a belief finds out about its engine.
func TestShape(t *testing.T) {
	t.Parallel()
	store := func(group int, kind string, window, size int) *kvevents.BlockStored {
		return &kvevents.BlockStored{
			Group: group, SpecKind: kind, SlidingWindow: window, BlockSize: size,
			BlockHashes: []kvevents.Hash{kvevents.Hash(size)}, TokenIDs: make([]uint32, size),
			ExtraKeys: make([][]kvevents.ExtraKey, 1), Digests: [][]byte{{1}},
		}
	}
	spec := func(group int, kind string, window, size int) index.GroupSpec {
		return index.GroupSpec{Index: group, Kind: kind, Window: window, BlockSize: size, ExtraKeys: true, FullDigests: true}
	}
	shape := func(size int, sizes []int, ambiguous string, groups ...index.GroupSpec) index.Shape {
		return index.Shape{
			BlockSize: size, BlockSizes: sizes, Groups: groups, Ambiguous: ambiguous,
			ExtraKeys: len(groups) > 0, FullDigests: len(groups) > 0,
		}
	}
	tests := []struct {
		name   string
		events []kvevents.Event
		want   index.Shape
	}{
		{name: "nothing yet"},
		{
			name: "a lower tier tells nothing", events: []kvevents.Event{&kvevents.BlockStored{Medium: "CPU", BlockSize: 256}},
		},
		{
			name: "one group", events: []kvevents.Event{store(0, "full_attention", 0, 16)},
			want: shape(16, []int{16}, "", spec(0, "full_attention", 0, 16)),
		},
		{
			name:   "full attention decides, whenever it comes",
			events: []kvevents.Event{store(0, "sliding_window", 128, 64), store(1, "full_attention", 0, 32)},
			want:   shape(32, []int{32, 64}, "", spec(0, "sliding_window", 128, 64), spec(1, "full_attention", 0, 32)),
		},
		{
			name:   "a partial block comes first",
			events: []kvevents.Event{store(0, "full_attention", 0, 16), store(0, "full_attention", 0, 528)},
			want:   shape(528, []int{528}, "", spec(0, "full_attention", 0, 528)),
		},
		{
			name:   "a clear keeps the shape",
			events: []kvevents.Event{store(0, "full_attention", 0, 16), &kvevents.AllBlocksCleared{}},
			want:   shape(16, []int{16}, "", spec(0, "full_attention", 0, 16)),
		},
		{
			name:   "blocks that keys can't name",
			events: []kvevents.Event{store(0, "mla_attention", 0, 64), store(1, "sliding_window_mla", 128, 48)},
			want: shape(64, []int{48, 64}, "group 1 has blocks of 48 tokens, which keys of 64-token blocks cannot name",
				spec(0, "mla_attention", 0, 64), spec(1, "sliding_window_mla", 128, 48)),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := index.NewBelief(hashing.Scheme{}, model)
			for _, ev := range tt.events {
				b.Apply(ev)
			}
			if diff := cmp.Diff(tt.want, b.Shape()); diff != "" {
				t.Errorf("Shape() (-want +got):\n%s", diff)
			}
		})
	}
}

// TestOrphansAreBounded sends more orphans than are kept: their copies count,
// the content of the last one is dropped.
func TestOrphansAreBounded(t *testing.T) {
	t.Parallel()
	b := index.NewBelief(hashing.Scheme{}, model)
	missing := kvevents.Hash(1 << 40)
	for i := range index.MaxOrphans + 1 {
		b.Apply(&kvevents.BlockStored{
			BlockHashes: []kvevents.Hash{kvevents.Hash(i)}, Parent: &missing, TokenIDs: []uint32{uint32(i)}, BlockSize: 1,
		})
	}
	s := b.Stats()
	if s.Orphans != index.MaxOrphans || s.OrphansDropped != 1 || s.Copies != index.MaxOrphans+1 {
		t.Errorf("%d orphans, %d dropped, %d copies; want %d, 1, %d", s.Orphans, s.OrphansDropped, s.Copies, index.MaxOrphans, index.MaxOrphans+1)
	}
	b.Apply(&kvevents.BlockStored{BlockHashes: []kvevents.Hash{missing}, TokenIDs: []uint32{0}, BlockSize: 1})
	if s := b.Stats(); s.Orphans != 0 || s.Keyed != index.MaxOrphans+1 {
		t.Errorf("after their parent came %d orphans and %d keys, want 0 and %d", s.Orphans, s.Keyed, index.MaxOrphans+1)
	}
}

// TestApplyCountsWhatItLeavesAside checks each reason against its counter.
func TestApplyCountsWhatItLeavesAside(t *testing.T) {
	t.Parallel()
	one := []kvevents.Hash{1}
	events := map[index.Ignored]kvevents.Event{
		index.IgnoredUnknownMedium: &kvevents.BlockRemoved{BlockHashes: one, Medium: "EXTERNAL"},
		index.IgnoredRemote:        &kvevents.BlockStored{BlockHashes: one, Medium: "CPU", Locality: "REMOTE"},
		index.IgnoredOwner:         &kvevents.BlockStored{BlockHashes: one, Medium: "STORAGE", Ownership: "kvcr"},
		index.IgnoredGroup:         &kvevents.BlockRemoved{BlockHashes: one, Group: -1},
		index.IgnoredTokens:        &kvevents.BlockStored{BlockHashes: one, BlockSize: 4},
		index.IgnoredPlaceholder:   &kvevents.BlockStored{BlockHashes: one, Medium: "DISK"},
	}
	for _, reason := range index.IgnoredReasons() {
		t.Run(reason.String(), func(t *testing.T) {
			t.Parallel()
			b := index.NewBelief(hashing.Scheme{}, model)
			eff := b.Apply(events[reason])
			if eff.Ignored != reason || b.Stats().Ignored[reason] != 1 {
				t.Errorf("Apply(%+v) was ignored for %q and counted %v, want %q", events[reason], eff.Ignored, b.Stats().Ignored, reason)
			}
		})
	}
}

// TestBlockDigest pins the digest: index, store and engine compute it apart.
func TestBlockDigest(t *testing.T) {
	t.Parallel()
	one := index.Block{Hash: 1, Medium: "GPU", Group: 0, Copies: 1}
	if got, want := one.Digest(), uint64(0xa8fb283d3e610da4); got != want {
		t.Errorf("Digest() of %+v = %#x, want %#x", one, got, want)
	}
	seen := map[uint64]index.Block{}
	for _, hash := range []kvevents.Hash{0, 1, 1 << 63} {
		for _, medium := range []string{"GPU", "CPU", "DISK"} {
			for group := range 3 {
				for n := 1; n < 4; n++ {
					b := index.Block{Hash: hash, Medium: medium, Group: group, Copies: n}
					if other, dup := seen[b.Digest()]; dup {
						t.Errorf("%+v and %+v have one digest", b, other)
					}
					seen[b.Digest()] = b
				}
			}
		}
	}
}
