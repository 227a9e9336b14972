package httpapi

import (
	"encoding/json"
	"net/http"

	"github.com/prefixroute/prefixroute/services/fakevllm/internal/engine"
)

// stream answers with server-sent events, a chunk for each token, flushed as
// soon as the tokens are there. The head of the answer is sent with the first
// token, as vLLM sends it.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, c *call, p *progress, stream *engine.Stream, f form) {
	tokens, err := stream.Next(r.Context())
	if err != nil {
		s.fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	out := eventWriter{w: w, flush: http.NewResponseController(w)}
	for _, chunk := range f.opening(c, p) {
		out.event(chunk)
	}
	for len(tokens) > 0 && err == nil {
		for _, t := range tokens {
			p.add(t)
			out.event(f.chunk(c, p, t, s.usageSoFar(c, p)))
		}
		if out.send() != nil {
			return // the client is gone
		}
		tokens, err = stream.Next(r.Context())
	}
	if err != nil {
		return // cut short: the client sees no [DONE]
	}
	if o := c.StreamOptions; o != nil && o.IncludeUsage {
		out.event(f.closing(p.detailed()))
	}
	out.data([]byte("[DONE]"))
	_ = out.send() // nothing is left to do for a client that is gone
}

// usageSoFar is the usage that goes with each chunk, nil unless asked for.
func (s *Server) usageSoFar(c *call, p *progress) *usage {
	if o := c.StreamOptions; o == nil || !o.IncludeUsage || !o.ContinuousUsage {
		return nil
	}
	return p.usage()
}

// An eventWriter writes server-sent events and remembers the first error.
type eventWriter struct {
	w     http.ResponseWriter
	flush *http.ResponseController
	err   error
}

func (e *eventWriter) event(v any) {
	body, err := json.Marshal(v)
	if err != nil {
		e.err = err
		return
	}
	e.data(body)
}

func (e *eventWriter) data(body []byte) {
	if e.err != nil {
		return
	}
	event := append(append([]byte("data: "), body...), "\n\n"...)
	_, e.err = e.w.Write(event)
}

// send hands everything written so far to the client.
func (e *eventWriter) send() error {
	if e.err == nil {
		e.err = e.flush.Flush()
	}
	return e.err
}
