// Package recording reads recordings of real engines: what a server published on
// its event socket and what it answered over HTTP, in the order in which a
// recorder wrote it down.
//
// # Format
//
// A recording is text, one JSON object a line, possibly gzipped. The first line
// is the [Header]; each other one is a [Record]. Binary frames are base64. Lines
// of a kind that this package doesn't know are returned with their kind alone,
// so that a later recorder can add some.
//
// # Bounds
//
// A recording may come from anywhere. A line longer than [MaxLine] is an error,
// and only one line is in memory at a time.
package recording

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"time"
)

// MaxLine is the length, in bytes, of the longest line that is read. The longest
// lines hold all replies of a replay socket at once: about 300 bytes a batch, and
// engines keep 10,000 batches.
const MaxLine = 64 << 20

// ErrNotRecording is in the chain of the error for input whose first line is not
// a recording's header.
var ErrNotRecording = errors.New("not a recording")

// Header says what was recorded.
type Header struct {
	Engine  string `json:"engine"`  // "vllm"
	Release string `json:"release"` // of the engine, "0.32.0"
	Device  string `json:"device"`
	Flags   string `json:"flags"` // command line and environment, as written by hand
}

// A Kind says what a record is. Other values than these can occur.
type Kind string

// The kinds of records. A scenario names what comes next, in Note; a note is a
// remark, with Prompt if it is about a request whose client went away.
const (
	KindFrames   Kind = "frames"
	KindHTTP     Kind = "http"
	KindReplay   Kind = "replay"
	KindScenario Kind = "scenario"
	KindNote     Kind = "note"
)

// Record is one line after the header.
type Record struct {
	Line  int           // in the file, from 1
	Index int           // the recorder's own number, in order of writing
	Time  time.Duration // since the recording's start
	Kind  Kind

	Frames [][]byte // KindFrames: one message as a SUB socket receives it
	HTTP   *HTTP    // KindHTTP
	Replay *Replay  // KindReplay
	Note   string   // KindScenario, KindNote
	Prompt []uint32 // KindNote; nil if it has none
}

// HTTP is one request with its answer. The record's time is when the answer was
// complete: the request was sent Duration earlier.
type HTTP struct {
	Note         string
	Method, Path string
	// Request is the body: an object, a string if it was sent as raw text (and
	// may be no JSON at all), or null.
	Request     json.RawMessage
	Status      int
	ContentType string
	Duration    time.Duration
	// Response is the answer if it was JSON, else nil; then Text has it.
	Response json.RawMessage
	Text     string
}

// Replay is what a replay socket answered to a DEALER that asked from Start.
type Replay struct {
	Note    string
	Start   uint64
	Replies [][][]byte // frames of each message, the end marker included
}

// line is the union of all kinds' fields.
type line struct {
	Header

	Kind Kind    `json:"kind"`
	I    int     `json:"i"`
	T    float64 `json:"t"` // seconds

	Frames [][]byte `json:"frames"`

	Note        string          `json:"note"`
	Name        string          `json:"name"`
	Prompt      []uint32        `json:"prompt"`
	Method      string          `json:"method"`
	Path        string          `json:"path"`
	Request     json.RawMessage `json:"request"`
	Status      int             `json:"status"`
	ContentType string          `json:"content_type"`
	Millis      float64         `json:"ms"`
	Response    json.RawMessage `json:"response"`
	Text        string          `json:"text"`

	Start   uint64     `json:"start"`
	Replies [][][]byte `json:"replies"`
}

// Reader reads one recording from front to back. Make one with [NewReader] or
// [Open]. It is owned by one goroutine.
type Reader struct {
	header  Header
	scanner *bufio.Scanner
	number  int       // of the last line read
	closer  io.Closer // nil if the input is the caller's
}

// Open opens the recording at path, gzipped or not, and reads its header. The
// caller closes it.
func Open(path string) (*Reader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	r, err := NewReader(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read %s: %w", path, err), f.Close())
	}
	r.closer = f
	return r, nil
}

