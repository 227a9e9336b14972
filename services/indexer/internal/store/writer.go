package store

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/prefixroute/prefixroute/services/indexer/internal/belief"
)

// Times and sizes that are not worth a setting.
const (
	// flushInterval is how long changes gather before they are written.
	flushInterval = 20 * time.Millisecond
	// concurrency bounds the replicas written or read at once.
	concurrency = 8
	maxDelta    = 10_000 // see Writer.maxDelta
	warmRetry   = 200 * time.Millisecond
	retryMin    = 100 * time.Millisecond
	retryMax    = 5 * time.Second
	maxRetries  = 3 // of one replica's write, on a mismatch, in one round
)

// Writer keeps the durable copies up to date, behind the memory and never in its
// way: what changes while Redis is slow or away is written together once it is
// back. Use [NewWriter].
type Writer struct {
	store   *Store
	metrics *Metrics
	log     *slog.Logger
	wake    chan struct{}
	// maxDelta is the number of records up to which a change is written by one
	// script call; Redis does nothing else meanwhile. Beyond it the set is
	// written as a whole, aside.
	maxDelta int
	// auditEvery is [auditInterval], but in tests.
	auditEvery time.Duration

	// Guarded by mu.
	mu     sync.Mutex
	dirty  map[string]*belief.Replica
	copies map[string]*replicaCopy // each is owned by the goroutine that writes its replica
}

// replicaCopy is what the writer knows of one replica's durable copy.
type replicaCopy struct {
	replica *belief.Replica
	token   uint64 // 0 = not acquired yet
	rev     string // last known revision
	n       uint64 // numbers revisions
	whole   bool   // the next write has to replace the copy
	pending *write // made, and not known to be done
	lost    bool   // another writer has taken over
}

// NewWriter returns a writer that does nothing before WarmStart or Run.
func NewWriter(s *Store, m *Metrics, log *slog.Logger) *Writer {
	return &Writer{
		store: s, metrics: m, log: log,
		wake: make(chan struct{}, 1), maxDelta: maxDelta, auditEvery: auditInterval,
		dirty: map[string]*belief.Replica{}, copies: map[string]*replicaCopy{},
	}
}

// Dirty says that r has something that its durable copy lacks. It never blocks
// for longer than it takes to note that.
func (w *Writer) Dirty(r *belief.Replica) {
	w.mu.Lock()
	w.dirty[r.Name()] = r
	w.metrics.Pending.Set(float64(len(w.dirty)))
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *Writer) takeDirty() []*belief.Replica {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]*belief.Replica, 0, len(w.dirty))
	for _, r := range w.dirty {
		list = append(list, r)
	}
	clear(w.dirty)
	w.metrics.Pending.Set(0)
	return list
}

func (w *Writer) copyOf(r *belief.Replica) *replicaCopy {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.copies[r.Name()]
	if c == nil {
		c = &replicaCopy{replica: r, whole: true}
		w.copies[r.Name()] = c
	}
	return c
}

// WarmStart takes over the durable copies of the replicas, before they are
// followed. A replica whose copy cannot be had starts cold, and its copy is
// replaced once Redis answers. ctx bounds the whole of it.
func (w *Writer) WarmStart(ctx context.Context, list []*belief.Replica) {
	var g errgroup.Group
	g.SetLimit(concurrency)
	for _, r := range list {
		g.Go(func() error {
			result, err := w.warm(ctx, r)
			w.metrics.WarmStarts.WithLabelValues(result).Inc()
			if err != nil {
				w.log.WarnContext(ctx, "replica starts cold", "replica", r.Name(), "result", result, "err", err)
			}
			return nil
		})
	}
	_ = g.Wait() // no function returns an error
}

func (w *Writer) warm(ctx context.Context, r *belief.Replica) (result string, err error) {
	c := w.copyOf(r)
	cp, ok, err := w.takeOver(ctx, r, c)
	for err != nil && !errors.Is(err, errUnreadable) {
		// Redis may be starting too.
		if !sleep(ctx, warmRetry) {
			return warmFailed, err
		}
		cp, ok, err = w.takeOver(ctx, r, c)
	}
	switch {
	case err != nil:
		return warmBroken, err
	case !ok:
		return warmEmpty, nil
	}
	if err := r.Adopt(cp.Head, cp.Records); err != nil {
		if errors.Is(err, belief.ErrForeign) {
			return warmForeign, err
		}
		return warmBroken, err
	}
	c.rev, c.whole = cp.Rev, false
	return warmRestored, nil
}

// takeOver acquires the replica's copy and reads it. The token comes first: from
// then on nobody else writes to what is read.
func (w *Writer) takeOver(ctx context.Context, r *belief.Replica, c *replicaCopy) (cp Copy, ok bool, err error) {
	if c.token == 0 {
		if c.token, err = w.store.Acquire(ctx, r.Name()); err != nil {
			return Copy{}, false, err
		}
		w.metrics.Up.Set(1)
	}
	return w.store.Load(ctx, r.Name())
}

