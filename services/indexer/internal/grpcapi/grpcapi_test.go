package grpcapi

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"runtime"
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
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
	"github.com/prefixroute/prefixroute/pkg/replicas"
	indexv1 "github.com/prefixroute/prefixroute/proto/prefixroute/index/v1"
	"github.com/prefixroute/prefixroute/services/indexer/internal/belief"
	"github.com/prefixroute/prefixroute/services/indexer/internal/reports"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a served fleet of three replicas: a and b serve model m, c serves n.
type rig struct {
	t       *testing.T
	fleet   *belief.Fleet
	ledger  *reports.Ledger
	metrics *Metrics
	end     *Endpoint
	conn    *grpc.ClientConn
	client  indexv1.IndexServiceClient
	drain   func()

	mu    sync.Mutex
	ready error // guarded by mu
}

func newRig(t *testing.T) *rig {
	t.Helper()
	g := &rig{t: t, ledger: &reports.Ledger{}, metrics: NewMetrics(prometheus.NewRegistry())}
	g.fleet = belief.NewFleet(replicas.List{
		{Name: "b", URL: "http://b", Model: "m"},
		{Name: "a", URL: "http://a", Model: "m"},
		{Name: "c", URL: "http://c", Model: "n", BlockSize: 16},
	}, hashing.Scheme{}, func(*belief.Replica) {})
	api := New(g.fleet, g.ledger, func() error { g.mu.Lock(); defer g.mu.Unlock(); return g.ready }, g.metrics)
	g.end = NewEndpoint(api, slog.New(slog.NewTextHandler(t.Output(), nil)))
	lis := bufconn.Listen(1 << 20)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := g.end.Serve(lis); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("serve: %v", err)
		}
	})
	var err error
	g.conn, err = grpc.NewClient("passthrough:///bufconn",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, PermitWithoutStream: true}))
	if err != nil {
		t.Fatal(err)
	}
	g.client = indexv1.NewIndexServiceClient(g.conn)
	g.drain = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		g.end.Drain(ctx)
		wg.Wait()
	})
	t.Cleanup(func() { _ = g.conn.Close(); g.drain() })
	return g
}

func (g *rig) replica(name string) *belief.Replica {
	g.t.Helper()
	r, ok := g.fleet.Replica(name)
	if !ok {
		g.t.Fatalf("no replica %q", name)
	}
	return r
}

// hold makes a replica hold the first blocks of a prompt of ascending tokens.
func (g *rig) hold(name string, blockSize, blocks int) {
	g.t.Helper()
	r := g.replica(name)
	model, _ := r.Serves()
	r.Renew(model)
	ev := &kvevents.BlockStored{BlockSize: blockSize, Medium: "GPU"}
	for i := range blocks {
		ev.BlockHashes = append(ev.BlockHashes, kvevents.Hash(i+1))
	}
	ev.TokenIDs = tokens(blocks * blockSize)
	r.Apply(kvevents.Batch{Events: []kvevents.Event{ev}}, belief.Position{Known: true, Seq: 7}, time.Now())
	r.SetState(belief.Live, "")
}

func tokens(n int) []uint32 {
	list := make([]uint32, n)
	for i := range list {
		list[i] = uint32(i)
	}
	return list
}

func request(model string, blockSize, blocks int) *indexv1.MatchRequest {
	req := &indexv1.MatchRequest{Model: model, KeyScheme: hashing.Scheme{}.Name(), BlockSize: uint32(blockSize)}
	for _, k := range (hashing.Scheme{}).Keys(model, blockSize, tokens(blockSize*blocks), nil) {
		req.Keys = append(req.Keys, uint64(k))
	}
	return req
}

