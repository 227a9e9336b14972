//go:build cgo

package follow_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
	"github.com/prefixroute/prefixroute/pkg/replicas"
	"github.com/prefixroute/prefixroute/services/indexer/internal/belief"
	"github.com/prefixroute/prefixroute/services/indexer/internal/enginetest"
)

// started is an engine that has a follower which is live and subscribed.
func started(t *testing.T, opts enginetest.Options) (*enginetest.Engine, *rig) {
	t.Helper()
	if opts.Topic == "" {
		opts.Topic = topic
	}
	e := enginetest.Start(t, opts)
	g := newRig(t, e, config())
	e.AwaitSubscribers(1)
	g.awaitLive()
	return e, g
}

func TestLiveStreamIsAppliedInOrder(t *testing.T) {
	t.Parallel()

	e, g := started(t, enginetest.Options{})
	e.Publish(store(1, 0), store(2, 1))
	e.Publish(remove(2), store(2, 1), store(2, 1)) // one hash removed and stored in one batch, and a second copy
	g.awaitSeq(e.Publish(store(3, 2)))
	g.wantHashes(1, 2, 2, 3)
	s := g.r.Status()
	if s.Reason != "" || s.Model != "m" || len(s.BlockSizes) != 1 || s.BlockSizes[0] != blockSize || !s.Local {
		t.Errorf("status is %+v, want no reason, model m, block size %d and a local generation", s, blockSize)
	}
	g.wantGenerations("start")
}

// TestBB022GapIsRepaired: batches lost on the way, one of them a removal, come
// from the replay socket before anything later is applied.
func TestBB022GapIsRepaired(t *testing.T) {
	t.Parallel()

	for _, layout := range []kvevents.Layout{kvevents.LayoutTopic, kvevents.LayoutBare} {
		e, g := started(t, enginetest.Options{Layout: layout})
		e.Publish(store(1, 0))
		e.Publish(store(2, 1))
		e.Lose(store(3, 2))
		e.Lose(remove(1))
		e.Lose(store(4, 3))
		g.awaitSeq(e.Publish(store(5, 4)))
		g.wantHashes(2, 3, 4, 5)
		g.wantGenerations("start")
		g.wantCount(g.metrics.Gaps.WithLabelValues("repaired"), 1, "gaps repaired")
		g.wantCount(g.metrics.Gaps.WithLabelValues("lost"), 0, "gaps lost")
	}
}

// TestBB025UnfillableGap: what cannot be filled drops the set, once, without a
// loop of recoveries.
func TestBB025UnfillableGap(t *testing.T) {
	t.Parallel()

	e, g := started(t, enginetest.Options{})
	e.Publish(store(1, 0))
	g.awaitSeq(e.Publish(store(2, 1)))
	e.LoseForever(remove(1))
	e.Publish(store(3, 2))
	g.awaitSeq(e.Publish(store(4, 3)))
	g.wantHashes(3, 4)
	asked := len(e.Asked())
	for range 20 {
		e.Publish(store(9, 0))
	}
	s := g.awaitSeq(e.Publish(store(5, 4)))
	if got := len(e.Asked()); got != asked || asked > 10 {
		t.Errorf("%d questions for one hole, and %d after it; want a few, and none", asked, got-asked)
	}
	if !strings.Contains(s.Reason, "history incomplete") {
		t.Errorf("reason is %q, want it to say that the history is incomplete", s.Reason)
	}
	g.wantGenerations("start", "loss")
	g.wantCount(g.metrics.Gaps.WithLabelValues("lost"), 1, "gaps lost")
}

// TestBufferThatHasMovedOn: the engine remembers neither the lost batches nor
// the one before them.
func TestBufferThatHasMovedOn(t *testing.T) {
	t.Parallel()

	e, g := started(t, enginetest.Options{})
	g.awaitSeq(e.Publish(store(1, 0)))
	e.Lose(remove(1))
	e.Lose(store(2, 0))
	e.Forget(2)
	g.awaitSeq(e.Publish(store(3, 2)))
	g.wantHashes(2, 3)
	g.wantGenerations("start", "forgotten")
}

