package grpcapi

import (
	"errors"
	"io"

	"google.golang.org/grpc"

	indexv1 "github.com/prefixroute/prefixroute/proto/prefixroute/index/v1"
	"github.com/prefixroute/prefixroute/services/indexer/internal/reports"
)

// maxOpen bounds the requests that one stream may have in flight.
const maxOpen = 1 << 16

type reportStream = grpc.ClientStreamingServer[indexv1.ReportRequest, indexv1.ReportResponse]

// Report implements the RPC of the same name. Whatever ends the stream, the
// requests that it left in flight are taken back.
func (s *Server) Report(stream reportStream) error {
	s.metrics.Reporters.Inc()
	defer s.metrics.Reporters.Dec()
	in := s.receive(stream)
	rep := reporter{server: s, open: map[uint64]string{}}
	defer rep.forget()
	for {
		select {
		case <-stream.Context().Done():
			return s.ended(stream.Context())
		case r := <-in:
			switch {
			case errors.Is(r.err, io.EOF):
				return stream.SendAndClose(&indexv1.ReportResponse{Accepted: rep.accepted, Rejected: rep.rejected})
			case r.err != nil:
				return r.err
			}
			if err := rep.take(r.msg); err != nil {
				return err
			}
		}
	}
}

type received struct {
	msg *indexv1.ReportRequest
	err error
}

// receive reads the stream in a goroutine of its own, so that the handler can
// end while the client is silent: Recv has no other way to be stopped than the
// end of the handler, which ends the stream's context.
func (s *Server) receive(stream reportStream) <-chan received {
	in := make(chan received)
	s.readers.Go(func() {
		for {
			msg, err := stream.Recv()
			select {
			case in <- received{msg, err}:
			case <-stream.Context().Done():
				return
			}
			if err != nil {
				return
			}
		}
	})
	return in
}

// reporter is one router's stream.
type reporter struct {
	server             *Server
	router             string
	open               map[uint64]string // request → replica
	accepted, rejected uint64
}

// forget takes back what is still in flight.
func (r *reporter) forget() {
	for _, replica := range r.open {
		r.server.ledger.Ended(replica)
	}
	clear(r.open)
}

func (r *reporter) take(msg *indexv1.ReportRequest) error {
	if msg.GetRouter() == "" {
		return badArgument("router is empty, expected the router's name on every message")
	}
	if r.router == "" {
		r.router = msg.GetRouter()
	}
	if msg.GetRouter() != r.router {
		return badArgument("router is %q, expected %q as on the messages before", msg.GetRouter(), r.router)
	}
	kind, ok := r.report(msg)
	result := resultRejected
	if ok {
		r.accepted++
		result = resultAccepted
	} else {
		r.rejected++
	}
	r.server.metrics.Reports.WithLabelValues(kind, result).Inc()
	return nil
}

// report takes one message; false if it names something unknown or is beyond the
// bounds.
func (r *reporter) report(msg *indexv1.ReportRequest) (kind string, ok bool) {
	ledger := r.server.ledger
	switch m := msg.GetReport().(type) {
	case *indexv1.ReportRequest_Commit:
		return kindCommit, r.commit(m.Commit)
	case *indexv1.ReportRequest_Completion:
		id := m.Completion.GetRequest()
		replica, ok := r.open[id]
		if ok {
			delete(r.open, id)
			ledger.Ended(replica)
		}
		return kindCompletion, ok
	case *indexv1.ReportRequest_Observation:
		return kindObservation, observe(r.server, ledger, m.Observation)
	default:
		return kindNone, false
	}
}

func (r *reporter) commit(c *indexv1.Commit) bool {
	_, known := r.server.fleet.Replica(c.GetReplica())
	_, twice := r.open[c.GetRequest()]
	if !known || twice || len(r.open) >= maxOpen || len(c.GetKeys()) > maxKeys {
		return false
	}
	r.open[c.GetRequest()] = c.GetReplica()
	r.server.ledger.Began(c.GetReplica())
	return true
}

func observe(s *Server, ledger *reports.Ledger, o *indexv1.Observation) bool {
	_, known := s.fleet.Replica(o.GetReplica())
	if !known || o.GetPredictedCachedTokens() > o.GetPromptTokens() || o.GetActualCachedTokens() > o.GetPromptTokens() {
		return false
	}
	ledger.Observe(o.GetReplica(), o.GetPredictedCachedTokens(), o.GetActualCachedTokens())
	return true
}
