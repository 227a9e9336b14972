package indexclient

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	indexv1 "github.com/prefixroute/prefixroute/proto/prefixroute/index/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

// indexer answers every lookup with all keys for replica a.
type indexer struct {
	indexv1.UnimplementedIndexServiceServer
	addr   string
	server *grpc.Server

	mu      sync.Mutex
	matches int
	reports []*indexv1.ReportRequest
	// streams gets each report stream's end, to close it by.
	streams chan chan error
}

func newIndexer(t *testing.T) *indexer {
	t.Helper()
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	x := &indexer{addr: lis.Addr().String(), streams: make(chan chan error, 16)}
	// The policy that an indexer has to have for this client's keepalive.
	x.server = grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveTime / 2, PermitWithoutStream: true}))
	indexv1.RegisterIndexServiceServer(x.server, x)
	var wg sync.WaitGroup
	wg.Go(func() { _ = x.server.Serve(lis) })
	t.Cleanup(func() {
		x.server.Stop()
		wg.Wait()
	})
	return x
}

func (x *indexer) WatchReplicas(_ *indexv1.WatchReplicasRequest, stream grpc.ServerStreamingServer[indexv1.WatchReplicasResponse]) error {
	err := stream.Send(&indexv1.WatchReplicasResponse{Replicas: []*indexv1.Replica{{
		Name: "a", Model: "m", KeyScheme: "s", BlockSizes: []uint32{32, 16}, State: indexv1.StreamState_STREAM_STATE_GAP, Reason: "lost 3 batches",
		Generation: &indexv1.Generation{Epoch: 1<<63 + 1, Counter: 2, Local: true}, Blocks: 9,
	}}})
	if err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (x *indexer) Match(_ context.Context, req *indexv1.MatchRequest) (*indexv1.MatchResponse, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.matches++
	if req.GetModel() == "none" {
		return nil, status.Error(codes.FailedPrecondition, "no replica has scheme s and block size 16; have scheme t")
	}
	return &indexv1.MatchResponse{
		Matches: []*indexv1.ReplicaMatch{{
			Replica: "a", Gpu: uint32(len(req.GetKeys())) + 5, GpuCpu: 1, State: indexv1.StreamState_STREAM_STATE_LIVE, Generation: &indexv1.Generation{Epoch: 4},
		}},
		Incompatible: []*indexv1.IncompatibleReplica{{Replica: "b"}},
	}, nil
}

func (x *indexer) Report(stream grpc.ClientStreamingServer[indexv1.ReportRequest, indexv1.ReportResponse]) error {
	end := make(chan error, 1)
	x.streams <- end
	received := make(chan error, 1)
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				received <- err
				return
			}
			x.mu.Lock()
			x.reports = append(x.reports, r)
			x.mu.Unlock()
		}
	}()
	select {
	case err := <-end:
		return err
	case err := <-received:
		return err
	}
}

// kinds of the reports so far.
func (x *indexer) kinds() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	var kinds []string
	for _, r := range x.reports {
		kinds = append(kinds, kindOf(r))
	}
	return strings.Join(kinds, " ")
}

