package audit

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// writeTable writes one file's figures, and below them each difference with its
// cause and whatever else a reader has to know.
func writeTable(w io.Writer, rep *Report, again bool) error {
	var b strings.Builder
	if again {
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "%s\n", rep.File)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "requests\texact\tpromised too much\ttoo little\texplained\t")
	fmt.Fprintf(t, "%d\t%d\t%d\t%d\t%d\t\n", rep.Requests, rep.Exact, rep.Over, rep.Under, rep.Explained)
	if err := t.Flush(); err != nil {
		return err
	}
	for _, n := range rep.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	for _, s := range rep.Skipped {
		fmt.Fprintf(&b, "not compared: %d (%s)\n", s.N, s.Reason)
	}
	writeDifferences(&b, rep.Differences)
	_, err := io.WriteString(w, b.String())
	return err
}

func writeDifferences(b *strings.Builder, all []Difference) {
	if len(all) == 0 {
		return
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "line\ttokens\tpromised\treported\tcause\trequest")
	for _, d := range all {
		cause := string(d.Cause)
		if d.Proof != "" {
			cause += ": " + d.Proof
		}
		fmt.Fprintf(t, "%d\t%d\t%d\t%d\t%s\t%s\n", d.Line, d.Tokens, d.Promised, d.Reported, cause, d.Note)
	}
	_ = t.Flush() // a Builder takes everything
}
