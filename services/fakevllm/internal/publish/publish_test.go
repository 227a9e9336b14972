//go:build cgo

package publish

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	zmq "github.com/pebbe/zmq4"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const topic = "kv@127.0.0.1:8000@m"

func testConfig() Config {
	return Config{
		Endpoint:    "tcp://127.0.0.1:*",
		Replay:      "tcp://127.0.0.1:*",
		Topic:       topic,
		BufferSteps: 100,
		Encoding:    kvevents.Encoding{Form: kvevents.FormMap},
		Metrics:     NewMetrics(prometheus.NewRegistry()),
		Log:         slog.New(slog.DiscardHandler),
	}
}

// start runs a publisher until the test ends.
func start(t *testing.T, cfg Config) *Publisher {
	t.Helper()
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- p.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-stopped; err != nil {
			t.Errorf("Run = %v, want nil after a clean stop", err)
		}
	})
	return p
}

// event is a batch that tells its number.
func event(n int) []kvevents.Event {
	return []kvevents.Event{&kvevents.BlockRemoved{BlockHashes: []kvevents.Hash{kvevents.Hash(n)}, Medium: "GPU"}}
}

func publish(t *testing.T, p *Publisher, from, to int) {
	t.Helper()
	for n := from; n < to; n++ {
		seq, err := p.Publish(t.Context(), event(n))
		if err != nil || seq != uint64(n) {
			t.Fatalf("Publish = %d, %v; want sequence number %d", seq, err, n)
		}
	}
}

// dial opens a socket that is connected to endpoint.
func dial(t *testing.T, kind zmq.Type, endpoint string, hwm int) *zmq.Socket {
	t.Helper()
	s, err := zmq.NewSocket(kind)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if kind == zmq.SUB {
		err = s.SetSubscribe("")
	}
	if err := errors.Join(err, s.SetLinger(0), s.SetRcvhwm(hwm), s.SetRcvtimeo(10*time.Second), s.Connect(endpoint)); err != nil {
		t.Fatal(err)
	}
	return s
}

// subscribe returns a subscriber that has seen a first batch, and that batch's
// number: before, whether it is connected cannot be known.
func subscribe(t *testing.T, p *Publisher) (sub *zmq.Socket, next int) {
	t.Helper()
	sub = dial(t, zmq.SUB, p.Endpoint(), 0)
	if err := sub.SetRcvtimeo(20 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	for n := range 500 {
		publish(t, p, n, n+1)
		if _, err := sub.RecvMessageBytes(0); err == nil {
			if err := sub.SetRcvtimeo(10 * time.Second); err != nil {
				t.Fatal(err)
			}
			return sub, n + 1
		}
	}
	t.Fatal("subscriber got nothing in 10 s")
	return nil, 0
}

func receive(t *testing.T, s *zmq.Socket) [][]byte {
	t.Helper()
	frames, err := s.RecvMessageBytes(0)
	if err != nil {
		t.Fatalf("receive: %v", err)
	}
	return frames
}

// live receives the next live message and checks what it says.
func live(t *testing.T, sub *zmq.Socket, n int) {
	t.Helper()
	m, err := kvevents.ParseMessage(receive(t, sub))
	if err != nil || m.Topic != topic || m.Seq != uint64(n) {
		t.Fatalf("live message is %q number %d, %v; want %q number %d", m.Topic, m.Seq, err, topic, n)
	}
	batch, err := kvevents.Decode(m.Payload)
	if err != nil || batch.Rank == nil || *batch.Rank != 0 {
		t.Fatalf("batch %d has rank %v, %v; want 0", n, batch.Rank, err)
	}
	if d := cmp.Diff(event(n), batch.Events); d != "" {
		t.Errorf("batch %d (-want +got):\n%s", n, d)
	}
}

// replay asks for everything from start on and returns the numbers that came.
func replay(t *testing.T, p *Publisher, start uint64) []uint64 {
	t.Helper()
	dealer := dial(t, zmq.DEALER, p.ReplayEndpoint(), 0)
	if _, err := dealer.SendMessage(kvevents.ReplayRequest(start)); err != nil {
		t.Fatal(err)
	}
	seqs := []uint64{}
	for {
		m, end, err := kvevents.ParseReply(receive(t, dealer))
		if err != nil {
			t.Fatal(err)
		}
		if end {
			return seqs
		}
		if m.Topic != topic {
			t.Errorf("reply has topic %q, want %q", m.Topic, topic)
		}
		seqs = append(seqs, m.Seq)
	}
}

func numbers(from, to uint64) []uint64 {
	list := []uint64{}
	for n := from; n < to; n++ {
		list = append(list, n)
	}
	return list
}

func TestLiveMessages(t *testing.T) {
	t.Parallel()

	p := start(t, testConfig())
	sub, next := subscribe(t, p)
	publish(t, p, next, next+50)
	for n := next; n < next+50; n++ {
		live(t, sub, n)
	}
}

func TestReplay(t *testing.T) {
	t.Parallel()

	p := start(t, testConfig()) // keeps 100
	publish(t, p, 0, 130)
	f := func(start uint64, want []uint64) {
		t.Helper()
		if d := cmp.Diff(want, replay(t, p, start)); d != "" {
			t.Errorf("replay from %d (-want +got):\n%s", start, d)
		}
	}
	f(0, numbers(30, 130)) // the oldest are gone: no error, the list starts later
	f(100, numbers(100, 130))
	f(129, []uint64{129})
	f(130, []uint64{})
	f(1<<63, []uint64{})
}

func TestReplayedPayloadIsTheLiveOne(t *testing.T) {
	t.Parallel()

	p := start(t, testConfig())
	sub, next := subscribe(t, p)
	publish(t, p, next, next+1)
	want := receive(t, sub)

	dealer := dial(t, zmq.DEALER, p.ReplayEndpoint(), 0)
	if _, err := dealer.SendMessage(kvevents.ReplayRequest(uint64(next))); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, receive(t, dealer)[1:]); d != "" {
		t.Errorf("replayed frames after the delimiter (-live +replayed):\n%s", d)
	}
}

