// Command fakevllm is a stand-in for a vLLM server: same API, same prefix cache,
// same events, no model.
package main

import (
	"context"
	"os"

	"github.com/prefixroute/prefixroute/pkg/ops"
	"github.com/prefixroute/prefixroute/services/fakevllm/app"
)

func main() {
	os.Exit(ops.Main("fakevllm", run))
}

func run(ctx context.Context) error {
	cfg, err := app.ParseConfig(os.Args[1:], os.Getenv, os.Stderr)
	if err != nil {
		return err
	}
	return app.Run(ctx, cfg, ops.NewLogger(os.Stderr, cfg.LogLevel))
}
