// Package compare sends the same seeded load through routers that differ in
// their index, forces evictions in the middle, and sets beside each other what
// the engines say came of it.
//
// # What is measured
//
// The hit rate is the engines' own: the growth of their prefix-cache counters
// over the run. A prediction is what the router's answer promised (its
// x-prefixroute-match header); what the engine then reused is in the same
// answer's usage. A prediction is wrong where the two differ.
package compare

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/prefixroute/prefixroute/pkg/trace"
)

// Server is one engine behind a router.
type Server struct {
	Name, URL string
}

// Target is one side of a comparison: a router with one kind of index, and the
// engines it routes to.
type Target struct {
	// Index is the kind that the router was started with: approximate or precise.
	Index  string
	Router string
	// Servers must be the router's replicas, by the router's names.
	Servers []Server
}

// Load is what every side gets.
type Load struct {
	Trace trace.Config
	// Concurrency is how many requests may be open at once. Predictions can only
	// be judged one by one at 1: a running request changes what the next one finds.
	Concurrency int
	// Evict forces evictions after half of the requests: the system prompts of
	// every second tenant leave all engines.
	Evict bool
	// Settle is the pause after the servers were emptied and after the evictions,
	// for their events to arrive.
	Settle time.Duration
}

// Result is one side's outcome.
type Result struct {
	Index string `json:"index"`
	// HitRate is reused over looked-up prompt tokens, 0..1, by the engines' counters.
	HitRate   float64        `json:"hit_rate"`
	TTFTp50MS float64        `json:"ttft_p50_ms"`
	TTFTp95MS float64        `json:"ttft_p95_ms"`
	Requests  map[string]int `json:"requests"`
	// Wrong counts the answers whose promise was not what the engine reused.
	Wrong  int `json:"wrong"`
	Errors int `json:"errors"`

	// OverTokens were promised and not reused, UnderTokens the other way round.
	OverTokens  int `json:"-"`
	UnderTokens int `json:"-"`
	// Fallbacks counts answers that another kind of index than asked for gave.
	Fallbacks int `json:"-"`
	// FirstError is a sample of what Errors counts.
	FirstError error `json:"-"`
}

// Progress is told how far a side is; it may be called from several goroutines.
type Progress func(index string, done, total int)

// Run sends load through t and waits until the engines' counters cover it.
// Requests that fail are counted in the result; an error means that nothing
// can be said.
func Run(ctx context.Context, t Target, load Load, progress Progress) (Result, error) {
	reqs, err := trace.Generate(load.Trace)
	if err != nil {
		return Result{}, err
	}
	c := newClient(load.Concurrency)
	defer c.http.CloseIdleConnections()
	for _, s := range t.Servers {
		if err := c.empty(ctx, s); err != nil {
			return Result{}, err
		}
	}
	if err := wait(ctx, load.Settle); err != nil {
		return Result{}, err
	}
	before, err := c.counters(ctx, t.Servers)
	if err != nil {
		return Result{}, err
	}

	sum := tally{result: Result{Index: t.Index, Requests: map[string]int{}}}
	for _, s := range t.Servers {
		sum.result.Requests[s.Name] = 0
	}
	half := len(reqs) / 2
	send := func(part []trace.Request) error {
		return c.sendAll(ctx, t, load.Concurrency, part, func(a answer) {
			progress(t.Index, sum.add(t.Index, a), len(reqs))
		})
	}
	if err := send(reqs[:half]); err != nil {
		return Result{}, err
	}
	if load.Evict {
		if err := c.evict(ctx, t.Servers, before, reqs[:half]); err != nil {
			return Result{}, err
		}
		if err := wait(ctx, load.Settle); err != nil {
			return Result{}, err
		}
	}
	if err := send(reqs[half:]); err != nil {
		return Result{}, err
	}
	return c.finish(ctx, t, before, &sum)
}

// pollInterval is the pause between two looks at something that is about to change.
const pollInterval = 20 * time.Millisecond

// countersDeadline bounds the wait for the engines' counters to cover the run.
const countersDeadline = 10 * time.Second

