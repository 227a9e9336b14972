//go:build cgo

package follow_test

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
	"github.com/prefixroute/prefixroute/pkg/replicas"
	"github.com/prefixroute/prefixroute/services/indexer/internal/belief"
	"github.com/prefixroute/prefixroute/services/indexer/internal/enginetest"
)

func readJSON(t *testing.T, name string, into any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func frames(t *testing.T, encoded []string) [][]byte {
	t.Helper()
	var list [][]byte
	for _, e := range encoded {
		b, err := hex.DecodeString(e)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, b)
	}
	return list
}

// TestBB019SampleFrames sends every sample as a live message of its own stream:
// three frames with a number of eight bytes are a message, and nothing else is.
func TestBB019SampleFrames(t *testing.T) {
	t.Parallel()

	var samples map[string][]string
	readJSON(t, "frames.json", &samples)
	messages := map[string]bool{"good_three_frames": true, "empty_topic": true}
	for name, encoded := range samples {
		if strings.HasPrefix(name, "replay_") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := enginetest.Start(t, enginetest.Options{Topic: topic, NoReplay: true})
			g := newRig(t, e, config())
			e.AwaitSubscribers(1)
			e.Publish(store(1, 0)) // the model, for messages without a topic
			g.awaitSeq(0)
			e.Send(frames(t, encoded)...)
			e.PublishAt(7, store(2, 1))
			s := g.awaitSeq(7)
			rejected := 1.0
			if messages[name] {
				rejected = 0
			}
			g.wantCount(g.metrics.Rejected.WithLabelValues("frame"), rejected, "frames rejected")
			if s.Reason == "" {
				t.Error("the hole before batch 7 left no trace in the reason")
			}
		})
	}
}

// TestBB020SampleReplies has a replay socket answer with the samples: two or
// three frames, an end mark of either form, and everything else skipped.
func TestBB020SampleReplies(t *testing.T) {
	t.Parallel()

	var samples map[string][]string
	readJSON(t, "frames.json", &samples)
	for _, layout := range []string{"two", "three"} {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			e := enginetest.Start(t, enginetest.Options{Topic: topic})
			reply := func(name string) [][]byte { return append([][]byte{{}}, frames(t, samples[name])...) }
			e.AnswerWith(reply("replay_"+layout+"_frames"), [][]byte{{}, {1}}, reply("replay_end_"+layout))
			// The short form has no topic to name the model.
			r := belief.NewReplica(replicas.Replica{Name: "a", URL: "http://a", Model: "org/model-a"}, hashing.Scheme{}, func() {}, func() {})
			g := follows(t, e, r, config())
			if s := g.awaitSeq(3); s.Stats.Hashes != 2 || s.Stats.Copies != 2 {
				t.Errorf("%d blocks in %d copies are held, want the 2 of batch 3", s.Stats.Hashes, s.Stats.Copies)
			}
			g.wantCount(g.metrics.Rejected.WithLabelValues("reply"), 1, "replies rejected")
		})
	}
}

type step struct {
	Seq uint64
	Ev  string
}

// event reads "S:A" or "R:A"; block A has the hash 'A'.
func (s step) event(t *testing.T) kvevents.Event {
	t.Helper()
	kind, name, ok := strings.Cut(s.Ev, ":")
	if !ok || len(name) != 1 {
		t.Fatalf("event is %q, expected S:x or R:x", s.Ev)
	}
	if hash := kvevents.Hash(name[0]); kind == "R" {
		return remove(hash)
	}
	return store(kvevents.Hash(name[0]), 0)
}

