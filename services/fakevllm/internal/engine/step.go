package engine

import (
	"context"
	"slices"
	"time"
)

// step does what is due and publishes what that did to the cache. It returns
// when the next step is due; busy is false if none is. The error is that of ctx.
func (e *Engine) step(ctx context.Context) (next time.Time, busy bool, err error) {
	now := time.Now()
	collected := e.collect(now)
	preempted, advanced := e.advance(now)
	admitted := !preempted && e.admit(now)
	if collected || advanced || admitted {
		if err := e.publish(ctx); err != nil {
			return time.Time{}, false, err
		}
	}
	e.observe()
	for _, s := range e.running {
		if !busy || s.due.Before(next) {
			next, busy = s.due, true
		}
	}
	return next, busy, nil
}

// collect hands out the tokens whose computation is done, and frees the blocks
// of answers that are complete. The last token of an answer is never fed back,
// so it is never cached.
func (e *Engine) collect(now time.Time) (worked bool) {
	m := e.cfg.Metrics
	e.running = slices.DeleteFunc(e.running, func(s *sequence) bool {
		if !s.pending || s.due.After(now) {
			return false
		}
		worked = true
		m.token(s, now)
		token, last := s.sample(now)
		if last {
			e.pool.Free(s.tokens)
			m.finished(s, token.Finish, now)
		}
		s.stream.push(token, last)
		return last
	})
	return worked
}

// advance feeds the last token of each running sequence back, in order of
// admission, preempting from the other end when no block is left.
func (e *Engine) advance(now time.Time) (preempted, advanced bool) {
	i := 0
	for i < len(e.running) { // which preemption shortens
		s := e.running[i]
		i++
		if s.pending {
			continue
		}
		for !e.pool.Grow(s.tokens) {
			e.preempt()
			preempted = true
			if len(e.running) < i {
				return preempted, advanced // s itself came last
			}
		}
		e.compute(s, now, e.cfg.InterToken)
		advanced = true
	}
	return preempted, advanced
}

// preempt takes the blocks of the sequence that was admitted last. What it has
// generated stays and becomes part of what is computed again.
func (e *Engine) preempt() {
	last := len(e.running) - 1
	s := e.running[last]
	e.running = e.running[:last]
	e.pool.Free(s.tokens)
	e.waiting = slices.Insert(e.waiting, 0, s)
	e.cfg.Metrics.preemptions.Inc()
}

// admit starts waiting sequences as long as the first of them finds room.
func (e *Engine) admit(now time.Time) (admitted bool) {
	for len(e.waiting) > 0 && len(e.running) < e.cfg.MaxSeqs {
		s := e.waiting[0]
		hit, ok := e.pool.Admit(s.tokens)
		if !ok {
			break
		}
		e.waiting = slices.Delete(e.waiting, 0, 1)
		e.running = append(e.running, s)
		if !s.admitted {
			s.admitted, s.cached = true, hit
			e.cfg.Metrics.admitted(s, now)
		}
		uncached := s.tokens.Len() - hit
		e.compute(s, now, e.cfg.Overhead+time.Duration(uncached)*e.cfg.PerToken)
		admitted = true
	}
	return admitted
}

// compute has the next token of s come after d, give or take the jitter.
func (e *Engine) compute(s *sequence, now time.Time, d time.Duration) {
	if e.cfg.Jitter > 0 {
		d = time.Duration(float64(d) * (1 + e.cfg.Jitter*(2*e.jitter.Float64()-1)))
	}
	s.pending, s.due = true, now.Add(d)
}

// publish sends what the pool has to say, if anything.
func (e *Engine) publish(ctx context.Context) error {
	events := e.pool.TakeEvents()
	if len(events) == 0 || e.cfg.Publisher == nil {
		return nil
	}
	seq, err := e.cfg.Publisher.Publish(ctx, events)
	if err != nil {
		return err
	}
	e.published = published{any: true, seq: seq}
	return nil
}

// observe sets the gauges.
func (e *Engine) observe() {
	m := e.cfg.Metrics
	m.running.Set(float64(len(e.running)))
	m.waiting.Set(float64(len(e.waiting)))
	m.usage.Set(float64(e.pool.InUse()) / float64(e.pool.Usable()))
}
