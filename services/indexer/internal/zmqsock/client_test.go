//go:build cgo

package zmqsock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/prefixroute/prefixroute/pkg/kvevents"
	"github.com/prefixroute/prefixroute/services/indexer/internal/enginetest"
	"github.com/prefixroute/prefixroute/services/indexer/internal/inbox"
	"github.com/prefixroute/prefixroute/services/indexer/internal/zmqsock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func config() zmqsock.Config {
	return zmqsock.Config{
		HeartbeatInterval: 50 * time.Millisecond,
		HeartbeatTimeout:  500 * time.Millisecond,
		ConnectTimeout:    2 * time.Second,
		ReplayIdleTimeout: 400 * time.Millisecond,
		MaxMessageBytes:   1 << 20,
		MaxSockets:        1000,
	}
}

func start(t *testing.T, cfg zmqsock.Config) *zmqsock.Client {
	t.Helper()
	c, err := zmqsock.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return c
}

func subscribe(t *testing.T, c *zmqsock.Client, endpoint string) (*inbox.Queue, func()) {
	t.Helper()
	q := inbox.New(inbox.Limits{Messages: 1000, Bytes: 1 << 24}, func() { t.Error("a message was dropped") })
	end, err := c.Subscribe(t.Context(), endpoint, q)
	if err != nil {
		t.Fatal(err)
	}
	return q, end
}

// next waits for the next notice.
func next(t *testing.T, q *inbox.Queue) inbox.Notice {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		if n, ok := q.Pop(); ok {
			return n
		}
		select {
		case <-q.Ready():
		case <-deadline:
			t.Fatal("no notice within 10 s")
		}
	}
}

func wantKind(t *testing.T, q *inbox.Queue, want inbox.Kind) inbox.Notice {
	t.Helper()
	n := next(t, q)
	if n.Kind != want {
		t.Fatalf("notice is of kind %v (err %v), want %v", n.Kind, n.Err, want)
	}
	return n
}

func TestSubscriptionEndsWithItsConnection(t *testing.T) {
	t.Parallel()

	c := start(t, config())
	e := enginetest.Start(t, enginetest.Options{Topic: "t"})
	q, _ := subscribe(t, c, e.Events)
	wantKind(t, q, inbox.Connected)
	e.AwaitSubscribers(1)
	e.Publish(&kvevents.AllBlocksCleared{})
	if n := wantKind(t, q, inbox.Message); len(n.Frames) != 3 || string(n.Frames[0]) != "t" {
		t.Errorf("message has frames %q, want topic, sequence number and payload", n.Frames)
	}

	e = e.Restart()
	if n := wantKind(t, q, inbox.Closed); n.Err == nil {
		t.Error("the loss of the connection came without a reason")
	}
	e.Publish(&kvevents.AllBlocksCleared{})
	// A new subscription is a new connection; the old one has not come back.
	q2, _ := subscribe(t, c, e.Events)
	wantKind(t, q2, inbox.Connected)
	e.AwaitSubscribers(1)
	e.Publish(&kvevents.AllBlocksCleared{})
	wantKind(t, q2, inbox.Message)
	if n, ok := q.Pop(); ok {
		t.Errorf("the old subscription got %v after its end", n.Kind)
	}
}

func TestSubscribeFailures(t *testing.T) {
	t.Parallel()

	cfg := config()
	cfg.ConnectTimeout = 300 * time.Millisecond
	c := start(t, cfg)
	mute, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never says a word
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	for _, endpoint := range []string{
		"tcp://127.0.0.1:1",
		"tcp://" + mute.Addr().String(),
		"ipc://" + t.TempDir() + "/nobody",
		"pigeon://coop",
	} {
		q, _ := subscribe(t, c, endpoint)
		if n := wantKind(t, q, inbox.Closed); n.Err == nil || !strings.Contains(n.Err.Error(), strings.TrimPrefix(endpoint, "tcp://")) {
			t.Errorf("subscription to %s ended with %v, want an error that names it", endpoint, n.Err)
		}
	}
	for _, endpoint := range []string{"tcp://no-port", "tcp://nobody.invalid:5557"} {
		q := inbox.New(inbox.Limits{Messages: 1, Bytes: 1}, nil)
		if _, err := c.Subscribe(t.Context(), endpoint, q); err == nil || !strings.Contains(err.Error(), endpoint) {
			t.Errorf("Subscribe(%s) = %v, want an error that names it", endpoint, err)
		}
	}
}