// TestBB023Restart: a number that falls back is another process; so is one that
// falls back to something other than 0.
func TestBB023Restart(t *testing.T) {
	t.Parallel()

	e, g := started(t, enginetest.Options{})
	e.SkipTo(900)
	g.awaitSeq(e.Publish(store(1, 0)))
	g.wantHashes(1)
	e.Forget(1000)
	e.SkipTo(0)
	g.awaitSeq(e.Publish(store(2, 0)))
	g.wantHashes(2)
	g.wantGenerations("start", "forgotten")
}

func TestBB023RestartWithoutReplay(t *testing.T) {
	t.Parallel()

	e, g := started(t, enginetest.Options{NoReplay: true})
	e.SkipTo(900)
	g.awaitSeq(e.Publish(store(1, 0)))
	e.SkipTo(3)
	s := g.awaitSeq(e.Publish(store(2, 0)))
	g.wantHashes(2)
	if !strings.Contains(s.Reason, "history incomplete") {
		t.Errorf("reason is %q, want it to say that the history is incomplete", s.Reason)
	}
	g.wantGenerations("start", "restart")
	// A gap cannot be filled without a replay socket either.
	e.SkipTo(7)
	g.awaitSeq(e.Publish(store(3, 2)))
	g.wantHashes(3)
	g.wantGenerations("start", "restart", "loss")
}

// TestRestartThatOvertook: the new process has already published more than the
// old one, so its numbers alone look like ordinary progress.
func TestRestartThatOvertook(t *testing.T) {
	t.Parallel()

	e, g := started(t, enginetest.Options{})
	e.Publish(store(1, 0))
	g.awaitSeq(e.Publish(store(2, 1)))
	e = e.Restart()
	for h := range kvevents.Hash(10) {
		e.Lose(store(100+h, 0))
	}
	g.awaitSeq(9)
	g.wantHashes(100, 101, 102, 103, 104, 105, 106, 107, 108, 109)
	e.AwaitSubscribers(1)
	g.awaitSeq(e.Publish(store(110, 0)))
	g.wantGenerations("start", "restart")
	g.wantCount(g.metrics.Disconnects, 1, "disconnects")
}

// TestRestartWithFewerBatches: the new process is behind the old one's numbers.
func TestRestartWithFewerBatches(t *testing.T) {
	t.Parallel()

	e, g := started(t, enginetest.Options{})
	for h := range kvevents.Hash(5) {
		e.Publish(store(1+h, 0))
	}
	g.awaitSeq(4)
	e = e.Restart()
	e.AwaitSubscribers(1)
	g.awaitLive()
	g.awaitSeq(e.Publish(store(100, 0)))
	g.wantHashes(100)
	g.wantGenerations("start", "forgotten")
}

// TestReconnectToTheSameProcess: a cut costs nothing if the engine is the same.
func TestReconnectToTheSameProcess(t *testing.T) {
	t.Parallel()

	e, g := started(t, enginetest.Options{})
	e.Publish(store(1, 0))
	g.awaitSeq(e.Publish(store(2, 1)))
	generation := g.r.Status().Generation
	e.PublishPayload(bytes.Repeat([]byte{0xc0}, 2<<20)) // over the limit of a message: libzmq hangs up
	e.Forget(0)
	eventually(t, func() string {
		if s := g.r.Status(); s.State == belief.Live {
			return "the replica is still live"
		}
		return ""
	})
	// The replay holds the same monster, so the tail behind it stays unknown.
	if got := g.r.Status().Generation; got != generation {
		t.Errorf("generation is %v, want still %v", got, generation)
	}
	g.wantHashes(1, 2)
}

func TestLateJoin(t *testing.T) {
	t.Parallel()

	e := enginetest.Start(t, enginetest.Options{Topic: topic})
	for h := range kvevents.Hash(6) {
		e.Lose(store(1+h, h))
	}
	e.Forget(3)
	g := newRig(t, e, config())
	s := g.awaitSeq(5)
	g.wantHashes(4, 5, 6)
	if s.Stats.Orphans != 3 || !strings.Contains(s.Reason, "history incomplete") {
		t.Errorf("%d orphans and reason %q, want 3 and an incomplete history", s.Stats.Orphans, s.Reason)
	}
	// Removals of what was stored before are to be expected.
	e.AwaitSubscribers(1)
	e.Publish(remove(1))
	g.awaitSeq(e.Publish(remove(2)))
	g.wantHashes(4, 5, 6)
	g.wantGenerations("start")
	// A cleared cache has no unknown past.
	if s := g.awaitSeq(e.Publish(&kvevents.AllBlocksCleared{}, store(7, 0))); s.Reason != "" {
		t.Errorf("reason after a clear is %q, want none", s.Reason)
	}
	g.wantHashes(7)
}

