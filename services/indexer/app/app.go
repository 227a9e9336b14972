// Package app is the indexer as a library: its own main starts it as a process,
// and the command line tool starts it beside engines and routers in one.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/ops"
	"github.com/prefixroute/prefixroute/services/indexer/internal/belief"
	"github.com/prefixroute/prefixroute/services/indexer/internal/follow"
	"github.com/prefixroute/prefixroute/services/indexer/internal/grpcapi"
	"github.com/prefixroute/prefixroute/services/indexer/internal/inbox"
	"github.com/prefixroute/prefixroute/services/indexer/internal/reports"
	"github.com/prefixroute/prefixroute/services/indexer/internal/sources"
	"github.com/prefixroute/prefixroute/services/indexer/internal/store"
	"github.com/prefixroute/prefixroute/services/indexer/internal/web"
	"github.com/prefixroute/prefixroute/services/indexer/internal/zmqsock"
)

// Limits that are not worth a setting.
const (
	connectTimeout  = 5 * time.Second
	maxMessageBytes = 64 << 20 // a step that stores a million-token prompt has 10 MB
	maxSockets      = 16 << 10
)

// App is an indexer that listens. Use [New], then Run.
type App struct {
	cfg   Config
	log   *slog.Logger
	ready atomic.Bool

	grpcLis, opsLis net.Listener
	fleet           *belief.Fleet
	client          *zmqsock.Client
	follower        *follow.Follower
	store           *store.Store  // nil without a durable copy
	writer          *store.Writer // likewise
	endpoint        *grpcapi.Endpoint
	ops             *http.Server
}

// New makes an indexer and listens on its addresses; it starts nothing else. It
// fails if the program was built without libzmq.
func New(ctx context.Context, cfg Config, log *slog.Logger) (*App, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	a := &App{cfg: cfg, log: log}
	if err := a.build(ops.NewRegistry("indexer")); err != nil {
		return nil, errors.Join(err, a.release())
	}
	var err error
	if a.grpcLis, err = ops.Listen(ctx, cfg.ListenGRPC); err != nil {
		return nil, errors.Join(err, a.release())
	}
	if a.opsLis, err = ops.Listen(ctx, cfg.ListenOps); err != nil {
		return nil, errors.Join(err, a.grpcLis.Close(), a.release())
	}
	return a, nil
}

// build wires everything together.
func (a *App) build(reg *prometheus.Registry) (err error) {
	cfg := a.cfg
	if a.client, err = zmqsock.New(zmqsock.Config{
		HeartbeatInterval: cfg.HeartbeatInterval,
		HeartbeatTimeout:  cfg.HeartbeatTimeout,
		ConnectTimeout:    connectTimeout,
		ReplayIdleTimeout: cfg.ReplayIdleTimeout,
		MaxMessageBytes:   maxMessageBytes,
		MaxSockets:        maxSockets,
	}); err != nil {
		return err
	}
	secret, err := ops.ReadSecret(cfg.KeySecretFile)
	if err != nil {
		return fmt.Errorf("key-secret-file: %w", err)
	}
	dirty := func(*belief.Replica) {}
	if cfg.durable() {
		if a.store, err = store.Open(cfg.Redis, cfg.RedisPrefix, cfg.RedisTimeout); err != nil {
			return err
		}
		a.writer = store.NewWriter(a.store, store.NewMetrics(reg), a.log)
		dirty = a.writer.Dirty
	}
	a.fleet = belief.NewFleet(cfg.Replicas, hashing.NewScheme(secret), dirty)
	a.follower = follow.New(follow.Config{
		DownAfter:         cfg.DownAfter,
		ProbeInterval:     cfg.ProbeInterval,
		ReplayAttempts:    cfg.ReplayAttempts,
		ReplayConcurrency: cfg.ReplayConcurrency,
		ReplayMaxBytes:    cfg.ReplayMaxMiB << 20,
		Queue:             inbox.Limits{Messages: cfg.QueueMessages, Bytes: int64(cfg.QueueMiB) << 20},
	}, a.client, a.client, sources.NewResolver(connectTimeout), follow.NewMetrics(reg), a.log)

	ledger := &reports.Ledger{}
	api := grpcapi.New(a.fleet, ledger, a.warm, grpcapi.NewMetrics(reg))
	a.endpoint = grpcapi.NewEndpoint(api, a.log)
	web.RegisterCollector(reg, a.fleet, ledger)
	mux := ops.NewMux(reg, a.warm)
	web.New(a.fleet, ledger, a.log).Register(mux)
	a.ops = ops.NewServer(mux, a.log)
	return nil
}

