package index_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/index"
	"github.com/prefixroute/prefixroute/pkg/index/indextest"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

const model = indextest.ModelName

// A durable is a store that knows no more than the changes it was given.
type durable struct {
	records map[kvevents.Hash]index.Record
	groups  []index.GroupSpec
}

func (d *durable) write(t *rapid.T, ch index.Changes) {
	if ch.Cleared || d.records == nil {
		d.records = make(map[kvevents.Hash]index.Record)
	}
	for _, r := range ch.Set {
		d.records[r.Hash] = r
	}
	for _, h := range ch.Deleted {
		delete(d.records, h)
		if slices.ContainsFunc(ch.Set, func(r index.Record) bool { return r.Hash == h }) {
			t.Fatalf("hash %d is both set and deleted", h)
		}
	}
	if ch.Groups != nil {
		d.groups = ch.Groups
	}
}

func (d *durable) all() []index.Record {
	return slices.SortedFunc(maps.Values(d.records), func(a, b index.Record) int {
		if a.Hash < b.Hash {
			return -1
		}
		return 1
	})
}

// TestRestoreEqualsBelief stops and restores a belief at random moments, from
// changes taken at random moments, and lets the copy live on beside the original.
func TestRestoreEqualsBelief(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		engine := indextest.NewEngine(t)
		b := index.NewBelief(hashing.Scheme{}, model)
		var store durable
		for range rapid.IntRange(0, 40).Draw(t, "events") {
			b.Apply(engine.Next(t))
			if rapid.IntRange(0, 4).Draw(t, "write") == 0 {
				store.write(t, b.TakeChanges())
			}
		}
		store.write(t, b.TakeChanges())
		if ch := b.TakeChanges(); !ch.Empty() {
			t.Fatalf("changes right after taking them: %+v", ch)
		}
		records, groups := b.Records()
		if diff := cmp.Diff(records, store.all(), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("changes add up to other records than Records() (-records +changes):\n%s", diff)
		}
		if diff := cmp.Diff(groups, store.groups, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("changes add up to other groups (-groups +changes):\n%s", diff)
		}
		again, err := index.Restore(hashing.Scheme{}, model, store.all(), store.groups)
		if err != nil {
			t.Fatalf("Restore: %v", err)
		}
		if ch := again.TakeChanges(); !ch.Empty() {
			t.Fatalf("a restored belief has changes: %+v", ch)
		}
		sameBelief(t, b, again, engine.Prompts())
		for range rapid.IntRange(0, 20).Draw(t, "events after") {
			ev := engine.Next(t)
			if got, want := again.Apply(ev), b.Apply(ev); got != want {
				t.Fatalf("restored: Apply(%+v) = %+v, want %+v", ev, got, want)
			}
		}
		sameBelief(t, b, again, engine.Prompts())
		if diff := cmp.Diff(b.TakeChanges(), again.TakeChanges(), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("later changes differ (-original +restored):\n%s", diff)
		}
	})
}

func sameBelief(t *rapid.T, want, got *index.Belief, prompts []indextest.Prompt) {
	if diff := cmp.Diff(want.Blocks(), got.Blocks()); diff != "" {
		t.Fatalf("blocks differ (-original +restored):\n%s", diff)
	}
	if diff := cmp.Diff(want.Shape(), got.Shape()); diff != "" {
		t.Fatalf("shapes differ (-original +restored):\n%s", diff)
	}
	if want.Digest() != got.Digest() {
		t.Fatalf("digest is %#x, want %#x", got.Digest(), want.Digest())
	}
	if diff := cmp.Diff(sizes(want.Stats()), sizes(got.Stats())); diff != "" {
		t.Fatalf("sizes differ (-original +restored):\n%s", diff)
	}
	size := want.Shape().BlockSize
	for _, p := range prompts {
		keys := p.Keys(hashing.Scheme{}, size)
		if got, want := got.Match(size, keys), want.Match(size, keys); got != want {
			t.Fatalf("restored: Match(%+v) = %+v, want %+v", p, got, want)
		}
	}
}

