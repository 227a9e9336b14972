// Package grpcapi serves the index API: it translates and bounds what comes over
// the wire, and decides nothing.
package grpcapi

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	indexv1 "github.com/prefixroute/prefixroute/proto/prefixroute/index/v1"
	"github.com/prefixroute/prefixroute/services/indexer/internal/belief"
	"github.com/prefixroute/prefixroute/services/indexer/internal/reports"
)

// Bounds on what one message may hold.
const (
	maxKeys       = 1 << 16 // a prompt of a million tokens in blocks of 16
	maxCandidates = 1 << 12
	maxNamed      = 8 // replicas named in an error
)

// ErrWarmingUp is why there are no answers yet: the durable copies are being
// read, and an empty index is no cold fleet.
var ErrWarmingUp = errors.New("the indexer is warming up")

var errStopping = errors.New("the indexer is stopping")

// argumentError is a request that is the caller's mistake.
type argumentError struct{ text string }

func (e *argumentError) Error() string { return e.text }

func badArgument(format string, args ...any) error {
	return &argumentError{fmt.Sprintf(format, args...)}
}

// incompatibleError says that replicas serve the model, and that none can be
// asked with these keys.
type incompatibleError struct{ text string }

func (e *incompatibleError) Error() string { return e.text }

// Server implements [indexv1.IndexServiceServer]. Use [New].
type Server struct {
	indexv1.UnimplementedIndexServiceServer

	fleet   *belief.Fleet
	ledger  *reports.Ledger
	ready   func() error // nil, or why there are no answers
	metrics *Metrics

	stop     sync.Once
	stopping chan struct{}
	readers  sync.WaitGroup // goroutines that read report streams
}

// New returns a server that answers from fleet while ready returns nil.
func New(fleet *belief.Fleet, ledger *reports.Ledger, ready func() error, m *Metrics) *Server {
	return &Server{fleet: fleet, ledger: ledger, ready: ready, metrics: m, stopping: make(chan struct{})}
}

// Stop ends the streams, so that a graceful stop need not wait for their
// clients. Answers go on.
func (s *Server) Stop() { s.stop.Do(func() { close(s.stopping) }) }

// Match implements the RPC of the same name.
func (s *Server) Match(_ context.Context, req *indexv1.MatchRequest) (*indexv1.MatchResponse, error) {
	began := time.Now()
	resp, err := s.match(req, began)
	s.metrics.MatchSeconds.Observe(time.Since(began).Seconds())
	s.metrics.Matches.WithLabelValues(matchResult(err)).Inc()
	return resp, err
}

func (s *Server) match(req *indexv1.MatchRequest, now time.Time) (*indexv1.MatchResponse, error) {
	if err := validate(req); err != nil {
		return nil, err
	}
	if err := s.ready(); err != nil {
		return nil, err
	}
	q := belief.Query{Model: req.GetModel(), Scheme: req.GetKeyScheme(), BlockSize: int(req.GetBlockSize())}
	q.Keys = make([]hashing.Key, len(req.GetKeys()))
	for i, k := range req.GetKeys() {
		q.Keys[i] = hashing.Key(k)
	}
	resp := &indexv1.MatchResponse{}
	for _, r := range s.candidates(req.GetCandidates()) {
		look, serves := r.Look(q)
		switch {
		case !serves && len(req.GetCandidates()) > 0:
			s.metrics.IgnoredCandidates.Inc()
		case !serves:
		case look.Fits:
			resp.Matches = append(resp.Matches, matchToProto(look, now))
		default:
			resp.Incompatible = append(resp.Incompatible, &indexv1.IncompatibleReplica{
				Replica: look.Name, KeyScheme: look.Scheme, BlockSizes: sizesToProto(look.BlockSizes), State: stateToProto(look.State),
			})
		}
	}
	if len(resp.GetMatches()) == 0 && len(resp.GetIncompatible()) > 0 {
		return nil, incompatible(req, resp.GetIncompatible())
	}
	return resp, nil
}

