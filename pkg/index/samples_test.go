package index_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/index"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// outcome is what a sample leaves behind.
type outcome struct {
	Blocks, Copies, Keyed, Orphans int
	BelowZero                      uint64
	Ignored                        index.Ignored
	Match                          index.Depths
	Ambiguous                      bool
}

// count returns the tokens from first to last.
func count(first, last uint32) []uint32 {
	var all []uint32
	for ; first <= last; first++ {
		all = append(all, first)
	}
	return all
}

// image is the sample's image, which begins offset tokens after the block does.
func image(offset int64) hashing.Extra {
	return hashing.Extra{MM: []hashing.MMItem{{ID: strings.Repeat("9f", 32), Offset: offset}}}
}

func match(gpu, cpu, disk int) index.Depths {
	return index.Depths{GPU: gpu, GPUCPU: cpu, GPUCPUDisk: disk}
}

// TestBugSamples applies the payload of each bug trial and then asks about a
// prompt of which it may hold something.
func TestBugSamples(t *testing.T) {
	t.Parallel()
	tests := []struct {
		bug, file string
		prompt    []uint32
		extra     hashing.Extra // of the first block
		every     hashing.Extra // of the others
		want      outcome
	}{
		{
			bug: "BB-077", file: "dup_stored_twice_removed_once", prompt: count(1, 16),
			want: outcome{Blocks: 1, Copies: 1, Keyed: 1, Match: match(1, 1, 1)},
		},
		{
			bug: "BB-077", file: "dup_removed_unknown_then_known", prompt: count(1, 16),
			want: outcome{BelowZero: 1},
		},
		{
			bug: "BB-082", file: "tier_cpu_then_gpu_removed", prompt: count(1, 16),
			want: outcome{Blocks: 1, Copies: 1, Keyed: 1, Match: match(0, 1, 1)},
		},
		{
			bug: "BB-082", file: "tok_empty_gpu", prompt: count(1, 16),
			want: outcome{Blocks: 1, Copies: 1, Ignored: index.IgnoredTokens},
		},
		{
			bug: "BB-083", file: "tok_empty_cpu",
			want: outcome{Ignored: index.IgnoredPlaceholder},
		},
		{ // the child comes first and waits for its parent
			bug: "BB-088", file: "parent_later", prompt: count(1, 32),
			want: outcome{Blocks: 2, Copies: 2, Keyed: 2, Match: match(2, 2, 2)},
		},
		{
			bug: "BB-088", file: "parent_unknown", prompt: count(1, 16),
			want: outcome{Blocks: 1, Copies: 1, Orphans: 1},
		},
		{ // some engines write 0 for "no parent"
			bug: "BB-088", file: "parent_zero", prompt: count(1, 16),
			want: outcome{Blocks: 1, Copies: 1, Keyed: 1, Match: match(1, 1, 1)},
		},
		{ // the unknown names are counted, the known ones fold into their tiers
			bug: "BB-095", file: "tier_names", prompt: count(0, 15),
			want: outcome{Blocks: 9, Copies: 9, Keyed: 9, Ignored: index.IgnoredUnknownMedium, Match: match(1, 1, 1)},
		},
		{
			bug: "bigram", file: "tok_bigram_pairs", prompt: count(1, 16),
			want: outcome{Blocks: 1, Copies: 1, Keyed: 1, Match: match(1, 1, 1)},
		},
		{
			bug: "block size 1", file: "tok_page_size_1", prompt: count(1, 16),
			want: outcome{Blocks: 16, Copies: 16, Keyed: 16, Match: match(16, 16, 16)},
		},
		{ // groups of 256, 64, 8 and 4 tokens: keys of 256 can't name what the window groups hold
			bug: "five groups", file: "grp_hybrid_five_groups", prompt: count(1, 256),
			want: outcome{Blocks: 5, Copies: 5, Keyed: 1, Ambiguous: true},
		},
		{
			bug: "BB-073", file: "enc_array_cleared",
		},
		{
			bug: "LoRA", file: "xk_lora", prompt: count(1, 16), extra: hashing.Extra{LoRA: "adapter-116"},
			want: outcome{Blocks: 1, Copies: 1, Keyed: 1, Match: match(1, 1, 1)},
		},
		{
			bug: "LoRA, asked for the base model", file: "xk_lora", prompt: count(1, 16),
			want: outcome{Blocks: 1, Copies: 1, Keyed: 1},
		},
		{
			bug: "salt", file: "xk_salt", prompt: count(1000, 1031), extra: hashing.Extra{Salt: "tenant-a-salt"},
			want: outcome{Blocks: 2, Copies: 2, Keyed: 2, Match: match(2, 2, 2)},
		},
		{
			bug: "salt, asked without", file: "xk_salt", prompt: count(1000, 1031),
			want: outcome{Blocks: 2, Copies: 2, Keyed: 2},
		},
		{
			bug: "image", file: "xk_mm_pair", prompt: count(1000, 1031), extra: image(3), every: image(-13),
			want: outcome{Blocks: 2, Copies: 2, Keyed: 2, Match: match(2, 2, 2)},
		},
		{
			bug: "image, asked without", file: "xk_mm_pair", prompt: count(1000, 1031),
			want: outcome{Blocks: 2, Copies: 2, Keyed: 2},
		},
	}
	for _, tt := range tests {
		t.Run(tt.bug+" "+tt.file, func(t *testing.T) {
			t.Parallel()
			b := index.NewBelief(hashing.Scheme{}, model)
			var got outcome
			for _, ev := range decode(t, tt.file).Events {
				if eff := b.Apply(ev); eff.Ignored != index.IgnoredNone {
					got.Ignored = eff.Ignored
				}
			}
			s, shape := b.Stats(), b.Shape()
			keys := hashing.Scheme{}.Keys(model, shape.BlockSize, tt.prompt, func(i int) hashing.Extra {
				if i == 0 {
					return tt.extra
				}
				return tt.every
			})
			got.Blocks, got.Copies, got.Keyed, got.Orphans, got.BelowZero = s.Blocks, s.Copies, s.Keyed, s.Orphans, s.BelowZero
			got.Match, got.Ambiguous = b.Match(shape.BlockSize, keys), shape.Ambiguous != ""
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
		})
	}
}

func decode(t *testing.T, name string) kvevents.Batch {
	t.Helper()
	payload, err := os.ReadFile(filepath.Join("testdata", "bugs", name+".msgpack"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := kvevents.Decode(payload)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