// finish reads the counters until they cover every prompt token that was sent.
func (c *client) finish(ctx context.Context, t Target, before counters, sum *tally) (Result, error) {
	want := int64(sum.promptTokens)
	ctx, cancel := context.WithTimeout(ctx, countersDeadline)
	defer cancel()
	for {
		after, err := c.counters(ctx, t.Servers)
		if err != nil {
			return Result{}, err
		}
		// Filler that forces evictions on engines without an admin API is counted too.
		queries := after.queries - before.queries - c.fillerTokens
		if queries >= want {
			r := sum.result
			if queries > 0 {
				r.HitRate = float64(after.hits-before.hits) / float64(queries)
			}
			r.TTFTp50MS, r.TTFTp95MS = quantile(sum.ttft, 0.50), quantile(sum.ttft, 0.95)
			return r, nil
		}
		if err := wait(ctx, pollInterval); err != nil {
			return Result{}, fmt.Errorf("the servers counted %d prompt tokens of the %d sent: %w", queries, want, err)
		}
	}
}

// sendAll sends a part of the trace, at the trace's times if it has any.
func (c *client) sendAll(ctx context.Context, t Target, concurrency int, part []trace.Request, done func(answer)) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrency)
	start := time.Now()
	for _, r := range part {
		if err := wait(ctx, time.Until(start.Add(r.At-part[0].At))); err != nil {
			break
		}
		g.Go(func() error {
			done(c.send(gctx, t.Router, r))
			return gctx.Err()
		})
	}
	return errors.Join(g.Wait(), ctx.Err())
}

// tally sums answers; safe for concurrent use.
type tally struct {
	mu           sync.Mutex
	result       Result
	ttft         []float64 // milliseconds
	promptTokens int
	done         int
}

// add takes one answer in and returns how many there are.
func (s *tally) add(index string, a answer) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done++
	r := &s.result
	if a.err != nil {
		r.Errors++
		if r.FirstError == nil {
			r.FirstError = a.err
		}
		return s.done
	}
	r.Requests[a.replica]++
	s.promptTokens += a.promptTokens
	s.ttft = append(s.ttft, float64(a.ttft)/float64(time.Millisecond))
	if a.index != index {
		r.Fallbacks++
	}
	switch diff := a.promised - a.cached; {
	case diff > 0:
		r.Wrong++
		r.OverTokens += diff
	case diff < 0:
		r.Wrong++
		r.UnderTokens -= diff
	}
	return s.done
}

// Check reports what a comparison with forced evictions must show and does
// not: that the approximate index promised what was evicted, and that the
// precise one never did.
func Check(results []Result) error {
	var errs []error
	seen := map[string]bool{}
	for _, r := range results {
		seen[r.Index] = true
		if r.Errors > 0 {
			errs = append(errs, fmt.Errorf("%s: %d requests failed, the first with: %w", r.Index, r.Errors, r.FirstError))
		}
		switch r.Index {
		case "approximate":
			if r.Wrong == 0 {
				errs = append(errs, errors.New("approximate: every prediction held, so nothing was evicted behind its back"))
			}
		case "precise":
			if r.Fallbacks > 0 {
				errs = append(errs, fmt.Errorf("precise: %d answers came from the fallback index", r.Fallbacks))
			}
			if r.Wrong > 0 {
				errs = append(errs, fmt.Errorf("precise: %d predictions did not hold (%d tokens too many, %d too few)", r.Wrong, r.OverTokens, r.UnderTokens))
			}
		}
	}
	for _, index := range []string{"approximate", "precise"} {
		if !seen[index] {
			errs = append(errs, fmt.Errorf("%s: no result", index))
		}
	}
	return errors.Join(errs...)
}

// quantile is the q-quantile of values by the nearest rank; 0 without values.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

// wait returns after d, or with the context's error if that ends first.
func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func newClient(concurrency int) *client {
	transport := &http.Transport{MaxIdleConnsPerHost: concurrency + 1, ResponseHeaderTimeout: requestTimeout}
	return &client{http: &http.Client{Transport: transport}}
}
