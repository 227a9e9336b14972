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

func run(ctx context.Context) error {
	cfg, err := app.ParseConfig(os.Args[1:], os.Getenv, os.Stderr)
	if err != nil {
		return err
	}
	return app.Run(ctx, cfg, ops.NewLogger(os.Stderr, cfg.LogLevel))
}
