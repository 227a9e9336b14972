package indextest

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/index"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// A fixed case feeds events and then asks about one prompt. The prompt is five
// blocks of four tokens; p(i) is the hash of its block i.
type fixed struct {
	name   string
	events []kvevents.Event
	want   index.Depths
	// What is held afterwards.
	blocks, copies, orphans int
	belowZero               uint64
}

const caseBlock = 4

var casePrompt = Prompt{Tokens: []uint32{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4}}

func p(i int) kvevents.Hash { return hashOf(casePrompt, (i+1)*caseBlock) }

// stored is the store of blocks [from, to) of the case's prompt in GPU memory.
func stored(from, to int) *kvevents.BlockStored {
	ev := &kvevents.BlockStored{
		TokenIDs:  casePrompt.Tokens[from*caseBlock : to*caseBlock],
		BlockSize: caseBlock, Medium: "GPU",
	}
	if from > 0 {
		h := p(from - 1)
		ev.Parent = &h
	}
	for i := from; i < to; i++ {
		ev.BlockHashes = append(ev.BlockHashes, p(i))
	}
	return ev
}

// storedAfter is the store of block i with a parent that may be wrong.
func storedAfter(i int, parent kvevents.Hash) *kvevents.BlockStored {
	ev := stored(i, i+1)
	ev.Parent = &parent
	return ev
}

// named gives a store's blocks other hashes.
func named(ev *kvevents.BlockStored, hashes ...kvevents.Hash) *kvevents.BlockStored {
	ev.BlockHashes = hashes
	return ev
}

// onGroup moves a store to an attention group.
func onGroup(ev *kvevents.BlockStored, group int, kind string, window int) *kvevents.BlockStored {
	ev.Group, ev.SpecKind, ev.SlidingWindow = group, kind, window
	return ev
}

// masked leaves only the hashes of blocks keep in a store of blocks [from, 4).
func masked(from int, keep ...int) *kvevents.BlockStored {
	ev := stored(from, 4)
	ev.BlockHashes = nil
	for _, i := range keep {
		ev.BlockHashes = append(ev.BlockHashes, p(i))
	}
	return ev
}

func removed(medium kvevents.Medium, blocks ...int) *kvevents.BlockRemoved {
	ev := &kvevents.BlockRemoved{Medium: medium}
	for _, i := range blocks {
		ev.BlockHashes = append(ev.BlockHashes, p(i))
	}
	return ev
}

// placeholder is a store without tokens, as offload tiers announce it.
func placeholder(medium kvevents.Medium, blocks ...int) *kvevents.BlockStored {
	return &kvevents.BlockStored{BlockHashes: removed(medium, blocks...).BlockHashes, Medium: medium}
}

func depths(gpu, cpu, disk int) index.Depths {
	return index.Depths{GPU: gpu, GPUCPU: cpu, GPUCPUDisk: disk}
}

// refused has tokens for fewer blocks than hashes.
func refused() *kvevents.BlockStored {
	ev := stored(0, 2)
	ev.TokenIDs = nil
	return ev
}