// sizes leaves of s what a restored belief has in common with its original.
func sizes(s index.Stats) index.Stats {
	return index.Stats{
		Hashes: s.Hashes, Blocks: s.Blocks, Copies: s.Copies, GPUCopies: s.GPUCopies,
		Keyed: s.Keyed, Orphans: s.Orphans, Conflicts: s.Conflicts,
	}
}

// TestTakeChangesGivesUpAList checks that a log nobody takes turns into a whole
// copy before it outgrows the belief.
func TestTakeChangesGivesUpAList(t *testing.T) {
	t.Parallel()
	b := index.NewBelief(hashing.Scheme{}, model)
	b.TakeChanges()
	for i := range 70_000 {
		hash := []kvevents.Hash{kvevents.Hash(i)}
		b.Apply(&kvevents.BlockStored{BlockHashes: hash, TokenIDs: []uint32{uint32(i)}, BlockSize: 1})
		if i > 0 {
			b.Apply(&kvevents.BlockRemoved{BlockHashes: hash})
		}
	}
	ch := b.TakeChanges()
	if !ch.Cleared || len(ch.Set) != 1 || len(ch.Deleted) != 0 || len(ch.Groups) != 1 {
		t.Errorf("TakeChanges() = cleared %v, %d set, %d deleted, %d groups; want a whole copy of 1 hash",
			ch.Cleared, len(ch.Set), len(ch.Deleted), len(ch.Groups))
	}
	b.Apply(&kvevents.BlockRemoved{BlockHashes: []kvevents.Hash{0}})
	want := index.Changes{Deleted: []kvevents.Hash{0}}
	if diff := cmp.Diff(want, b.TakeChanges()); diff != "" {
		t.Errorf("changes after the whole copy (-want +got):\n%s", diff)
	}
}

func TestRestoreRefuses(t *testing.T) {
	t.Parallel()
	b := index.NewBelief(hashing.Scheme{}, model)
	b.Apply(&kvevents.BlockStored{BlockHashes: []kvevents.Hash{7}, TokenIDs: []uint32{1, 2}, BlockSize: 2})

	tests := []struct {
		name   string
		scheme hashing.Scheme
		model  string
		change func(r *index.Record, g *index.GroupSpec)
		err    string
	}{
		{name: "another model", model: "other", err: "record of hash 7: key is not that of this scheme and model"},
		{name: "another scheme", scheme: hashing.NewScheme([]byte("s")), err: "key is not that"},
		{name: "no copies", change: func(r *index.Record, _ *index.GroupSpec) { r.Copies = nil }, err: "no copies"},
		{name: "zero copies", change: func(r *index.Record, _ *index.GroupSpec) { r.Copies[0].N = 0 }, err: "0 copies on GPU, must be positive"},
		{name: "medium", change: func(r *index.Record, _ *index.GroupSpec) { r.Copies[0].Medium = "gpu" }, err: `medium is "gpu"`},
		{name: "group of copies", change: func(r *index.Record, _ *index.GroupSpec) { r.Copies[0].Group = 64 }, err: "group is 64, must be from 0 to 63"},
		{name: "copies twice", change: func(r *index.Record, _ *index.GroupSpec) { r.Copies = append(r.Copies, r.Copies[0]) }, err: "appear twice"},
		{name: "block size", change: func(r *index.Record, _ *index.GroupSpec) { r.BlockSize = 3 }, err: "block size is 3, the groups' is 2"},
		{name: "group index", change: func(_ *index.Record, g *index.GroupSpec) { g.Index = -1 }, err: "group -1: index must be from 0 to 63"},
		{name: "group size", change: func(_ *index.Record, g *index.GroupSpec) { g.BlockSize = 0 }, err: "group 0: block size is 0, must be positive"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			records, groups := b.Records()
			if tt.change != nil {
				tt.change(&records[0], &groups[0])
			}
			if tt.model == "" {
				tt.model = model
			}
			_, err := index.Restore(tt.scheme, tt.model, records, groups)
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("Restore: error %v, want one that says %q", err, tt.err)
			}
		})
	}
	t.Run("a record twice", func(t *testing.T) {
		t.Parallel()
		records, groups := b.Records()
		if _, err := index.Restore(hashing.Scheme{}, model, append(records, records[0]), groups); err == nil {
			t.Error("Restore accepted a hash twice")
		}
	})
}