func TestJoinWithAllHistory(t *testing.T) {
	t.Parallel()

	e := enginetest.Start(t, enginetest.Options{Topic: topic})
	for h := range kvevents.Hash(50) {
		e.Lose(store(1+h, h))
	}
	cfg := config()
	cfg.ReplayMaxBytes = 500 // several portions
	g := newRig(t, e, cfg)
	if s := g.awaitSeq(49); s.Reason != "" || s.Stats.Hashes != 50 || s.Stats.Orphans != 0 {
		t.Errorf("status is %+v, want 50 blocks and no doubts", s)
	}
}

// TestBB026OldMessages: nothing older than what is applied is applied.
func TestBB026OldMessages(t *testing.T) {
	t.Parallel()

	e, g := started(t, enginetest.Options{})
	e.Publish(store(1, 0))
	old := e.Publish(store(2, 0))
	e.Publish(remove(2))
	g.awaitSeq(e.Publish(store(3, 0)))
	e.Repeat(old)
	g.awaitSeq(e.Publish(store(4, 0)))
	g.wantHashes(1, 3, 4)
	g.wantGenerations("start")
	// The newest one again is not even suspicious.
	asked := len(e.Asked())
	e.Repeat(4)
	g.awaitSeq(e.Publish(store(5, 0)))
	g.wantHashes(1, 3, 4, 5)
	if got := len(e.Asked()); got != asked {
		t.Errorf("a duplicate of the newest batch asked the replay socket")
	}
}

// TestBB049Poison: payloads that cannot be read, between good batches.
func TestBB049Poison(t *testing.T) {
	t.Parallel()

	e, g := started(t, enginetest.Options{})
	e.Publish(store(1, 0))
	poison := [][]byte{
		{0xdd, 0xff, 0xff, 0xff, 0xff},       // BB-005: an array of 2^32-1
		{0xdf, 0xff, 0xff, 0xff, 0xff},       // a map of as many
		{0xc6, 0xff, 0xff, 0xff, 0xff},       // bytes
		bytes.Repeat([]byte{0x91}, 100_000),  // nested
		[]byte(`{"type":"BlockStored"}`),     // JSON
		{0x93, 0xcb, 0x41, 0xd9, 0x54, 0xfc}, // cut
	}
	var last uint64
	for i, p := range poison {
		e.PublishPayload(p)
		last = e.Publish(store(kvevents.Hash(10+i), 1))
	}
	s := g.awaitSeq(last)
	g.wantHashes(1, 10, 11, 12, 13, 14, 15)
	g.wantCount(g.metrics.Rejected.WithLabelValues("payload"), float64(len(poison)), "payloads rejected")
	if !strings.Contains(s.Reason, "suspect") || len(g.r.Samples()) != len(poison) {
		t.Errorf("reason is %q with %d samples, want a suspect set and %d samples", s.Reason, len(g.r.Samples()), len(poison))
	}
	g.wantGenerations("start")
	g.wantCount(g.metrics.Connections, 1, "connections")
}

// TestBB019Frames: messages that are not three frames with an 8-byte number.
func TestBB019Frames(t *testing.T) {
	t.Parallel()

	e, g := started(t, enginetest.Options{})
	e.Publish(store(1, 0))
	seq := func(n int) []byte { return make([]byte, n) }
	bad := [][][]byte{
		{[]byte(topic)},
		{[]byte(topic), seq(8)},
		{[]byte(topic), seq(8), {0xc0}, {0xc0}},
		{[]byte(topic), seq(0), {0xc0}},
		{[]byte(topic), seq(4), {0xc0}},
		{[]byte(topic), seq(7), {0xc0}},
		{[]byte(topic), seq(9), {0xc0}},
		{[]byte(topic), bytes.Repeat([]byte{0xff}, 8), {0xc0}},
	}
	for _, frames := range bad {
		e.Send(frames...)
	}
	g.awaitSeq(e.Publish(store(2, 1)))
	g.wantHashes(1, 2)
	g.wantCount(g.metrics.Rejected.WithLabelValues("frame"), float64(len(bad)), "frames rejected")
	g.wantGenerations("start")
}