func run(t *testing.T, cfg Config) (*Client, *Metrics) {
	t.Helper()
	m := NewMetrics(prometheus.NewRegistry())
	c, err := New(cfg, m, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { c.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return c, m
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

func connected(c *Client) func() bool {
	return func() bool {
		_, ok, _ := c.Replicas()
		return ok
	}
}

func TestReplicasAndMatch(t *testing.T) {
	t.Parallel()

	x := newIndexer(t)
	c, _ := run(t, Config{Addresses: []string{x.addr}})
	eventually(t, "the watch", connected(c))
	all, _, _ := c.Replicas()
	want := map[string]Replica{"a": {
		Name: "a", Model: "m", Scheme: "s", BlockSizes: []int{32, 16}, State: Gap, Reason: "lost 3 batches",
		Generation: Generation{Epoch: 1<<63 + 1, Counter: 2, Local: true},
	}}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Errorf("Replicas (-want +got):\n%s", diff)
	}
	got, err := c.Match(t.Context(), Query{Model: "m", Scheme: "s", BlockSize: 16, Keys: []hashing.Key{1, 2, 3}})
	if err != nil {
		t.Fatal(err)
	}
	answer := Answer{
		// More than was asked for cannot be.
		Matches:      map[string]Match{"a": {GPU: 3, GPUCPU: 1, State: Live, Generation: Generation{Epoch: 4}}},
		Incompatible: map[string]struct{}{"b": {}},
	}
	if diff := cmp.Diff(answer, got); diff != "" {
		t.Errorf("Match (-want +got):\n%s", diff)
	}
	if _, err := c.Match(t.Context(), Query{Model: "none"}); FailureOf(err) != NoneFits {
		t.Errorf("Match of a scheme that nobody has: %v, want it to be told apart", err)
	}
}

func TestFailureOf(t *testing.T) {
	t.Parallel()

	for _, tt := range []struct {
		err  error
		want Failure
	}{
		{nil, succeeded},
		{context.DeadlineExceeded, Deadline},
		{status.Error(codes.DeadlineExceeded, ""), Deadline},
		{status.Error(codes.Unavailable, ""), Unavailable},
		{status.Error(codes.FailedPrecondition, ""), NoneFits},
		{status.Error(codes.InvalidArgument, ""), Failed},
		{errors.New("x"), Failed},
	} {
		if got := FailureOf(tt.err); got != tt.want {
			t.Errorf("FailureOf(%v) = %s, want %s", tt.err, got, tt.want)
		}
	}
}

func TestLookupsSpreadOverIndexersAndSurviveOne(t *testing.T) {
	t.Parallel()

	xs := []*indexer{newIndexer(t), newIndexer(t), newIndexer(t)}
	c, _ := run(t, Config{Addresses: []string{xs[0].addr, xs[1].addr, xs[2].addr}})
	match := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := c.Match(ctx, Query{Model: "m", Keys: []hashing.Key{1}})
		return err
	}
	count := func(x *indexer) int {
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.matches
	}
	eventually(t, "all three to be asked", func() bool {
		return match() == nil && count(xs[0]) > 0 && count(xs[1]) > 0 && count(xs[2]) > 0
	})
	before := []int{count(xs[0]), count(xs[1]), count(xs[2])}
	for range 300 {
		if err := match(); err != nil {
			t.Fatal(err)
		}
	}
	for i, x := range xs {
		if n := count(x) - before[i]; n < 80 || n > 120 {
			t.Errorf("indexer %d got %d of 300 lookups, want 100 within 20 %%", i, n)
		}
	}
	xs[0].server.Stop()
	eventually(t, "the dead one to be left out", func() bool {
		for range 10 {
			if match() != nil {
				return false
			}
		}
		return true
	})
	eventually(t, "the watch to be open again", connected(c))
}

func TestReportsOfAnOlderStreamAreDropped(t *testing.T) {
	t.Parallel()

	x := newIndexer(t)
	c, m := run(t, Config{Addresses: []string{x.addr}})
	first := <-x.streams
	eventually(t, "the stream", c.reporting.Load)
	id := c.Commit(Commit{Replica: "a", Keys: []hashing.Key{1}})
	done := c.Commit(Commit{Replica: "a"})
	c.Complete(done)
	c.Observe(Observation{Replica: "a", Prompt: -1})
	eventually(t, "all four", func() bool { return x.kinds() == "commit commit completion observation" })

	first <- nil // the indexer closes it without an error
	<-x.streams
	eventually(t, "the next stream", c.reporting.Load)
	c.Complete(id) // was told to a stream that is over
	c.Observe(Observation{Replica: "a"})
	eventually(t, "the observation", func() bool { return x.kinds() == "commit commit completion observation observation" })
	if n := testutil.ToFloat64(m.Dropped.WithLabelValues(kindCompletion, dropNoStream)); n != 1 {
		t.Errorf("%v completions dropped, want 1", n)
	}
	if n := testutil.ToFloat64(m.Sent.WithLabelValues(kindCommit)); n != 2 {
		t.Errorf("%v commits counted as sent, want 2", n)
	}
}

func TestWatchIsBelievedForAWhile(t *testing.T) {
	t.Parallel()

	c := &Client{}
	c.fleet.Store(&watched{})
	for _, tt := range []struct {
		gone time.Duration
		want bool
	}{{0, true}, {watchGrace / 2, true}, {2 * watchGrace, false}} {
		c.lost.Store(&outage{since: time.Now().Add(-tt.gone), reason: "refused"})
		if _, ok, _ := c.Replicas(); ok != tt.want {
			t.Errorf("%v after the watch broke: ok %v, want %v", tt.gone, ok, tt.want)
		}
	}
}

func TestWhatAnOlderStreamLeftIsNotSent(t *testing.T) {
	t.Parallel()

	x := newIndexer(t)
	m := NewMetrics(prometheus.NewRegistry())
	c, err := New(Config{Addresses: []string{x.addr}}, m, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.reporting.Store(true)
	c.Commit(Commit{Replica: "a"})
	c.reporting.Store(false)

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { c.Run(ctx) })
	defer wg.Wait()
	defer cancel()
	eventually(t, "the stream", c.reporting.Load)
	c.Observe(Observation{Replica: "a"})
	eventually(t, "the observation alone", func() bool { return x.kinds() == "observation" })
}

// An end that cannot be queued would leave its request in flight at the indexer
// for as long as the stream lasts, so the stream is replaced.
func TestLostCompletionEndsTheStream(t *testing.T) {
	t.Parallel()

	x := newIndexer(t)
	c, m := run(t, Config{Addresses: []string{x.addr}, QueueLimit: 1})
	<-x.streams
	eventually(t, "the stream", c.reporting.Load)
	id := c.Commit(Commit{Replica: "a"})
	eventually(t, "the commit", func() bool { return x.kinds() == "commit" })
	full := m.Dropped.WithLabelValues(kindCompletion, dropFull)
	eventually(t, "a completion that finds no room", func() bool {
		for range 100 { // faster than they are sent
			c.Complete(id)
		}
		return testutil.ToFloat64(full) > 0
	})
	select {
	case <-x.streams:
	case <-time.After(patience):
		t.Error("the stream goes on without the completion")
	}
}

func TestReportsNeverBlock(t *testing.T) {
	t.Parallel()

	m := NewMetrics(prometheus.NewRegistry())
	c, err := New(Config{Addresses: []string{"127.0.0.1:1"}, QueueLimit: 2}, m, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Commit(Commit{}) // no stream
	c.reporting.Store(true)
	for range 5 {
		c.Commit(Commit{})
	}
	if n := testutil.ToFloat64(m.Dropped.WithLabelValues(kindCommit, dropFull)); n != 3 {
		t.Errorf("%v dropped beyond a queue of 2, want 3", n)
	}
	if n := testutil.ToFloat64(m.Dropped.WithLabelValues(kindCommit, dropNoStream)); n != 1 {
		t.Errorf("%v dropped without a stream, want 1", n)
	}
}

func TestNobodyThere(t *testing.T) {
	t.Parallel()

	c, m := run(t, Config{Addresses: []string{"127.0.0.1:1"}})
	eventually(t, "the reason", func() bool { return strings.Contains(c.Status().Reason, "refused") })
	if _, ok, reason := c.Replicas(); ok || reason == "" {
		t.Errorf("Replicas: ok %v, reason %q; want not, with a reason", ok, reason)
	}
	started := time.Now()
	_, err := c.Match(t.Context(), Query{Model: "m"})
	if FailureOf(err) != Unavailable || time.Since(started) > patience/2 {
		t.Errorf("Match: %v after %v; want unavailable, at once", err, time.Since(started))
	}
	if testutil.ToFloat64(m.Connected) != 0 {
		t.Error("counted as connected")
	}
}

func TestAddresses(t *testing.T) {
	t.Parallel()

	tests := []struct {
		addresses []string
		wantErr   string // part of the message; empty = none
	}{
		{[]string{"h:1"}, ""},
		{[]string{"h:1", "i:2"}, ""},
		{[]string{"dns:///h:1"}, ""},
		{nil, "no indexer address"},
		{[]string{"h"}, `indexer is "h"`},
		{[]string{"h:1", "dns:///i:2"}, "where several are given"},
	}
	for _, tt := range tests {
		err := Config{Addresses: tt.addresses}.Validate()
		if tt.wantErr == "" && err != nil || tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)) {
			t.Errorf("Validate(%q) = %v, want %q", tt.addresses, err, tt.wantErr)
		}
	}
}
