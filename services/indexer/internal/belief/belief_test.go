package belief

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/index"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
	"github.com/prefixroute/prefixroute/pkg/replicas"
)

func newReplica(cfg replicas.Replica) *Replica {
	cfg.Name = "a"
	return NewReplica(cfg, hashing.Scheme{}, func() {}, func() {})
}

func stored(hashes ...kvevents.Hash) *kvevents.BlockStored {
	ev := &kvevents.BlockStored{BlockHashes: hashes, BlockSize: 2, Medium: "GPU"}
	for i := range 2 * len(hashes) {
		ev.TokenIDs = append(ev.TokenIDs, uint32(i))
	}
	return ev
}

func apply(r *Replica, seq uint64, events ...kvevents.Event) Outcome {
	return r.Apply(kvevents.Batch{Events: events}, Position{Known: true, Seq: seq}, time.Now())
}

func TestGenerations(t *testing.T) {
	t.Parallel()

	r := newReplica(replicas.Replica{})
	if s := r.Status(); s.Generation != (Generation{}) || s.Model != "" || s.State != Connecting || s.Reason == "" {
		t.Errorf("a new replica is %+v, want no generation, no model, connecting and a reason", s)
	}
	first := r.Renew("m")
	apply(r, 5, stored(1, 2))
	second := r.Renew("m")
	if first.Epoch == 0 || first.Counter != 1 || second.Epoch != first.Epoch || second.Counter != 2 {
		t.Errorf("generations are %+v and %+v, want 1 and 2 of one epoch", first, second)
	}
	if s := r.Status(); s.Stats.Blocks != 0 || s.Position.Known || !s.Local {
		t.Errorf("a renewed replica is %+v, want no blocks, no position and a local generation", s)
	}
	r.Stored(first) // late: it is of no interest any more
	if !r.Status().Local {
		t.Error("the new generation counts as stored, and the old one was")
	}
	r.Stored(second)
	if r.Status().Local {
		t.Error("the stored generation counts as local")
	}
}

func TestOutcome(t *testing.T) {
	t.Parallel()

	r := newReplica(replicas.Replica{})
	r.Renew("m")
	got := r.Apply(kvevents.Batch{
		Events: []kvevents.Event{
			stored(1),
			&kvevents.BlockRemoved{BlockHashes: []kvevents.Hash{8, 9}, Medium: "GPU"},
			&kvevents.BlockStored{BlockHashes: []kvevents.Hash{1}, TokenIDs: []uint32{1, 2}, BlockSize: 2, Medium: "tape"},
		},
		Rejected: []kvevents.Rejected{{Reason: kvevents.ReasonUnknownTag}, {Reason: kvevents.ReasonMalformed}},
	}, Position{Known: true, Seq: 3}, time.Now())
	want := Outcome{BelowZero: 2, Contradicts: true, Unread: 1, Ignored: map[index.Ignored]int{index.IgnoredUnknownMedium: 1}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("outcome (-want +got):\n%s", diff)
	}
	if s := r.Status(); !strings.Contains(s.Reason, "suspect: batch 3 has 1 events that could not be read") {
		t.Errorf("reason is %q, want it to name the batch", s.Reason)
	}
}

func TestContradictionsCountFromTheLastClear(t *testing.T) {
	t.Parallel()

	gone, clear := &kvevents.BlockRemoved{BlockHashes: []kvevents.Hash{9}, Medium: "GPU"}, &kvevents.AllBlocksCleared{}
	for name, c := range map[string]struct {
		doubts Doubts
		events []kvevents.Event
		want   bool
	}{
		"no doubt":        {Doubts{}, []kvevents.Event{gone}, true},
		"in doubt":        {Doubts{Incomplete: "x"}, []kvevents.Event{gone}, false},
		"before a clear":  {Doubts{}, []kvevents.Event{gone, clear}, false},
		"after the doubt": {Doubts{Suspect: "x"}, []kvevents.Event{clear, gone}, true},
	} {
		r := newReplica(replicas.Replica{})
		r.Renew("m")
		r.Doubt(c.doubts)
		if got := apply(r, 0, c.events...); got.Contradicts != c.want || got.BelowZero != 1 {
			t.Errorf("%s: contradicts %v with %d below zero, want %v with 1", name, got.Contradicts, got.BelowZero, c.want)
		}
	}
}