// TestReplayThatLosesMessages: the replay socket drops some of what it sends,
// and brings them when asked again.
func TestReplayThatLosesMessages(t *testing.T) {
	t.Parallel()

	e := enginetest.Start(t, enginetest.Options{Topic: topic})
	for h := range kvevents.Hash(40) {
		e.Lose(store(1+h, 0))
	}
	e.DropReplies(func(ask int, seq uint64) bool { return seq == uint64(10*ask) || seq == uint64(10*ask+3) })
	g := newRig(t, e, config())
	if s := g.awaitSeq(39); s.Stats.Hashes != 40 || s.Reason != "" {
		t.Errorf("%d hashes, reason %q; want all 40 and no doubt", s.Stats.Hashes, s.Reason)
	}
	g.wantGenerations("start")
}

// TestQuietStreamLosesNothing: the newest batches were lost and no later one
// shows it.
func TestQuietStreamLosesNothing(t *testing.T) {
	t.Parallel()

	e := enginetest.Start(t, enginetest.Options{Topic: topic})
	cfg := config()
	cfg.ProbeInterval = 100 * time.Millisecond
	g := newRig(t, e, cfg)
	e.AwaitSubscribers(1)
	g.awaitSeq(e.Publish(store(1, 0)))
	g.awaitSeq(e.Lose(remove(1), store(2, 0)))
	g.wantHashes(2)
	g.wantCount(g.metrics.Gaps.WithLabelValues("repaired"), 1, "gaps repaired")
}

// TestContradiction: a removal below zero on a whole history is a loss that the
// numbers do not show. Once it is rebuilt; as the same comes again, the set is
// suspect, and nothing loops.
func TestContradiction(t *testing.T) {
	t.Parallel()

	e, g := started(t, enginetest.Options{})
	e.Publish(store(1, 0))
	e.Publish(remove(7))
	s := g.awaitSeq(e.Publish(store(2, 1)))
	g.wantHashes(1, 2)
	if !strings.Contains(s.Reason, "suspect") {
		t.Errorf("reason is %q, want a suspect set", s.Reason)
	}
	g.wantGenerations("start", "contradiction")
	g.awaitSeq(e.Publish(remove(8)))
	g.wantGenerations("start", "contradiction")
}

// TestContradictionThatARebuildHeals: the engine's own record is whole, our copy
// of it was not.
func TestContradictionThatARebuildHeals(t *testing.T) {
	t.Parallel()

	e := enginetest.Start(t, enginetest.Options{Topic: topic})
	e.Lose(store(1, 0))
	seq := e.Lose(store(2, 1))
	// A durable copy at the right position, without block 2.
	r := belief.NewReplica(replicas.Replica{Name: "a", URL: "http://a"}, hashing.Scheme{}, func() {}, func() {})
	g := follows(t, e, r, config())
	g.awaitSeq(seq)
	g.stop()
	d, _ := r.TakeAll()
	short := belief.NewReplica(replicas.Replica{Name: "a", URL: "http://a"}, hashing.Scheme{}, func() {}, func() {})
	d.Head.Hashes, d.Head.Digest = 1, blockDigest(r, 1)
	if err := short.Adopt(d.Head, d.Changes.Set[:1]); err != nil {
		t.Fatal(err)
	}
	g = follows(t, e, short, config())
	e.AwaitSubscribers(1)
	g.awaitSeq(e.Publish(remove(2), store(3, 1)))
	g.wantHashes(1, 3)
	if reason := g.r.Status().Reason; reason != "" {
		t.Errorf("reason is %q, want none", reason)
	}
	g.wantGenerations("contradiction")
}

func blockDigest(r *belief.Replica, hash kvevents.Hash) uint64 {
	for _, b := range r.Contents().Blocks {
		if b.Hash == hash {
			return b.Digest()
		}
	}
	return 0
}