func TestHalfOpenConnectionIsSeen(t *testing.T) {
	t.Parallel()

	c := start(t, config())
	e := enginetest.Start(t, enginetest.Options{})
	proxy := newProxy(t, strings.TrimPrefix(e.Events, "tcp://"))
	q, _ := subscribe(t, c, "tcp://"+proxy.addr())
	wantKind(t, q, inbox.Connected)
	proxy.freeze() // packets vanish, nobody closes anything
	frozen := time.Now()
	wantKind(t, q, inbox.Closed)
	if took := time.Since(frozen); took > 5*time.Second {
		t.Errorf("the half-open connection was seen after %v", took)
	}
}

func TestEndClosesTheSubscription(t *testing.T) {
	t.Parallel()

	c := start(t, config())
	e := enginetest.Start(t, enginetest.Options{})
	q, end := subscribe(t, c, e.Events)
	wantKind(t, q, inbox.Connected)
	e.AwaitSubscribers(1)
	end()
	wantKind(t, q, inbox.Closed)
	e.AwaitSubscribers(0)
}

// TestSocketsComeAndGo is BB-043 and BB-044: replicas that come and go, also
// unreachable ones, leave no descriptor behind.
func TestSocketsComeAndGo(t *testing.T) {
	t.Parallel()

	c := start(t, config())
	e := enginetest.Start(t, enginetest.Options{})
	cycle := func(n int) {
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				endpoint := e.Events
				if i%2 == 0 {
					endpoint = "tcp://127.0.0.1:1"
				}
				q, end := subscribe(t, c, endpoint)
				end()
				for next(t, q).Kind != inbox.Closed {
				}
			})
		}
		wg.Wait()
		e.AwaitSubscribers(0)
	}
	cycle(20)
	before := descriptors(t)
	for range 20 {
		cycle(20)
	}
	deadline := time.Now().Add(10 * time.Second)
	for descriptors(t) > before+10 && time.Now().Before(deadline) {
		<-time.After(20 * time.Millisecond) // libzmq reaps sockets in a thread of its own
	}
	if after := descriptors(t); after > before+10 {
		t.Errorf("%d descriptors are open after 400 subscriptions, %d before", after, before)
	}
}

// TestManySubscriptions: they share a few threads.
func TestManySubscriptions(t *testing.T) {
	t.Parallel()

	const streams, messages = 300, 20
	c := start(t, config())
	e := enginetest.Start(t, enginetest.Options{})
	before := threads(t)
	queues := make([]*inbox.Queue, streams)
	for i := range queues {
		queues[i], _ = subscribe(t, c, e.Events)
	}
	e.AwaitSubscribers(streams)
	for range messages {
		e.Publish(&kvevents.AllBlocksCleared{})
	}
	for i, q := range queues {
		wantKind(t, q, inbox.Connected)
		for range messages {
			if n := wantKind(t, q, inbox.Message); len(n.Frames) != 3 {
				t.Fatalf("stream %d: message has %d frames", i, len(n.Frames))
			}
		}
	}
	if more := threads(t) - before; more > 20 {
		t.Errorf("%d subscriptions took %d threads", streams, more)
	}
}

func threads(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Skip("no /proc: threads cannot be counted")
	}
	return len(list)
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc: descriptors cannot be counted")
	}
	return len(list)
}

