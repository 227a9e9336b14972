package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/prefixroute/prefixroute/cmd/prefixroute/internal/compare"
	"github.com/prefixroute/prefixroute/cmd/prefixroute/internal/stack"
	"github.com/prefixroute/prefixroute/pkg/trace"
)

func newDemoCommand() *cobra.Command {
	load, blocks := defaultLoad(), defaultEngineBlocks
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run three engines, an indexer and two routers in one process, and compare the routers",
		Long: `Runs three simulated engines, the indexer and an approximate and a precise
router in this process, without Redis. It first shows one prefix that is evicted
behind the routers' backs, then compares both under a load of eight tenants.

Exit code 0 means that the evictions fooled the approximate router and never the
precise one.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runDemo(cmd.Context(), load, blocks, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	addLoadFlags(cmd, &load)
	addEngineFlags(cmd, &blocks)
	return cmd
}

func runDemo(ctx context.Context, load compare.Load, blocks int, stdout, stderr io.Writer) error {
	if err := load.Trace.Validate(); err != nil {
		return err
	}
	cfg := stackConfig(load, blocks, stderr)
	if err := showEviction(ctx, cfg, load, stdout); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "\n2. %d requests of %d tenants, through each router on fresh engines; after half of them\n   every second tenant's prompt is evicted everywhere\n\n", load.Trace.Requests, load.Trace.Tenants)
	results, err := compareStacks(ctx, load, cfg, progress(stderr))
	if err != nil {
		return err
	}
	if err := compare.WriteTable(stdout, results); err != nil {
		return err
	}
	if err := compare.Check(results); err != nil {
		return fmt.Errorf("the demonstration did not show what it should: %w", err)
	}
	return nil
}

// showEviction warms one replica with a prefix, evicts it there, and shows
// where each router would send the next request of that prefix.
func showEviction(ctx context.Context, cfg stack.Config, load compare.Load, w io.Writer) (err error) {
	reqs, err := trace.Generate(load.Trace)
	if err != nil {
		return err
	}
	cfg.Routers = indexes
	s, err := stack.Start(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	fmt.Fprintf(w, "three engines, an indexer and two routers are up; the indexer shows them at %s/replicas\n\n", s.IndexerOps)
	approximate, err := s.Target("approximate")
	if err != nil {
		return err
	}
	precise, err := s.Target("precise")
	if err != nil {
		return err
	}
	e, err := compare.Evict(ctx, approximate, precise, reqs[0])
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "1. a prompt of %d tokens is sent twice and lands on %s; then it is evicted there\n", e.Tokens, e.Replica)
	for _, d := range []compare.Choice{e.Approximate, e.Precise} {
		fmt.Fprintf(w, "   %-11s router: %s\n", d.Index, d)
	}
	fmt.Fprintf(w, "   sent through the approximate router, %s reuses %d tokens of the %d promised\n", e.Replica, e.Cached, e.Promised)
	return nil
}
