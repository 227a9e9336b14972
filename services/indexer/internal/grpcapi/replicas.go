package grpcapi

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	indexv1 "github.com/prefixroute/prefixroute/proto/prefixroute/index/v1"
	"github.com/prefixroute/prefixroute/services/indexer/internal/belief"
	"github.com/prefixroute/prefixroute/services/indexer/internal/reports"
)

// coalesce is how long changes gather before watchers are told.
const coalesce = 50 * time.Millisecond

// ListReplicas implements the RPC of the same name. It answers while the indexer
// warms up too: the states say where each replica stands.
func (s *Server) ListReplicas(context.Context, *indexv1.ListReplicasRequest) (*indexv1.ListReplicasResponse, error) {
	return &indexv1.ListReplicasResponse{Replicas: s.replicas()}, nil
}

// WatchReplicas implements the RPC of the same name.
func (s *Server) WatchReplicas(_ *indexv1.WatchReplicasRequest, stream grpc.ServerStreamingServer[indexv1.WatchReplicasResponse]) error {
	ctx := stream.Context()
	s.metrics.Watchers.Inc()
	defer s.metrics.Watchers.Dec()
	for {
		changed := s.fleet.Changed() // before the list is made
		if err := stream.Send(&indexv1.WatchReplicasResponse{Replicas: s.replicas()}); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return s.ended(ctx)
		case <-changed:
		}
		select {
		case <-ctx.Done():
			return s.ended(ctx)
		case <-time.After(coalesce):
		}
	}
}

// ended says why a stream's context is over.
func (s *Server) ended(ctx context.Context) error {
	select {
	case <-s.stopping:
		return errStopping
	default:
		return ctx.Err()
	}
}

func (s *Server) replicas() []*indexv1.Replica {
	list := make([]*indexv1.Replica, 0, len(s.fleet.Replicas()))
	for _, r := range s.fleet.Replicas() {
		list = append(list, replicaToProto(r.Status(), s.ledger.Of(r.Name())))
	}
	return list
}

func replicaToProto(st belief.Status, sum reports.Summary) *indexv1.Replica {
	p := sum.Precision
	r := &indexv1.Replica{
		Name:       st.Name,
		Url:        st.URL,
		Model:      st.Model,
		KeyScheme:  st.Scheme,
		BlockSizes: sizesToProto(st.BlockSizes),
		State:      stateToProto(st.State),
		Reason:     st.Reason,
		Generation: generationToProto(st.Generation, st.Local),
		Blocks:     uint64(st.Stats.Blocks),
		Copies:     uint64(st.Stats.Copies),
		Orphans:    uint64(st.Stats.Orphans),
		InFlight:   sum.InFlight,
		Precision: &indexv1.Precision{
			Requests: p.Requests, ExactRequests: p.ExactRequests,
			PredictedTokens: p.PredictedTokens, ActualTokens: p.ActualTokens,
			OverTokens: p.OverTokens, UnderTokens: p.UnderTokens,
		},
	}
	if st.Position.Known {
		r.LastSequence = &st.Position.Seq
	}
	if !st.LastEvent.IsZero() {
		r.LastEventTime = timestamppb.New(st.LastEvent)
	}
	return r
}