// NewReader reads the header from src, which it unzips if it is gzipped.
func NewReader(src io.Reader) (*Reader, error) {
	in := bufio.NewReader(src)
	var plain io.Reader = in
	if magic, _ := in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		unzipped, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("unzip: %w", err)
		}
		plain = unzipped
	}
	r := &Reader{scanner: bufio.NewScanner(plain)}
	r.scanner.Buffer(nil, MaxLine)
	var first line
	switch err := r.next(&first); {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%w: it is empty", ErrNotRecording)
	case errors.As(err, new(*json.SyntaxError)), errors.As(err, new(*json.UnmarshalTypeError)):
		return nil, fmt.Errorf("%w: %w", ErrNotRecording, err)
	case err != nil:
		return nil, err
	case first.Kind != "recording":
		return nil, fmt.Errorf("%w: the first line's kind is %q, must be \"recording\"", ErrNotRecording, first.Kind)
	}
	r.header = first.Header
	return r, nil
}

// Header returns the first line.
func (r *Reader) Header() Header { return r.header }

// Close closes the file that [Open] opened.
func (r *Reader) Close() error {
	if r.closer == nil {
		return nil
	}
	return r.closer.Close()
}

// Next returns the next record, or io.EOF after the last. Errors name the line
// and are final.
func (r *Reader) Next() (Record, error) {
	var l line
	if err := r.next(&l); err != nil {
		return Record{}, err
	}
	rec, err := l.record()
	if err != nil {
		return Record{}, fmt.Errorf("line %d: %w", r.number, err)
	}
	rec.Line = r.number
	return rec, nil
}

// All yields the records from here to the end. An error is yielded last, with a
// zero record.
func (r *Reader) All() iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for {
			rec, err := r.Next()
			if errors.Is(err, io.EOF) || !yield(rec, err) || err != nil {
				return
			}
		}
	}
}

// next decodes the next line that is not blank.
func (r *Reader) next(l *line) error {
	for r.scanner.Scan() {
		r.number++
		text := bytes.TrimSpace(r.scanner.Bytes())
		if len(text) == 0 {
			continue
		}
		if err := json.Unmarshal(text, l); err != nil {
			return fmt.Errorf("line %d: %w", r.number, err)
		}
		return nil
	}
	switch err := r.scanner.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("line %d is longer than %d bytes", r.number+1, MaxLine)
	case err != nil:
		return fmt.Errorf("line %d: %w", r.number+1, err)
	default:
		return io.EOF
	}
}

func (l *line) record() (Record, error) {
	t, err := duration("t", l.T, time.Second)
	if err != nil {
		return Record{}, err
	}
	rec := Record{Index: l.I, Time: t, Kind: l.Kind}
	switch l.Kind {
	case KindFrames:
		rec.Frames = l.Frames
	case KindHTTP:
		took, err := duration("ms", l.Millis, time.Millisecond)
		if err != nil {
			return Record{}, err
		}
		rec.HTTP = &HTTP{
			Note: l.Note, Method: l.Method, Path: l.Path, Request: l.Request, Status: l.Status,
			ContentType: l.ContentType, Duration: took, Response: l.Response, Text: l.Text,
		}
	case KindReplay:
		rec.Replay = &Replay{Note: l.Note, Start: l.Start, Replies: l.Replies}
	case KindScenario:
		rec.Note = l.Name
	case KindNote:
		rec.Note, rec.Prompt = l.Note, l.Prompt
	}
	return rec, nil
}

// duration reads a count of units that must be a time anybody could have waited.
func duration(field string, v float64, unit time.Duration) (time.Duration, error) {
	ns := math.Round(v * float64(unit))
	if ns < 0 || ns > math.MaxInt64/2 {
		return 0, fmt.Errorf("%s is %v, must be from 0 to 146 years", field, v)
	}
	return time.Duration(ns), nil
}
