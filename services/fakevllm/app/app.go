// Package app runs fakevllm: an OpenAI-compatible server with vLLM's prefix
// cache and its events, and without a model.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/prefixroute/prefixroute/pkg/blockpool"
	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
	"github.com/prefixroute/prefixroute/pkg/ops"
	"github.com/prefixroute/prefixroute/services/fakevllm/internal/engine"
	"github.com/prefixroute/prefixroute/services/fakevllm/internal/httpapi"
	"github.com/prefixroute/prefixroute/services/fakevllm/internal/publish"
)

// An App is one replica. Call [New], then Run once, or Close.
type App struct {
	cfg       Config
	log       *slog.Logger
	lis       net.Listener
	engine    *engine.Engine
	publisher *publish.Publisher // nil with events off
	http      *http.Server
}

// New listens on all addresses of cfg and starts nothing else. It fails if cfg
// is not valid or an address is taken.
func New(ctx context.Context, cfg Config, log *slog.Logger) (_ *App, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	a := &App{cfg: cfg, log: log}
	if a.lis, err = ops.Listen(ctx, cfg.Listen); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	reg := prometheus.NewRegistry()
	if cfg.Events != "" {
		if a.publisher, err = a.newPublisher(reg); err != nil {
			return nil, err
		}
	}
	if a.engine, err = a.newEngine(reg); err != nil {
		return nil, err
	}
	a.http = ops.NewServer(httpapi.New(httpapi.Config{
		Engine:       a.engine,
		Publisher:    a.publisher,
		Registry:     reg,
		Log:          log,
		Model:        cfg.Model,
		Adapters:     cfg.adapters(),
		BlockSize:    cfg.BlockSize,
		MaxModelLen:  cfg.maxModelLen(),
		AnswerTokens: cfg.AnswerTokens,
		MaxRequests:  cfg.MaxQueued,
		BufferSteps:  cfg.BufferSteps,
	}), log)
	return a, nil
}

func (a *App) newPublisher(reg prometheus.Registerer) (*publish.Publisher, error) {
	encoding, layout := kvevents.Encoding{Form: kvevents.FormMap}, kvevents.LayoutTopic
	if a.cfg.EventForm == FormArray { // the releases that wrote it had no topic in replays
		encoding.Form, layout = kvevents.FormArray, kvevents.LayoutBare
	}
	topic := a.cfg.Topic
	if topic == "" {
		topic = kvevents.Topic{Pod: a.address().String(), Model: a.cfg.Model}.String()
	}
	return publish.New(publish.Config{
		Endpoint:    a.cfg.Events,
		Replay:      a.cfg.Replay,
		Topic:       topic,
		BufferSteps: a.cfg.BufferSteps,
		Encoding:    encoding,
		Layout:      layout,
		Metrics:     publish.NewMetrics(reg),
		Log:         a.log,
	})
}

func (a *App) newEngine(reg prometheus.Registerer) (*engine.Engine, error) {
	cfg := a.cfg
	hash, err := hashing.NewEngine(cfg.HashAlgo, cfg.HashSeed, hashing.Tagged)
	if err != nil {
		return nil, err
	}
	hasher, err := blockpool.NewHasher(hash, hashing.Scheme{}, cfg.Model, cfg.BlockSize)
	if err != nil {
		return nil, err
	}
	ec := engine.Config{
		Blocks:      cfg.NumGPUBlocks,
		BlockSize:   cfg.BlockSize,
		MaxSeqs:     cfg.MaxNumSeqs,
		MaxRequests: cfg.MaxQueued,
		Overhead:    cfg.Overhead,
		PerToken:    cfg.PerToken,
		InterToken:  cfg.InterToken,
		Jitter:      cfg.Jitter,
		Seed:        cfg.Seed,
		Hasher:      hasher,
		Metrics:     engine.NewMetrics(reg, cfg.Model),
	}
	if a.publisher != nil {
		ec.Publisher = a.publisher
	}
	engine.Static(reg, ec, cfg.HashAlgo, cfg.maxModelLen())
	return engine.New(ec)
}

func (c Config) adapters() []blockpool.Adapter {
	list := make([]blockpool.Adapter, 0, len(c.LoRAs))
	for i, x := range c.LoRAs {
		list = append(list, blockpool.Adapter{ID: int64(i) + 1, Name: x.Name, Path: x.Path})
	}
	return list
}

// URL is the base URL of the HTTP API.
func (a *App) URL() string { return "http://" + a.address().String() }

// EventsEndpoint is the ZMQ address to which a subscriber connects; "" with
// events off.
func (a *App) EventsEndpoint() string {
	if a.publisher == nil {
		return ""
	}
	return a.reachable(a.publisher.Endpoint())
}

// ReplayEndpoint is the ZMQ address to which a DEALER connects to ask for lost
// events; "" if that is off.
func (a *App) ReplayEndpoint() string {
	if a.publisher == nil {
		return ""
	}
	return a.reachable(a.publisher.ReplayEndpoint())
}

// Topic is the topic of the events; "" with events off.
func (a *App) Topic() string {
	if a.publisher == nil {
		return ""
	}
	return a.publisher.Topic()
}

// Run serves until ctx ends, lets open requests finish for at most the drain
// timeout and returns nil, with everything stopped.
func (a *App) Run(ctx context.Context) error {
	a.log.InfoContext(ctx, "serving", "url", a.URL(), "model", a.cfg.Model, "blocks", a.cfg.NumGPUBlocks, "block_size", a.cfg.BlockSize,
		"events", a.EventsEndpoint(), "replay", a.ReplayEndpoint(), "topic", a.Topic())

	// They stop in the order in which they need each other: requests first,
	// then the engine that serves them, then the publisher that it fills.
	base := context.WithoutCancel(ctx)
	engineCtx, stopEngine := context.WithCancel(base)
	publisherCtx, stopPublisher := context.WithCancel(base)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer stopEngine()
		return ops.Serve(gctx, a.http, a.lis, a.cfg.DrainTimeout)
	})
	g.Go(func() error {
		defer stopPublisher()
		return a.engine.Run(engineCtx)
	})
	g.Go(func() error {
		defer stopEngine() // nothing can be published any more
		if a.publisher == nil {
			<-publisherCtx.Done()
			return nil
		}
		return a.publisher.Run(publisherCtx)
	})
	if err := g.Wait(); err != nil {
		return fmt.Errorf("fakevllm: %w", err)
	}
	return nil
}

// Close frees the addresses of an App whose Run is never called.
func (a *App) Close() error {
	err := a.lis.Close()
	if a.publisher != nil {
		err = errors.Join(err, a.publisher.Close())
	}
	return err
}

// Run is New and Run in one.
func Run(ctx context.Context, cfg Config, log *slog.Logger) error {
	a, err := New(ctx, cfg, log)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// address is where the HTTP API can be reached.
func (a *App) address() netip.AddrPort {
	addr, err := netip.ParseAddrPort(a.lis.Addr().String())
	if err != nil { // a TCP listener's address always parses
		return netip.AddrPort{}
	}
	ip := addr.Addr().Unmap()
	if ip.IsUnspecified() {
		ip = ownAddress()
	}
	return netip.AddrPortFrom(ip, addr.Port())
}

// ownAddress is what others can call this machine by: its first address that is
// not a loopback one, which is a pod's only one.
func ownAddress() netip.Addr {
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return loopback
	}
	for _, x := range addrs {
		prefix, err := netip.ParsePrefix(x.String())
		if err != nil {
			continue
		}
		if ip := prefix.Addr().Unmap(); ip.Is4() && ip.IsGlobalUnicast() {
			return ip
		}
	}
	return loopback
}
