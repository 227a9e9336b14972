// Package publish sends an engine's events to whoever listens: live, as a ZMQ
// PUB, and from a buffer on request, as a ZMQ ROUTER.
//
// # Model
//
// Every batch gets the next sequence number, from 0. It is encoded, sent and put
// into the replay buffer, which holds the last batches and forgets the oldest. A
// subscriber that is too slow loses live batches and sees that only in the
// numbers; it can ask the replay socket for all batches from one on.
//
// # Concurrency
//
// [Publisher.Publish] puts batches into a bounded queue and blocks while that is
// full. Run owns the sockets and the buffer. A replay is written in pieces
// between live batches, as fast as its reader takes it.
package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

const (
	// MaxQueue is how many batches wait for the sockets before the engine has to.
	MaxQueue = 10_000
	// HWM is how many messages ZMQ keeps for a subscriber that is slow, before it
	// drops.
	HWM = 100_000

	// pollInterval is how often the replay socket is looked at while nothing else
	// happens: the delay of a replay's first message.
	pollInterval = 5 * time.Millisecond
	// drainTime is how long a clean stop waits for ZMQ to hand over what was sent.
	drainTime = 500 * time.Millisecond
)

// Config is what a publisher needs to know.
type Config struct {
	// Endpoint is bound if it contains '*' or "::" or has port 0, as vLLM does,
	// or if it is an ipc or inproc one; otherwise it is connected to.
	Endpoint string
	// Replay is always bound; empty for no replay socket.
	Replay string
	Topic  string
	// BufferSteps is how many batches can be replayed.
	BufferSteps int
	Encoding    kvevents.Encoding
	Layout      kvevents.Layout // of replays
	Metrics     *Metrics
	Log         *slog.Logger
}

// sockets are the two sockets as Run needs them. No call blocks.
type sockets interface {
	send(frames [][]byte) error
	// request returns the next replay request; ok is false if there is none.
	request() (frames [][]byte, ok bool, err error)
	// reply sends to the peer that the first frame names. It returns errBusy if
	// the peer has to read first and errGone if it isn't there any more.
	reply(frames [][]byte) error
	close(drain time.Duration) error
}

var (
	errBusy = errors.New("peer is slow")
	errGone = errors.New("peer is gone")
)

// A Publisher publishes the batches of one engine. Call [New].
type Publisher struct {
	cfg      Config
	sockets  sockets
	endpoint string
	replay   string
	queue    chan batch

	next   uint64 // owned by the caller of Publish
	faults faults

	// owned by Run

	buffer   buffer
	sessions []*session
}

// A batch is on its way from the engine to the sockets.
type batch struct {
	seq    uint64
	events kvevents.Batch
	fate   fate
}

// New opens the sockets; Run must be called to use and close them, or Close. It
// fails if an address is taken.
func New(cfg Config) (*Publisher, error) {
	s, endpoint, replay, err := open(cfg)
	if err != nil {
		return nil, err
	}
	return &Publisher{
		cfg:      cfg,
		sockets:  s,
		endpoint: endpoint,
		replay:   replay,
		queue:    make(chan batch, MaxQueue),
		buffer:   newBuffer(cfg.BufferSteps),
	}, nil
}

// Endpoint is the address of the live stream with its real port; a wildcard host
// stays one.
func (p *Publisher) Endpoint() string { return p.endpoint }

// ReplayEndpoint is that of the replay socket, "" without one.
func (p *Publisher) ReplayEndpoint() string { return p.replay }

// Topic is what messages are published under.
func (p *Publisher) Topic() string { return p.cfg.Topic }

// Publish queues events as the next batch and returns its sequence number. It
// must not be called by two goroutines at once. While the queue is full it
// blocks; the error is that of ctx, and the number is not used up then.
func (p *Publisher) Publish(ctx context.Context, events []kvevents.Event) (seq uint64, err error) {
	var rank int64
	b := batch{
		seq: p.next,
		events: kvevents.Batch{
			Time:   float64(time.Now().UnixMicro()) / 1e6,
			Events: events,
			Rank:   &rank,
		},
		fate: p.faults.next(),
	}
	select {
	case p.queue <- b:
		p.next++
		return b.seq, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// Run sends batches and answers replay requests until ctx ends, then sends what
// is still queued and closes the sockets.
func (p *Publisher) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, p.sockets.close(drainTime)) }()
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for {
		// While a replay has more to write, look at the queue and go on.
		idle := poll.C
		if p.writing() {
			idle = ready
		}
		select {
		case <-ctx.Done():
			return p.flush()
		case b := <-p.queue:
			if err := p.send(b); err != nil {
				return err
			}
		case <-idle:
		}
		if err := p.serveReplays(); err != nil {
			return err
		}
	}
}

// Close closes the sockets of a publisher whose Run is never called.
func (p *Publisher) Close() error { return p.sockets.close(0) }

// ready is always ready to receive from.
var ready = func() <-chan time.Time {
	c := make(chan time.Time)
	close(c)
	return c
}()

// flush sends what is queued now.
func (p *Publisher) flush() error {
	for range len(p.queue) {
		if err := p.send(<-p.queue); err != nil {
			return err
		}
	}
	return nil
}

// send encodes one batch and lets it go its way.
func (p *Publisher) send(b batch) error {
	payload, err := p.cfg.Encoding.Encode(b.events)
	if err != nil {
		// The number is gone for good, as in vLLM; subscribers see a gap.
		p.cfg.Metrics.batches[outcomeUnencodable].Inc()
		p.cfg.Log.Error("batch not encoded", "seq", b.seq, "err", err)
		return nil
	}
	m := kvevents.Message{Topic: p.cfg.Topic, Seq: b.seq, Payload: payload}
	if b.fate != lostForever {
		p.buffer.add(m)
	}
	if b.fate != sent {
		p.cfg.Metrics.batches[outcomeDropped].Inc()
		return nil
	}
	if err := p.sockets.send(m.Frames()); err != nil {
		return fmt.Errorf("publish batch %d: %w", b.seq, err)
	}
	p.cfg.Metrics.batches[outcomeSent].Inc()
	return nil
}
