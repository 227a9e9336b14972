package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prefixroute/prefixroute/pkg/kvevents"
	"github.com/prefixroute/prefixroute/services/indexer/internal/belief"
	"github.com/prefixroute/prefixroute/services/indexer/internal/inbox"
	"github.com/prefixroute/prefixroute/services/indexer/internal/sources"
)

// stream follows one replica. Everything in it is owned by run.
type stream struct {
	*Follower

	r   *belief.Replica
	log *slog.Logger
	cur cursor
	src sources.Source // of the present connection

	state  belief.State
	lost   time.Time     // since when there is no connection
	probe  time.Time     // when the stream is to be asked for a lost tail
	quiet  time.Duration // quiet time before that; grows while nobody answers
	joined uint64        // number of the generation's first batch

	contradicted bool // a batch took a copy that a complete history lacks
	rebuild      rebuilds
}

// run follows the replica until ctx ends.
func (s *stream) run(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; failures++ {
		began := time.Now()
		err := s.connection(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > stableAfter {
			failures = 0
		}
		s.unreachable(err.Error())
		s.pause(ctx, backoff(failures), err.Error())
	}
}

// pause waits, and watches the time after which the replica counts as down.
func (s *stream) pause(ctx context.Context, d time.Duration, why string) {
	wait := time.NewTimer(d)
	defer wait.Stop()
	down := time.NewTimer(time.Until(s.lost.Add(s.cfg.DownAfter)))
	defer down.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wait.C:
			return
		case <-down.C:
			s.unreachable(why)
		}
	}
}

func (s *stream) unreachable(why string) {
	if time.Since(s.lost) >= s.cfg.DownAfter {
		s.setState(belief.Down, why)
		return
	}
	s.setState(belief.Connecting, why)
}

func (s *stream) setState(st belief.State, why string) {
	if st != s.state {
		s.log.Info("stream state", "from", s.state.String(), "to", st.String(), "reason", why)
		s.state = st
	}
	s.r.SetState(st, why)
}

// connection makes one connection and follows it until it is lost. It always
// returns an error: why it came to nothing, or to an end.
func (s *stream) connection(ctx context.Context) error {
	src, err := s.resolve(ctx)
	if err != nil {
		s.metrics.ConnectFailures.Inc()
		return err
	}
	q := inbox.New(s.cfg.Queue, s.metrics.Dropped.Inc)
	end, err := s.sub.Subscribe(ctx, src.Events, q)
	if err != nil {
		s.metrics.ConnectFailures.Inc()
		return err
	}
	defer end()
	if err := s.await(ctx, q); err != nil {
		s.metrics.ConnectFailures.Inc()
		return err
	}
	s.src = src
	s.metrics.Connections.Inc()
	s.cur.connected()
	if err = s.catchUp(ctx); err == nil {
		err = s.follow(ctx, q)
	}
	s.lost = time.Now()
	if ctx.Err() == nil {
		s.metrics.Disconnects.Inc()
	}
	return err
}

// resolve finds out where to connect to. The engine's API may come up after its
// publisher, and endpoints rarely move: what it does not tell is as it was.
func (s *stream) resolve(ctx context.Context) (sources.Source, error) {
	src, err := s.resolver.Resolve(ctx, s.r.Config())
	if err != nil {
		if s.src.Events == "" {
			return sources.Source{}, err
		}
		src = s.src
	}
	if src.Replay == "" && src.Events == s.src.Events {
		src.Replay = s.src.Replay
	}
	return src, nil
}

// await waits for the connection to be up.
func (s *stream) await(ctx context.Context, q *inbox.Queue) error {
	down := time.NewTimer(time.Until(s.lost.Add(s.cfg.DownAfter)))
	defer down.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-down.C:
			s.unreachable("connecting takes longer than " + s.cfg.DownAfter.String())
		case <-q.Ready():
			n, ok := q.Pop()
			switch {
			case !ok:
			case n.Kind == inbox.Closed:
				return closedErr(n.Err)
			default:
				return nil // Connected is always the first
			}
		}
	}
}

