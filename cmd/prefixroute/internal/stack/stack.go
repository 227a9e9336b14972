// Package stack runs the whole product in one process: engines, an indexer and
// routers, on loopback ports that the system chooses.
package stack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/prefixroute/prefixroute/cmd/prefixroute/internal/compare"
	"github.com/prefixroute/prefixroute/pkg/replicas"
	fakevllm "github.com/prefixroute/prefixroute/services/fakevllm/app"
	indexer "github.com/prefixroute/prefixroute/services/indexer/app"
	router "github.com/prefixroute/prefixroute/services/router/app"
)

// Config says what to run.
type Config struct {
	// Engines is called sim-a, sim-b and so on.
	Engines int
	// Engine configures each of them; addresses are overwritten.
	Engine fakevllm.Config
	// Routers holds one kind of index for each router: approximate or precise.
	Routers []string
	// CutEvents lets the indexer follow an address where no engine publishes.
	CutEvents bool
	// Redis is the URL of the durable copy; empty keeps none.
	Redis string
	// Seed decides ties in the routers.
	Seed uint64
	Log  *slog.Logger
}

// Stack is a running product. Stop ends it.
type Stack struct {
	Engines []compare.Server
	// Routers holds the base URLs in the order of Config.Routers.
	Routers []string
	// IndexerOps is the base URL of the indexer's /replicas and /metrics,
	// RouterOps of each router's /metrics.
	IndexerOps string
	RouterOps  []string

	indexes []string
	cut     bool
	group   *errgroup.Group
	cancel  context.CancelFunc
}

// Start starts everything and returns when every router can answer, the
// precise ones from the index. What it started ends with ctx or with Stop.
func Start(ctx context.Context, cfg Config) (*Stack, error) {
	ctx, cancel := context.WithCancel(ctx)
	g, gctx := errgroup.WithContext(ctx)
	s := &Stack{group: g, cancel: cancel, indexes: cfg.Routers, cut: cfg.CutEvents}
	if err := s.start(gctx, cfg); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// Stop ends everything and waits for it.
func (s *Stack) Stop() error {
	s.cancel()
	return s.group.Wait()
}

// Target is the comparison side of the first router with the given index.
func (s *Stack) Target(index string) (compare.Target, error) {
	for i, have := range s.indexes {
		if have == index {
			return compare.Target{Index: index, Router: s.Routers[i], Servers: s.Engines}, nil
		}
	}
	return compare.Target{}, fmt.Errorf("no router runs with the %s index", index)
}

func (s *Stack) start(ctx context.Context, cfg Config) error {
	var list replicas.List
	for i := range cfg.Engines {
		r, err := s.startEngine(ctx, cfg, fmt.Sprintf("sim-%c", 'a'+i))
		if err != nil {
			return err
		}
		list = append(list, r)
	}
	grpcAddr, err := s.startIndexer(ctx, cfg, list)
	if err != nil {
		return err
	}
	for i, index := range cfg.Routers {
		if err := s.startRouter(ctx, cfg, list, index, grpcAddr, cfg.Seed+uint64(i)); err != nil {
			return err
		}
	}
	return s.waitReady(ctx)
}

func (s *Stack) startEngine(ctx context.Context, cfg Config, name string) (replicas.Replica, error) {
	c := cfg.Engine
	c.Listen, c.Events, c.Replay = "127.0.0.1:0", "tcp://127.0.0.1:*", "tcp://127.0.0.1:*"
	engine, err := fakevllm.New(ctx, c, cfg.Log.With("service", "fakevllm", "replica", name))
	if err != nil {
		return replicas.Replica{}, fmt.Errorf("start engine %s: %w", name, err)
	}
	s.group.Go(func() error { return engine.Run(ctx) })
	s.Engines = append(s.Engines, compare.Server{Name: name, URL: engine.URL()})
	r := replicas.Replica{
		Name: name, URL: engine.URL(), Topic: engine.Topic(),
		Events: engine.EventsEndpoint(), Replay: engine.ReplayEndpoint(),
	}
	if cfg.CutEvents {
		r.Events, r.Replay = "inproc://nobody", ""
	}
	return r, nil
}

func (s *Stack) startIndexer(ctx context.Context, cfg Config, list replicas.List) (grpcAddr string, err error) {
	c := indexer.DefaultConfig()
	c.ListenGRPC, c.ListenOps, c.Replicas, c.Redis = "127.0.0.1:0", "127.0.0.1:0", list, cfg.Redis
	ix, err := indexer.New(ctx, c, cfg.Log.With("service", "indexer"))
	if err != nil {
		return "", fmt.Errorf("start indexer: %w", err)
	}
	s.IndexerOps = ix.OpsURL()
	s.group.Go(func() error { return ix.Run(ctx) })
	return ix.GRPCAddr(), nil
}

func (s *Stack) startRouter(ctx context.Context, cfg Config, list replicas.List, index, grpcAddr string, seed uint64) error {
	c := router.DefaultConfig()
	c.Listen, c.ListenOps, c.Replicas, c.Index, c.Seed = "127.0.0.1:0", "127.0.0.1:0", list, index, seed
	c.BlockSize = cfg.Engine.BlockSize
	// Everything shares one machine here, so the fleet's deadline is too tight.
	c.IndexDeadline = 500 * time.Millisecond
	if index == "precise" {
		c.Indexers = []string{grpcAddr}
	}
	r, err := router.New(ctx, c, cfg.Log.With("service", "router", "index", index))
	if err != nil {
		return fmt.Errorf("start %s router: %w", index, err)
	}
	s.group.Go(func() error { return r.Run(ctx) })
	s.Routers = append(s.Routers, r.URL())
	s.RouterOps = append(s.RouterOps, r.OpsURL())
	return nil
}

// readyDeadline bounds the wait for streams and scrapes that take milliseconds.
const readyDeadline = 20 * time.Second

// waitReady polls the routers' own view of the fleet.
func (s *Stack) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyDeadline)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for i, url := range s.Routers {
		for {
			err := s.ready(ctx, url, s.indexes[i])
			if err == nil {
				break
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return fmt.Errorf("%s router is not ready: %w", s.indexes[i], err)
			}
		}
	}
	return nil
}

// ready says why a router cannot decide with its kind of index yet.
func (s *Stack) ready(ctx context.Context, url, index string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/prefixroute/state", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var state struct {
		Replicas []struct {
			Name      string
			Reachable bool
			Reason    string
			Load      struct{ Known bool }
			Index     struct {
				Precise bool
				Reason  string
			}
		}
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&state); err != nil {
		return fmt.Errorf("decode router state: %w", err)
	}
	for _, r := range state.Replicas {
		if !r.Reachable || !r.Load.Known {
			return fmt.Errorf("replica %s is not reachable: %s", r.Name, r.Reason)
		}
		if index == "precise" && !s.cut && !r.Index.Precise {
			return fmt.Errorf("replica %s has no live stream: %s", r.Name, r.Index.Reason)
		}
	}
	return nil
}
