//go:build cgo

package zmqsock

import (
	"context"
	"errors"
	"fmt"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// askStep is how long a wait for a reply blocks before the context is looked at.
const askStep = 100 * time.Millisecond

// Ask asks an engine's replay socket for every batch from start on, and calls
// each for each one as it comes, in the order of arrival: replay sockets lose
// messages without a word, so what each gets may have holes. It ends with nil at
// the end mark or when each returns false, and with an error when ctx ends, the
// socket fails, or nothing comes for the idle timeout. A reply that does not
// parse is passed to bad and skipped.
//
// It uses a socket of its own, and blocks an OS thread while it waits: the
// caller bounds how many run at once.
func (c *Client) Ask(ctx context.Context, endpoint string, start uint64, each func(kvevents.Message) bool, bad func(error)) error {
	if !c.enter() {
		return ErrStopped
	}
	defer c.asks.Done()

	rctx, cancel := context.WithTimeout(ctx, c.cfg.ConnectTimeout)
	addr, err := resolve(rctx, endpoint)
	cancel()
	if err != nil {
		return err
	}
	sock, err := c.zctx.NewSocket(zmq.DEALER)
	if err != nil {
		return fmt.Errorf("create replay socket: %w", err)
	}
	defer sock.Close()
	err = errors.Join(c.options(sock, addr),
		sock.SetRcvhwm(0), // the engine's side drops what does not fit into the pipe
		sock.SetRcvtimeo(askStep),
		sock.SetSndtimeo(askStep),
		sock.Connect(addr))
	if err != nil {
		return fmt.Errorf("connect to replay socket %s: %w", addr, err)
	}
	if _, err := sock.SendMessage(kvevents.ReplayRequest(start)); err != nil {
		return fmt.Errorf("ask replay socket %s: %w", addr, err)
	}
	return c.replies(ctx, sock, addr, each, bad)
}

func (c *Client) replies(ctx context.Context, sock *zmq.Socket, addr string, each func(kvevents.Message) bool, bad func(error)) error {
	deadline := time.Now().Add(c.cfg.ReplayIdleTimeout)
	for {
		frames, err := sock.RecvMessageBytes(0)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case isAgain(err):
			if time.Now().After(deadline) {
				return fmt.Errorf("%w: %s was silent for %v", ErrReplayTimeout, addr, c.cfg.ReplayIdleTimeout)
			}
			continue
		case err != nil:
			return fmt.Errorf("receive from replay socket %s: %w", addr, err)
		}
		deadline = time.Now().Add(c.cfg.ReplayIdleTimeout)
		msg, end, err := kvevents.ParseReply(frames)
		switch {
		case err != nil:
			bad(err)
		case end || !each(msg):
			return nil
		}
	}
}

// enter registers a question, unless the client is stopping.
func (c *Client) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return false
	}
	c.asks.Add(1)
	return true
}
