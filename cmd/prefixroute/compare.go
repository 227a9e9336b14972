package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/prefixroute/prefixroute/cmd/prefixroute/internal/compare"
	"github.com/prefixroute/prefixroute/cmd/prefixroute/internal/stack"
	"github.com/prefixroute/prefixroute/pkg/trace"
	fakevllm "github.com/prefixroute/prefixroute/services/fakevllm/app"
)

// demoModel is the model that the engines of a stack of our own serve.
const demoModel = "demo"

// indexes are the kinds of index that are compared, in the order of the table.
var indexes = []string{"approximate", "precise"}

type compareOptions struct {
	routers, servers map[string]string
	load             compare.Load
	engineBlocks     int
	json             bool
}

func newCompareCommand() *cobra.Command {
	o := compareOptions{load: defaultLoad(), engineBlocks: defaultEngineBlocks}
	cmd := &cobra.Command{
		Use:   "compare",
		Short: "Send one seeded load through approximate and precise routing, with forced evictions in the middle",
		Long: `Sends the same seeded load through an approximate and a precise router and
forces evictions after half of it. Without --router, each side gets an indexer,
a router and three simulated engines of its own, in this process. With --router,
the sides run one after the other on the given servers, which are emptied before
each (fakevllm: /admin/evict, vLLM: /reset_prefix_cache in development mode). An
approximate router that ran before still believes what it sent then: restart it.

Exit code 0 means that every request was answered, not that one side won.`,
		Example: `  prefixroute compare
  prefixroute compare --json | jq '.[].hit_rate'
  prefixroute compare --router approximate=http://10.0.0.1:8080 --router precise=http://10.0.0.1:8081 \
      --server sim-a=http://10.0.0.2:8000 --server sim-b=http://10.0.0.3:8000 --model my-model`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runCompare(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringToStringVar(&o.routers, "router", nil, "`INDEX=URL` of a running router; INDEX is approximate or precise; give one for each side")
	f.StringToStringVar(&o.servers, "server", nil, "`NAME=URL` of each engine behind the routers, by the routers' names")
	f.BoolVar(&o.json, "json", false, "print JSON instead of a table")
	addLoadFlags(cmd, &o.load)
	addEngineFlags(cmd, &o.engineBlocks)
	return cmd
}

// defaultLoad is one request after the other, so that each prediction can be judged.
func defaultLoad() compare.Load {
	return compare.Load{Trace: trace.Default(demoModel), Concurrency: 1, Evict: true, Settle: 200 * time.Millisecond}
}

func addLoadFlags(cmd *cobra.Command, l *compare.Load) {
	f := cmd.Flags()
	f.StringVar(&l.Trace.Model, "model", l.Trace.Model, "model `name` in the requests")
	f.IntVar(&l.Trace.Requests, "requests", l.Trace.Requests, "`number` of requests")
	f.IntVar(&l.Trace.Tenants, "tenants", l.Trace.Tenants, "`number` of distinct system prompts")
	f.IntVar(&l.Trace.Words, "words", l.Trace.Words, "`words` in each system prompt")
	f.IntVar(&l.Trace.MaxTokens, "max-tokens", l.Trace.MaxTokens, "`tokens` in each answer")
	f.Float64Var(&l.Trace.Rate, "rate", l.Trace.Rate, "mean arrivals a `second`, Poisson; 0 = one after the other")
	f.Float64Var(&l.Trace.Hot, "hot", l.Trace.Hot, "`share` of requests that go to the first tenant, 0 to 1")
	f.Uint64Var(&l.Trace.Seed, "seed", l.Trace.Seed, "seed of the trace and of the routers' ties")
	f.IntVar(&l.Concurrency, "concurrency", l.Concurrency, "`requests` open at once; above 1 the predictions are also wrong about each other's requests")
	f.BoolVar(&l.Evict, "evict", l.Evict, "force evictions after half of the requests")
	f.DurationVar(&l.Settle, "settle", l.Settle, "pause after forced evictions, for their events to arrive")
}

func (o compareOptions) validate() error {
	var errs []error
	for index := range o.routers {
		if !slices.Contains(indexes, index) {
			errs = append(errs, fmt.Errorf("router is given for index %q, expected approximate or precise", index))
		}
	}
	if (len(o.routers) > 0) != (len(o.servers) > 0) {
		errs = append(errs, errors.New("--router and --server go together: the routers' engines must be named to read their counters"))
	}
	if o.load.Concurrency < 1 {
		errs = append(errs, fmt.Errorf("concurrency is %d, expected at least 1", o.load.Concurrency))
	}
	return errors.Join(append(errs, o.load.Trace.Validate())...)
}

func runCompare(ctx context.Context, o compareOptions, stdout, stderr io.Writer) error {
	if err := o.validate(); err != nil {
		return err
	}
	report := progress(stderr)
	var results []compare.Result
	var err error
	if len(o.routers) > 0 {
		results, err = compareURLs(ctx, o, report)
	} else {
		results, err = compareStacks(ctx, o.load, stackConfig(o.load, o.engineBlocks, stderr), report)
	}
	if err != nil {
		return err
	}
	write := compare.WriteTable
	if o.json {
		write = compare.WriteJSON
	}
	if err := write(stdout, results); err != nil {
		return err
	}
	for _, r := range results {
		if r.Errors > 0 {
			return fmt.Errorf("%s: %d requests failed, the first with: %w", r.Index, r.Errors, r.FirstError)
		}
	}
	return nil
}

// compareURLs runs the sides that were given on the servers they share.
func compareURLs(ctx context.Context, o compareOptions, report compare.Progress) ([]compare.Result, error) {
	var servers []compare.Server
	for _, name := range slices.Sorted(maps.Keys(o.servers)) {
		servers = append(servers, compare.Server{Name: name, URL: o.servers[name]})
	}
	var results []compare.Result
	for _, index := range indexes {
		url, ok := o.routers[index]
		if !ok {
			continue
		}
		r, err := compare.Run(ctx, compare.Target{Index: index, Router: url, Servers: servers}, o.load, report)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", index, err)
		}
		results = append(results, r)
	}
	return results, nil
}

// compareStacks gives each side fresh engines, a fresh indexer and a fresh router.
func compareStacks(ctx context.Context, load compare.Load, cfg stack.Config, report compare.Progress) ([]compare.Result, error) {
	var results []compare.Result
	for _, index := range indexes {
		r, err := compareStack(ctx, index, load, cfg, report)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", index, err)
		}
		results = append(results, r)
	}
	return results, nil
}

