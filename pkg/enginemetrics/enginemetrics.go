// Package enginemetrics answers one question: what does an engine's own metrics
// page say about its load and its cache?
//
// # Model
//
// A page is the Prometheus text format. The package knows the names of vLLM
// (present and deprecated), SGLang, TensorRT-LLM and Triton, and reads nothing
// else of the page, so that a page of 100 kB costs a walk over its lines and the
// parsing of about ten of them.
//
// One server can report several engines (data-parallel ranks). Counts are summed
// over them and usages averaged. Series that differ in another label than the
// rank or the model are reports of the same requests, as tensor-parallel ranks
// make them: the newest timestamp wins, then the larger value.
//
// # Tolerance
//
// A value that is missing is unknown, never 0. Wrong lines cost only themselves:
//
//   - lines of other metrics are not looked at, however malformed;
//   - a line of a known metric that does not parse, or whose value is NaN,
//     infinite, negative or (for usages) above 1, is left out and counted in
//     [Metrics.Dropped];
//   - a last line without a line feed is left out and counted the same way: it
//     is what a cut answer looks like, and "4" may have been "42";
//   - CR LF line ends are read like LF;
//   - # TYPE lines are neither needed nor believed;
//   - numbers inside labels that are no numbers ("None") are unknown.
package enginemetrics

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
)

// MaxBytes is the largest page that [Read] takes. Pages of large fleets' engines
// are around 200 kB.
const MaxBytes = 4 << 20

// ErrTooLarge is returned for a page of more than [MaxBytes].
var ErrTooLarge = fmt.Errorf("metrics page has more than %d bytes", MaxBytes)

// ErrNoMetrics is returned for a page without a usable value of an engine: not
// Prometheus text at all, or another program's page.
var ErrNoMetrics = errors.New("metrics page has no engine metrics that this version knows")

// Count is a number of requests, blocks or tokens that may be unknown.
type Count struct {
	N  int64
	OK bool // false: the page does not say
}

// Usage is a share from 0 to 1 that may be unknown.
type Usage struct {
	Share float64
	OK    bool // false: the page does not say
}

// Metrics is what one page says. The zero value knows nothing.
type Metrics struct {
	// Waiting and Running are requests, summed over the server's engines.
	Waiting, Running Count
	// KVUsage is the share of cache blocks in use, averaged over the engines. A
	// warm idle cache reads 0.
	KVUsage Usage

	// BlockSize is the configured tokens per block. Events win where they differ:
	// hybrid models report the smallest of their groups or a stale value here.
	BlockSize Count
	// NumGPUBlocks is the size of one engine's cache in blocks.
	NumGPUBlocks Count

	// PrefixQueries and PrefixHits are tokens looked up in the prefix cache and
	// found in it since the engine started, summed over the engines.
	PrefixQueries, PrefixHits Count

	// Adapters is what the newest report about LoRA adapters says; its zero value
	// means that there is none.
	Adapters Adapters

	// StartTime is the Unix time in seconds at which the server's process
	// started, 0 if unknown. A new value means that the caches are empty.
	StartTime float64

	// Dropped counts lines of known metrics that were left out.
	Dropped int
}

// Adapters is the state of an engine's LoRA adapters.
type Adapters struct {
	Max              int // adapters that fit into one batch
	Running, Waiting []string
}

// Read parses the page in r. The error is [ErrTooLarge], [ErrNoMetrics], or what
// reading r gave; with an error the result knows nothing beyond Dropped.
func Read(r io.Reader) (Metrics, error) {
	page, err := io.ReadAll(io.LimitReader(r, MaxBytes+1))
	if err != nil {
		return Metrics{}, fmt.Errorf("read metrics page: %w", err)
	}
	return Parse(page)
}

// Parse is [Read] over a page in memory, which it does not keep.
func Parse(page []byte) (Metrics, error) {
	if len(page) > MaxBytes {
		return Metrics{}, ErrTooLarge
	}
	p := newParser()
	for len(page) > 0 {
		line, rest, ended := bytes.Cut(page, []byte{'\n'})
		page = rest
		name := metricName(line)
		if _, known := names[string(name)]; !known {
			continue
		}
		if !ended || !p.add(line) {
			p.dropped++
		}
	}
	m := p.metrics()
	if !m.Waiting.OK && !m.Running.OK && !m.KVUsage.OK && !m.BlockSize.OK && !m.PrefixQueries.OK {
		return Metrics{Dropped: m.Dropped}, ErrNoMetrics
	}
	return m, nil
}

// metricName returns the name that a line begins with, empty for comments and
// blank lines.
func metricName(line []byte) []byte {
	line = bytes.TrimLeft(line, " \t")
	for i, c := range line {
		if c == '{' || c == ' ' || c == '\t' {
			return line[:i]
		}
	}
	return line
}

// count turns a sum into a Count. Engines write counts as floats; a fraction is
// cut off, as it can only be an average.
func count(v float64, ok bool) Count {
	if !ok || v > math.MaxInt64/2 {
		return Count{}
	}
	return Count{N: int64(v), OK: true}
}
