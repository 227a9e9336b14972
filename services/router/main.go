// Command router is the OpenAI-compatible proxy that sends each request to the
// replica that holds most of its prompt, weighed against load.
package main

import (
	"context"
	"os"

	"github.com/prefixroute/prefixroute/pkg/ops"
	"github.com/prefixroute/prefixroute/services/router/app"
)

func main() {
	os.Exit(ops.Main("router", func(ctx context.Context) error {
		cfg, err := app.ParseConfig(os.Args[1:], os.Getenv, os.Stderr)
		if err != nil {
			return err
		}
		return app.Run(ctx, cfg, ops.NewLogger(os.Stderr, cfg.LogLevel))
	}))
}
