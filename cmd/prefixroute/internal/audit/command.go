package audit

import (
	"github.com/spf13/cobra"
)

// NewCommand returns the audit subcommand. It fails with [ErrUnexplained] if some
// difference is not explained.
func NewCommand() *cobra.Command {
	var opts Options
	cmd := &cobra.Command{
		Use:   "audit FILE...",
		Short: "Replay recordings of real engines and compare the index's predictions with their answers",
		Long: `Replays recordings through prefixroute's own event decoder and index, predicts
the cached tokens of every request at the moment it was sent, and compares them
with what the engine reported. For each file it prints the figures and every
difference with its cause. A cause is named only if the recording proves it:

  in flight   blocks of requests that were being computed are usable before
              their event is out
  cleared     a reset, sleep or pause is published with the engine's next step
  report      kv_cache_report_mode=full announced held blocks as if stored

The exit status is 0 only if every difference is explained.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			cmd.SilenceUsage = true
			ok, err := Run(cmd.Context(), files, opts, cmd.OutOrStdout())
			if err != nil {
				return err
			}
			if !ok {
				return ErrUnexplained
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&opts.JSON, "json", false, "one JSON object a file, each on a line of its own")
	cmd.Flags().StringVar(&opts.Model, "model", "", "base model's `name`, where the events' topics do not tell it")
	return cmd
}