func compareStack(ctx context.Context, index string, load compare.Load, cfg stack.Config, report compare.Progress) (r compare.Result, err error) {
	cfg.Routers = []string{index}
	s, err := stack.Start(ctx, cfg)
	if err != nil {
		return compare.Result{}, err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	target, err := s.Target(index)
	if err != nil {
		return compare.Result{}, err
	}
	return compare.Run(ctx, target, load, report)
}

// defaultEngineBlocks is room for the whole default load on one engine, so that
// nothing but a forced eviction can prove a promise wrong.
const defaultEngineBlocks = 256

func addEngineFlags(cmd *cobra.Command, blocks *int) {
	cmd.Flags().IntVar(blocks, "engine-blocks", *blocks, "usable cache `blocks` of each simulated engine")
}

// stackConfig is three engines on which a miss costs 1 ms a token, so that a hit
// can be seen in the time to first token.
func stackConfig(load compare.Load, blocks int, stderr io.Writer) stack.Config {
	engine := fakevllm.DefaultConfig()
	engine.Model = load.Trace.Model
	engine.NumGPUBlocks = blocks + 1 // block 0 is never usable
	engine.Overhead = 5 * time.Millisecond
	engine.PerToken = time.Millisecond
	return stack.Config{
		Engines: 3, Engine: engine, Seed: load.Trace.Seed,
		Log: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
}

// progress writes a line at each quarter of a side.
func progress(w io.Writer) compare.Progress {
	return func(index string, done, total int) {
		quarter := max(1, total/4)
		if done%quarter == 0 || done == total {
			fmt.Fprintf(w, "%-12s %d/%d requests\n", index, done, total)
		}
	}
}