func validate(req *indexv1.MatchRequest) error {
	switch {
	case req.GetModel() == "":
		return badArgument("model is empty, expected the base model's name")
	case req.GetKeyScheme() == "":
		return badArgument("key_scheme is empty, expected a scheme's name")
	case req.GetBlockSize() == 0 || req.GetBlockSize() > math.MaxInt32:
		return badArgument("block_size is %d, expected 1 to 2^31-1 tokens", req.GetBlockSize())
	case len(req.GetKeys()) > maxKeys:
		return badArgument("keys has %d entries, expected at most %d", len(req.GetKeys()), maxKeys)
	case len(req.GetCandidates()) > maxCandidates:
		return badArgument("candidates has %d entries, expected at most %d", len(req.GetCandidates()), maxCandidates)
	}
	return nil
}

// candidates finds the replicas to answer for, ordered by name. Names that the
// indexer does not follow are the business of whoever gave them; they are counted.
func (s *Server) candidates(names []string) []*belief.Replica {
	if len(names) == 0 {
		return s.fleet.Replicas()
	}
	wanted := make(map[string]bool, len(names))
	for _, name := range names {
		wanted[name] = true
	}
	var list []*belief.Replica
	for _, r := range s.fleet.Replicas() {
		if wanted[r.Name()] {
			list = append(list, r)
		}
	}
	s.metrics.IgnoredCandidates.Add(float64(len(wanted) - len(list)))
	return list
}

// incompatible names both sides' values, so that a mistake in the configuration
// is read from the first error and not from a hit rate of zero.
func incompatible(req *indexv1.MatchRequest, list []*indexv1.IncompatibleReplica) error {
	var b strings.Builder
	fmt.Fprintf(&b, "no replica of model %q has keys of scheme %q with block size %d: ", req.GetModel(), req.GetKeyScheme(), req.GetBlockSize())
	for i, r := range list {
		if i == maxNamed {
			fmt.Fprintf(&b, " and %d more", len(list)-maxNamed)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s has %q with %v", r.GetReplica(), r.GetKeyScheme(), r.GetBlockSizes())
	}
	return &incompatibleError{b.String()}
}

func matchToProto(l belief.Look, now time.Time) *indexv1.ReplicaMatch {
	m := &indexv1.ReplicaMatch{
		Replica:    l.Name,
		Gpu:        uint32(l.Depths.GPU),
		GpuCpu:     uint32(l.Depths.GPUCPU),
		GpuCpuDisk: uint32(l.Depths.GPUCPUDisk),
		State:      stateToProto(l.State),
		Generation: generationToProto(l.Generation, l.Local),
	}
	if !l.LastEvent.IsZero() {
		m.LastEventAge = durationpb.New(max(0, now.Sub(l.LastEvent)))
	}
	return m
}

func generationToProto(g belief.Generation, local bool) *indexv1.Generation {
	return &indexv1.Generation{Epoch: g.Epoch, Counter: g.Counter, Local: local}
}

func sizesToProto(sizes []int) []uint32 {
	var list []uint32
	for _, n := range sizes {
		list = append(list, uint32(min(n, math.MaxInt32)))
	}
	return list
}

func stateToProto(s belief.State) indexv1.StreamState {
	switch s {
	case belief.Connecting:
		return indexv1.StreamState_STREAM_STATE_CONNECTING
	case belief.Replaying:
		return indexv1.StreamState_STREAM_STATE_REPLAYING
	case belief.Live:
		return indexv1.StreamState_STREAM_STATE_LIVE
	case belief.Gap:
		return indexv1.StreamState_STREAM_STATE_GAP
	case belief.Down:
		return indexv1.StreamState_STREAM_STATE_DOWN
	}
	return indexv1.StreamState_STREAM_STATE_UNSPECIFIED
}
