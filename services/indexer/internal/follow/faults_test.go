//go:build cgo

package follow_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/index"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
	"github.com/prefixroute/prefixroute/pkg/replicas"
	"github.com/prefixroute/prefixroute/services/indexer/internal/belief"
	"github.com/prefixroute/prefixroute/services/indexer/internal/enginetest"
	"github.com/prefixroute/prefixroute/services/indexer/internal/follow"
)

// TestRandomFaults holds the promise of the package under faults in random order:
// the belief equals what the engine holds; or it says that its history is
// incomplete, and then it holds nothing that the engine does not hold.
func TestRandomFaults(t *testing.T) {
	t.Parallel()

	rounds := 60
	if s := os.Getenv("PREFIXROUTE_FAULT_ROUNDS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		rounds = n
	}
	seed := rand.Uint64()
	if s := os.Getenv("PREFIXROUTE_FAULT_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	t.Logf("seed %d, %d rounds", seed, rounds)
	rnd := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t, rnd)
	exact := 0
	for round := range rounds {
		ops := w.round()
		if w.settled(round, ops) {
			exact++
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d of %d rounds ended exact, the others with an incomplete history", exact, rounds)
	if exact < rounds/4 {
		t.Errorf("%d of %d rounds ended exact: too few to show anything", exact, rounds)
	}
}

// world is an engine, the truth about it, and a follower.
type world struct {
	t     *testing.T
	rnd   *rand.Rand
	e     *enginetest.Engine
	truth *index.Belief
	last  uint64 // number of the newest batch
	g     *rig
}

func newWorld(t *testing.T, rnd *rand.Rand) *world {
	t.Helper()
	w := &world{t: t, rnd: rnd, e: enginetest.Start(t, enginetest.Options{Topic: topic}), truth: index.NewBelief(hashing.Scheme{}, "m")}
	w.g = newRig(t, w.e, w.config())
	return w
}

func (w *world) config() follow.Config {
	cfg := config()
	cfg.ProbeInterval = 20 * time.Millisecond
	cfg.ReplayMaxBytes = 400 // a few batches
	return cfg
}

// batch is what an engine could do next: it removes only what it holds.
func (w *world) batch() []kvevents.Event {
	var events []kvevents.Event
	for range 1 + w.rnd.IntN(4) {
		held := hashesOf(w.truth.Blocks())
		var ev kvevents.Event
		switch {
		case w.rnd.IntN(60) == 0:
			ev = &kvevents.AllBlocksCleared{}
		case len(held) > 0 && w.rnd.IntN(5) < 2:
			ev = remove(held[w.rnd.IntN(len(held))])
		default:
			h := 1 + kvevents.Hash(w.rnd.IntN(40))
			ev = store(h, h-1)
		}
		w.truth.Apply(ev)
		events = append(events, ev)
	}
	return events
}

// round does a few things to the engine and says which.
func (w *world) round() (ops []string) {
	for range 1 + w.rnd.IntN(25) {
		op := "publish"
		switch w.rnd.IntN(30) {
		case 0, 1, 2:
			op = "lose"
			w.last = w.e.Lose(w.batch()...)
		case 3:
			op = "lose forever"
			w.last = w.e.LoseForever(w.batch()...)
		case 4:
			op = "forget"
			w.e.Forget(w.last - min(w.last, uint64(w.rnd.IntN(20))))
		case 5, 6:
			op = "repeat"
			w.e.RepeatAny(w.rnd.IntN)
		case 7:
			op = "restart"
			w.e = w.e.Restart()
			w.truth = index.NewBelief(hashing.Scheme{}, "m")
			for range w.rnd.IntN(30) { // it may be far ahead before anybody is back
				w.last = w.e.Lose(w.batch()...)
			}
		case 8:
			op = "garbage"
			w.e.Send([]byte(topic), []byte("short"), []byte{0xc1})
		case 9:
			op = "replies dropped"
			n := uint64(2 + w.rnd.IntN(5))
			w.e.DropReplies(func(ask int, seq uint64) bool { return ask%2 == 0 && seq%n == 0 })
		case 10:
			op = "indexer restarted"
			w.restartIndexer()
		default:
			w.last = w.e.Publish(w.batch()...)
		}
		ops = append(ops, op)
	}
	w.e.DropReplies(nil)
	w.last = w.e.Publish(w.batch()...)
	return ops
}

// restartIndexer replaces the follower by one that starts from the durable copy
// of the old one's belief.
func (w *world) restartIndexer() {
	w.t.Helper()
	w.g.stop()
	r := belief.NewReplica(replicas.Replica{Name: "a", URL: "http://a"}, hashing.Scheme{}, func() {}, func() {})
	if d, ok := w.g.r.TakeAll(); ok {
		if err := r.Adopt(d.Head, d.Changes.Set); err != nil {
			w.t.Fatal(err)
		}
	}
	w.g = follows(w.t, w.e, r, w.config())
}

// settled waits until the follower has seen everything, and compares.
func (w *world) settled(round int, ops []string) (exact bool) {
	w.t.Helper()
	var doubts belief.Doubts
	eventually(w.t, func() string {
		// One after the other, so that they agree: the stream is quiet by now.
		s := w.g.r.Status()
		doubts = s.Doubts
		if !s.Position.Known || s.Position.Seq != w.last || s.State != belief.Live {
			return fmt.Sprintf("round %d (%v): replica is %v at %+v (%s), want live at %d", round, ops, s.State, s.Position, s.Reason, w.last)
		}
		want, got := copiesOf(w.truth.Blocks()), copiesOf(w.g.r.Contents().Blocks)
		if doubts == (belief.Doubts{}) {
			if diff := cmp.Diff(want, got); diff != "" {
				return fmt.Sprintf("round %d (%v): set at %d (-engine +belief):\n%s", round, ops, w.last, diff)
			}
			return ""
		}
		for h, n := range got {
			if n > want[h] {
				return fmt.Sprintf("round %d (%v): %d copies of %d are believed (%s), the engine has %d", round, ops, n, h, s.Reason, want[h])
			}
		}
		return ""
	})
	if doubts.Suspect != "" {
		w.t.Errorf("round %d (%v): set is suspect (%s) though every event was honest", round, ops, doubts.Suspect)
	}
	return doubts == belief.Doubts{}
}

func copiesOf(blocks []index.Block) map[kvevents.Hash]int {
	m := map[kvevents.Hash]int{}
	for _, b := range blocks {
		m[b.Hash] += b.Copies
	}
	return m
}
