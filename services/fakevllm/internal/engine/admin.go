package engine

import (
	"context"
	"slices"
	"time"

	"github.com/prefixroute/prefixroute/pkg/blockpool"
)

// abort takes the sequences of s out of the engine, if any are left.
func (e *Engine) abort(s *Stream) {
	// The client is gone and its context with it; the engine still has to know.
	// It can only fail if the engine has stopped.
	_ = e.do(context.Background(), func(context.Context) {
		gone := func(q *sequence) bool {
			if q.stream != s {
				return false
			}
			e.pool.Free(q.tokens)
			e.cfg.Metrics.finished(q, finishAbort, time.Now())
			return true
		}
		e.running = slices.DeleteFunc(e.running, gone)
		e.waiting = slices.DeleteFunc(e.waiting, gone)
	})
}

// Reset forgets the cache and reports whether it did: it does not while a
// request runs. With preempt, running requests are sent back to the queue
// first, so that it always succeeds.
func (e *Engine) Reset(ctx context.Context, preempt bool) (ok bool, err error) {
	err = e.do(ctx, func(context.Context) {
		for preempt && len(e.running) > 0 {
			e.preempt()
		}
		if ok = e.pool.Reset(); ok {
			e.generation++
		}
	})
	return ok, err
}

// Evict ends the content of the n blocks that are next to lose it, see
// [blockpool.Pool.Evict], and publishes that at once.
func (e *Engine) Evict(ctx context.Context, n int) (blockpool.Eviction, error) {
	return e.evict(ctx, func() blockpool.Eviction { return e.pool.Evict(n) })
}

// EvictAll is Evict for every block.
func (e *Engine) EvictAll(ctx context.Context) (blockpool.Eviction, error) {
	return e.Evict(ctx, e.cfg.Blocks)
}

// EvictPrefix ends the content of what is cached under a prompt, see
// [blockpool.Pool.EvictPrefix], and publishes that at once.
func (e *Engine) EvictPrefix(ctx context.Context, prompt []uint32, c blockpool.Content) (blockpool.Eviction, error) {
	seq := e.cfg.Hasher.Sequence(prompt, c)
	return e.evict(ctx, func() blockpool.Eviction { return e.pool.EvictPrefix(seq) })
}

func (e *Engine) evict(ctx context.Context, f func() blockpool.Eviction) (result blockpool.Eviction, err error) {
	var publishErr error
	err = e.do(ctx, func(run context.Context) {
		if result = f(); result.Evicted > 0 {
			publishErr = e.publish(run)
		}
	})
	if err == nil {
		err = publishErr
	}
	return result, err
}

// A Snapshot is the content of the cache at one moment, between two steps.
type Snapshot struct {
	// Epoch is when the engine started, and tells it from its successor on the
	// same address. Generation counts from 1 and grows with every reset.
	Epoch      time.Time
	Generation uint64
	// LastSeq is the batch after which the events published so far add up to
	// Blocks, if nothing is Pending. Published is false before the first batch.
	LastSeq   uint64
	Published bool
	// Pending counts events that the next step will publish: resets.
	Pending int
	Blocks  []blockpool.Block
}

// Snapshot returns the content of the cache.
func (e *Engine) Snapshot(ctx context.Context) (s Snapshot, err error) {
	err = e.do(ctx, func(context.Context) {
		s = Snapshot{
			Epoch:      e.epoch,
			Generation: e.generation,
			LastSeq:    e.published.seq,
			Published:  e.published.any,
			Pending:    e.pool.Pending(),
			Blocks:     e.pool.Blocks(),
		}
	})
	return s, err
}
