package follow

import (
	"context"
	"time"

	"github.com/prefixroute/prefixroute/services/indexer/internal/belief"
)

// rebuilds says when a set that is less than it could be is built again. Its
// zero value has nothing planned and lets the first one be at once.
type rebuilds struct {
	cause string    // of the planned one; "" = none is planned
	at    time.Time // not before
	wait  time.Duration
}

// plan plans a rebuild for cause, further away each time, or with cause ""
// moves only the time before which none may be. Long after the last one the
// interval is as short as at first.
func (b *rebuilds) plan(cause string, now time.Time) {
	b.cause = cause
	b.wait = min(max(2*b.wait, rebuildMin), rebuildMax)
	if now.Sub(b.at) > rebuildMax {
		b.wait = rebuildMin
	}
	b.at = now.Add(b.wait)
}

// contradicts is why a set is suspect that a rebuild can mend. It is part of
// the durable copy.
const contradicts = "events remove copies that were never stored"

// resume plans the rebuild that doubts from before a restart call for.
func (s *stream) resume(d belief.Doubts) {
	switch {
	case d.Suspect == contradicts:
		s.rebuild.plan(causeContradiction, time.Now())
	case d.Incomplete != "":
		// The durable copy does not say where its history begins, so only one
		// that begins with batch 0 is sure to be longer.
		s.joined = 1
		s.rebuild.plan(causeHistory, time.Now())
	}
}

// settle answers a contradiction: by a rebuild, or by suspicion where one was
// tried lately or has brought the same again.
func (s *stream) settle(ctx context.Context) {
	if !s.contradicted || ctx.Err() != nil {
		return
	}
	s.contradicted = false
	if s.src.Replay != "" && !time.Now().Before(s.rebuild.at) {
		s.rebuildFrom0(ctx, causeContradiction)
		if !s.contradicted || ctx.Err() != nil {
			return
		}
		s.contradicted = false
	}
	s.r.Doubt(belief.Doubts{Suspect: contradicts})
	if s.src.Replay != "" {
		s.rebuild.plan(causeContradiction, time.Now())
	}
}

// rebuildFrom0 builds the set again from all that the engine remembers. For the
// sake of history alone it does so only if that is more than is known; after a
// contradiction the set is dropped even if the engine does not answer.
func (s *stream) rebuildFrom0(ctx context.Context, cause string) {
	s.setState(belief.Replaying, "building the set again: "+cause)
	defer func() {
		if ctx.Err() == nil {
			s.setState(belief.Live, "")
		}
	}()
	s.rebuild.plan("", time.Now())
	h, err := s.history.since(ctx, s.src.Replay, belief.Position{})
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		s.log.WarnContext(ctx, "rebuild failed", "cause", cause, "err", err)
		defer func() { s.rebuild.cause = causeHistory }()
	}
	if broken(err) {
		h = history{} // of two processes
	}
	if cause == causeHistory && (err != nil || !s.reachesBack(h)) {
		return
	}
	s.renewSame(cause)
	if len(h.batches) == 0 && err != nil {
		s.cur.open = true
		s.r.Doubt(belief.Doubts{Incomplete: "the replay socket did not answer"})
		return
	}
	aerr := s.replayed(h.batches)
	if aerr == nil && h.more {
		aerr = s.replay(ctx)
	}
	if aerr != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "rebuild is not whole", "cause", cause, "err", aerr)
	}
}

// reachesBack reports whether h has batches from before the set's history.
func (s *stream) reachesBack(h history) bool {
	return len(h.batches) > 0 && (!s.cur.pos.Known || h.batches[0].Seq < s.joined)
}
