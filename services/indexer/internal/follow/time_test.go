package follow

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
	"github.com/prefixroute/prefixroute/pkg/replicas"
	"github.com/prefixroute/prefixroute/services/indexer/internal/belief"
	"github.com/prefixroute/prefixroute/services/indexer/internal/inbox"
	"github.com/prefixroute/prefixroute/services/indexer/internal/sources"
)

// bench is an engine and its network, in fake time. It behaves: it has a replay
// buffer, it can be unreachable, and its replay socket can be silent.
type bench struct {
	t *testing.T
	r *belief.Replica
	m *Metrics

	mu         sync.Mutex // guards what follows
	reachable  bool
	resolvable bool
	partly     bool // what resolves lacks the replay socket
	mute       bool // the replay socket does not answer
	buffer     []kvevents.Message
	greeting   []kvevents.Message // delivered live with the connection
	asked      func()             // called at each question; nil for none
	maxBytes   int                // of a replay that are read at once; 0 is 1 MiB
	queue      *inbox.Queue       // of the connection; nil without one
	dials      []time.Time
	asks       []time.Time
}

var errRefused = errors.New("connection refused")

func (b *bench) Resolve(context.Context, replicas.Replica) (sources.Source, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.resolvable {
		return sources.Source{}, errors.New("no answer to /kv_event_sources")
	}
	if b.partly {
		return sources.Source{Events: "events", Model: "m"}, nil
	}
	return sources.Source{Events: "events", Replay: "replay", Model: "m"}, nil
}

func (b *bench) Subscribe(_ context.Context, _ string, q *inbox.Queue) (func(), error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dials = append(b.dials, time.Now())
	if !b.reachable {
		q.Close(errRefused)
		return func() {}, nil
	}
	b.queue = q
	q.Connect()
	for _, m := range b.greeting {
		q.Deliver(live(m))
	}
	return func() {}, nil
}

func (b *bench) Ask(ctx context.Context, _ string, start uint64, each func(kvevents.Message) bool, _ func(error)) error {
	b.mu.Lock()
	b.asks = append(b.asks, time.Now())
	mute, buffer, asked := b.mute, b.buffer, b.asked
	b.mu.Unlock()
	if asked != nil {
		asked()
	}
	if mute {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Second):
			return errors.New("silent")
		}
	}
	for _, m := range buffer {
		if m.Seq >= start && !each(m) {
			return nil
		}
	}
	return nil
}

func (b *bench) set(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

// cut loses the connection; the engine stays unreachable.
func (b *bench) cut() {
	b.set(func() {
		b.reachable = false
		b.queue.Close(errors.New("connection was lost"))
	})
}

func message(seq uint64, events ...kvevents.Event) kvevents.Message {
	payload, err := kvevents.Encoding{}.Encode(kvevents.Batch{Time: float64(seq) + 0.5, Events: events})
	if err != nil {
		panic(err)
	}
	return kvevents.Message{Topic: "kv@p@m", Seq: seq, Payload: payload}
}

func block(hash kvevents.Hash) kvevents.Event {
	return &kvevents.BlockStored{BlockHashes: []kvevents.Hash{hash}, TokenIDs: []uint32{uint32(hash), 2}, BlockSize: 2, Medium: "GPU"}
}

func gone(hash kvevents.Hash) kvevents.Event {
	return &kvevents.BlockRemoved{BlockHashes: []kvevents.Hash{hash}, Medium: "GPU"}
}

// publish sends a batch live and keeps it for replays.
func (b *bench) publish(m kvevents.Message) {
	b.set(func() {
		b.buffer = append(b.buffer, m)
		b.queue.Deliver(live(m))
	})
}

// live has the frames of m as a live stream has them.
func live(m kvevents.Message) [][]byte {
	return [][]byte{[]byte(m.Topic), binary.BigEndian.AppendUint64(nil, m.Seq), m.Payload}
}

// inBubble runs f beside a follower in fake time.
func inBubble(t *testing.T, b *bench, f func()) {
	t.Helper()
	inBubbleWith(t, b, func(*belief.Replica) {}, f)
}

// inBubbleWith is inBubble for a replica that is prepared before it is followed.
func inBubbleWith(t *testing.T, b *bench, prepare func(*belief.Replica), f func()) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b.t = t
		b.r = belief.NewReplica(replicas.Replica{Name: "a"}, hashing.Scheme{}, func() {}, func() {})
		prepare(b.r)
		b.m = NewMetrics(prometheus.NewRegistry())
		fol := New(Config{
			DownAfter: 10 * time.Second, ProbeInterval: 15 * time.Second,
			ReplayAttempts: 3, ReplayConcurrency: 8, ReplayMaxBytes: cmp.Or(b.maxBytes, 1<<20), Queue: inbox.Limits{Messages: 100, Bytes: 1 << 20},
		}, b, b, b, b.m, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { fol.Run(ctx, []*belief.Replica{b.r}) })
		defer wg.Wait()
		defer cancel()
		f()
	})
}