func TestMatch(t *testing.T) {
	t.Parallel()

	g := newRig(t)
	g.hold("a", 4, 3)
	resp, err := g.client.Match(t.Context(), request("m", 4, 5))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(resp.GetMatches()); n != 2 {
		t.Fatalf("%d matches, want those of a and b", n)
	}
	a, b := resp.GetMatches()[0], resp.GetMatches()[1]
	if a.GetReplica() != "a" || a.GetGpu() != 3 || a.GetGpuCpu() != 3 || a.GetGpuCpuDisk() != 3 ||
		a.GetState() != indexv1.StreamState_STREAM_STATE_LIVE || a.GetGeneration().GetCounter() != 1 || !a.GetGeneration().GetLocal() ||
		a.GetLastEventAge() == nil {
		t.Errorf("a answered %v, want 3 blocks, live, the first local generation and an age", a)
	}
	// A replica that is not live is listed with its state: the router decides.
	if b.GetReplica() != "b" || b.GetGpu() != 0 || b.GetState() != indexv1.StreamState_STREAM_STATE_CONNECTING || b.GetLastEventAge() != nil {
		t.Errorf("b answered %v, want nothing, connecting and no age", b)
	}

	// Nobody serves the model: no answers, and no mistake.
	if resp, err := g.client.Match(t.Context(), request("x", 4, 1)); err != nil || len(resp.GetMatches()) != 0 {
		t.Errorf("unknown model: %v, %v; want an empty answer", resp, err)
	}

	// Candidates narrow the answer; those that are not known are counted.
	req := request("m", 4, 5)
	req.Candidates = []string{"a", "c", "ghost", "a"}
	resp, err = g.client.Match(t.Context(), req)
	if err != nil || len(resp.GetMatches()) != 1 || resp.GetMatches()[0].GetReplica() != "a" {
		t.Errorf("with candidates: %v, %v; want a alone", resp, err)
	}
	if got := testutil.ToFloat64(g.metrics.IgnoredCandidates); got != 2 {
		t.Errorf("%v candidates were ignored, want ghost and c", got)
	}
}

func TestMatchOfAnotherBlockSize(t *testing.T) {
	t.Parallel()

	g := newRig(t)
	g.hold("a", 4, 3)
	g.hold("b", 8, 2)
	resp, err := g.client.Match(t.Context(), request("m", 8, 5))
	if err != nil {
		t.Fatal(err)
	}
	want := &indexv1.IncompatibleReplica{Replica: "a", KeyScheme: "prefixroute-v1", BlockSizes: []uint32{4}, State: indexv1.StreamState_STREAM_STATE_LIVE}
	if len(resp.GetMatches()) != 1 || resp.GetMatches()[0].GetGpu() != 2 {
		t.Errorf("matches are %v, want 2 blocks of b", resp.GetMatches())
	}
	if diff := cmp.Diff([]*indexv1.IncompatibleReplica{want}, resp.GetIncompatible(), protocmp.Transform()); diff != "" {
		t.Errorf("incompatible (-want +got):\n%s", diff)
	}

	// Where none fits it is an error that names both sides, never a silent zero.
	for _, req := range []*indexv1.MatchRequest{
		request("m", 16, 1),
		{Model: "m", KeyScheme: "prefixroute-v1-deadbeef", BlockSize: 4},
		request("n", 32, 1), // c has said nothing yet, but it is configured
	} {
		_, err = g.client.Match(t.Context(), req)
		text := status.Convert(err).Message()
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(text, req.GetKeyScheme()) || !strings.Contains(text, "prefixroute-v1") ||
			!strings.Contains(text, "has") {
			t.Errorf("Match(%v) = %v, want FAILED_PRECONDITION with both sides' values", req, err)
		}
	}
	if got := testutil.ToFloat64(g.metrics.Matches.WithLabelValues("incompatible")); got != 3 {
		t.Errorf("%v look-ups were incompatible, want 3", got)
	}
}

func TestMatchRefuses(t *testing.T) {
	t.Parallel()

	g := newRig(t)
	change := func(f func(*indexv1.MatchRequest)) *indexv1.MatchRequest {
		req := request("m", 4, 1)
		f(req)
		return req
	}
	for field, req := range map[string]*indexv1.MatchRequest{
		"model":      change(func(r *indexv1.MatchRequest) { r.Model = "" }),
		"key_scheme": change(func(r *indexv1.MatchRequest) { r.KeyScheme = "" }),
		"block_size": change(func(r *indexv1.MatchRequest) { r.BlockSize = 0 }),
		"keys":       change(func(r *indexv1.MatchRequest) { r.Keys = make([]uint64, maxKeys+1) }),
		"candidates": change(func(r *indexv1.MatchRequest) { r.Candidates = make([]string, maxCandidates+1) }),
	} {
		_, err := g.client.Match(t.Context(), req)
		if status.Code(err) != codes.InvalidArgument || !strings.HasPrefix(status.Convert(err).Message(), field) {
			t.Errorf("bad %s: %v, want INVALID_ARGUMENT that names it", field, err)
		}
	}
	g.mu.Lock()
	g.ready = ErrWarmingUp
	g.mu.Unlock()
	if _, err := g.client.Match(t.Context(), request("m", 4, 1)); status.Code(err) != codes.Unavailable {
		t.Errorf("while warming up: %v, want UNAVAILABLE", err)
	}
}