func TestDoubtsEndWithAClearAndWithTheGeneration(t *testing.T) {
	t.Parallel()

	r := newReplica(replicas.Replica{})
	doubts := Doubts{Incomplete: "it begins at batch 9", Suspect: "batch 11 could not be decoded"}
	for name, end := range map[string]func(){
		"clear": func() { apply(r, 12, &kvevents.AllBlocksCleared{}) },
		"renew": func() { r.Renew("m") },
	} {
		r.Renew("m")
		r.SetState(Live, "")
		r.Doubt(Doubts{Incomplete: doubts.Incomplete})
		r.Skip(Position{Known: true, Seq: 11}, time.Now())
		if got := r.Doubts(); got != doubts {
			t.Errorf("doubts are %+v, want %+v", got, doubts)
		}
		if got := r.Status().Reason; got != "history incomplete: it begins at batch 9; suspect: batch 11 could not be decoded" {
			t.Errorf("reason is %q", got)
		}
		end()
		if got := r.Status(); got.Doubts != (Doubts{}) || got.Reason != "" {
			t.Errorf("after a %s: doubts %+v, reason %q; want none", name, got.Doubts, got.Reason)
		}
	}
	r.Doubt(doubts)
	r.Completed()
	if got := r.Doubts(); got.Incomplete != "" || got.Suspect == "" {
		t.Errorf("after the first batch: %+v, want the suspicion alone", got)
	}
}

func TestLook(t *testing.T) {
	t.Parallel()

	scheme := hashing.Scheme{}
	q := Query{Model: "m", Scheme: scheme.Name(), BlockSize: 2, Keys: scheme.Keys("m", 2, []uint32{0, 1, 2, 3}, nil)}
	r := newReplica(replicas.Replica{Model: "m"})
	if l, ok := r.Look(q); !ok || !l.Fits || l.BlockSizes != nil {
		t.Errorf("before the first event: %+v, %v; want a fit of unknown block size", l, ok)
	}
	r.Renew("m")
	apply(r, 0, stored(1, 2))
	if l, ok := r.Look(q); !ok || !l.Fits || l.Depths.GPU != 2 || l.LastEvent.IsZero() {
		t.Errorf("both blocks held: %+v, %v; want a depth of 2", l, ok)
	}
	other := q
	other.BlockSize = 4
	if l, ok := r.Look(other); !ok || l.Fits || l.BlockSizes[0] != 2 {
		t.Errorf("another block size: %+v, %v; want no fit", l, ok)
	}
	other = q
	other.Scheme = "x"
	if l, ok := r.Look(other); !ok || l.Fits {
		t.Errorf("another scheme: %+v, %v; want no fit", l, ok)
	}
	other.Model = "n"
	if _, ok := r.Look(other); ok {
		t.Error("another model: want no answer")
	}
	// A hybrid model has more sizes; that of keys comes first.
	hybrid := newReplica(replicas.Replica{})
	hybrid.Renew("m")
	sliding := stored(3)
	sliding.BlockSize, sliding.Group, sliding.SpecKind, sliding.SlidingWindow = 1, 1, "sliding_window", 8
	apply(hybrid, 0, sliding, stored(1))
	if got := hybrid.Status().BlockSizes; len(got) != 2 || got[0] != 2 || got[1] != 1 {
		t.Errorf("block sizes are %v, want 2 and then 1", got)
	}

	// Nothing can be promised for a model whose groups do not fit together:
	// zeros would pass for a cold cache.
	odd := stored(7)
	odd.Group, odd.BlockSize, odd.TokenIDs = 1, 3, []uint32{1, 2, 3}
	apply(r, 9, odd)
	if l, ok := r.Look(q); !ok || l.Fits || len(l.BlockSizes) != 2 {
		t.Errorf("with groups of 2 and 3 tokens: %+v, want no fit and both sizes", l)
	}
}

