// Package engine is the heart of the fake: a scheduler that behaves like
// vLLM's towards the prefix cache, and computes nothing.
//
// # Model
//
// Requests wait in one queue, first come first served. A step schedules the
// running sequences, each by one token, and then admits from the queue what
// there is room for. A prompt is computed in one piece; how long that takes
// follows from the tokens that were not cached, and after it each token takes
// the inter-token time. A sequence whose blocks can't grow makes the one that
// was admitted last give up its blocks and wait at the head of the queue, to be
// computed again; while that happens nothing is admitted.
//
// A step happens when something is due or arrives, not in lock-step for all
// sequences: two answers never slow each other down.
//
// # Events
//
// What a step does to the cache is published by the same step, as one batch,
// long before the answers are complete. A cleared cache is announced by the
// next step that schedules something, as in vLLM.
//
// # Concurrency
//
// Run owns all state. Everything else sends it a function to run between two
// steps, or reads metrics.
package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/prefixroute/prefixroute/pkg/blockpool"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

var (
	// ErrQueueFull says that as many requests are in the engine as may be.
	ErrQueueFull = errors.New("too many requests are waiting or running")
	// ErrStopped says that the engine is no longer running.
	ErrStopped = errors.New("engine has stopped")
)

// A Publisher takes the events of one step, never none of them, and returns the
// sequence number of their batch. It may block, which halts the engine, as
// vLLM's does while its queue is full. It fails only when ctx is over.
type Publisher interface {
	Publish(ctx context.Context, events []kvevents.Event) (seq uint64, err error)
}

// Config is what an engine needs to know. All fields are required unless they
// say otherwise.
type Config struct {
	Blocks    int // physical KV-cache blocks, one of which is never usable
	BlockSize int // tokens

	MaxSeqs     int // sequences that run at once
	MaxRequests int // sequences that run or wait; beyond it Generate refuses

	// The time to the first token is Overhead + PerToken for each prompt token
	// that was not cached; then InterToken for each further one. Zero is no
	// waiting.
	Overhead, PerToken, InterToken time.Duration
	// Jitter is the share, 0 to 1, by which each of these times varies.
	Jitter float64

	// Seed decides answers and jitter. Engines with one seed give the same
	// answer to the same prompt.
	Seed uint64

	Hasher *blockpool.Hasher
	// Publisher gets the events; nil drops them.
	Publisher Publisher
	Metrics   *Metrics
}

// An Engine serves requests while Run runs. Call [New].
type Engine struct {
	cfg   Config
	words vocabulary
	epoch time.Time

	// calls are run by Run, one at a time, between two steps, with its context.
	calls chan func(context.Context)
	done  chan struct{} // closed when Run has returned

	// owned by Run

	pool       *blockpool.Pool
	running    []*sequence // in order of admission
	waiting    []*sequence // first is next; preempted ones come first
	jitter     *rand.Rand
	generation uint64
	published  published
}

// published remembers the last batch.
type published struct {
	any bool
	seq uint64
}

// New returns an engine with an empty cache.
func New(cfg Config) (*Engine, error) {
	pool, err := blockpool.New(cfg.Blocks, cfg.BlockSize)
	if err != nil {
		return nil, fmt.Errorf("block pool: %w", err)
	}
	return &Engine{
		cfg:        cfg,
		words:      newVocabulary(),
		epoch:      time.Now(),
		calls:      make(chan func(context.Context)),
		done:       make(chan struct{}),
		pool:       pool,
		jitter:     rand.New(rand.NewPCG(cfg.Seed, 0)),
		generation: 1,
	}, nil
}

// Run serves until ctx ends; requests that are still in the engine then fail
// with [ErrStopped]. It must be called once.
func (e *Engine) Run(ctx context.Context) error {
	defer close(e.done)
	defer e.stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		next, busy, err := e.step(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		var due <-chan time.Time
		if busy {
			timer.Reset(time.Until(next))
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return nil
		case call := <-e.calls:
			call(ctx)
			e.drainCalls(ctx)
		case <-due:
		}
	}
}

// drainCalls runs what has come in meanwhile, so that requests that arrive
// together are scheduled by one step.
func (e *Engine) drainCalls(ctx context.Context) {
	for {
		select {
		case call := <-e.calls:
			call(ctx)
		default:
			return
		}
	}
}

// stop fails everything that is left.
func (e *Engine) stop() {
	for _, s := range e.running {
		s.stream.fail(ErrStopped)
	}
	for _, s := range e.waiting {
		s.stream.fail(ErrStopped)
	}
}

// do has Run call f with its own context, and returns when it has.
func (e *Engine) do(ctx context.Context, f func(run context.Context)) error {
	ran := make(chan struct{})
	select {
	case e.calls <- func(run context.Context) { f(run); close(ran) }:
	case <-ctx.Done():
		return ctx.Err()
	case <-e.done:
		return ErrStopped
	}
	<-ran
	return nil
}

// A Request asks for one answer.
type Request struct {
	Prompt  []uint32 // at least one token; taken over by the engine
	Content blockpool.Content
	// MaxTokens is the length of the answer. Prompt and answer together must
	// fit into the pool.
	MaxTokens int
	// Stops says that the answer ends by itself, not because of its limit.
	Stops bool
	// SkipLookup computes the whole prompt, whatever is cached.
	SkipLookup bool
	// Lead are tokens that the answer begins with and that have no text. They
	// count towards MaxTokens.
	Lead []uint32
	// Sample distinguishes the answers to one prompt.
	Sample int
}

// Generate starts the requests of one API call, all of them or none, and
// returns their common stream, in which the i-th request has the index i. The
// caller must Close it. The error is [ErrQueueFull], [ErrStopped] or that of ctx.
func (e *Engine) Generate(ctx context.Context, requests []Request) (*Stream, error) {
	stream := newStream(e, len(requests))
	seqs := make([]*sequence, len(requests))
	for i, r := range requests {
		if room := (e.cfg.Blocks - 1) * e.cfg.BlockSize; len(r.Prompt) == 0 || len(r.Prompt)+r.MaxTokens > room || r.MaxTokens < 1 {
			return nil, fmt.Errorf("request has %d prompt tokens and %d to generate, expected at least 1 of each and at most %d together",
				len(r.Prompt), r.MaxTokens, room)
		}
		seqs[i] = newSequence(e, stream, i, r)
	}
	var full bool
	err := e.do(ctx, func(context.Context) {
		if full = len(e.running)+len(e.waiting)+len(seqs) > e.cfg.MaxRequests; !full {
			e.waiting = append(e.waiting, seqs...)
		}
	})
	switch {
	case err != nil:
		return nil, err
	case full:
		e.cfg.Metrics.rejected.Inc()
		return nil, fmt.Errorf("%w: the limit is %d", ErrQueueFull, e.cfg.MaxRequests)
	}
	return stream, nil
}
