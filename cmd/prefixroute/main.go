// Command prefixroute is the product's command line: a demonstration in one
// process, the comparison of approximate with precise routing, and the audit of
// recorded engines.
package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/prefixroute/prefixroute/cmd/prefixroute/internal/audit"
	"github.com/prefixroute/prefixroute/pkg/ops"
)

func main() {
	os.Exit(ops.Main("prefixroute", func(ctx context.Context) error {
		return newCommand().ExecuteContext(ctx)
	}))
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "prefixroute",
		Short:         "Route LLM requests to the replica that really holds their prefix",
		Version:       ops.Version(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newDemoCommand(), newCompareCommand(), audit.NewCommand())
	return root
}
