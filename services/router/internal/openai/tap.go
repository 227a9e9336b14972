package openai

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/http"
)

const (
	// maxAnswer is how much of an answer that is one JSON object is kept to find
	// its usage in. Longer ones are passed on all the same.
	maxAnswer = 1 << 20
	// maxLine is the longest line of a stream that is looked at.
	maxLine = 64 << 10
)

// Usage is what an answer tells about its prompt.
type Usage struct {
	PromptTokens int
	// CachedTokens is how many of them the engine did not compute. Told is false
	// for an engine that does not say.
	CachedTokens int
	Told         bool
}

// Tap looks at the bytes of one answer as they pass. It keeps a bounded part of
// them, changes none, and has no opinion on answers in a form it does not know.
// It belongs to one goroutine.
type Tap struct {
	stream bool   // server-sent events; else one JSON object
	off    bool   // nothing more to look at
	kept   []byte // the object so far, or the unfinished line
	skip   bool   // the unfinished line is too long to be looked at
	usage  []byte // the last event that holds a usage
	failed bool   // an event was an error
}

// NewTap returns a Tap for an answer with these headers.
func NewTap(h http.Header) *Tap {
	t := &Tap{}
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	switch {
	case err != nil || h.Get("Content-Encoding") != "":
		t.off = true
	case kind == "text/event-stream":
		t.stream = true
	case kind != "application/json":
		t.off = true
	}
	return t
}

// Pass looks at the next bytes. It does not keep p.
func (t *Tap) Pass(p []byte) {
	switch {
	case t.off:
	case t.stream:
		t.lines(p)
	case len(t.kept)+len(p) > maxAnswer:
		t.off, t.kept = true, nil
	default:
		t.kept = append(t.kept, p...)
	}
}

// lines looks at the complete lines in what was kept and p. A line ends with LF;
// a CR before it does not matter to JSON.
func (t *Tap) lines(p []byte) {
	for len(p) > 0 {
		line, rest, ended := bytes.Cut(p, []byte{'\n'})
		p = rest
		switch {
		case t.skip || len(t.kept)+len(line) > maxLine:
			t.skip, t.kept = true, t.kept[:0]
		case ended && len(t.kept) == 0:
			t.line(line)
		default:
			t.kept = append(t.kept, line...)
		}
		if ended {
			if !t.skip && len(t.kept) > 0 {
				t.line(t.kept)
			}
			t.skip, t.kept = false, t.kept[:0]
		}
	}
}

// line looks at one line of a stream. Inside a JSON text a quote is escaped, so
// a member's name cannot be met in what a model wrote.
func (t *Tap) line(line []byte) {
	data, ok := bytes.CutPrefix(line, []byte("data:"))
	if !ok {
		return
	}
	if hasObject(data, `"usage"`) {
		t.usage = append(t.usage[:0], data...)
	}
	if bytes.Contains(data, []byte(`"error"`)) {
		var event struct {
			Error json.RawMessage `json:"error"`
		}
		if json.Unmarshal(data, &event) == nil && len(event.Error) > 0 && string(event.Error) != "null" {
			t.failed = true
		}
	}
}

// hasObject reports whether data has a member of that quoted name that is an
// object.
func hasObject(data []byte, name string) bool {
	_, after, ok := bytes.Cut(data, []byte(name))
	if !ok {
		return false
	}
	after, ok = bytes.CutPrefix(bytes.TrimLeft(after, " "), []byte{':'})
	return ok && bytes.HasPrefix(bytes.TrimLeft(after, " "), []byte{'{'})
}

// Usage returns the usage that the answer told, of several the last; call it
// when the answer is complete. ok is false where there was none.
func (t *Tap) Usage() (u Usage, ok bool) {
	text := t.kept
	if t.stream {
		text = t.usage
	}
	if t.off || len(text) == 0 {
		return Usage{}, false
	}
	var answer struct {
		Usage *struct {
			PromptTokens int `json:"prompt_tokens"`
			Details      *struct {
				CachedTokens *int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if json.Unmarshal(text, &answer) != nil || answer.Usage == nil {
		return Usage{}, false
	}
	u.PromptTokens = answer.Usage.PromptTokens
	if d := answer.Usage.Details; d != nil && d.CachedTokens != nil {
		u.CachedTokens, u.Told = *d.CachedTokens, true
	}
	return u, true
}

// Failed reports whether an event of the stream was an error: the status had
// been sent before the engine met it.
func (t *Tap) Failed() bool { return t.failed }