// after lets d of fake time go by.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (b *bench) want(state belief.State, reason string) {
	b.t.Helper()
	if s := b.r.Status(); s.State != state || !strings.Contains(s.Reason, reason) {
		b.t.Errorf("%v: replica is %v (%s), want %v with %q", time.Now().Format("05.000"), s.State, s.Reason, state, reason)
	}
}

func (b *bench) wantGenerations(cause string, want float64) {
	b.t.Helper()
	if got := testutil.ToFloat64(b.m.Generations.WithLabelValues(cause)); got != want {
		b.t.Errorf("%v generations were caused by %s, want %v", got, cause, want)
	}
}

func TestUnreachableReplica(t *testing.T) {
	t.Parallel()

	b := &bench{resolvable: true}
	inBubble(t, b, func() {
		after(9 * time.Second)
		b.want(belief.Connecting, "connection refused")
		after(time.Second + time.Millisecond)
		b.want(belief.Down, "connection refused")
		after(time.Minute)
		if n := len(b.dials); n < 30 || n > 60 {
			t.Errorf("%d attempts in 70 s, want one every 1.6 to 2 s after the first few", n)
		}
		b.set(func() { b.reachable = true })
		after(2 * time.Second)
		b.want(belief.Live, "")
	})
}

func TestEngineWhoseEndpointsAreNotKnownYet(t *testing.T) {
	t.Parallel()

	b := &bench{reachable: true}
	inBubble(t, b, func() {
		after(11 * time.Second)
		b.want(belief.Down, "/kv_event_sources")
		b.set(func() { b.resolvable = true })
		after(2 * time.Second)
		b.want(belief.Live, "")
		// Once they are known, they are tried although the API is away.
		b.set(func() { b.resolvable = false })
		b.cut()
		b.set(func() { b.reachable = true })
		after(2 * time.Second)
		b.want(belief.Live, "")
	})
}

// TestCutConnection: the set is kept while the engine is away, and its history
// goes on when it is back.
func TestCutConnection(t *testing.T) {
	t.Parallel()

	b := &bench{resolvable: true, reachable: true}
	inBubble(t, b, func() {
		synctest.Wait()
		b.publish(message(0, block(1)))
		b.publish(message(1, block(2)))
		after(0)
		b.want(belief.Live, "")
		b.cut()
		synctest.Wait()
		b.want(belief.Connecting, "connection was lost")
		after(10*time.Second + time.Millisecond)
		b.want(belief.Down, "")
		if n := b.r.Status().Stats.Hashes; n != 2 {
			t.Errorf("%d blocks are kept while the engine is down, want 2", n)
		}
		b.set(func() { b.buffer = append(b.buffer, message(2, gone(1))); b.reachable = true })
		after(2 * time.Second)
		b.want(belief.Live, "")
		if s := b.r.Status(); s.Position.Seq != 2 || s.Stats.Hashes != 1 {
			t.Errorf("at %d with %d blocks, want 2 with 1", s.Position.Seq, s.Stats.Hashes)
		}
		b.wantGenerations(causeStart, 1)
		b.wantGenerations(causeRestart, 0)
	})
}

// TestReplaySocketThatWakesUp: while it is silent the live stream counts, and
// when it answers the set is built from the start, at growing intervals.
func TestReplaySocketThatWakesUp(t *testing.T) {
	t.Parallel()

	b := &bench{resolvable: true, reachable: true, mute: true}
	b.buffer = []kvevents.Message{message(0, block(1)), message(1, block(2))}
	inBubble(t, b, func() {
		synctest.Wait()
		b.want(belief.Replaying, "")
		after(6*time.Second + time.Millisecond) // three attempts
		b.want(belief.Live, "history incomplete: the replay socket did not answer")
		b.publish(message(2, block(3)))
		after(time.Second)
		b.want(belief.Live, "history incomplete: it begins at batch 2")
		if n := b.r.Status().Stats.Hashes; n != 1 {
			t.Errorf("%d blocks are held, want the live one", n)
		}
		after(time.Hour)
		rebuilds := len(b.asks)
		if rebuilds > 150 {
			t.Errorf("a silent replay socket was asked %d times in an hour", rebuilds)
		}
		b.wantGenerations(causeHistory, 0)
		b.set(func() { b.mute = false })
		after(11 * time.Minute)
		b.want(belief.Live, "")
		if s := b.r.Status(); s.Stats.Hashes != 3 || s.Reason != "" {
			t.Errorf("%d blocks and reason %q, want all 3 and no doubt", s.Stats.Hashes, s.Reason)
		}
		b.wantGenerations(causeHistory, 1)
		b.publish(message(3, gone(1)))
		after(0)
		if s := b.r.Status(); s.Position.Seq != 3 || s.Stats.Hashes != 2 {
			t.Errorf("at %d with %d blocks, want 3 with 2", s.Position.Seq, s.Stats.Hashes)
		}
	})
}

