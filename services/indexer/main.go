// Command indexer follows the KV-cache events of a fleet of engines and answers
// how much of a prompt each of them holds.
package main

import (
	"context"
	"os"

	"github.com/prefixroute/prefixroute/pkg/ops"
	"github.com/prefixroute/prefixroute/services/indexer/app"
)

func main() {
	os.Exit(ops.Main("indexer", run))
}

// run serves, or with the word probe before its flags asks a serving process
// with the same configuration whether it is well.
func run(ctx context.Context) error {
	flags, probe := ops.CutProbe(os.Args[1:])
	cfg, err := app.ParseConfig(flags, os.Getenv, os.Stderr)
	if err != nil {
		return err
	}
	if probe {
		return ops.Probe(ctx, cfg.ListenOps, "/readyz")
	}
	return app.Run(ctx, cfg, ops.NewLogger(os.Stderr, cfg.LogLevel))
}