func cases() []fixed {
	cleared := &kvevents.AllBlocksCleared{}
	return []fixed{
		{name: "nothing"},
		{
			name: "one prompt", events: []kvevents.Event{stored(0, 5)},
			want: depths(5, 5, 5), blocks: 5, copies: 5,
		},
		{
			name: "BB-080 a hole ends the match", events: []kvevents.Event{stored(0, 5), removed("GPU", 2)},
			want: depths(2, 2, 2), blocks: 4, copies: 4,
		},
		{
			name: "BB-080 the first block is missing", events: []kvevents.Event{stored(0, 5), removed("GPU", 0)},
			blocks: 4, copies: 4,
		},
		{
			name: "a hole that is filled again", events: []kvevents.Event{stored(0, 5), removed("GPU", 2), stored(2, 3)},
			want: depths(5, 5, 5), blocks: 5, copies: 5,
		},
		{
			name: "BB-077 two copies, one removal", events: []kvevents.Event{stored(0, 1), stored(0, 1), removed("GPU", 0)},
			want: depths(1, 1, 1), blocks: 1, copies: 1,
		},
		{
			name:   "BB-077 removed twice, stored once more",
			events: []kvevents.Event{stored(0, 1), removed("GPU", 0), removed("GPU", 0), stored(0, 1)},
			want:   depths(1, 1, 1), blocks: 1, copies: 1, belowZero: 1,
		},
		{
			name: "BB-077 a removal list with an unknown hash", events: []kvevents.Event{stored(0, 1), removed("GPU", 4, 0)},
			belowZero: 1,
		},
		{
			name:   "BB-073 cleared",
			events: []kvevents.Event{stored(0, 5), stored(4, 5), placeholder("CPU", 0, 1), placeholder("DISK", 0), cleared},
		},
		{
			name:   "BB-073 stored after a clear",
			events: []kvevents.Event{stored(0, 5), cleared, stored(0, 2)},
			want:   depths(2, 2, 2), blocks: 2, copies: 2,
		},
		{
			name:   "BB-073 an orphan of cleared blocks",
			events: []kvevents.Event{stored(0, 2), cleared, stored(2, 3)},
			blocks: 1, copies: 1, orphans: 1,
		},
		{
			name:   "BB-082 offloaded, then removed from the GPU",
			events: []kvevents.Event{stored(0, 2), placeholder("CPU", 0, 1), removed("GPU", 0, 1)},
			want:   depths(0, 2, 2), blocks: 2, copies: 2,
		},
		{
			name:   "tiers fill each other's holes",
			events: []kvevents.Event{stored(0, 5), placeholder("CPU", 1), placeholder("STORAGE", 3), removed("GPU", 1, 3)},
			want:   depths(1, 3, 5), blocks: 5, copies: 5,
		},
		{
			name: "BB-082 a GPU store without tokens matches nothing", events: []kvevents.Event{refused()},
			blocks: 2, copies: 2,
		},
		{
			name: "BB-082 its content may come later", events: []kvevents.Event{stored(0, 1), refused(), stored(1, 2)},
			want: depths(2, 2, 2), blocks: 2, copies: 4,
		},
		{
			name: "BB-083 a placeholder of an unknown block is dropped", events: []kvevents.Event{placeholder("CPU", 0), stored(0, 1)},
			want: depths(1, 1, 1), blocks: 1, copies: 1,
		},
		{
			name:   "BB-083 and so is its removal, without alarm",
			events: []kvevents.Event{placeholder("CPU", 0), stored(0, 1), removed("CPU", 0)},
			want:   depths(1, 1, 1), blocks: 1, copies: 1,
		},
		{
			name:   "BB-095 one tier has many names",
			events: []kvevents.Event{stored(0, 1), placeholder("CPU_PINNED", 0), placeholder("cpu", 0), removed("CPU", 0), removed("GPU", 0)},
			want:   depths(0, 1, 1), blocks: 1, copies: 1,
		},
		{
			name: "BB-088 an orphan and its parent", events: []kvevents.Event{stored(2, 5), stored(0, 2)},
			want: depths(5, 5, 5), blocks: 5, copies: 5,
		},
		{
			name: "BB-088 orphans only", events: []kvevents.Event{stored(1, 3)},
			blocks: 2, copies: 2, orphans: 2,
		},
		{
			name: "BB-088 parent 0 is none where no block 0 is held", events: []kvevents.Event{storedAfter(0, 0), stored(1, 2)},
			want: depths(2, 2, 2), blocks: 2, copies: 2,
		},
		{
			name: "BB-088 0 is a parent like any other where it is held", events: []kvevents.Event{named(stored(0, 1), 0), storedAfter(1, 0)},
			want: depths(2, 2, 2), blocks: 2, copies: 2,
		},
		{
			name: "BB-088 its own parent", events: []kvevents.Event{storedAfter(0, p(0)), stored(1, 2)},
			blocks: 2, copies: 2, orphans: 1,
		},
		{
			name: "BB-088 a cycle", events: []kvevents.Event{storedAfter(1, p(2)), storedAfter(2, p(1)), stored(0, 1)},
			want: depths(1, 1, 1), blocks: 3, copies: 3, orphans: 2,
		},
		{
			name:   "children of a removed block",
			events: []kvevents.Event{stored(0, 3), removed("GPU", 1), stored(1, 2), removed("GPU", 0), stored(0, 1)},
			want:   depths(3, 3, 3), blocks: 3, copies: 3,
		},
		{
			name: "one hash, two contents", events: []kvevents.Event{stored(0, 2), storedAfter(1, p(3))},
			want: depths(1, 1, 1), blocks: 2, copies: 3,
		},
		{
			name: "one hash, two contents, all gone", events: []kvevents.Event{stored(0, 2), storedAfter(1, p(3)), removed("GPU", 1, 1), stored(1, 2)},
			want: depths(2, 2, 2), blocks: 2, copies: 2,
		},
		{
			name: "a masked store is no content", events: []kvevents.Event{masked(0, 1, 3)},
			blocks: 2, copies: 2,
		},
		{
			name: "a masked store without hashes", events: []kvevents.Event{stored(0, 1), masked(1)},
			want: depths(1, 1, 1), blocks: 1, copies: 1,
		},
		{
			name: "a window needs the end only",
			events: []kvevents.Event{
				onGroup(masked(0, 2, 3), 0, "sliding_window", 9),
				onGroup(stored(0, 5), 1, "full_attention", 0),
			},
			want: depths(4, 4, 4), blocks: 7, copies: 7,
		},
		{
			name: "a window that is broken at the end",
			events: []kvevents.Event{
				onGroup(masked(0, 2, 3), 0, "sliding_window", 9),
				onGroup(stored(0, 5), 1, "full_attention", 0), removed("GPU", 3),
			},
			blocks: 6, copies: 6,
		},
		{
			name: "a prefix shorter than the window",
			events: []kvevents.Event{
				onGroup(stored(0, 1), 0, "sliding_window", 9),
				onGroup(stored(0, 5), 1, "full_attention", 0),
			},
			want: depths(1, 1, 1), blocks: 6, copies: 6,
		},
		{
			name: "full attention held back by a hole",
			events: []kvevents.Event{
				onGroup(stored(0, 2), 0, "full_attention", 0),
				onGroup(stored(0, 5), 1, "sliding_window", 5),
			},
			want: depths(2, 2, 2), blocks: 7, copies: 7,
		},
	}
}