// warm is nil once look-ups can be answered. That does not wait for engines:
// the answers say where each one stands.
func (a *App) warm() error {
	if !a.ready.Load() {
		return grpcapi.ErrWarmingUp
	}
	return nil
}

// GRPCAddr is the bound "host:port" of the index API.
func (a *App) GRPCAddr() string { return a.grpcLis.Addr().String() }

// OpsURL is the base URL of metrics, health and pages.
func (a *App) OpsURL() string { return "http://" + a.opsLis.Addr().String() }

// release gives back what build has opened.
func (a *App) release() error {
	if a.store == nil {
		return nil
	}
	return a.store.Close()
}

// Run is [New] and [App.Run].
func Run(ctx context.Context, cfg Config, log *slog.Logger) error {
	a, err := New(ctx, cfg, log)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// Run serves until ctx ends. It returns nil after a clean stop, when everything
// that it started has stopped: first the API drains, then the streams end, the
// durable copy gets what it lacks, and last the operations listener closes.
func (a *App) Run(ctx context.Context) error {
	a.log.InfoContext(ctx, "serving", "grpc", a.GRPCAddr(), "ops", a.OpsURL(), "replicas", a.cfg.Replicas.Names(),
		"key_scheme", a.fleet.Scheme().Name(), "redis", redact(a.cfg.Redis), "version", ops.Version())
	g, gctx := errgroup.WithContext(ctx)
	// What outlives gctx, each until what needs it has ended.
	socketsCtx, endSockets := context.WithCancel(context.WithoutCancel(ctx))
	defer endSockets()
	opsCtx, endOps := context.WithCancel(context.WithoutCancel(ctx))
	defer endOps()
	var drained, followed sync.WaitGroup
	drained.Add(1)
	followed.Add(1)

	g.Go(func() error { return a.client.Run(socketsCtx) })
	g.Go(func() error {
		defer followed.Done()
		defer endSockets()
		a.followAll(gctx)
		return nil
	})
	g.Go(func() error { return a.endpoint.Serve(a.grpcLis) })
	g.Go(func() error {
		defer drained.Done()
		<-gctx.Done()
		a.ready.Store(false)
		// The parent is over; draining gets its own, bounded, time.
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.cfg.DrainTimeout)
		defer cancel()
		a.endpoint.Drain(drain)
		return nil
	})
	g.Go(func() error { return ops.Serve(opsCtx, a.ops, a.opsLis, a.cfg.DrainTimeout) })
	g.Go(func() error {
		drained.Wait()
		followed.Wait()
		endOps()
		return nil
	})
	err := g.Wait()
	return errors.Join(err, a.release())
}

// followAll takes over the durable copies and follows the replicas until ctx
// ends, then writes what the copies lack.
func (a *App) followAll(ctx context.Context) {
	if a.writer == nil {
		a.begin()
		a.follower.Run(ctx, a.fleet.Replicas())
		return
	}
	warm, cancel := context.WithTimeout(ctx, a.cfg.WarmTimeout)
	a.writer.WarmStart(warm, a.fleet.Replicas())
	cancel()
	if ctx.Err() != nil {
		return
	}
	a.begin()
	var writing sync.WaitGroup
	writing.Go(func() { a.writer.Run(ctx) })
	a.follower.Run(ctx, a.fleet.Replicas())
	writing.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.cfg.DrainTimeout)
	defer cancel()
	a.writer.Flush(last)
}

func (a *App) begin() {
	a.ready.Store(true)
	a.endpoint.Ready()
}