func TestAdopt(t *testing.T) {
	t.Parallel()

	r := newReplica(replicas.Replica{})
	if _, ok := r.TakeDelta(); ok {
		t.Error("a replica without a model has a delta")
	}
	r.Renew("m")
	apply(r, 4, stored(1, 2, 3))
	d, ok := r.TakeAll()
	if !ok {
		t.Fatal("nothing to keep")
	}
	again := newReplica(replicas.Replica{Model: "m"})
	if err := again.Adopt(d.Head, d.Changes.Set); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r.Contents(), again.Contents()); diff != "" {
		t.Errorf("adopted (-was +is):\n%s", diff)
	}

	for name, spoil := range map[string]func(*Head, *[]index.Record){
		"another scheme":   func(h *Head, _ *[]index.Record) { h.Scheme = "x" },
		"another model":    func(h *Head, _ *[]index.Record) { h.Model = "n" },
		"no generation":    func(h *Head, _ *[]index.Record) { h.Generation = Generation{} },
		"a record missing": func(_ *Head, rs *[]index.Record) { *rs = (*rs)[1:] },
		"a copy more":      func(_ *Head, rs *[]index.Record) { (*rs)[0].Copies[0].N = 2 },
		"a record twice":   func(_ *Head, rs *[]index.Record) { *rs = append(*rs, (*rs)[0]) },
	} {
		d, _ := r.TakeAll()
		h, records := d.Head, d.Changes.Set
		spoil(&h, &records)
		into := newReplica(replicas.Replica{Model: "m"})
		err := into.Adopt(h, records)
		if err == nil || into.Position().Known || into.Status().Generation.Epoch != 0 {
			t.Errorf("%s: error %v, status %+v; want an error and nothing adopted", name, err, into.Status())
		}
		if foreign := strings.HasPrefix(name, "another"); foreign != errors.Is(err, ErrForeign) {
			t.Errorf("%s: error %v is foreign: %v, want %v", name, err, !foreign, foreign)
		}
	}
}

func TestSamplesAreBounded(t *testing.T) {
	t.Parallel()

	r := newReplica(replicas.Replica{})
	for seq := range uint64(3 * maxSamples) {
		r.KeepSample(Sample{Seq: seq, Payload: bytes.Repeat([]byte{1}, 10_000)})
	}
	got := r.Samples()
	if len(got) != maxSamples || got[0].Seq != 2*maxSamples || len(got[0].Payload) != maxSampleBytes {
		t.Errorf("%d samples from %d on with %d bytes, want the newest %d with %d", len(got), got[0].Seq, len(got[0].Payload), maxSamples, maxSampleBytes)
	}
}

func TestFleet(t *testing.T) {
	t.Parallel()

	var dirty []string
	f := NewFleet(replicas.List{{Name: "b"}, {Name: "10.0.0.1:80"}, {Name: "10.0.0.1:8000"}}, hashing.Scheme{}, func(r *Replica) { dirty = append(dirty, r.Name()) })
	var names []string
	for _, r := range f.Replicas() {
		names = append(names, r.Name())
	}
	if diff := cmp.Diff([]string{"10.0.0.1:80", "10.0.0.1:8000", "b"}, names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if _, ok := f.Replica("10.0.0.1:800"); ok {
		t.Error("a name that merely begins like another was found") // BB-074
	}
	r, ok := f.Replica("b")
	if !ok {
		t.Fatal("b was not found")
	}
	changed := f.Changed()
	r.SetState(Connecting, "not contacted yet") // as it is
	select {
	case <-changed:
		t.Error("nothing changed, and that was told")
	default:
	}
	r.SetState(Down, "unplugged")
	select {
	case <-changed:
	default:
		t.Error("a change of state was not told")
	}
	r.Renew("m")
	apply(r, 0, stored(1))
	if diff := cmp.Diff([]string{"b", "b"}, dirty); diff != "" {
		t.Errorf("dirty (-want +got):\n%s", diff)
	}
}

// TestReadersBesideTheFollower runs everything at once, for the race detector.
func TestReadersBesideTheFollower(t *testing.T) {
	t.Parallel()

	f := NewFleet(replicas.List{{Name: "a", Model: "m"}}, hashing.Scheme{}, func(*Replica) {})
	r, _ := f.Replica("a")
	r.Renew("m")
	q := Query{Model: "m", Scheme: hashing.Scheme{}.Name(), BlockSize: 2, Keys: hashing.Scheme{}.Keys("m", 2, []uint32{0, 1, 2, 3}, nil)}
	var wg sync.WaitGroup
	done := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				case <-f.Changed():
				default:
				}
				// All of a batch or none: 1 and 2 come and go together.
				if l, _ := r.Look(q); l.Depths.GPU == 1 {
					t.Error("a look-up saw half a batch")
				}
				s, c := r.Status(), r.Contents()
				_, _ = s, c
			}
		})
	}
	for seq := range uint64(2000) {
		if seq%2 == 0 {
			apply(r, seq, stored(1, 2))
		} else {
			apply(r, seq, &kvevents.BlockRemoved{BlockHashes: []kvevents.Hash{2}, Medium: "GPU"}, &kvevents.BlockRemoved{BlockHashes: []kvevents.Hash{1}, Medium: "GPU"})
		}
		r.TakeDelta()
	}
	close(done)
	wg.Wait()
}