func TestMalformedReplayRequestsAreIgnored(t *testing.T) {
	t.Parallel()

	p := start(t, testConfig())
	publish(t, p, 0, 3)
	dealer := dial(t, zmq.DEALER, p.ReplayEndpoint(), 0)
	for _, request := range [][][]byte{
		{[]byte("x")},
		{{}, []byte("short")},
		{{}, make([]byte, 8), {}},
		{make([]byte, 8)}, // no delimiter, as vLLM wants one
	} {
		if _, err := dealer.SendMessage(request); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := dealer.SendMessage(kvevents.ReplayRequest(2)); err != nil {
		t.Fatal(err)
	}
	m, _, err := kvevents.ParseReply(receive(t, dealer))
	if err != nil || m.Seq != 2 {
		t.Errorf("first reply is number %d, %v; want 2, the answer to the only good request", m.Seq, err)
	}
}

// A reader that takes nothing holds up neither live messages nor other replays,
// and loses nothing: it gets the rest when it reads.
func TestSlowReplayReader(t *testing.T) {
	t.Parallel()

	cfg := testConfig()
	cfg.BufferSteps = 20_000
	p := start(t, cfg)
	sub, next := subscribe(t, p)
	const count = 8_000
	// Messages are large, so that the kernel's buffers don't hide the reader's
	// slowness.
	big := []kvevents.Event{&kvevents.BlockRemoved{BlockHashes: slices.Repeat([]kvevents.Hash{1 << 63}, 500)}}
	for range count {
		if _, err := p.Publish(t.Context(), big); err != nil {
			t.Fatal(err)
		}
	}
	for range count {
		receive(t, sub)
	}

	slow := dial(t, zmq.DEALER, p.ReplayEndpoint(), 1)
	if _, err := slow.SendMessage(kvevents.ReplayRequest(uint64(next))); err != nil {
		t.Fatal(err)
	}
	receive(t, slow) // its replay is under way
	publish(t, p, next+count, next+count+1)
	live(t, sub, next+count)
	if got := replay(t, p, uint64(next+count)); len(got) != 1 {
		t.Errorf("another reader's replay has %d messages, want 1", len(got))
	}
	for n := uint64(next) + 1; ; n++ {
		m, end, err := kvevents.ParseReply(receive(t, slow))
		if end {
			if n != uint64(next+count) {
				t.Errorf("the slow reader's replay ends before %d, want %d", n, next+count)
			}
			return
		}
		if err != nil || m.Seq != n {
			t.Fatalf("the slow reader got number %d, %v; want %d", m.Seq, err, n)
		}
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()

	p := start(t, testConfig())
	sub, next := subscribe(t, p)

	p.SetFaults(Faults{Drop: 2, Replayable: true})
	publish(t, p, next, next+3)
	live(t, sub, next+2)
	if d := cmp.Diff(numbers(uint64(next), uint64(next+3)), replay(t, p, uint64(next))); d != "" {
		t.Errorf("replay after a loss that can be repaired (-want +got):\n%s", d)
	}

	next += 3
	p.SetFaults(Faults{Paused: true})
	publish(t, p, next, next+2)
	p.SetFaults(Faults{})
	publish(t, p, next+2, next+3)
	live(t, sub, next+2)
	if d := cmp.Diff([]uint64{uint64(next + 2)}, replay(t, p, uint64(next))); d != "" {
		t.Errorf("replay after a loss that cannot be repaired (-want +got):\n%s", d)
	}
	if got := p.Faults().Dropped; got != 4 {
		t.Errorf("%d batches dropped, want 4", got)
	}
}

// A batch that was published before a clean stop reaches a connected subscriber.
func TestStopSendsWhatIsQueued(t *testing.T) {
	t.Parallel()

	p, err := New(testConfig())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error)
	go func() { stopped <- p.Run(ctx) }()
	sub, next := subscribe(t, p)
	publish(t, p, next, next+1000)
	stop()
	if err := <-stopped; err != nil {
		t.Fatalf("Run = %v, want nil", err)
	}
	for n := next; n < next+1000; n++ {
		live(t, sub, n)
	}
}

func TestFullQueueBlocks(t *testing.T) {
	t.Parallel()

	p, err := New(testConfig()) // nobody runs it
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
	}()
	publish(t, p, 0, MaxQueue)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := p.Publish(ctx, event(MaxQueue)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Publish into a full queue = %v, want to wait until the deadline", err)
	}
}

