// Package follow keeps each replica's belief equal to what its engine holds, or
// makes it say that it does not: it connects to the event stream, applies it in
// order, fills holes from the replay socket, and starts anew where it cannot.
//
// # The state machine
//
//	connecting → replaying → live → (gap → live) → connecting → … ; connecting → down → replaying
//
// Per connection: subscribe first, then ask the replay socket for everything
// after the position, while live batches wait in the queue; then apply the queue,
// whose overlap with the replay is dropped by number.
//
// # What makes a new generation
//
// The set is dropped, and built again from what the replay socket has, when
//
//   - the engine cannot show the last applied batch, the same payload under the
//     same number, after a connection was lost or a number fell back: it is
//     another process, or nobody can tell;
//   - a hole cannot be filled: what was removed in it would be believed for ever;
//   - a removal takes a copy that a complete history does not have: something was
//     missed, whatever the numbers say. The same events may say the same again,
//     so this is done once and then at growing intervals; in between the set is
//     marked suspect;
//   - the engine serves another model.
//
// A batch that cannot be decoded is none of these. Asking again brings the same
// bytes, so a new generation would stop at the same batch or give up all that
// came before it, on each such batch. The stream goes on, the batch is counted
// and kept as a sample, and the set is marked suspect until it is cleared or
// starts anew.
//
// Where the buffer does not reach back to batch 0, or does not answer, the
// history is incomplete: blocks that were stored before are missed hits until
// they are stored again, which is harmless, and the state says so.
//
// # Concurrency
//
// One goroutine per replica does all of this, in order. Replicas share nothing
// but the number of replays that may run at once.
package follow

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prefixroute/prefixroute/pkg/replicas"
	"github.com/prefixroute/prefixroute/services/indexer/internal/belief"
	"github.com/prefixroute/prefixroute/services/indexer/internal/inbox"
	"github.com/prefixroute/prefixroute/services/indexer/internal/sources"
)

// Subscriber connects to event streams; see zmqsock.Client.Subscribe. One
// subscription is one connection to one engine process.
type Subscriber interface {
	Subscribe(ctx context.Context, endpoint string, q *inbox.Queue) (end func(), err error)
}

// Resolver finds out where a replica publishes.
type Resolver interface {
	Resolve(ctx context.Context, cfg replicas.Replica) (sources.Source, error)
}

// Config holds the limits. All must be positive.
type Config struct {
	DownAfter         time.Duration // unreachable for so long = down
	ProbeInterval     time.Duration // a stream quiet for so long is asked for a lost tail
	ReplayAttempts    int           // questions without progress, in a row, before a replay is given up
	ReplayConcurrency int           // questions at once
	ReplayMaxBytes    int           // payload read before it is applied
	Queue             inbox.Limits  // live messages that wait, per replica
}

// Times that are not worth a setting.
const (
	backoffMin = 100 * time.Millisecond
	backoffMax = 2 * time.Second
	// stableAfter is how long a connection must have lasted for the next
	// attempt to be made at once.
	stableAfter = 5 * time.Second
	// settleAfter is when a fresh stream is asked for a lost tail: an engine
	// learns of a subscription a moment after the connection is up, and what it
	// publishes in between reaches nobody.
	settleAfter = time.Second
	// probeTimeout bounds such a question, which holds up the stream.
	probeTimeout = 3 * time.Second
	// probeMax bounds the time between two of them while nobody answers.
	probeMax = 10 * time.Minute
	// rebuildMin and rebuildMax bound the interval between attempts to build a
	// set again that is known to be less than it could be.
	rebuildMin = 30 * time.Second
	rebuildMax = 10 * time.Minute
)

// Follower follows replicas. Use [New].
type Follower struct {
	cfg      Config
	sub      Subscriber
	resolver Resolver
	history  historian
	metrics  *Metrics
	log      *slog.Logger
}

// New returns a follower that does nothing before Run.
func New(cfg Config, sub Subscriber, asker Asker, resolver Resolver, m *Metrics, log *slog.Logger) *Follower {
	return &Follower{
		cfg: cfg, sub: sub, resolver: resolver, metrics: m, log: log,
		history: historian{
			asker: asker, slots: make(chan struct{}, cfg.ReplayConcurrency),
			attempts: cfg.ReplayAttempts, maxBytes: cfg.ReplayMaxBytes, metrics: m,
		},
	}
}

// Run follows the replicas, starting from what each one believes already, until
// ctx ends. Nothing that it started is left then.
func (f *Follower) Run(ctx context.Context, list []*belief.Replica) {
	var wg sync.WaitGroup
	for _, r := range list {
		wg.Go(func() { f.stream(r).run(ctx) })
	}
	wg.Wait()
}

func (f *Follower) stream(r *belief.Replica) *stream {
	s := &stream{
		Follower: f, r: r,
		cur:  cursor{pos: r.Position()},
		log:  f.log.With("replica", r.Name()),
		lost: time.Now(),
	}
	s.resume(r.Doubts())
	return s
}

// backoff is the pause before attempt n+1, with a fifth of jitter so that a
// fleet does not come back in step.
func backoff(n int) time.Duration {
	d := min(backoffMin<<min(n, 10), backoffMax)
	return d - time.Duration(rand.Int64N(int64(d)/5))
}
