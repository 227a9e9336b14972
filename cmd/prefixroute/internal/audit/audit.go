// Package audit asks of recordings of real engines: would prefixroute have known
// what the engine was going to answer?
//
// It feeds the recorded events to the product's own decoder and index, predicts
// for every request how many of its tokens the engine had cached when it was
// sent, and compares that with what the engine reported.
//
// # What counts
//
// A request is compared if it is a completion or a chat with status 200, its
// token ids are in the recording, and it looks the cache up at all: prompt
// logprobs, and echo with logprobs, skip it.
//
// A difference is a fault of the index, unless the recording itself proves one of
// three causes (see [Cause]). Proof is more than coincidence: the tokens that
// were cached have to be those of the requests in flight, the cleared cache has
// to have been empty, the phantom block has to be one that was reported. Nothing
// else is ever called explained.
package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Options say how to read the recordings.
type Options struct {
	// JSON: one object a file on a line of its own, instead of tables.
	JSON bool
	// Model is the base model's name where the topics of the events don't tell it.
	Model string
}

// ErrUnexplained is the error of the command when some difference is not explained.
var ErrUnexplained = errors.New("not every difference is explained")

// Report is the outcome for one recording. Requests = Exact + Over + Under, and
// Explained counts those of Over and Under that have a proved cause.
type Report struct {
	File      string `json:"file"`
	Requests  int    `json:"requests"`
	Exact     int    `json:"exact"`
	Over      int    `json:"over"`  // promised more cached tokens than reported
	Under     int    `json:"under"` // promised fewer
	Explained int    `json:"explained"`

	Differences []Difference `json:"-"`
	Skipped     []Skipped    `json:"-"` // requests that are not compared, by reason
	Notes       []string     `json:"-"` // what a reader must know to judge the figures
}

// OK reports that every difference is explained.
func (r *Report) OK() bool { return r.Exact+r.Explained == r.Requests }

// Difference is one request that was not predicted exactly. Promised and
// Reported are in tokens.
type Difference struct {
	Line               int    // of the request in the recording
	Note               string // the recorder's name for the request
	Tokens             int    // of the prompt
	Promised, Reported int
	Cause              Cause
	Proof              string // what in the recording proves the cause; empty if nothing does
}

// Skipped counts the requests that are not compared for one reason.
type Skipped struct {
	Reason string
	N      int
}

// Run audits the recordings at the paths files, in order, and writes what it
// found to stdout as it goes. ok is false if some difference is not explained;
// an error is for recordings that can't be read.
func Run(ctx context.Context, files []string, opts Options, stdout io.Writer) (ok bool, err error) {
	ok = true
	for i, file := range files {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		rep, err := File(ctx, file, opts)
		if err != nil {
			return false, fmt.Errorf("audit %s: %w", file, err)
		}
		ok = ok && rep.OK()
		if opts.JSON {
			err = json.NewEncoder(stdout).Encode(rep)
		} else {
			err = writeTable(stdout, rep, i > 0)
		}
		if err != nil {
			return false, fmt.Errorf("write report: %w", err)
		}
	}
	return ok, nil
}

// File audits one recording.
func File(ctx context.Context, path string, opts Options) (*Report, error) {
	tape, err := load(ctx, path, opts)
	if err != nil {
		return nil, err
	}
	rep := &Report{File: path, Skipped: tape.skipped, Notes: tape.notes}
	if len(tape.publishers) > 1 {
		rep.Notes = append(rep.Notes, fmt.Sprintf("%d ranks publish events and the recording does not say which of them served a request: none is compared",
			len(tape.publishers)))
		rep.Skipped = append(rep.Skipped, Skipped{Reason: "served by an unknown rank", N: len(tape.requests)})
		return rep, nil
	}
	play(tape, rep)
	return rep, nil
}
