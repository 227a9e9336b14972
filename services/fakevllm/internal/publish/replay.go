package publish

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

const (
	// burst is how many replies are written before the live queue has its turn.
	burst = 128
	// maxSessions is how many replays run at once; further requests get no
	// answer, and their senders try again.
	maxSessions = 64
	// patience is how long a peer may not read before its replay is given up.
	patience = 30 * time.Second
)

// A session is one replay in progress.
type session struct {
	peer []byte // the ROUTER's name for the reader
	// replies are what is left to send; the messages are those of the moment
	// when the request came.
	replies []kvevents.Message
	blocked bool // the peer has to read before more can be written
	last    time.Time
}

// writing reports whether a replay could go on without waiting for its reader.
func (p *Publisher) writing() bool {
	return slices.ContainsFunc(p.sessions, func(s *session) bool { return !s.blocked })
}

// serveReplays takes in requests and writes a piece of each replay.
func (p *Publisher) serveReplays() error {
	if p.replay == "" {
		return nil
	}
	for {
		frames, ok, err := p.sockets.request()
		if err != nil {
			return fmt.Errorf("receive replay request: %w", err)
		}
		if !ok {
			break
		}
		// What was published before the request is part of its answer.
		if err := p.flush(); err != nil {
			return err
		}
		p.open(frames)
	}
	var failed error
	p.sessions = slices.DeleteFunc(p.sessions, func(s *session) bool {
		over, err := p.write(s)
		failed = errors.Join(failed, err)
		return over
	})
	return failed
}

// open starts a replay.
func (p *Publisher) open(frames [][]byte) {
	m := p.cfg.Metrics
	peer, start, err := kvevents.ParseReplayRequest(frames)
	switch {
	case err != nil:
		m.replays[replayMalformed].Inc() // vLLM sends no answer either
	case len(p.sessions) >= maxSessions:
		m.replays[replayRefused].Inc()
	default:
		p.sessions = append(p.sessions, &session{peer: peer, replies: p.buffer.since(start), last: time.Now()})
	}
}

// write sends at most a burst of what is left and reports whether the session
// is over.
func (p *Publisher) write(s *session) (over bool, err error) {
	m := p.cfg.Metrics
	for range burst {
		frames := p.cfg.Layout.End()
		if len(s.replies) > 0 {
			frames = p.cfg.Layout.Reply(s.replies[0])
		}
		err := p.sockets.reply(append([][]byte{s.peer}, frames...))
		switch {
		case errors.Is(err, errBusy):
			s.blocked = true
			if time.Since(s.last) < patience {
				return false, nil
			}
			m.replays[replayAbandoned].Inc()
			return true, nil
		case errors.Is(err, errGone):
			m.replays[replayAbandoned].Inc()
			return true, nil
		case err != nil:
			return true, fmt.Errorf("send replay: %w", err)
		case len(s.replies) == 0:
			m.replays[replayComplete].Inc()
			return true, nil
		}
		s.replies = s.replies[1:]
		s.blocked, s.last = false, time.Now()
	}
	return false, nil
}
