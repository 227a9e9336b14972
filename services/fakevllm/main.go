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

// run serves, or with the word probe before its flags asks a serving process
// with the same configuration whether it is well.
func run(ctx context.Context) error {
	flags, probe := ops.CutProbe(os.Args[1:])
	cfg, err := app.ParseConfig(flags, os.Getenv, os.Stderr)
	if err != nil {
		return err
	}
	if probe {
		return ops.Probe(ctx, cfg.Listen, "/health")
	}
	return app.Run(ctx, cfg, ops.NewLogger(os.Stderr, cfg.LogLevel))
}