// TestSampleSequences plays the sample sequences, with a replay socket that knows
// nothing (the losses are final) and with one that has what the sample gives it.
func TestSampleSequences(t *testing.T) {
	t.Parallel()

	var samples map[string]json.RawMessage
	readJSON(t, "sequences.json", &samples)
	live := func(t *testing.T, name string) (steps []step) {
		t.Helper()
		if err := json.Unmarshal(samples[name], &steps); err != nil {
			t.Fatal(err)
		}
		return steps
	}
	for name, tt := range map[string]struct {
		want        []kvevents.Hash
		generations []string
	}{
		"gap":                        {[]kvevents.Hash{'C'}, []string{"start", "loss"}},    // BB-022, BB-025
		"first_seen_not_zero":        {[]kvevents.Hash{'A'}, []string{"start"}},            // late join
		"reset":                      {[]kvevents.Hash{'B'}, []string{"start", "restart"}}, // BB-023
		"restart_first_frame_missed": {[]kvevents.Hash{'B'}, []string{"start", "restart"}},
		"duplicate":                  {[]kvevents.Hash{'A'}, []string{"start"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := enginetest.Start(t, enginetest.Options{Topic: topic, NoReplay: true})
			g := newRig(t, e, config())
			e.AwaitSubscribers(1)
			g.awaitLive()
			steps := live(t, name)
			for i, s := range steps {
				if i > 0 && s == steps[i-1] {
					e.Repeat(s.Seq)
					continue
				}
				e.PublishAt(s.Seq, s.event(t))
			}
			last := steps[len(steps)-1].Seq
			g.awaitSeq(last)
			eventually(t, func() string {
				if n := g.sum("in_order", "gap", "restart", "duplicate"); n != len(steps) {
					return "not all batches have been judged"
				}
				return ""
			})
			g.wantHashes(tt.want...)
			g.wantGenerations(tt.generations...)
		})
	}

	t.Run("replay_overlaps_live", func(t *testing.T) { // BB-026
		t.Parallel()
		var s struct {
			Live, Replay []step
			Must         []string `json:"must_end_with"`
		}
		if err := json.Unmarshal(samples["replay_overlaps_live"], &s); err != nil {
			t.Fatal(err)
		}
		e := enginetest.Start(t, enginetest.Options{Topic: topic})
		e.SkipTo(s.Live[0].Seq)
		e.Lose(s.Live[0].event(t)) // it is there before the indexer is
		g := newRig(t, e, config())
		e.AwaitSubscribers(1)
		g.awaitSeq(s.Live[0].Seq)
		for _, r := range s.Replay[:len(s.Replay)-1] {
			e.Lose(r.event(t))
		}
		last := e.Publish(s.Live[1].event(t))
		g.awaitSeq(last)
		// The sample stores A twice and removes it once, and expects it gone, as
		// in a set. Engines remove each copy, so one is left, and gone with the
		// next removal; a stale store applied after it would show.
		g.wantHashes('A', 'B', 'C')
		e.PublishAt(last+1, remove('A'))
		g.awaitSeq(last + 1)
		var want []kvevents.Hash
		for _, name := range s.Must {
			want = append(want, kvevents.Hash(name[0]))
		}
		g.wantHashes(want...)
	})

	t.Run("replay_times_out_then_late", func(t *testing.T) { // BB-026
		t.Parallel()
		var s struct {
			Live []step
			Late []step `json:"late_replay"`
		}
		if err := json.Unmarshal(samples["replay_times_out_then_late"], &s); err != nil {
			t.Fatal(err)
		}
		e := enginetest.Start(t, enginetest.Options{Topic: topic})
		g := newRig(t, e, config())
		e.AwaitSubscribers(1)
		g.awaitLive()
		e.PublishAt(s.Live[0].Seq, s.Live[0].event(t))
		g.awaitSeq(s.Live[0].Seq)
		e.PublishAt(s.Live[1].Seq, s.Live[1].event(t))
		g.awaitSeq(s.Live[1].Seq)
		// The old batch comes at last, out of every order.
		e.PublishAt(s.Late[0].Seq, s.Late[0].event(t))
		e.PublishAt(s.Live[1].Seq+1, store('Z', 0))
		g.awaitSeq(s.Live[1].Seq + 1)
		g.wantHashes('Z')
	})
}
