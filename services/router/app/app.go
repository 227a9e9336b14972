// Package app is the router service: it wires the fleet, the index client, the
// picker and the proxy, and runs them.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/prefixroute/prefixroute/pkg/ops"
	"github.com/prefixroute/prefixroute/services/router/internal/approx"
	"github.com/prefixroute/prefixroute/services/router/internal/fleet"
	"github.com/prefixroute/prefixroute/services/router/internal/indexclient"
	"github.com/prefixroute/prefixroute/services/router/internal/openai"
	"github.com/prefixroute/prefixroute/services/router/internal/pick"
	"github.com/prefixroute/prefixroute/services/router/internal/proxy"
)

// maxHeaderBytes bounds the headers of a client's request.
const maxHeaderBytes = 64 << 10

// App is a router that is bound to its addresses. Use [New], then [App.Run].
type App struct {
	cfg    Config
	log    *slog.Logger
	public net.Listener
	ops    net.Listener

	registry *prometheus.Registry
	fleet    *fleet.Fleet
	index    *indexclient.Client // nil without an indexer
	approx   *approx.Index
	picker   *pick.Picker
	proxy    *proxy.Proxy
	engines  *http.Client // asks engines for tokens; nil unless configured
	scheme   string
	made     time.Time

	stopping atomic.Bool
}

// New builds the router and opens its listeners; port 0 takes a free one. It
// starts nothing: requests wait in the listener until [App.Run].
func New(ctx context.Context, cfg Config, log *slog.Logger) (*App, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	a := &App{
		cfg: cfg, log: log, made: time.Now(),
		registry: ops.NewRegistry("router"), approx: approx.New(cfg.ApproxCapacity),
	}
	if err := a.build(); err != nil {
		return nil, err
	}
	var err error
	if a.public, err = ops.Listen(ctx, cfg.Listen); err != nil {
		return nil, errors.Join(err, a.release())
	}
	if a.ops, err = ops.Listen(ctx, cfg.ListenOps); err != nil {
		return nil, errors.Join(err, a.public.Close(), a.release())
	}
	return a, nil
}

// build makes the parts, innermost first.
func (a *App) build() (err error) {
	cfg := a.cfg
	policy, err := cfg.policy()
	if err != nil {
		return err
	}
	scheme, err := cfg.scheme()
	if err != nil {
		return err
	}
	a.scheme = scheme.Name()
	a.fleet, err = fleet.New(cfg.Replicas, fleet.Options{
		Interval: cfg.ScrapeInterval, Timeout: cfg.ScrapeTimeout, StaleAfter: cfg.MetricsStaleAfter, ModelsInterval: cfg.ModelsInterval,
		Restarted: a.approx.Clear,
		Sized: func(replica string, blocks, blockSize int) {
			// As many tokens as the engine can hold, in blocks of this index.
			a.approx.Resize(replica, min(blocks, approx.MaxCapacity)*blockSize/cfg.BlockSize)
		},
	}, fleet.NewMetrics(a.registry), a.log)
	if err != nil {
		return err
	}
	picking := pick.Config{
		Policy: policy, Scheme: scheme, BlockSize: cfg.BlockSize, MaxBlocks: cfg.ApproxCapacity, Deadline: cfg.IndexDeadline, Seed: cfg.Seed,
	}
	if cfg.Tokenizer == TokenizerEngine {
		a.engines = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 4 * time.Second}}
		picking.Tokenizer = &pick.EngineTokenizer{HTTP: a.engines, Deadline: cfg.TokenizeDeadline}
	}
	var index pick.Index
	if cfg.Index == pick.Precise && len(cfg.Indexers) > 0 {
		a.index, err = indexclient.New(indexclient.Config{Addresses: cfg.Indexers}, indexclient.NewMetrics(a.registry), a.log)
		if err != nil {
			return err
		}
		index = a.index
	}
	a.picker, err = pick.New(picking, a.fleet, index, a.approx, pick.NewMetrics(a.registry, cfg.Policy), a.log)
	if err != nil {
		return errors.Join(err, a.release())
	}
	a.proxy = proxy.New(proxy.Config{
		MaxBodyBytes: cfg.MaxBodyBytes, ConnectTimeout: cfg.ConnectTimeout, ResponseTimeout: cfg.ResponseTimeout,
	}, a.picker, a.fleet, proxy.NewMetrics(a.registry), a.log)
	a.registry.MustRegister(a.fleet.Collector(), &collector{app: a})
	return nil
}

