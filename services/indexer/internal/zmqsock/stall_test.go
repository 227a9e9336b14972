//go:build cgo

package zmqsock

import (
	"context"
	"sync"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/prefixroute/prefixroute/services/indexer/internal/inbox"
)

// TestStalledPollerKeepsItsConnections stops the poller for several heartbeat
// timeouts while messages pour in, as a process that was suspended has it. With a
// high-water mark libzmq 4.3.4 stops reading there, misses the heartbeats'
// answers and drops the connection in the middle of a message; the next receive
// then aborts the process (libzmq #4767).
func TestStalledPollerKeepsItsConnections(t *testing.T) {
	t.Parallel()

	const messages = 30_000
	c, err := New(Config{
		HeartbeatInterval: 50 * time.Millisecond, HeartbeatTimeout: 100 * time.Millisecond,
		ConnectTimeout: 5 * time.Second, ReplayIdleTimeout: time.Second, MaxMessageBytes: 1 << 20, MaxSockets: 100,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })

	pub, endpoint := publisher(t)
	q := inbox.New(inbox.Limits{Messages: messages, Bytes: 1 << 30}, func() { t.Error("a message was dropped") })
	end, err := c.Subscribe(ctx, endpoint, q)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	if _, err := pub.RecvBytes(0); err != nil { // the subscription
		t.Fatal(err)
	}
	if !c.do(func() { <-time.After(600 * time.Millisecond) }) {
		t.Fatal("the client is stopping")
	}
	for range messages {
		if _, err := pub.SendMessage("topic", "12345678", "a payload of some length, as an event batch has it"); err != nil {
			t.Fatal(err)
		}
	}

	deadline := time.After(20 * time.Second)
	for got := 0; got < messages; {
		n, ok := q.Pop()
		switch {
		case !ok:
			select {
			case <-q.Ready():
			case <-deadline:
				t.Fatalf("%d of %d messages came", got, messages)
			}
		case n.Kind == inbox.Closed:
			t.Fatalf("the connection was lost after %d messages: %v", got, n.Err)
		case n.Kind == inbox.Message:
			got++
		}
	}
}

// publisher is a socket that never drops.
func publisher(t *testing.T) (pub *zmq.Socket, endpoint string) {
	t.Helper()
	pub, err := zmq.NewSocket(zmq.XPUB)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pub.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, err := range []error{pub.SetSndhwm(0), pub.SetLinger(0), pub.SetRcvtimeo(10 * time.Second), pub.Bind("tcp://127.0.0.1:*")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	endpoint, err = pub.GetLastEndpoint()
	if err != nil {
		t.Fatal(err)
	}
	return pub, endpoint
}
