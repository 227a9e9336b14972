package indexclient

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	indexv1 "github.com/prefixroute/prefixroute/proto/prefixroute/index/v1"
)

// DefaultQueueLimit is the number of reports that wait to be sent, unless
// configured otherwise: a second of a busy router.
const DefaultQueueLimit = 4096

// Commit says that a request was sent to a replica.
type Commit struct {
	Replica   string
	Model     string
	Scheme    string
	BlockSize int
	Keys      []hashing.Key // of all full blocks; may be nil
}

// Observation sets what was expected of a replica beside what the engine
// reported, in tokens.
type Observation struct {
	Replica    string
	Generation Generation
	Prompt     int
	Predicted  int
	Actual     int
}

// Commit reports cm and returns the number under which its end is to be
// reported with [Client.Complete].
func (c *Client) Commit(cm Commit) uint64 {
	id := c.requests.Add(1)
	c.enqueue(&indexv1.ReportRequest{Router: c.router, Report: &indexv1.ReportRequest_Commit{Commit: &indexv1.Commit{
		Request: id, Replica: cm.Replica, Model: cm.Model, KeyScheme: cm.Scheme,
		BlockSize: uint32(cm.BlockSize), Keys: keysToProto(cm.Keys), //nolint:gosec // a block size in use fits
	}}})
	return id
}

// Complete reports that a committed request is over, however it ended.
func (c *Client) Complete(request uint64) {
	c.enqueue(&indexv1.ReportRequest{Router: c.router, Report: &indexv1.ReportRequest_Completion{
		Completion: &indexv1.Completion{Request: request},
	}})
}

// Observe reports o.
func (c *Client) Observe(o Observation) {
	c.enqueue(&indexv1.ReportRequest{Router: c.router, Report: &indexv1.ReportRequest_Observation{
		Observation: &indexv1.Observation{
			Replica: o.Replica,
			Generation: &indexv1.Generation{
				Epoch: o.Generation.Epoch, Counter: o.Generation.Counter, Local: o.Generation.Local,
			},
			PromptTokens: tokens(o.Prompt), PredictedCachedTokens: tokens(o.Predicted), ActualCachedTokens: tokens(o.Actual),
		},
	}})
}

func tokens(n int) uint64 { return uint64(max(n, 0)) } //nolint:gosec // not negative

// enqueue never blocks. Without an open stream it drops at once: a commit told
// seconds later would announce blocks that may be gone. Dropping a completion
// ends the stream, with which the indexers take back all that it left in flight.
func (c *Client) enqueue(r *indexv1.ReportRequest) {
	if !c.reporting.Load() {
		c.metrics.Dropped.WithLabelValues(kindOf(r), dropNoStream).Inc()
		return
	}
	select {
	case c.reports <- r:
	default:
		c.metrics.Dropped.WithLabelValues(kindOf(r), dropFull).Inc()
		if r.GetCompletion() == nil {
			return
		}
		select {
		case c.incomplete <- struct{}{}:
		default: // it ends already
		}
	}
}

var (
	// errClosed is a report stream that the indexer closed without an error.
	errClosed = errors.New("closed by the indexer")
	// errIncomplete is one that lacks a completion.
	errIncomplete = errors.New("a completion was dropped")
)

// report sends the queue over one stream until it breaks.
func (c *Client) report(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.api.Report(ctx)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	c.drain() // what an earlier stream left

	// The server answers when it closes the stream; until then sending is all
	// that could show a failure, and an idle router sends nothing.
	closed := make(chan error, 1)
	var receiver sync.WaitGroup
	receiver.Go(func() { closed <- stream.RecvMsg(&indexv1.ReportResponse{}) })
	defer receiver.Wait()
	defer cancel() // before the wait, which it ends

	c.reporting.Store(true)
	defer c.reporting.Store(false)
	return fmt.Errorf("report: %w", c.send(ctx, stream, closed))
}

func (c *Client) send(ctx context.Context, stream indexv1.IndexService_ReportClient, closed <-chan error) error {
	// The commits whose end this stream has to report. One of an earlier stream
	// is over for the indexer already.
	open := map[uint64]struct{}{}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-closed:
			if err == nil {
				err = errClosed
			}
			return err
		case <-c.incomplete:
			return errIncomplete
		case r := <-c.reports:
			if !track(open, r) {
				c.metrics.Dropped.WithLabelValues(kindOf(r), dropNoStream).Inc()
				continue
			}
			if err := stream.Send(r); err != nil {
				c.metrics.Dropped.WithLabelValues(kindOf(r), dropNoStream).Inc()
				return err
			}
			c.metrics.Sent.WithLabelValues(kindOf(r)).Inc()
		}
	}
}

// drain empties the queue.
func (c *Client) drain() {
	for {
		select {
		case <-c.incomplete:
		case r := <-c.reports:
			c.metrics.Dropped.WithLabelValues(kindOf(r), dropNoStream).Inc()
		default:
			return
		}
	}
}

// track follows which requests are open on a stream and reports whether r makes
// sense there.
func track(open map[uint64]struct{}, r *indexv1.ReportRequest) bool {
	switch v := r.GetReport().(type) {
	case *indexv1.ReportRequest_Commit:
		open[v.Commit.GetRequest()] = struct{}{}
	case *indexv1.ReportRequest_Completion:
		id := v.Completion.GetRequest()
		_, ok := open[id]
		delete(open, id)
		return ok
	}
	return true
}

// The kinds of reports, and why one is dropped: label values.
const (
	kindCommit      = "commit"
	kindCompletion  = "completion"
	kindObservation = "observation"

	dropFull     = "queue_full"
	dropNoStream = "no_stream" // none is open, or another one took the commit
)

func kindOf(r *indexv1.ReportRequest) string {
	switch r.GetReport().(type) {
	case *indexv1.ReportRequest_Commit:
		return kindCommit
	case *indexv1.ReportRequest_Completion:
		return kindCompletion
	default:
		return kindObservation
	}
}
