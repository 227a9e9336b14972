package compare

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// WriteTable writes one line for each side.
func WriteTable(w io.Writer, results []Result) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "index\thit rate\tTTFT p50\tTTFT p95\twrong predictions\terrors\trequests per replica\t")
	for _, r := range results {
		fmt.Fprintf(tw, "%s\t%.1f %%\t%.1f ms\t%.1f ms\t%s\t%d\t%s\t\n",
			r.Index, 100*r.HitRate, r.TTFTp50MS, r.TTFTp95MS, wrong(r), r.Errors, perReplica(r.Requests))
	}
	return tw.Flush()
}

// wrong says how many predictions did not hold, and by how many tokens.
func wrong(r Result) string {
	if r.Wrong == 0 {
		return "0"
	}
	return fmt.Sprintf("%d (+%d/-%d tokens)", r.Wrong, r.OverTokens, r.UnderTokens)
}

func perReplica(requests map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, requests[name]))
	}
	return strings.Join(parts, ", ")
}

// WriteJSON writes the results as one array.
func WriteJSON(w io.Writer, results []Result) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(results)
}
