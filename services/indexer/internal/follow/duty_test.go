package follow

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
	"github.com/prefixroute/prefixroute/services/indexer/internal/belief"
)

// TestReplacedSetIsNotLive: the engine behind the replay socket is another one,
// though the connection seems to be up. While its history is read, the set is
// empty because nothing is known, not because nothing is held.
func TestReplacedSetIsNotLive(t *testing.T) {
	t.Parallel()

	b := &bench{resolvable: true, reachable: true}
	inBubble(t, b, func() {
		synctest.Wait()
		b.publish(message(0, block(1)))
		b.publish(message(1, block(2)))
		after(0)
		b.want(belief.Live, "")
		var states []belief.State // at the questions that find no set
		b.set(func() {
			b.buffer = []kvevents.Message{message(0, block(7)), message(1, block(8))}
			b.asked = func() {
				if s := b.r.Status(); s.Stats.Hashes == 0 {
					states = append(states, s.State)
				}
			}
		})
		after(time.Minute) // the stream is quiet, so it is probed
		b.wantGenerations(causeRestart, 1)
		b.want(belief.Live, "")
		if len(states) == 0 || slices.Contains(states, belief.Live) {
			t.Errorf("states were %v while the new history was asked for, want none of them live", states)
		}
	})
}

// TestClearEndsARebuild: what a planned rebuild was for is gone with the cache, and
// the set is whole as it is.
func TestClearEndsARebuild(t *testing.T) {
	t.Parallel()

	b := &bench{resolvable: true, reachable: true}
	inBubble(t, b, func() {
		synctest.Wait()
		b.publish(message(0, block(1)))
		b.publish(message(1, gone(99)))
		after(time.Second)
		b.want(belief.Live, "suspect")
		b.wantGenerations(causeContradiction, 1)
		b.publish(message(2, &kvevents.AllBlocksCleared{}))
		b.publish(message(3, block(3)))
		after(time.Hour)
		b.want(belief.Live, "")
		b.wantGenerations(causeContradiction, 1)

		// The contradiction lies before the clear in a history that is read as one.
		b.publish(message(4, gone(98)))
		after(time.Second)
		b.publish(message(5, &kvevents.AllBlocksCleared{}))
		b.publish(message(6, gone(97)))
		after(time.Second)
		b.wantGenerations(causeContradiction, 2)
		b.publish(message(7, &kvevents.AllBlocksCleared{}))
		after(time.Hour)
		if s := b.r.Status(); s.Reason != "" {
			t.Errorf("reason is %q after a clear, want none", s.Reason)
		}
	})
}

// TestNoticeBesideConnected: a batch that is there as soon as the connection waits
// for nothing else to happen.
func TestNoticeBesideConnected(t *testing.T) {
	t.Parallel()

	b := &bench{resolvable: true, reachable: true, greeting: []kvevents.Message{message(0, block(1))}}
	inBubble(t, b, func() {
		synctest.Wait()
		if s := b.r.Status(); s.Stats.Hashes != 1 {
			t.Errorf("%d blocks are held at once, want 1", s.Stats.Hashes)
		}
	})
}

// TestLongHistoryIsReadInPieces, each of them proved by the batch before it.
func TestLongHistoryIsReadInPieces(t *testing.T) {
	t.Parallel()

	b := &bench{resolvable: true, reachable: true}
	for seq := range uint64(100) {
		b.buffer = append(b.buffer, message(seq, block(kvevents.Hash(seq+1))))
	}
	b.maxBytes = 10 * len(b.buffer[99].Payload)
	inBubble(t, b, func() {
		synctest.Wait()
		b.want(belief.Live, "")
		if s := b.r.Status(); s.Stats.Hashes != 100 || s.Reason != "" || s.Generation.Counter != 1 {
			t.Errorf("%d blocks in generation %d, reason %q; want 100 in the first and no doubt", s.Stats.Hashes, s.Generation.Counter, s.Reason)
		}
		if n := len(b.asks); n < 10 || n > 12 {
			t.Errorf("the history of ten pieces took %d questions", n)
		}
	})
}

// TestReconnectBeforeTheAPI: where events= is configured and the replay socket is
// not, a lost connection may be back before the engine's API tells of it again.
// That is no reason to drop the set.
func TestReconnectBeforeTheAPI(t *testing.T) {
	t.Parallel()

	b := &bench{resolvable: true, reachable: true}
	inBubble(t, b, func() {
		synctest.Wait()
		b.publish(message(0, block(1)))
		after(time.Second)
		b.cut()
		after(time.Second)
		b.set(func() { b.reachable, b.partly = true, true })
		after(time.Minute)
		b.want(belief.Live, "")
		b.wantGenerations(causeReconnect, 0)
		if s := b.r.Status(); s.Stats.Hashes != 1 || s.Reason != "" {
			t.Errorf("%d blocks and reason %q, want the one and no doubt", s.Stats.Hashes, s.Reason)
		}
	})
}

// TestWarmStartGoesOnWithDoubts: a restart of the indexer does not forget that the
// set is to be built again.
func TestWarmStartGoesOnWithDoubts(t *testing.T) {
	t.Parallel()

	for name, doubts := range map[string]belief.Doubts{
		"incomplete": {Incomplete: "the replay socket did not answer"},
		"suspect":    {Suspect: contradicts},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			b := &bench{resolvable: true, reachable: true}
			b.buffer = []kvevents.Message{message(0, block(1)), message(1, block(2))}
			inBubbleWith(t, b, func(r *belief.Replica) { adoptDoubtful(t, r, b.buffer[1], doubts) }, func() {
				synctest.Wait()
				b.want(belief.Live, doubts.Incomplete+doubts.Suspect)
				if s := b.r.Status(); s.Stats.Hashes != 1 {
					t.Errorf("%d blocks are held at the start, want that of the copy", s.Stats.Hashes)
				}
				after(10 * time.Minute)
				if s := b.r.Status(); s.Stats.Hashes != 2 || s.Reason != "" {
					t.Errorf("%d blocks and reason %q, want both of the history and no doubt", s.Stats.Hashes, s.Reason)
				}
			})
		})
	}
}

// TestWarmStartKeepsWhatTheBufferLacks: a history that is no longer than the set's
// is no reason to drop what is held.
func TestWarmStartKeepsWhatTheBufferLacks(t *testing.T) {
	t.Parallel()

	b := &bench{resolvable: true, reachable: true}
	b.buffer = []kvevents.Message{message(8, block(8)), message(9, block(9))}
	inBubbleWith(t, b, func(r *belief.Replica) {
		adoptDoubtful(t, r, b.buffer[1], belief.Doubts{Incomplete: "it begins at batch 5"})
	}, func() {
		after(time.Hour)
		b.wantGenerations(causeHistory, 0)
		b.want(belief.Live, "history incomplete")
	})
}

// adoptDoubtful gives r a durable copy of one block at the position of last.
func adoptDoubtful(t *testing.T, r *belief.Replica, last kvevents.Message, d belief.Doubts) {
	t.Helper()
	was := belief.NewReplica(r.Config(), hashing.Scheme{}, func() {}, func() {})
	was.Renew("m")
	was.Apply(kvevents.Batch{Events: []kvevents.Event{block(2)}}, position(last), time.Now())
	was.Doubt(d)
	kept, _ := was.TakeAll()
	if err := r.Adopt(kept.Head, kept.Changes.Set); err != nil {
		t.Error(err)
	}
}
