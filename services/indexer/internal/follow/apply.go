package follow

import (
	"context"
	"fmt"
	"time"

	"github.com/prefixroute/prefixroute/pkg/kvevents"
	"github.com/prefixroute/prefixroute/services/indexer/internal/belief"
)

// live handles one batch of the live stream.
func (s *stream) live(ctx context.Context, m kvevents.Message) {
	b := position(m)
	v := s.cur.live(b)
	s.metrics.Batches.WithLabelValues(v.String()).Inc()
	switch v {
	case inOrder:
		s.apply(m, b)
	case duplicate:
	case gap:
		s.fill(ctx, m, b)
	case restart:
		s.fellBack(ctx, m, b)
	}
	s.settle(ctx)
}

// fill repairs the hole before b, or gives up what was before it, and then
// applies b.
func (s *stream) fill(ctx context.Context, m kvevents.Message, b belief.Position) {
	s.setState(belief.Gap, fmt.Sprintf("batches %d to %d are missing", s.cur.next(), b.Seq-1))
	err := s.replay(ctx)
	if ctx.Err() != nil {
		return
	}
	switch s.cur.judge(b) {
	case gap:
		s.lose(b.Seq)
		if err != nil && s.src.Replay != "" {
			s.rebuild.plan(causeHistory, time.Now()) // it may answer later
		}
		s.apply(m, b)
	case inOrder:
		s.metrics.Gaps.WithLabelValues(gapRepaired).Inc()
		s.apply(m, b)
	case duplicate, restart: // the replay had it, or has come from another process
		s.metrics.Gaps.WithLabelValues(gapRepaired).Inc()
	}
	s.setState(belief.Live, "")
}

// lose gives up the batches from the expected one up to before next, and with
// them all that was known: what they removed would be believed for ever.
func (s *stream) lose(next uint64) {
	if s.cur.pos.Known {
		s.log.Warn("batches lost", "first", s.cur.next(), "count", next-s.cur.next())
		s.metrics.Gaps.WithLabelValues(gapLost).Inc()
		s.renewSame(causeLoss)
	}
	s.cur.open = true
}

// fellBack handles a number that is not above the newest on this connection.
// Either the engine counts anew, or something in between repeats old messages:
// only the replay socket can tell.
func (s *stream) fellBack(ctx context.Context, m kvevents.Message, b belief.Position) {
	if s.src.Replay == "" {
		s.renewSame(causeRestart)
	} else {
		s.setState(belief.Replaying, fmt.Sprintf("batch %d came after later ones", b.Seq))
		if err := s.prove(ctx, causeRestart); err != nil {
			return
		}
	}
	switch s.cur.judge(b) {
	case inOrder:
		s.apply(m, b)
	case gap:
		s.fill(ctx, m, b)
	case duplicate, restart: // an old message: what is applied is newer
	}
	s.setState(belief.Live, "")
}

// apply takes a batch into account that is the next one.
func (s *stream) apply(m kvevents.Message, b belief.Position) {
	if !s.cur.pos.Known {
		s.join(b.Seq)
	}
	s.cur.advance(b)
	batch, err := kvevents.Decode(m.Payload)
	now := time.Now()
	if err != nil {
		s.metrics.Rejected.WithLabelValues(rejectedPayload).Inc()
		s.r.KeepSample(belief.Sample{Time: now, Seq: m.Seq, Error: err.Error(), Payload: m.Payload})
		s.log.Debug("batch not decoded", "seq", m.Seq, "err", err)
		s.r.Skip(b, now)
		return
	}
	for _, rej := range batch.Rejected {
		s.metrics.EventsRejected.WithLabelValues(rej.Reason.String()).Inc()
		s.r.KeepSample(belief.Sample{Time: now, Seq: m.Seq, Error: fmt.Sprintf("event %d (%s): %s", rej.Index, rej.Reason, rej.Detail), Payload: m.Payload})
	}
	out := s.r.Apply(batch, b, now)
	for reason, n := range out.Ignored {
		s.metrics.EventsIgnored.WithLabelValues(reason.String()).Add(float64(n))
	}
	s.metrics.BelowZero.Add(float64(out.BelowZero))
	if out.Cleared { // and with the cache what a rebuild was to mend
		s.contradicted, s.rebuild.cause = false, ""
	}
	if out.Contradicts {
		s.contradicted = true
		s.log.Warn("events contradict the set", "seq", m.Seq, "removals_below_zero", out.BelowZero)
	}
}

// join notes where the generation's history begins.
func (s *stream) join(first uint64) {
	s.joined = first
	if first == 0 {
		s.r.Completed()
		return
	}
	s.r.Doubt(belief.Doubts{Incomplete: fmt.Sprintf("it begins at batch %d", first)})
}
