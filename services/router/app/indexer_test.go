package app

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	indexv1 "github.com/prefixroute/prefixroute/proto/prefixroute/index/v1"
)

// indexer behaves like an indexer that follows the replicas it is given and
// believes what it is told.
type indexer struct {
	indexv1.UnimplementedIndexServiceServer

	addr   string
	server *grpc.Server

	mu       sync.Mutex
	replicas []*indexv1.Replica
	held     map[string]uint32 // leading blocks that a replica has of any prompt
	fail     error             // of Match
	hang     bool              // Match answers when its caller has gone
	matches  []*indexv1.MatchRequest
	reports  []*indexv1.ReportRequest
	changed  chan struct{} // closed at each change of replicas
}

func newIndexer(t *testing.T, replicas ...*indexv1.Replica) *indexer {
	t.Helper()
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	x := &indexer{addr: lis.Addr().String(), replicas: replicas, held: map[string]uint32{}, changed: make(chan struct{})}
	x.serve(t, lis)
	return x
}

func (x *indexer) serve(t *testing.T, lis net.Listener) {
	x.server = grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{PermitWithoutStream: true}))
	indexv1.RegisterIndexServiceServer(x.server, x)
	var wg sync.WaitGroup
	wg.Go(func() { _ = x.server.Serve(lis) })
	t.Cleanup(func() {
		x.server.Stop()
		wg.Wait()
	})
}

// stop makes the indexer vanish; restart brings it back on the same address.
func (x *indexer) stop() { x.server.Stop() }

func (x *indexer) restart(t *testing.T) {
	t.Helper()
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", x.addr)
	if err != nil {
		t.Fatal(err)
	}
	x.serve(t, lis)
}

func (x *indexer) set(change func(*indexer)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	change(x)
	close(x.changed)
	x.changed = make(chan struct{})
}

// live is a replica whose stream is followed, in blocks of 16.
func live(name string) *indexv1.Replica {
	return &indexv1.Replica{
		Name: name, Model: "m", KeyScheme: "prefixroute-v1", BlockSizes: []uint32{16}, State: indexv1.StreamState_STREAM_STATE_LIVE,
		Generation: &indexv1.Generation{Epoch: 7, Counter: 3},
	}
}

func (x *indexer) WatchReplicas(_ *indexv1.WatchReplicasRequest, stream grpc.ServerStreamingServer[indexv1.WatchReplicasResponse]) error {
	for {
		x.mu.Lock()
		resp, changed := &indexv1.WatchReplicasResponse{Replicas: slices.Clone(x.replicas)}, x.changed
		x.mu.Unlock()
		if err := stream.Send(resp); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (x *indexer) Match(ctx context.Context, req *indexv1.MatchRequest) (*indexv1.MatchResponse, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.matches = append(x.matches, req)
	if x.hang {
		x.mu.Unlock()
		<-ctx.Done()
		x.mu.Lock()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if x.fail != nil {
		return nil, x.fail
	}
	resp := &indexv1.MatchResponse{}
	for _, r := range x.replicas {
		switch {
		case r.GetModel() != req.GetModel() || len(req.GetCandidates()) > 0 && !slices.Contains(req.GetCandidates(), r.GetName()):
		case r.GetKeyScheme() != req.GetKeyScheme() || !slices.Contains(r.GetBlockSizes(), req.GetBlockSize()):
			resp.Incompatible = append(resp.Incompatible, &indexv1.IncompatibleReplica{Replica: r.GetName()})
		default:
			n := min(x.held[r.GetName()], uint32(len(req.GetKeys())))
			resp.Matches = append(resp.Matches, &indexv1.ReplicaMatch{
				Replica: r.GetName(), Gpu: n, GpuCpu: n, GpuCpuDisk: n, State: r.GetState(), Generation: r.GetGeneration(),
			})
		}
	}
	if len(resp.GetMatches()) == 0 && len(resp.GetIncompatible()) > 0 {
		return nil, status.Error(codes.FailedPrecondition, "no replica has the scheme and block size")
	}
	return resp, nil
}

func (x *indexer) Report(stream grpc.ClientStreamingServer[indexv1.ReportRequest, indexv1.ReportResponse]) error {
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&indexv1.ReportResponse{})
		}
		if err != nil {
			return err
		}
		x.mu.Lock()
		x.reports = append(x.reports, r)
		x.mu.Unlock()
	}
}

func (x *indexer) asked() []*indexv1.MatchRequest {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.matches)
}

func (x *indexer) reported() []*indexv1.ReportRequest {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.reports)
}