// TestWarmStart: a belief that is restored goes on where it was, or starts anew
// if the engine is another process by then.
func TestWarmStart(t *testing.T) {
	t.Parallel()

	restart := func(r *belief.Replica) *belief.Replica {
		d, ok := r.TakeAll()
		if !ok {
			t.Fatal("nothing to keep")
		}
		again := belief.NewReplica(replicas.Replica{Name: "a", URL: "http://a"}, hashing.Scheme{}, func() {}, func() {})
		if err := again.Adopt(d.Head, d.Changes.Set); err != nil {
			t.Fatal(err)
		}
		return again
	}

	e, g := started(t, enginetest.Options{})
	e.Publish(store(1, 0))
	g.awaitSeq(e.Publish(store(2, 1)))
	g.stop()
	e.AwaitSubscribers(0)
	e.Publish(remove(1)) // while nobody looks
	last := e.Publish(store(3, 2))

	g2 := follows(t, e, restart(g.r), config())
	s := g2.awaitSeq(last)
	g2.wantHashes(2, 3)
	g2.wantGenerations()
	if s.Generation != g.r.Status().Generation || s.Local {
		t.Errorf("generation is %v (local %v), want that of the copy, %v", s.Generation, s.Local, g.r.Status().Generation)
	}
	g2.stop()

	e = e.Restart()
	for h := range kvevents.Hash(20) {
		e.Lose(store(100+h, 0))
	}
	g3 := follows(t, e, restart(g2.r), config())
	s = g3.awaitSeq(19)
	g3.wantGenerations("restart")
	if s.Stats.Hashes != 20 || s.Generation.Counter != 2 || s.Generation.Epoch != g.r.Status().Generation.Epoch {
		t.Errorf("%d hashes in generation %v, want the new engine's 20 in the second of the same epoch", s.Stats.Hashes, s.Generation)
	}
}

// TestSilentReplaySocket: nothing can be proved, so nothing is believed, and the
// live stream counts.
func TestSilentReplaySocket(t *testing.T) {
	t.Parallel()

	e := enginetest.Start(t, enginetest.Options{Topic: topic, NoReplay: true})
	e.Replay = "tcp://127.0.0.1:1"
	g := newRig(t, e, config())
	e.AwaitSubscribers(1)
	g.awaitLive()
	e.SkipTo(5)
	s := g.awaitSeq(e.Publish(store(1, 0)))
	g.wantHashes(1)
	if !strings.Contains(s.Reason, "history incomplete") {
		t.Errorf("reason is %q, want an incomplete history", s.Reason)
	}
}

func TestModelFromTheTopic(t *testing.T) {
	t.Parallel()

	e, g := started(t, enginetest.Options{Topic: "kv@p@org/one@v2"})
	g.awaitSeq(e.Publish(store(1, 0)))
	if s := g.r.Status(); s.Model != "org/one@v2" {
		t.Errorf("model is %q, want that of the topic", s.Model)
	}
	// Without one there are no keys, and the state says so.
	e = enginetest.Start(t, enginetest.Options{})
	g = newRig(t, e, config())
	e.AwaitSubscribers(1)
	e.Publish(store(1, 0))
	eventually(t, func() string {
		if s := g.r.Status(); !strings.Contains(s.Reason, "the model is not known") {
			return "reason is " + s.Reason
		}
		return ""
	})
	// Another model on the same address never inherits the blocks.
	e, g = started(t, enginetest.Options{})
	g.awaitSeq(e.Publish(store(1, 0)))
	e = e.RestartAs(enginetest.Options{Topic: "kv@10.0.0.1:8000@other"})
	e.Lose(store(9, 0))
	if s := g.awaitSeq(e.Lose(store(2, 0))); s.Model != "other" {
		t.Errorf("model is %q, want other", s.Model)
	}
	g.wantHashes(2, 9)
}

func TestConfiguredTopicIsTheOnlyOne(t *testing.T) {
	t.Parallel()

	e := enginetest.Start(t, enginetest.Options{Topic: "kv@10.0.0.1:80@m2"})
	r := belief.NewReplica(replicas.Replica{Name: "a", URL: "http://a", Topic: "kv@10.0.0.1:80@m"}, hashing.Scheme{}, func() {}, func() {})
	g := follows(t, e, r, config())
	e.AwaitSubscribers(1)
	g.awaitLive()
	e.Publish(store(1, 0))
	eventually(t, func() string {
		if s := g.r.Status(); !strings.Contains(s.Reason, "expected") {
			return "reason is " + s.Reason
		}
		return ""
	})
	g.wantHashes()
	g.wantCount(g.metrics.Rejected.WithLabelValues("topic"), 1, "messages of another topic")
}