// TestContradictionsAreAnsweredAtGrowingIntervals: an engine whose events do not
// add up is rebuilt now and then, not at every event.
func TestContradictionsAreAnsweredAtGrowingIntervals(t *testing.T) {
	t.Parallel()

	b := &bench{resolvable: true, reachable: true}
	inBubble(t, b, func() {
		synctest.Wait()
		b.publish(message(0, block(1)))
		for seq := uint64(1); seq <= 3600; seq++ {
			b.publish(message(seq, gone(99)))
			after(time.Second)
		}
		b.want(belief.Live, "suspect: events remove copies that were never stored")
		n := testutil.ToFloat64(b.m.Generations.WithLabelValues(causeContradiction))
		if n < 2 || n > 15 {
			t.Errorf("%v rebuilds in an hour of contradictions, want a few", n)
		}
		b.publish(message(3601, &kvevents.AllBlocksCleared{}))
		after(time.Second)
		b.want(belief.Live, "")
		if r := b.r.Status().Reason; r != "" {
			t.Errorf("reason after a clear is %q, want none", r)
		}
	})
}

// TestOverrun: messages that found the queue full are fetched at once, not when
// the next one shows the gap.
func TestOverrun(t *testing.T) {
	t.Parallel()

	b := &bench{resolvable: true, reachable: true}
	inBubble(t, b, func() {
		synctest.Wait()
		for seq := range uint64(5) {
			b.set(func() { b.buffer = append(b.buffer, message(seq, block(kvevents.Hash(seq+1)))) })
		}
		b.set(func() { b.mute = true })
		b.publish(message(5, block(6)))
		synctest.Wait() // the follower waits for the batches before it
		for seq := uint64(6); seq < 300; seq++ {
			b.publish(message(seq, block(kvevents.Hash(seq+1))))
		}
		b.set(func() { b.mute = false })
		after(3 * time.Second)
		if s := b.r.Status(); s.Position.Seq != 299 || s.Stats.Hashes != 300 {
			t.Errorf("at %d with %d blocks, want 299 with 300", s.Position.Seq, s.Stats.Hashes)
		}
		if got := testutil.ToFloat64(b.m.Dropped); got != 194 {
			t.Errorf("%v messages were dropped, want all but the 100 that may wait", got)
		}
		b.wantGenerations(causeLoss, 0)
	})
}

// TestStopKeepsTheSet: a stop in the middle of anything is no reason to drop what
// is known; the durable copy would drop it too.
func TestStopKeepsTheSet(t *testing.T) {
	t.Parallel()

	for _, when := range []time.Duration{0, time.Second, 3 * time.Second} {
		b := &bench{resolvable: true, reachable: true}
		inBubble(t, b, func() {
			synctest.Wait()
			b.publish(message(0, block(1)))
			after(0)
			b.set(func() { b.mute = true })
			b.publish(message(5, block(2))) // a gap that cannot be filled now
			after(when)
		})
		if s := b.r.Status(); s.Position.Seq != 0 || s.Stats.Hashes != 1 {
			t.Errorf("stopped after %v of a replay: at %d with %d blocks, want 0 with 1", when, s.Position.Seq, s.Stats.Hashes)
		}
	}
}

// TestReplaysAreBounded: a fleet that comes back asks a few engines at a time.
func TestReplaysAreBounded(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		b := &bench{resolvable: true, reachable: true, mute: true}
		var list []*belief.Replica
		for i := range 100 {
			list = append(list, belief.NewReplica(replicas.Replica{Name: strconv.Itoa(i)}, hashing.Scheme{}, func() {}, func() {}))
		}
		fol := New(Config{
			DownAfter: 10 * time.Second, ProbeInterval: 15 * time.Second,
			ReplayAttempts: 1, ReplayConcurrency: 8, ReplayMaxBytes: cmp.Or(b.maxBytes, 1<<20), Queue: inbox.Limits{Messages: 100, Bytes: 1 << 20},
		}, b, b, b, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { fol.Run(ctx, list) })
		synctest.Wait()
		if len(b.asks) != 8 {
			t.Errorf("%d replays were asked at once, want 8", len(b.asks))
		}
		cancel()
		wg.Wait()
	})
}