// Run writes until ctx ends, and looks now and then whether what was written is
// still there. What is dirty then is left to Flush.
func (w *Writer) Run(ctx context.Context) {
	failures := 0
	audit := time.NewTicker(w.auditEvery)
	defer audit.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-audit.C:
			w.audit(ctx)
			continue
		case <-w.wake:
		}
		if !sleep(ctx, flushInterval) {
			return
		}
		for !w.flush(ctx) {
			if failures == 0 {
				w.log.WarnContext(ctx, "durable store does not answer; serving from memory")
			}
			if !sleep(ctx, min(retryMin<<min(failures, 10), retryMax)) {
				return
			}
			failures++
		}
		if failures > 0 {
			w.log.InfoContext(ctx, "durable store answers again")
		}
		failures = 0
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// Flush writes what is dirty, once. It is for the end, when nothing changes any
// more; Run must have returned.
func (w *Writer) Flush(ctx context.Context) { w.flush(ctx) }

// flush writes every dirty replica, and reports false if Redis did not answer
// for one of them. After the first such failure the others wait too.
func (w *Writer) flush(ctx context.Context) bool {
	list := w.takeDirty()
	if len(list) == 0 {
		return true
	}
	if err := w.store.Ping(ctx); err != nil {
		w.metrics.Writes.WithLabelValues(resultFailed).Inc()
		w.giveBack(list)
		return false
	}
	var failed atomic.Bool
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrency)
	for _, r := range list {
		g.Go(func() error {
			err := w.writeReplica(gctx, r)
			if err == nil {
				return nil
			}
			failed.Store(true)
			w.giveBack([]*belief.Replica{r})
			w.log.DebugContext(ctx, "write failed", "replica", r.Name(), "err", err)
			if _, answered := errors.AsType[redis.Error](err); answered {
				return nil // its own trouble
			}
			return err // stops the others
		})
	}
	_ = g.Wait() // logged above
	w.metrics.Up.Set(float64(flag(!failed.Load())))
	return !failed.Load()
}

func (w *Writer) giveBack(list []*belief.Replica) {
	w.metrics.Up.Set(0)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range list {
		w.dirty[r.Name()] = r
	}
	w.metrics.Pending.Set(float64(len(w.dirty)))
}

// writeReplica brings one copy up to date.
func (w *Writer) writeReplica(ctx context.Context, r *belief.Replica) error {
	c := w.copyOf(r)
	for range maxRetries {
		old := c.pending != nil // made before what is dirty now
		if c.lost || !w.prepare(r, c) {
			return nil
		}
		if c.token == 0 {
			token, err := w.store.Acquire(ctx, r.Name())
			if err != nil {
				return err
			}
			c.token, c.whole, c.pending = token, true, nil
			continue
		}
		done, err := w.try(ctx, r, c)
		if err != nil || done && !old {
			return err
		}
	}
	return errors.New("the copy keeps changing under the writer")
}

// prepare makes sure that there is a write to try; false means that nothing has
// changed. A write whose answer was lost is tried again as it is.
func (w *Writer) prepare(r *belief.Replica, c *replicaCopy) bool {
	if c.pending != nil || c.token == 0 {
		return true
	}
	var d belief.Delta
	var ok bool
	if !c.whole {
		d, ok = r.TakeDelta()
		switch n := len(d.Changes.Set) + len(d.Changes.Deleted); {
		case d.Changes.Cleared && n > w.maxDelta:
			c.whole = true // it has the whole set already
		case n > w.maxDelta:
			c.whole = true
			d, ok = r.TakeAll()
		}
	} else {
		d, ok = r.TakeAll()
	}
	if !ok {
		return false
	}
	c.n++
	c.pending = &write{
		replica: r.Name(), token: c.token, expected: c.rev,
		rev:   strconv.FormatUint(c.token, 10) + "-" + strconv.FormatUint(c.n, 10),
		whole: c.whole, delta: d,
	}
	return true
}

// try makes the pending write. It reports false if another one has to follow.
func (w *Writer) try(ctx context.Context, r *belief.Replica, c *replicaCopy) (done bool, err error) {
	began := time.Now()
	p := c.pending
	v, err := w.store.apply(ctx, p)
	w.metrics.Seconds.Observe(time.Since(began).Seconds())
	if err != nil {
		w.metrics.Writes.WithLabelValues(resultFailed).Inc()
		if p.whole {
			c.pending = nil // a whole write is made anew: it may be half staged
		}
		return false, err
	}
	w.metrics.Writes.WithLabelValues(v.String()).Inc()
	switch v {
	case written, repeated:
		if p.whole {
			w.metrics.Whole.Inc()
		}
		w.metrics.Records.Add(float64(len(p.delta.Changes.Set) + len(p.delta.Changes.Deleted)))
		c.rev, c.whole, c.pending = p.rev, false, nil
		r.Stored(p.delta.Head.Generation)
		return true, nil
	case mismatch:
		w.log.WarnContext(ctx, "durable copy is not the one that was written last; writing it whole", "replica", r.Name())
		c.whole, c.pending = true, nil
	case fenced:
		w.log.ErrorContext(ctx, "another indexer has taken over the durable copy; this one stops writing it", "replica", r.Name())
		c.lost, c.pending = true, nil
		return true, nil
	}
	return false, nil
}