func ask(t *testing.T, c *zmqsock.Client, endpoint string, start uint64) (seqs []uint64, bad int, err error) {
	t.Helper()
	err = c.Ask(t.Context(), endpoint, start,
		func(m kvevents.Message) bool { seqs = append(seqs, m.Seq); return true },
		func(error) { bad++ })
	return seqs, bad, err
}

func TestAskBothLayouts(t *testing.T) {
	t.Parallel()

	c := start(t, config())
	for _, layout := range []kvevents.Layout{kvevents.LayoutTopic, kvevents.LayoutBare} {
		e := enginetest.Start(t, enginetest.Options{Layout: layout})
		for range 5 {
			e.Lose(&kvevents.AllBlocksCleared{})
		}
		got, bad, err := ask(t, c, e.Replay, 2)
		if err != nil || bad != 0 || fmt.Sprint(got) != "[2 3 4]" {
			t.Errorf("layout %v: asked from 2, got %v, %d bad replies, error %v; want 2, 3, 4", layout, got, bad, err)
		}
		if got, _, err := ask(t, c, e.Replay, 5); err != nil || len(got) != 0 {
			t.Errorf("layout %v: asked past the end, got %v, error %v; want nothing", layout, got, err)
		}
	}
}

func TestAskManyLosesNothing(t *testing.T) {
	t.Parallel()

	c := start(t, config())
	e := enginetest.Start(t, enginetest.Options{})
	const batches = 5000
	for range batches {
		e.Lose(&kvevents.AllBlocksCleared{})
	}
	got, _, err := ask(t, c, e.Replay, 0)
	if err != nil || len(got) != batches || got[batches-1] != batches-1 {
		t.Errorf("got %d batches, error %v; want %d", len(got), err, batches)
	}
}

func TestAskFailures(t *testing.T) {
	t.Parallel()

	c := start(t, config())
	if _, _, err := ask(t, c, "tcp://127.0.0.1:1", 0); !errors.Is(err, zmqsock.ErrReplayTimeout) {
		t.Errorf("asked nobody: error %v, want ErrReplayTimeout", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Ask(ctx, "tcp://127.0.0.1:1", 0, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("asked with a context that is over: error %v, want context.Canceled", err)
	}

	e := enginetest.Start(t, enginetest.Options{})
	e.Lose(&kvevents.AllBlocksCleared{})
	e.Lose(&kvevents.AllBlocksCleared{})
	n := 0
	if err := c.Ask(t.Context(), e.Replay, 0, func(kvevents.Message) bool { n++; return false }, nil); err != nil || n != 1 {
		t.Errorf("stopped after the first batch: got %d, error %v; want 1 and none", n, err)
	}
}

func TestTooLargeAMessageCostsTheConnection(t *testing.T) {
	t.Parallel()

	c := start(t, config())
	e := enginetest.Start(t, enginetest.Options{})
	q, _ := subscribe(t, c, e.Events)
	wantKind(t, q, inbox.Connected)
	e.AwaitSubscribers(1)
	e.PublishPayload(bytes.Repeat([]byte{0xc0}, 1<<21))
	wantKind(t, q, inbox.Closed)
}

func TestClientThatStops(t *testing.T) {
	t.Parallel()

	c, err := zmqsock.New(config())
	if err != nil {
		t.Fatal(err)
	}
	e := enginetest.Start(t, enginetest.Options{})
	q, _ := subscribe(t, c, e.Events) // waits for Run
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	wantKind(t, q, inbox.Connected)
	cancel()
	wg.Wait()
	if n := wantKind(t, q, inbox.Closed); !errors.Is(n.Err, zmqsock.ErrStopped) {
		t.Errorf("subscription ended with %v, want ErrStopped", n.Err)
	}
	q, _ = subscribe(t, c, e.Events)
	wantKind(t, q, inbox.Closed)
	if _, _, err := ask(t, c, e.Replay, 0); !errors.Is(err, zmqsock.ErrStopped) {
		t.Errorf("Ask after the end: error %v, want ErrStopped", err)
	}
}
