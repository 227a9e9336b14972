//go:build cgo

package enginetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// Options say what kind of engine to start. The zero value publishes under the
// topic "", with a replay socket of the newest layout, on free ports.
type Options struct {
	Topic  string
	Layout kvevents.Layout
	// Events and Replay are the endpoints to bind; empty takes free ports. A
	// restarted engine gets those of the one before.
	Events, Replay string
	// NoReplay starts without a replay socket.
	NoReplay bool
	// Form of the events; the zero value is the array form.
	Encoding kvevents.Encoding
}

// Engine is one process of an engine. All methods are safe for concurrent use
// and block until the publisher has done what they say.
type Engine struct {
	// Events and Replay are the endpoints that it bound; Replay is empty if
	// there is none.
	Events, Replay string

	t    testing.TB
	opts Options
	do   chan func()
	done chan struct{}
	stop sync.Once

	// Owned by run.
	zctx        *zmq.Context
	pub, router *zmq.Socket
	seq         uint64
	clock       float64
	buffer      []kvevents.Message
	subscribers int
	asked       []uint64
	skip        func(ask int, seq uint64) bool
	canned      [][][]byte // answers every replay, if not nil
}

// Start starts an engine that stops, at the latest, with the test.
func Start(t testing.TB, opts Options) *Engine {
	t.Helper()
	e := &Engine{t: t, opts: opts, do: make(chan func()), done: make(chan struct{})}
	var err error
	if e.zctx, err = zmq.NewContext(); err != nil {
		t.Fatal(err)
	}
	// An XPUB is a PUB that tells of its subscribers.
	e.pub, e.Events = e.bind(zmq.XPUB, opts.Events)
	if !opts.NoReplay {
		e.router, e.Replay = e.bind(zmq.ROUTER, opts.Replay)
	}
	// The clock of a new process is another, so no two payloads are equal.
	e.clock = float64(time.Now().UnixNano()) / 1e9
	go e.run()
	t.Cleanup(e.Stop)
	return e
}

// Restart stops e and starts another process on the same endpoints.
func (e *Engine) Restart() *Engine {
	e.t.Helper()
	return e.RestartAs(e.opts)
}

// RestartAs is Restart with other options.
func (e *Engine) RestartAs(opts Options) *Engine {
	e.t.Helper()
	e.Stop()
	opts.Events, opts.Replay = e.Events, e.Replay
	return Start(e.t, opts)
}

func (e *Engine) bind(kind zmq.Type, endpoint string) (*zmq.Socket, string) {
	e.t.Helper()
	sock, err := e.zctx.NewSocket(kind)
	if err != nil {
		e.t.Fatal(err)
	}
	if endpoint == "" {
		endpoint = "tcp://127.0.0.1:*"
	}
	err = errors.Join(sock.SetLinger(0), sock.SetSndhwm(0))
	if kind == zmq.XPUB {
		err = errors.Join(err, sock.SetXpubVerboser(1)) // tells of each subscriber, not only of the first
	}
	for deadline := time.Now().Add(5 * time.Second); err == nil; {
		if err = sock.Bind(endpoint); err == nil {
			break
		}
		if time.Now().After(deadline) {
			err = fmt.Errorf("bind %s: %w", endpoint, err)
			break
		}
		err = nil // the port of the process before is on its way
		<-time.After(5 * time.Millisecond)
	}
	if err != nil {
		e.t.Fatal(err)
	}
	bound, err := sock.GetLastEndpoint()
	if err != nil {
		e.t.Fatal(err)
	}
	return sock, bound
}

// Stop ends the process as kill -9 does.
func (e *Engine) Stop() {
	e.stop.Do(func() {
		close(e.do)
		<-e.done
	})
}

func (e *Engine) run() {
	defer close(e.done)
	defer func() {
		_ = e.pub.Close()
		if e.router != nil {
			_ = e.router.Close()
		}
		_ = e.zctx.Term()
	}()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case f, ok := <-e.do:
			if !ok {
				return
			}
			f()
		case <-tick.C:
		}
		e.subscriptions()
		e.replies()
	}
}

func (e *Engine) subscriptions() {
	for {
		b, err := e.pub.RecvBytes(zmq.DONTWAIT)
		if err != nil {
			return
		}
		if len(b) > 0 && b[0] == 1 {
			e.subscribers++
		} else {
			e.subscribers--
		}
	}
}

func (e *Engine) replies() {
	for e.router != nil {
		frames, err := e.router.RecvMessageBytes(zmq.DONTWAIT)
		if err != nil {
			return
		}
		id, start, err := kvevents.ParseReplayRequest(frames)
		if err != nil {
			continue
		}
		e.asked = append(e.asked, start)
		for _, reply := range e.canned {
			_, _ = e.router.SendMessage(id, reply)
		}
		if e.canned != nil {
			continue
		}
		for _, m := range e.buffer {
			if m.Seq >= start && (e.skip == nil || !e.skip(len(e.asked), m.Seq)) {
				_, _ = e.router.SendMessage(id, e.opts.Layout.Reply(m))
			}
		}
		_, _ = e.router.SendMessage(id, e.opts.Layout.End())
	}
}

