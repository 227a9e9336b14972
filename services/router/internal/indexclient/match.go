package indexclient

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	indexv1 "github.com/prefixroute/prefixroute/proto/prefixroute/index/v1"
)

// Query asks about one prompt in one pair of scheme and block size.
type Query struct {
	Model     string
	Scheme    string
	BlockSize int // tokens
	// Keys of the leading blocks, at most hashing.Usable of the prompt.
	Keys []hashing.Key
	// Replicas to answer for; empty = all that serve the model.
	Replicas []string
}

// Match is the answer for one replica: leading blocks that it could reuse.
type Match struct {
	GPU, GPUCPU, GPUCPUDisk int
	State                   State
	Generation              Generation
}

// Answer has the replicas that were asked for, each in one of the maps or, where
// the indexer does not know it, in none.
type Answer struct {
	Matches map[string]Match
	// Incompatible replicas have keys of another scheme or block size.
	Incompatible map[string]struct{}
}

// A Failure says why there is no answer. Its values are label values.
type Failure string

// What [FailureOf] tells apart.
const (
	Deadline    Failure = "deadline"    // no answer in time
	Unavailable Failure = "unavailable" // no indexer can be reached, or none is ready
	NoneFits    Failure = "scheme"      // no replica of the model has the scheme and block size
	Canceled    Failure = "canceled"    // the caller no longer waits
	Failed      Failure = "match_error" // anything else
	succeeded   Failure = "ok"
)

// Match asks one indexer. It takes as long as ctx allows at most and does not
// wait for a connection.
func (c *Client) Match(ctx context.Context, q Query) (Answer, error) {
	req := &indexv1.MatchRequest{
		Model: q.Model, KeyScheme: q.Scheme, BlockSize: uint32(q.BlockSize), //nolint:gosec // a block size in use fits
		Keys: keysToProto(q.Keys), Candidates: q.Replicas,
	}
	started := time.Now()
	resp, err := c.api.Match(ctx, req)
	c.metrics.MatchSeconds.Observe(time.Since(started).Seconds())
	c.metrics.Matches.WithLabelValues(string(FailureOf(err))).Inc()
	if err != nil {
		return Answer{}, err
	}
	a := Answer{Matches: make(map[string]Match, len(resp.GetMatches())), Incompatible: map[string]struct{}{}}
	for _, m := range resp.GetMatches() {
		a.Matches[m.GetReplica()] = Match{
			GPU: bounded(m.GetGpu(), q), GPUCPU: bounded(m.GetGpuCpu(), q), GPUCPUDisk: bounded(m.GetGpuCpuDisk(), q),
			State: stateOf(m.GetState()), Generation: generationOf(m.GetGeneration()),
		}
	}
	for _, r := range resp.GetIncompatible() {
		a.Incompatible[r.GetReplica()] = struct{}{}
	}
	return a, nil
}

// bounded holds an answer to what was asked: no replica can match more.
func bounded(n uint32, q Query) int { return min(int(n), len(q.Keys)) }

// FailureOf says what an error of [Client.Match] means.
func FailureOf(err error) Failure {
	switch {
	case err == nil:
		return succeeded
	case errors.Is(err, context.DeadlineExceeded):
		return Deadline
	case errors.Is(err, context.Canceled):
		return Canceled
	}
	switch status.Code(err) {
	case codes.DeadlineExceeded:
		return Deadline
	case codes.Canceled:
		return Canceled
	case codes.Unavailable:
		return Unavailable
	case codes.FailedPrecondition:
		return NoneFits
	default:
		return Failed
	}
}

// reasonText is what an error of a call says, without the status's decoration.
func reasonText(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

func keysToProto(keys []hashing.Key) []uint64 {
	out := make([]uint64, len(keys))
	for i, k := range keys {
		out[i] = uint64(k)
	}
	return out
}
