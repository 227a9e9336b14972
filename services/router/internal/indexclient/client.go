// Package indexclient asks the indexers what each replica holds, and tells them
// what this router did and saw.
//
// # Model
//
// Three things run over one balanced connection:
//
//   - a watch, kept open in the background, that says of each replica which model,
//     key scheme and block size its keys need and how its event stream is;
//   - a match for each request, under the caller's deadline;
//   - a report of commits, completions and observations, sent in the background
//     from a bounded queue. What does not fit is dropped and counted: a report is
//     never worth a request's time.
//
// Every failure reads as "not known": the caller routes by its own choices then.
// No call waits for a connection to come back.
//
// # Concurrency
//
// [Client.Run] owns the background work; everything else is safe for concurrent
// use. Wire types stop in this package.
package indexclient

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	indexv1 "github.com/prefixroute/prefixroute/proto/prefixroute/index/v1"
)

const (
	// keepaliveTime is how long a silent connection is trusted before it is
	// pinged. Servers have to allow it, also without calls in progress.
	keepaliveTime = 10 * time.Second
	// keepaliveTimeout is how long a ping may take: long enough for a lost packet
	// to be sent again a few times.
	keepaliveTimeout = 10 * time.Second

	retryMin = 100 * time.Millisecond
	retryMax = 5 * time.Second

	// watchGrace is how long the last watch is believed after it broke. It spans
	// the move to another indexer.
	watchGrace = 2 * time.Second

	// maxMessageBytes is far above any message of either side: a prompt of a
	// million tokens has 500 kB of keys.
	maxMessageBytes = 16 << 20
)

// Config says where the indexers are.
type Config struct {
	// Addresses are host:port, or gRPC targets such as dns:///name:port. Lookups
	// are spread over all of them; a single name is resolved to all its
	// addresses.
	Addresses []string
	// QueueLimit is the number of reports waiting to be sent; 0 means
	// [DefaultQueueLimit].
	QueueLimit int
}

// Client talks to the indexers. Use [New].
type Client struct {
	addresses []string
	conn      *grpc.ClientConn
	api       indexv1.IndexServiceClient
	metrics   *Metrics
	log       *slog.Logger
	router    string // identity of this router in reports

	fleet atomic.Pointer[watched]
	lost  atomic.Pointer[outage] // nil while the watch is open

	reports    chan *indexv1.ReportRequest
	incomplete chan struct{} // holds one signal: the report stream lacks a completion
	reporting  atomic.Bool   // a report stream is open
	requests   atomic.Uint64 // last request number given out
}

// watched is one answer of the watch.
type watched struct{ replicas map[string]Replica }

// outage says since when and why the watch is not open.
type outage struct {
	since  time.Time
	reason string
}

// New returns a client for cfg's indexers, which it does not contact before
// [Client.Run]. [Client.Close] releases it.
func New(cfg Config, metrics *Metrics, log *slog.Logger) (*Client, error) {
	target, options, err := dialTarget(cfg.Addresses)
	if err != nil {
		return nil, err
	}
	options = append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(), // the indexers are neighbours
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: keepaliveTime, Timeout: keepaliveTimeout, PermitWithoutStream: true,
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: retryMin, Multiplier: 1.6, Jitter: 0.2, MaxDelay: retryMax},
			MinConnectTimeout: retryMax,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes)),
	)
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		return nil, fmt.Errorf("indexer %s: %w", strings.Join(cfg.Addresses, ","), err)
	}
	limit := cfg.QueueLimit
	if limit <= 0 {
		limit = DefaultQueueLimit
	}
	c := &Client{
		addresses: cfg.Addresses, conn: conn, api: indexv1.NewIndexServiceClient(conn),
		metrics: metrics, log: log, router: newRouterID(),
		reports: make(chan *indexv1.ReportRequest, limit), incomplete: make(chan struct{}, 1),
	}
	c.lost.Store(&outage{reason: "not connected yet"})
	return c, nil
}

// dialTarget makes one gRPC target of the addresses. A single one goes through
// DNS, so that a headless Service's name means all its pods; of several, each is
// dialled as it is.
func dialTarget(addresses []string) (string, []grpc.DialOption, error) {
	if len(addresses) == 0 {
		return "", nil, errors.New("no indexer address")
	}
	var errs []error
	for _, a := range addresses {
		if strings.Contains(a, "://") || strings.HasPrefix(a, "unix:") {
			if len(addresses) > 1 {
				errs = append(errs, fmt.Errorf("indexer is %q, expected host:port where several are given", a))
			}
			continue
		}
		if _, _, err := net.SplitHostPort(a); err != nil {
			errs = append(errs, fmt.Errorf("indexer is %q, expected host:port: %w", a, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return "", nil, err
	}
	if len(addresses) == 1 {
		if a := addresses[0]; strings.Contains(a, "://") || strings.HasPrefix(a, "unix:") {
			return a, nil, nil
		}
		return "dns:///" + addresses[0], nil, nil
	}
	r := manual.NewBuilderWithScheme("indexers")
	var state resolver.State
	for _, a := range addresses {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: a})
	}
	r.InitialState(state)
	return r.Scheme() + ":///", []grpc.DialOption{grpc.WithResolvers(r)}, nil
}

// Validate reports addresses that [New] would refuse.
func (c Config) Validate() error {
	_, _, err := dialTarget(c.Addresses)
	return err
}

func newRouterID() string {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return "router-" + hex.EncodeToString(id[:])
}

// Run keeps the watch and the report stream open until ctx ends, and returns
// when both are closed.
func (c *Client) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { c.keep(ctx, "watch", c.watch) })
	wg.Go(func() { c.keep(ctx, "report", c.report) })
	wg.Wait()
}

// Close ends every call and releases the connection.
func (c *Client) Close() error { return c.conn.Close() }

// keep opens a stream again and again until ctx ends, more slowly while it keeps
// failing.
func (c *Client) keep(ctx context.Context, name string, stream func(context.Context) error) {
	wait := retryMin
	for ctx.Err() == nil {
		started := time.Now()
		err := stream(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(started) > retryMax {
			wait = retryMin
		}
		c.log.DebugContext(ctx, "index stream ended", "stream", name, "err", err, "retry_in", wait)
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, retryMax)
	}
}

// Status says whether the indexers answer.
type Status struct {
	Addresses []string
	Connected bool
	Reason    string // why not
}

// Answered reports whether some indexer has told its replicas, now or before.
func (c *Client) Answered() bool { return c.fleet.Load() != nil }

// Status describes the connection as the watch sees it.
func (c *Client) Status() Status {
	s := Status{Addresses: c.addresses, Connected: true}
	if o := c.lost.Load(); o != nil {
		s.Connected, s.Reason = false, o.reason
	}
	return s
}