// call runs f in the publisher and waits for it.
func (e *Engine) call(f func()) {
	e.t.Helper()
	ran := make(chan struct{})
	select {
	case e.do <- func() { f(); close(ran) }:
		<-ran
	case <-e.done:
		e.t.Error("the engine has been stopped")
	}
}

func (e *Engine) encode(events []kvevents.Event) []byte {
	e.clock++
	rank := int64(0)
	payload, err := e.opts.Encoding.Encode(kvevents.Batch{Time: e.clock, Events: events, Rank: &rank})
	if err != nil {
		e.t.Errorf("encode batch: %v", err)
	}
	return payload
}

// fate says what becomes of a batch.
type fate struct{ live, kept bool }

func (e *Engine) publish(f fate, payload func() []byte) (seq uint64) {
	e.t.Helper()
	e.call(func() {
		m := kvevents.Message{Topic: e.opts.Topic, Seq: e.seq, Payload: payload()}
		seq = e.seq
		e.seq++
		if f.live {
			_, _ = e.pub.SendMessage(m.Frames())
		}
		if f.kept {
			e.buffer = append(e.buffer, m)
		}
	})
	return seq
}

// Publish sends one batch and keeps it for replays.
func (e *Engine) Publish(events ...kvevents.Event) uint64 {
	e.t.Helper()
	return e.publish(fate{live: true, kept: true}, func() []byte { return e.encode(events) })
}

// PublishPayload is Publish for bytes that need not be a batch.
func (e *Engine) PublishPayload(payload []byte) uint64 {
	e.t.Helper()
	return e.publish(fate{live: true, kept: true}, func() []byte { return payload })
}

// Lose is a batch that no subscriber gets, but replays have.
func (e *Engine) Lose(events ...kvevents.Event) uint64 {
	e.t.Helper()
	return e.publish(fate{kept: true}, func() []byte { return e.encode(events) })
}

// LoseForever is a batch that replays lack as well.
func (e *Engine) LoseForever(events ...kvevents.Event) uint64 {
	e.t.Helper()
	return e.publish(fate{}, func() []byte { return e.encode(events) })
}

// Send publishes frames as they are, outside the sequence.
func (e *Engine) Send(frames ...[]byte) {
	e.t.Helper()
	e.call(func() { _, _ = e.pub.SendMessage(frames) })
}

// PublishAt is Publish under a number of choice, from where the numbers go on.
func (e *Engine) PublishAt(seq uint64, events ...kvevents.Event) {
	e.t.Helper()
	e.SkipTo(seq)
	e.Publish(events...)
}

// Repeat publishes the batch with the number seq again.
func (e *Engine) Repeat(seq uint64) {
	e.t.Helper()
	e.call(func() {
		i := slices.IndexFunc(e.buffer, func(m kvevents.Message) bool { return m.Seq == seq })
		_, _ = e.pub.SendMessage(e.buffer[i].Frames())
	})
}

// RepeatAny publishes a batch of the replay buffer again, if there is one; pick
// chooses among so many.
func (e *Engine) RepeatAny(pick func(n int) int) {
	e.t.Helper()
	e.call(func() {
		if len(e.buffer) > 0 {
			_, _ = e.pub.SendMessage(e.buffer[pick(len(e.buffer))].Frames())
		}
	})
}

// Forget empties the replay buffer up to but without seq.
func (e *Engine) Forget(seq uint64) {
	e.t.Helper()
	e.call(func() {
		e.buffer = slices.DeleteFunc(e.buffer, func(m kvevents.Message) bool { return m.Seq < seq })
	})
}

// SkipTo makes seq the number of the next batch.
func (e *Engine) SkipTo(seq uint64) {
	e.t.Helper()
	e.call(func() { e.seq = seq })
}

// DropReplies makes the replay socket leave out batches: skip is told the how
// manieth request it is, from 1, and the batch's number.
func (e *Engine) DropReplies(skip func(ask int, seq uint64) bool) {
	e.t.Helper()
	e.call(func() { e.skip = skip })
}

// AnswerWith makes the replay socket answer with these frames, whatever is asked.
func (e *Engine) AnswerWith(replies ...[][]byte) {
	e.t.Helper()
	e.call(func() { e.canned = replies })
}

// Asked lists the starts of the replays asked so far.
func (e *Engine) Asked() (starts []uint64) {
	e.t.Helper()
	e.call(func() { starts = slices.Clone(e.asked) })
	return starts
}

// AwaitSubscribers waits until n subscribers are there.
func (e *Engine) AwaitSubscribers(n int) {
	e.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		got := 0
		e.call(func() { got = e.subscribers })
		if got == n {
			return
		}
		if time.Now().After(deadline) {
			e.t.Fatalf("the engine has %d subscribers, want %d", got, n)
		}
		<-time.After(time.Millisecond)
	}
}