func closedErr(err error) error {
	if err == nil {
		return errors.New("the connection was closed")
	}
	return err
}

// maxTake bounds the notices taken before other duties get their turn.
const maxTake = 256

// follow applies the live stream until the connection is lost.
func (s *stream) follow(ctx context.Context, q *inbox.Queue) error {
	s.probe, s.quiet = time.Now().Add(settleAfter), s.cfg.ProbeInterval
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		for more := true; more; {
			var err error
			if more, err = s.drain(ctx, q); err != nil {
				return err
			}
			if !time.Now().Before(s.nextTick()) {
				s.tick(ctx)
			}
		}
		timer.Reset(time.Until(s.nextTick()))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case <-q.Ready():
		}
	}
}

// drain takes what waits in the queue; it reports whether there may be more. An
// error ends the connection.
func (s *stream) drain(ctx context.Context, q *inbox.Queue) (more bool, err error) {
	for range maxTake {
		n, ok := q.Pop()
		switch {
		case ctx.Err() != nil:
			return false, ctx.Err()
		case !ok:
			return false, nil
		case n.Kind == inbox.Closed:
			return false, closedErr(n.Err)
		}
		if err := s.take(ctx, n); err != nil {
			return false, err
		}
	}
	return true, nil
}

func (s *stream) nextTick() time.Time {
	if s.rebuild.cause != "" && s.rebuild.at.Before(s.probe) {
		return s.rebuild.at
	}
	return s.probe
}

// take handles one notice of an open connection. An error ends the connection.
func (s *stream) take(ctx context.Context, n inbox.Notice) error {
	switch n.Kind {
	case inbox.Message:
		return s.receive(ctx, n.Frames)
	case inbox.Overrun:
		s.fetchTail(ctx)
	case inbox.Connected, inbox.Closed:
	}
	return nil
}

// receive takes one live message. A bad one never ends the stream.
func (s *stream) receive(ctx context.Context, frames [][]byte) error {
	m, err := kvevents.ParseMessage(frames)
	if err != nil {
		s.metrics.Rejected.WithLabelValues(rejectedFrame).Inc()
		s.log.DebugContext(ctx, "message rejected", "err", err)
		return nil
	}
	if want := s.r.Config().Topic; want != "" && m.Topic != want {
		s.metrics.Rejected.WithLabelValues(rejectedTopic).Inc()
		s.setState(s.state, fmt.Sprintf("messages come under topic %q, expected %q", m.Topic, want))
		return nil
	}
	if err := s.serveTopic(m.Topic); err != nil {
		return err
	}
	s.probe = time.Now().Add(s.quiet)
	s.live(ctx, m)
	return nil
}

// errNoModel ends a connection: keys cannot be made without the model's name, and
// the engine's API may tell it next time.
var errNoModel = errors.New("the model is not known: neither the topic nor the engine's /v1/models names it; set model= for this replica")

// serveTopic makes sure that the set is for the model that a message's topic
// names, unless one is configured.
func (s *stream) serveTopic(topic string) error {
	model := s.r.Config().Model
	if t, ok := kvevents.ParseTopic(topic); model == "" && ok {
		model = t.Model
	}
	if model != "" {
		s.serve(model)
	}
	if _, has := s.r.Serves(); !has {
		return errNoModel
	}
	return nil
}

// serve makes sure that the set is for model.
func (s *stream) serve(model string) {
	switch known, has := s.r.Serves(); {
	case !has:
		s.renew(causeStart, model)
	case known != model:
		s.renew(causeModel, model)
	}
}

// renewSame is renew for the model that is served already.
func (s *stream) renewSame(cause string) {
	model, _ := s.r.Serves()
	s.renew(cause, model)
}

// renew drops the set and starts a new generation, for model.
func (s *stream) renew(cause, model string) {
	gen := s.r.Renew(model)
	s.cur.renewed()
	s.contradicted = false
	s.rebuild.cause = "" // it was for the set that is gone
	s.metrics.Generations.WithLabelValues(cause).Inc()
	s.log.Info("new generation", "cause", cause, "generation", gen.Counter, "model", model)
}
