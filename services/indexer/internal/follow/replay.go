package follow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prefixroute/prefixroute/pkg/kvevents"
	"github.com/prefixroute/prefixroute/services/indexer/internal/belief"
)

// errNoReplay is returned where the engine has no replay socket.
var errNoReplay = errors.New("the engine has no replay socket")

// maxChanges bounds how often another engine process may turn up in the middle of
// a replay before it counts as unanswered.
const maxChanges = 3

// catchUp brings the set up to date on a fresh connection, or starts it anew if
// nobody can tell whether the engine is still the same process. An error ends
// the connection.
func (s *stream) catchUp(ctx context.Context) error {
	if s.src.Model != "" {
		s.serve(s.src.Model)
	}
	if s.src.Replay == "" {
		if s.cur.pos.Known {
			s.renewSame(causeReconnect)
		}
		s.cur.open, s.rebuild.cause = true, ""
		s.r.Doubt(belief.Doubts{Incomplete: errNoReplay.Error()})
		s.setState(belief.Live, "")
		return nil
	}
	s.setState(belief.Replaying, fmt.Sprintf("asking the engine for batches from %d on", s.cur.next()))
	if err := s.prove(ctx, causeUnanswered); err != nil {
		return err
	}
	s.settle(ctx)
	s.setState(belief.Live, "")
	return ctx.Err()
}

// prove replays what there is after the position. If the engine cannot be made
// to show that it has it, the set starts anew with the live stream, for the given
// cause, and is built again later. The error is that of a ctx that has ended, or
// errNoModel.
func (s *stream) prove(ctx context.Context, unanswered string) error {
	err := s.replay(ctx)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil, errors.Is(err, errNoModel):
		return err
	}
	s.log.WarnContext(ctx, "replay failed", "err", err)
	if !errors.Is(err, errUnproved) {
		return nil // the rest comes with the next batch, or the next probe
	}
	if s.cur.pos.Known {
		s.renewSame(unanswered)
	}
	s.cur.open = true
	s.r.Doubt(belief.Doubts{Incomplete: "the replay socket did not answer"})
	s.rebuild.plan(causeHistory, time.Now())
	return nil
}

// errUnproved is in the chain of replay's error where the engine has not shown
// that its history is the continuation of the set's, or any history at all.
var errUnproved = errors.New("the engine's history is not proved")

// replay applies all batches after the position that the engine has. Where they
// are not the continuation of it, it starts the set anew and applies all there
// are. It leaves the set alone where the engine does not answer.
func (s *stream) replay(ctx context.Context) error {
	if s.src.Replay == "" {
		return errNoReplay
	}
	for changes := 0; ; {
		h, err := s.history.since(ctx, s.src.Replay, s.cur.pos)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case broken(err) && changes < maxChanges:
			changes++
			s.disown(err)
			continue
		case broken(err), err != nil && len(h.batches) == 0 && (!h.proved || !s.cur.pos.Known):
			return fmt.Errorf("%w: %w", errUnproved, err)
		}
		if aerr := s.replayed(h.batches); aerr != nil {
			return aerr
		}
		if err != nil || !h.more {
			return err
		}
	}
}

// disown drops a set that is not the engine's. Whoever called for the replay
// makes the stream live again.
func (s *stream) disown(why error) {
	if !s.cur.pos.Known {
		return
	}
	s.setState(belief.Replaying, why.Error())
	s.log.Warn("the set is not this engine process's", "err", why, "seq", s.cur.pos.Seq)
	if errors.Is(why, errChanged) {
		s.renewSame(causeRestart)
		return
	}
	s.renewSame(causeForgotten)
}

// replayed applies batches from the replay socket. A hole in them is one that
// the engine itself has.
func (s *stream) replayed(batches []kvevents.Message) error {
	for _, m := range batches {
		if err := s.serveTopic(m.Topic); err != nil {
			return err
		}
		b := position(m)
		switch s.cur.replayed(b) {
		case gap:
			s.lose(b.Seq)
		case inOrder:
		case duplicate, restart:
			continue
		}
		s.apply(m, b)
		s.metrics.Replayed.Inc()
	}
	return nil
}

// fetchTail asks for batches that may have been lost after the newest one, which
// no gap will show before the engine publishes again.
func (s *stream) fetchTail(ctx context.Context) {
	if s.src.Replay == "" || s.cur.open {
		return
	}
	probe, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	h, err := s.history.since(probe, s.src.Replay, s.cur.pos)
	switch {
	case ctx.Err() != nil:
		return
	case broken(err):
		// What the live stream is from is being replaced; see what by.
		if s.prove(ctx, causeUnanswered) != nil {
			return
		}
	case err != nil:
		s.log.DebugContext(ctx, "probe failed", "err", err)
		s.quiet = min(2*s.quiet, max(s.cfg.ProbeInterval, probeMax)) // it holds up the stream
	default:
		s.quiet = s.cfg.ProbeInterval
	}
	if !broken(err) && len(h.batches) > 0 {
		s.metrics.Gaps.WithLabelValues(gapRepaired).Inc()
		err = s.replayed(h.batches)
		if err == nil && h.more {
			err = s.replay(ctx)
		}
		if err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "lost tail not applied", "err", err)
		}
	}
	if s.state != belief.Live && ctx.Err() == nil {
		s.setState(belief.Live, "")
	}
	s.settle(ctx)
}

// tick does what is due on a quiet stream.
func (s *stream) tick(ctx context.Context) {
	now := time.Now()
	if s.rebuild.cause != "" && !now.Before(s.rebuild.at) {
		s.rebuildFrom0(ctx, s.rebuild.cause)
		s.settle(ctx)
	}
	if !now.Before(s.probe) {
		s.fetchTail(ctx)
		s.probe = time.Now().Add(s.quiet)
	}
}