func runCases(t *testing.T, newBelief New) {
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBelief(hashing.Scheme{}, ModelName)
			for _, ev := range c.events {
				b.Apply(ev)
			}
			checkCase(t, b, c)
		})
	}
	t.Run("BB-092 looking up changes nothing", func(t *testing.T) { lookUpOnly(t, newBelief) })
	t.Run("BB-074 a clear is one replica's", func(t *testing.T) { clearOne(t, newBelief) })
	t.Run("BB-086 nothing stays behind", func(t *testing.T) { nothingStays(t, newBelief) })
	t.Run("several hashes of one content", func(t *testing.T) { twins(t, newBelief) })
	t.Run("several children of one orphan", func(t *testing.T) { siblings(t, newBelief) })
	t.Run("a long chain of orphans", func(t *testing.T) { longChain(t, newBelief) })
}

func checkCase(t *testing.T, b Belief, c fixed) {
	t.Helper()
	keys := casePrompt.Keys(hashing.Scheme{}, caseBlock)
	if got := b.Match(caseBlock, keys); got != c.want {
		t.Errorf("Match = %+v, want %+v", got, c.want)
	}
	s := b.Stats()
	got := []any{len(b.Blocks()), s.Blocks, s.Copies, s.Orphans, s.BelowZero}
	want := []any{c.blocks, c.blocks, c.copies, c.orphans, c.belowZero}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("blocks listed, blocks, copies, orphans, below zero (-want +got):\n%s", diff)
	}
}
