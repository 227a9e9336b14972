package index_test

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/index"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
	"github.com/prefixroute/prefixroute/pkg/recording"
)

// TestRecordedStreams follows real engines, hybrid ones too. Each copy is stored
// before it is removed, there are never more copies than the engine has blocks
// (less the one it keeps empty), and what its replay socket sends again from the
// start builds the same set as the live stream did.
func TestRecordedStreams(t *testing.T) {
	t.Parallel()
	tests := []struct {
		file string
		most []int // copies held at once, of each rank
	}{
		{"v0.16.0-all", []int{63}},
		{"v0.32.0-sha256-everything", []int{63}},
		{"v0.32.0-sha256_cbor-copies-sleep", []int{63}},
		{"v0.32.0-bytes-hashes", []int{63}},
		{"v0.32.0-lora", []int{63}},
		{"v0.32.0-churn", []int{63}},
		{"v0.32.0-xxhash_cbor-noseed-churn", []int{63}},
		{"v0.32.0-hybrid-window", []int{159}},
		{"v0.32.0-hybrid-churn", []int{159}},
		{"v0.32.0-storm", []int{95}},
		{"v0.32.0-dp2", []int{63, 63}},
		// Reports of blocks that are held already look like more copies.
		{"v0.32.0-report-mode-full", []int{76}},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			t.Parallel()
			live, replayed := replayVLLM(t, tt.file)
			if len(live) != len(tt.most) {
				t.Fatalf("%d ranks, want %d", len(live), len(tt.most))
			}
			for rank, b := range live {
				if b.most > tt.most[rank] {
					t.Errorf("rank %d held %d copies at once, the engine has room for %d", rank, b.most, tt.most[rank])
				}
				if s := b.Stats(); s.BelowZero != 0 || s.Conflicted != 0 || s.Orphans != 0 {
					t.Errorf("rank %d: %d removals of nothing, %d conflicts, %d orphans; want none", rank, s.BelowZero, s.Conflicted, s.Orphans)
				}
			}
			if diff := cmp.Diff(live[0].Blocks(), replayed.Blocks()); diff != "" {
				t.Errorf("blocks of rank 0 (-live +replayed):\n%s", diff)
			}
			if got, want := replayed.Digest(), live[0].Digest(); got != want {
				t.Errorf("digest after replay is %#x, live it was %#x", got, want)
			}
		})
	}
}

// A followed belief remembers the most copies it ever held in GPU memory.
type followed struct {
	*index.Belief
	most int
}

func newFollowed() *followed { return &followed{Belief: index.NewBelief(hashing.Scheme{}, "tiny")} }

func (f *followed) apply(events []kvevents.Event) {
	for _, ev := range events {
		f.Apply(ev)
		f.most = max(f.most, f.Stats().GPUCopies)
	}
}

// replayVLLM returns what each rank held at the end by the live stream, and what
// rank 0 held by its replay from the start.
func replayVLLM(t *testing.T, name string) (live map[int64]*followed, replayed *followed) {
	t.Helper()
	r, err := recording.Open(filepath.Join(recordings, "vllm", name+".jsonl.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	live, replayed = make(map[int64]*followed), newFollowed()
	for rec, err := range r.All() {
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case rec.Kind == recording.KindFrames:
			m, err := kvevents.ParseMessage(rec.Frames)
			if err != nil {
				t.Fatal(err)
			}
			batch := decodePayload(t, m.Payload)
			if live[*batch.Rank] == nil {
				live[*batch.Rank] = newFollowed()
			}
			live[*batch.Rank].apply(batch.Events)
		case rec.Kind == recording.KindReplay && rec.Replay.Start == 0:
			applyReplies(t, replayed, rec.Replay.Replies)
		}
	}
	return live, replayed
}

func applyReplies(t *testing.T, b *followed, replies [][][]byte) {
	t.Helper()
	for i, frames := range replies {
		m, end, err := kvevents.ParseReply(frames)
		switch {
		case err != nil:
			t.Fatal(err)
		case end != (i == len(replies)-1):
			t.Fatalf("reply %d of %d: end mark is %v", i, len(replies), end)
		case !end:
			b.apply(decodePayload(t, m.Payload).Events)
		}
	}
}

// decodePayload decodes a recorded batch, in which nothing may be odd.
func decodePayload(t *testing.T, payload []byte) kvevents.Batch {
	t.Helper()
	batch, err := kvevents.Decode(payload)
	if err != nil {
		t.Fatal(err)
	}
	if len(batch.Rejected) > 0 || batch.Rank == nil {
		t.Fatalf("batch has rank %v and rejected events %+v", batch.Rank, batch.Rejected)
	}
	return batch
}
