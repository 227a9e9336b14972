package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prefixroute/prefixroute/pkg/kvevents"
	"github.com/prefixroute/prefixroute/pkg/recording"
)

// clockMargin is how much earlier than its recorded time a request may have been
// sent: both of its times are rounded, and reading the answer came between.
const clockMargin = 2 * time.Millisecond

// A tape is a recording sorted out: what happened, in the order in which it did.
type tape struct {
	model      string // the base model
	publishers []publisher
	batches    []batch    // of all publishers, in order of arrival
	requests   []*request // to compare, in order of sending
	work       []*request // everything that made the engine compute, same order; requests among them
	clears     []clearing // in order

	skipped []Skipped
	notes   []string
}

// A publisher is one source of events: an engine, or one rank of it.
type publisher struct {
	topic string
	rank  int64
}

type batch struct {
	at time.Duration
	kvevents.Batch
}

// clearing is a successful call that empties the cache.
type clearing struct {
	at, done time.Duration
	path     string
}

// skip counts one request that can't be compared.
func (t *tape) skip(reason string) {
	i := slices.IndexFunc(t.skipped, func(s Skipped) bool { return s.Reason == reason })
	if i < 0 {
		i = len(t.skipped)
		t.skipped = append(t.skipped, Skipped{Reason: reason})
	}
	t.skipped[i].N++
}

// load reads the recording at path.
func load(ctx context.Context, path string, opts Options) (_ *tape, err error) {
	r, err := recording.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()

	l := loader{tape: &tape{model: opts.Model}, sequences: make(map[publisher]uint64)}
	for rec, err := range r.All() {
		if err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		switch rec.Kind {
		case recording.KindFrames:
			if err := l.frames(rec); err != nil {
				return nil, fmt.Errorf("line %d: %w", rec.Line, err)
			}
		case recording.KindHTTP:
			l.exchange(rec)
		default:
		}
	}
	return l.finish(), nil
}

// A loader fills a tape.
type loader struct {
	tape      *tape
	sequences map[publisher]uint64 // last number of each
	exchanges []recording.Record   // HTTP, kept until the base model is known
}

// frames takes one message. A message that doesn't decode is an error: the
// prediction would be wrong from there on for no fault of the index.
func (l *loader) frames(rec recording.Record) error {
	m, err := kvevents.ParseMessage(rec.Frames)
	if err != nil {
		return err
	}
	b, err := kvevents.Decode(m.Payload)
	if err != nil {
		return fmt.Errorf("batch %d: %w", m.Seq, err)
	}
	for _, r := range b.Rejected {
		l.tape.notes = append(l.tape.notes, fmt.Sprintf("line %d: event %d of batch %d was skipped: %s", rec.Line, r.Index, m.Seq, r.Detail))
	}
	p := publisher{topic: m.Topic}
	if b.Rank != nil {
		p.rank = *b.Rank
	}
	last, known := l.sequences[p]
	if !known {
		l.tape.publishers = append(l.tape.publishers, p)
	}
	if known && m.Seq != last+1 || !known && m.Seq > 0 {
		l.tape.notes = append(l.tape.notes, fmt.Sprintf("line %d: batch %d does not follow the one before, so what was predicted after it rests on lost events", rec.Line, m.Seq))
	}
	l.sequences[p] = m.Seq
	if topic, ok := kvevents.ParseTopic(m.Topic); ok && l.tape.model == "" {
		l.tape.model = topic.Model
	}
	l.tape.batches = append(l.tape.batches, batch{at: rec.Time, Batch: b})
	return nil
}

func (l *loader) exchange(rec recording.Record) {
	if rec.HTTP.Method == "POST" && rec.HTTP.Status == 200 {
		l.exchanges = append(l.exchanges, rec)
	}
}

// finish parses the exchanges and puts everything in order of time. A recorder
// writes requests when they are answered; what counts is when they were sent.
func (l *loader) finish() *tape {
	t := l.tape
	for i := range l.exchanges {
		rec := &l.exchanges[i]
		if path, ok := clears(rec.HTTP); ok {
			t.clears = append(t.clears, clearing{at: rec.Time - rec.HTTP.Duration, done: rec.Time, path: path})
		}
		if !computes(rec.HTTP.Path) {
			continue
		}
		q, skip := parseRequest(rec, t.model)
		t.work = append(t.work, q)
		if skip != "" {
			t.skip(skip)
			continue
		}
		t.requests = append(t.requests, q)
	}
	bySending := func(a, b *request) int { return cmp.Compare(a.sent, b.sent) }
	slices.SortStableFunc(t.work, bySending)
	slices.SortStableFunc(t.requests, bySending)
	slices.SortStableFunc(t.batches, func(a, b batch) int { return cmp.Compare(a.at, b.at) })
	slices.SortStableFunc(t.clears, func(a, b clearing) int { return cmp.Compare(a.at, b.at) })
	return t
}

// computes reports whether requests to path make the engine run a prompt.
func computes(path string) bool {
	switch path, _, _ := strings.Cut(path, "?"); path {
	case "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/inference/v1/generate":
		return true
	default:
		return false
	}
}

// clears reports whether a successful call emptied the cache: a reset always, a
// sleep but at level 0, a pause unless told to keep the cache.
func clears(h *recording.HTTP) (path string, ok bool) {
	path, query, _ := strings.Cut(h.Path, "?")
	args := strings.Split(query, "&")
	switch path {
	case "/reset_prefix_cache":
		return path, true
	case "/sleep":
		return path, !slices.Contains(args, "level=0")
	case "/pause":
		return path, !slices.Contains(args, "clear_cache=false")
	default:
		return path, false
	}
}