// release gives back what New took and Run was never given.
func (a *App) release() error {
	if a.index != nil {
		return a.index.Close()
	}
	return nil
}

// URL is the base URL for clients.
func (a *App) URL() string { return "http://" + a.public.Addr().String() }

// OpsURL is the base URL of metrics and health.
func (a *App) OpsURL() string { return "http://" + a.ops.Addr().String() }

// Run serves until ctx ends, lets open requests finish for the drain timeout,
// and returns when everything it started has stopped; nil after a clean stop.
func (a *App) Run(ctx context.Context) error {
	a.log.InfoContext(ctx, "serving", "url", a.URL(), "ops", a.OpsURL(), "config", a.cfg)
	public := ops.NewServer(a.handler(), a.log)
	public.MaxHeaderBytes = maxHeaderBytes
	admin := ops.NewServer(ops.NewMux(a.registry, a.ready), a.log)

	// What requests need outlives the listeners: the background ends last.
	background, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBackground()
	var back errgroup.Group
	back.Go(func() error { a.fleet.Run(background); return nil })
	if a.index != nil {
		back.Go(func() error { a.index.Run(background); return nil })
	}

	front, fctx := errgroup.WithContext(ctx)
	front.Go(func() error {
		a.settle(fctx)
		return serve(ctx, fctx, public, a.public, a.cfg.DrainTimeout, "clients")
	})
	front.Go(func() error { return serve(ctx, fctx, admin, a.ops, a.cfg.DrainTimeout, "ops") })
	front.Go(func() error {
		<-fctx.Done()
		a.stopping.Store(true)
		return nil
	})
	err := front.Wait()
	stopBackground()
	err = errors.Join(err, back.Wait(), a.release())
	a.proxy.Close()
	if a.engines != nil {
		a.engines.CloseIdleConnections()
	}
	return err
}

// serve runs one server. Requests still open after the drain are cut, which is
// no fault of a router that was told to stop.
func serve(ctx, group context.Context, srv *http.Server, lis net.Listener, drain time.Duration, name string) error {
	if err := ops.Serve(group, srv, lis, drain); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve %s: %w", name, err)
	}
	return nil
}

// Run is [New] and [App.Run].
func Run(ctx context.Context, cfg Config, log *slog.Logger) error {
	a, err := New(ctx, cfg, log)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

const (
	// indexGrace is how long a router that starts waits for its indexer before it
	// takes traffic without.
	indexGrace = 3 * time.Second
	// settleStep is the pause between two looks at whether it is ready.
	settleStep = 5 * time.Millisecond
)

// settle returns when the router is ready, after its grace, or with ctx.
// Requests that come meanwhile wait in the listener: a few milliseconds, where an
// answer of ignorance would be a refusal or a cold cache.
func (a *App) settle(ctx context.Context) {
	tick := time.NewTicker(settleStep)
	defer tick.Stop()
	for a.ready() != nil && time.Since(a.made) < indexGrace {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// ready says why this router should get no traffic. A router that joins others
// knows nothing of its own: without the index it would send every prompt to where
// it is not.
func (a *App) ready() error {
	if a.stopping.Load() {
		return errors.New("stopping")
	}
	if err := a.fleet.Ready(); err != nil {
		return err
	}
	if a.index != nil && !a.index.Answered() && time.Since(a.made) < indexGrace {
		return fmt.Errorf("no indexer has answered yet; ready without one after %v", indexGrace)
	}
	return nil
}

// handler serves clients: the API, and the router's own pages beside it.
func (a *App) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", a.proxy)
	mux.HandleFunc("GET /prefixroute/state", a.state)
	mux.HandleFunc("POST /prefixroute/explain", a.explain)
	mux.HandleFunc("/prefixroute/state", wrongMethod(http.MethodGet))
	mux.HandleFunc("/prefixroute/explain", wrongMethod(http.MethodPost))
	return mux
}

// wrongMethod answers for a page that takes another method.
func wrongMethod(right string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", right)
		openai.Error{
			Status: http.StatusMethodNotAllowed, Type: openai.InvalidRequest, Code: "method_not_allowed",
			Message: "method is " + r.Method + ", expected " + right,
		}.Write(w)
	}
}