func TestTakenAddressIsAnError(t *testing.T) {
	t.Parallel()

	first := start(t, testConfig())
	for _, change := range []func(*Config){
		func(c *Config) { c.Endpoint = "tcp://*:" + port(first.Endpoint()) },
		func(c *Config) { c.Replay = first.ReplayEndpoint() },
		func(c *Config) { c.Replay = "tcp://*:" + port(first.Endpoint()) },
	} {
		cfg := testConfig()
		change(&cfg)
		if p, err := New(cfg); !errors.Is(err, zmq.Errno(syscall.EADDRINUSE)) {
			t.Errorf("New on %q and %q = %v, want address already in use", cfg.Endpoint, cfg.Replay, err)
			if err == nil {
				_ = p.Close()
			}
		}
	}
}

func port(endpoint string) string {
	return endpoint[bytes.LastIndexByte([]byte(endpoint), ':')+1:]
}

func TestWildcardHostStays(t *testing.T) {
	t.Parallel()

	cfg := testConfig()
	cfg.Endpoint, cfg.Replay = "tcp://*:*", ""
	p := start(t, cfg)
	if got := p.Endpoint(); got != "tcp://*:"+port(got) || port(got) == "*" || port(got) == "0" {
		t.Errorf("Endpoint() = %q, want tcp://*: and a port", got)
	}
	if got := p.ReplayEndpoint(); got != "" {
		t.Errorf("ReplayEndpoint() = %q without a replay socket, want none", got)
	}
}

func TestBinds(t *testing.T) {
	t.Parallel()

	f := func(endpoint string, want bool) {
		t.Helper()
		if got := binds(endpoint); got != want {
			t.Errorf("binds(%q) = %v, want %v", endpoint, got, want)
		}
	}
	f("tcp://*:5557", true)
	f("tcp://127.0.0.1:*", true)
	f("tcp://127.0.0.1:0", true)
	f("tcp://[::]:5557", true)
	f("ipc:///run/events", true)
	f("inproc://events", true)
	f("tcp://10.0.0.1:5557", false)
	f("tcp://0.0.0.0:5557", false) // as vLLM: it connects there
}
