package follow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prefixroute/prefixroute/pkg/kvevents"
	"github.com/prefixroute/prefixroute/services/indexer/internal/belief"
)

// Asker asks a replay socket for the batches from start on and passes them on as
// they come; see zmqsock.Client.Ask.
type Asker interface {
	Ask(ctx context.Context, endpoint string, start uint64, each func(kvevents.Message) bool, bad func(error)) error
}

// askTimeout bounds one question to a replay socket as a whole, however slowly
// the answer drips.
const askTimeout = 2 * time.Minute

// The two reasons for which a replay socket's history is not the continuation of
// ours. For the set they mean the same.
var (
	// errChanged: it has another batch under our number, so it is another
	// engine process.
	errChanged = errors.New("another engine process answers")
	// errForgotten: it does not have our batch. A restarted engine that has
	// published less, or a buffer that has moved past it.
	errForgotten = errors.New("the engine does not remember our last batch")
)

func broken(err error) bool { return errors.Is(err, errChanged) || errors.Is(err, errForgotten) }

// history is what a replay socket gave.
type history struct {
	// batches are ascending by number. A jump in the numbers is a hole that the
	// publisher could not fill.
	batches []kvevents.Message
	// proved: the engine has shown the batch that was asked from, or it was
	// asked from the start.
	proved bool
	// more: there is more than was allowed to be read at once; apply these and
	// ask again.
	more bool
}

// historian asks for history until it is whole.
//
// Replay sockets lose messages without saying so, and always answer from the
// oldest batch that they still have. So every answer is checked for holes, and
// the next question starts at the last batch that was got without one: at it,
// not after it, because the same payload under the same number is the only proof
// that the same engine process answers.
type historian struct {
	asker    Asker
	slots    chan struct{} // bounds the questions of the whole process
	attempts int           // in a row without progress
	maxBytes int           // of payload kept at once
	metrics  *Metrics
}

// since returns the batches after pos, or all there are if pos is not known. The
// error is errChanged or errForgotten if the history is not the continuation of
// pos, else that of the last question if attempts of them in a row brought
// nothing; what was got before is returned with it.
func (h *historian) since(ctx context.Context, endpoint string, pos belief.Position) (history, error) {
	g := gatherer{last: pos, maxBytes: h.maxBytes, everProved: !pos.Known}
	for failures := 0; ; {
		got := len(g.batches)
		err := h.ask(ctx, endpoint, &g, failures == h.attempts-1)
		if broken(err) || ctx.Err() != nil || g.full || err == nil && !g.holed {
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			return history{batches: g.batches, proved: g.everProved, more: g.full}, err
		}
		failures++
		if len(g.batches) > got {
			failures = 0
		}
		if failures >= h.attempts {
			err = fmt.Errorf("replay is not whole after %d attempts: %w", h.attempts, err)
			return history{batches: g.batches, proved: g.everProved}, err
		}
	}
}

// ask puts one question. With insist, holes are taken as they are.
func (h *historian) ask(ctx context.Context, endpoint string, g *gatherer, insist bool) error {
	select {
	case h.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-h.slots }()

	g.begin(insist)
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	err := h.asker.Ask(ctx, endpoint, g.start(), g.take, func(error) { h.metrics.Rejected.WithLabelValues(rejectedReply).Inc() })
	if err == nil {
		err = g.end()
	}
	h.metrics.Replays.WithLabelValues(replayResult(err, g.holed)).Inc()
	return err
}

// gatherer joins the answers to several questions.
type gatherer struct {
	maxBytes   int
	batches    []kvevents.Message
	bytes      int
	last       belief.Position // newest batch without a hole before it
	everProved bool            // some answer had the batch that was asked from

	// Of the present answer:
	insist bool
	proved bool  // the batch at last came again, the same
	holed  bool  // a hole came, and the rest is left aside
	full   bool  // maxBytes are kept
	broken error // errChanged or errForgotten, once it is sure
}

func (g *gatherer) begin(insist bool) {
	g.insist, g.proved, g.holed, g.full, g.broken = insist, !g.last.Known, false, false, nil
}

func (g *gatherer) start() uint64 { return g.last.Seq } // 0 while not known

// take takes one batch in the order of arrival. It returns false to stop the
// answer.
func (g *gatherer) take(m kvevents.Message) bool {
	b := position(m)
	switch {
	case !g.proved:
		return g.prove(b)
	case g.last.Known && b.Seq <= g.last.Seq:
		return true // sent twice
	case g.last.Known && b.Seq != g.last.Seq+1 && !g.insist:
		g.holed = true
		return false
	}
	g.batches = append(g.batches, m)
	g.bytes += len(m.Payload)
	g.last = b
	g.full = g.bytes >= g.maxBytes
	return !g.full
}

// prove compares the first batch of an answer with the one that was asked from.
func (g *gatherer) prove(b belief.Position) bool {
	switch {
	case b == g.last:
		g.proved, g.everProved = true, true
		return true
	case b.Seq == g.last.Seq:
		g.broken = errChanged
	default:
		g.broken = errForgotten
	}
	return false
}

// end is called when the answer has ended without an error.
func (g *gatherer) end() error {
	if g.broken == nil && !g.proved {
		return errForgotten // the end mark alone
	}
	return g.broken
}

func position(m kvevents.Message) belief.Position {
	return belief.Position{Known: true, Seq: m.Seq, Digest: belief.Digest(m.Payload)}
}