// eventually waits for what another goroutine does.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		<-time.After(time.Millisecond)
	}
}

func commit(id uint64, replica string) *indexv1.ReportRequest {
	return &indexv1.ReportRequest{Router: "r", Report: &indexv1.ReportRequest_Commit{Commit: &indexv1.Commit{Request: id, Replica: replica, Model: "m"}}}
}

func completion(id uint64) *indexv1.ReportRequest {
	return &indexv1.ReportRequest{Router: "r", Report: &indexv1.ReportRequest_Completion{Completion: &indexv1.Completion{Request: id}}}
}

func observation(replica string, prompt, predicted, actual uint64) *indexv1.ReportRequest {
	return &indexv1.ReportRequest{Router: "r", Report: &indexv1.ReportRequest_Observation{Observation: &indexv1.Observation{
		Replica: replica, PromptTokens: prompt, PredictedCachedTokens: predicted, ActualCachedTokens: actual,
	}}}
}

func TestReport(t *testing.T) {
	t.Parallel()

	g := newRig(t)
	stream, err := g.client.Report(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	msgs := []*indexv1.ReportRequest{
		commit(1, "a"), commit(2, "a"), commit(3, "b"), completion(2),
		observation("a", 100, 64, 64), observation("a", 100, 64, 32), observation("a", 100, 0, 16),
		// Rejected: open already, unknown replica, not open, over, unknown, more than the prompt, nothing.
		commit(1, "b"), commit(9, "ghost"), completion(7), completion(2), observation("ghost", 1, 1, 1), observation("a", 10, 11, 0),
		{Router: "r"},
	}
	for _, m := range msgs {
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "a and b have one request in flight each", func() bool {
		return g.ledger.Of("a").InFlight == 1 && g.ledger.Of("b").InFlight == 1 && g.ledger.Of("a").Precision.Requests == 3
	})
	list, err := g.client.ListReplicas(t.Context(), &indexv1.ListReplicasRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := &indexv1.Precision{Requests: 3, ExactRequests: 1, PredictedTokens: 128, ActualTokens: 112, OverTokens: 32, UnderTokens: 16}
	if diff := cmp.Diff(want, list.GetReplicas()[0].GetPrecision(), protocmp.Transform()); diff != "" {
		t.Errorf("precision of a (-want +got):\n%s", diff)
	}
	resp, err := stream.CloseAndRecv()
	if err != nil || resp.GetAccepted() != 7 || resp.GetRejected() != 7 {
		t.Errorf("answer is %v, %v; want 7 accepted and 7 rejected", resp, err)
	}
	eventually(t, "the stream's counts are gone", func() bool {
		return g.ledger.Of("a").InFlight == 0 && g.ledger.Of("b").InFlight == 0
	})
}

// TestReportIsBounded: a router that never completes what it commits costs no more
// than the bound on its stream.
func TestReportIsBounded(t *testing.T) {
	t.Parallel()

	g := newRig(t)
	stream, err := g.client.Report(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for id := range uint64(maxOpen + 3) {
		if err := stream.Send(commit(id, "a")); err != nil {
			t.Fatal(err)
		}
	}
	resp, err := stream.CloseAndRecv()
	if err != nil || resp.GetAccepted() != maxOpen || resp.GetRejected() != 3 {
		t.Errorf("answer is %v, %v; want %d accepted and 3 rejected", resp, err, maxOpen)
	}
}

func TestReportOfARouterThatDies(t *testing.T) {
	t.Parallel()

	g := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := g.client.Report(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for id := range uint64(10) {
		if err := stream.Send(commit(id, "a")); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "10 requests are in flight", func() bool { return g.ledger.Of("a").InFlight == 10 })
	cancel()
	eventually(t, "the router's counts went with it", func() bool { return g.ledger.Of("a").InFlight == 0 })
}

func TestReportWantsOneRouterPerStream(t *testing.T) {
	t.Parallel()

	g := newRig(t)
	for _, second := range []string{"", "other"} {
		stream, err := g.client.Report(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		m := commit(2, "a")
		m.Router = second
		_ = stream.Send(commit(1, "a"))
		_ = stream.Send(m)
		if _, err := stream.CloseAndRecv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("second message of router %q: %v, want INVALID_ARGUMENT", second, err)
		}
	}
	eventually(t, "nothing is in flight", func() bool { return g.ledger.Of("a").InFlight == 0 })
}

func TestWatchReplicas(t *testing.T) {
	t.Parallel()

	g := newRig(t)
	g.hold("a", 4, 3)
	stream, err := g.client.WatchReplicas(t.Context(), &indexv1.WatchReplicasRequest{})
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil || len(first.GetReplicas()) != 3 {
		t.Fatalf("first message is %v, %v; want all three replicas", first, err)
	}
	seq := uint64(7)
	want := &indexv1.Replica{
		Name: "a", Url: "http://a", Model: "m", KeyScheme: "prefixroute-v1", BlockSizes: []uint32{4},
		State: indexv1.StreamState_STREAM_STATE_LIVE, LastSequence: &seq, Blocks: 3, Copies: 3, Precision: &indexv1.Precision{},
	}
	got := first.GetReplicas()[0]
	if got.GetGeneration().GetEpoch() == 0 || got.GetLastEventTime() == nil {
		t.Errorf("a has generation %v and last event %v, want both", got.GetGeneration(), got.GetLastEventTime())
	}
	if diff := cmp.Diff(want, got, protocmp.Transform(), protocmp.IgnoreFields(&indexv1.Replica{}, "generation", "last_event_time")); diff != "" {
		t.Errorf("replica a (-want +got):\n%s", diff)
	}

	// Many changes at once come as few messages, the last of which has them all.
	changes, began := uint64(0), time.Now()
	for ; time.Since(began) < 2*coalesce; changes++ {
		g.replica("b").Renew("m")
		runtime.Gosched() // a message for each would fit in between
	}
	g.replica("b").SetState(belief.Down, "unplugged")
	messages := 0
	for {
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		messages++
		if b := m.GetReplicas()[1]; b.GetState() == indexv1.StreamState_STREAM_STATE_DOWN {
			if b.GetReason() != "unplugged" || b.GetGeneration().GetCounter() != changes {
				t.Errorf("b is %v, want generation %d and the reason", b, changes)
			}
			break
		}
	}
	if most := int(time.Since(began)/coalesce) + 2; messages > most {
		t.Errorf("%d changes came as %d messages, want at most %d", changes, messages, most)
	}
}

// TestDrain: a stop does not wait for streams, and says why it ends them.
func TestDrain(t *testing.T) {
	t.Parallel()

	g := newRig(t)
	g.end.Ready()
	health := healthv1.NewHealthClient(g.conn)
	check := func() healthv1.HealthCheckResponse_ServingStatus {
		resp, err := health.Check(t.Context(), &healthv1.HealthCheckRequest{Service: "prefixroute.index.v1.IndexService"})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetStatus()
	}
	if got := check(); got != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("health is %v, want SERVING once ready", got)
	}
	watch, err := g.client.WatchReplicas(t.Context(), &indexv1.WatchReplicasRequest{})
	if err != nil {
		t.Fatal(err)
	}
	report, err := g.client.Report(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	healthWatch, err := health.Watch(t.Context(), &healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, err := healthWatch.Recv(); err != nil {
		t.Fatal(err)
	}
	if err := report.Send(commit(1, "a")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the request is in flight", func() bool { return g.ledger.Of("a").InFlight == 1 })

	began := time.Now()
	g.drain()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the stop took %v: it waited for a stream", took)
	}
	if _, err := watch.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("watch ended with %v, want UNAVAILABLE", err)
	}
	if _, err := report.CloseAndRecv(); status.Code(err) != codes.Unavailable {
		t.Errorf("report ended with %v, want UNAVAILABLE", err)
	}
	if g.ledger.Of("a").InFlight != 0 {
		t.Error("a request is still in flight")
	}
}

func TestReflection(t *testing.T) {
	t.Parallel()

	g := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := reflectionv1.NewServerReflectionClient(g.conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	resp, err := stream.Recv()
	if err != nil || !strings.Contains(resp.String(), "prefixroute.index.v1.IndexService") {
		t.Errorf("reflection answered %v, %v; want the index service", resp, err)
	}
}

func TestErrorsThatAreNotMeantForClients(t *testing.T) {
	t.Parallel()

	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	for err, want := range map[error]codes.Code{
		errors.New("secret"):     codes.Internal,
		context.Canceled:         codes.Canceled,
		context.DeadlineExceeded: codes.DeadlineExceeded,
		status.Error(codes.Unimplemented, "no such method"): codes.Unimplemented,
	} {
		got := toStatus(t.Context(), log, "/m", err)
		if status.Code(got) != want || strings.Contains(got.Error(), "secret") {
			t.Errorf("toStatus(%v) = %v, want %v", err, got, want)
		}
	}
}
