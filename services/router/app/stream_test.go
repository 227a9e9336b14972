package app

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// stream answers with parts, each written and flushed on its own.
func stream(contentType string, parts ...[]byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if contentType != "" {
			w.Header().Set("Content-Type", contentType)
		} else {
			w.Header()["Content-Type"] = nil // none, not a guess either
		}
		for _, p := range parts {
			_, _ = w.Write(p)
			_ = http.NewResponseController(w).Flush()
		}
	}
}

// cut splits text at the offsets.
func cut(text []byte, at []int) [][]byte {
	var parts [][]byte
	from := 0
	for _, to := range at {
		parts = append(parts, text[from:to])
		from = to
	}
	return append(parts, text[from:])
}

func TestStreamsPassByteForByte(t *testing.T) {
	t.Parallel()

	var samples struct {
		Files map[string]struct {
			Splits [][]int
		}
	}
	if err := json.Unmarshal(readFile(t, "sse", "SPLITS.json"), &samples); err != nil {
		t.Fatal(err)
	}
	if len(samples.Files) < 11 {
		t.Fatalf("%d samples, want at least 11", len(samples.Files))
	}
	e := newEngine(t, "m")
	r := start(t, nil, e)
	for name, sample := range samples.Files {
		text := readFile(t, "sse", name)
		var pairs []int
		for i := 2; i < min(len(text), 2000); i += 2 {
			pairs = append(pairs, i)
		}
		for _, at := range append(sample.Splits, nil, pairs) {
			e.set(func(e *engine) { e.serve = stream("text/event-stream", cut(text, at)...) })
			a := r.post("/v1/chat/completions", `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`)
			if a.status != http.StatusOK || a.body != string(text) {
				t.Errorf("%s in %d parts: status %d, %d bytes, want 200 and the %d bytes that were sent", name, len(at)+1, a.status, len(a.body), len(text))
			}
		}
	}
	// error_first and error_in_band, each whole and in pairs.
	if n := r.metric("stream_errors_total"); n != 4 {
		t.Errorf("%v streams counted as failed, want 4", n)
	}
}

func TestStreamsAreNotHeldBack(t *testing.T) {
	t.Parallel()

	for _, kind := range []string{"text/event-stream", "text/event-stream; charset=utf-8", "application/x-ndjson", "application/json", ""} {
		t.Run("type "+kind, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t, "m")
			received := make(chan struct{}) // one for each part the client has
			e.serve = func(w http.ResponseWriter, _ *http.Request) {
				if kind != "" {
					w.Header().Set("Content-Type", kind)
				} else {
					w.Header()["Content-Type"] = nil
				}
				if kind == "application/json" { // of a length that is known
					w.Header().Set("Content-Length", strconv.Itoa(3*len("data: 0\n\n")))
				}
				control := http.NewResponseController(w)
				_ = control.Flush()
				<-received // the headers alone
				for i := range 3 {
					fmt.Fprintf(w, "data: %d\n\n", i)
					_ = control.Flush()
					<-received
				}
			}
			r := start(t, nil, e)
			resp := r.open(completions, ids(1, 40))
			received <- struct{}{}
			body := bufio.NewReader(resp.Body)
			for i := range 3 {
				line, err := body.ReadString('\n')
				if want := fmt.Sprintf("data: %d\n", i); err != nil || line != want {
					t.Fatalf("line %q, error %v; want %q", line, err, want)
				}
				if _, err := body.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
				received <- struct{}{}
			}
			if rest, err := io.ReadAll(body); err != nil || len(rest) > 0 {
				t.Errorf("rest %q, error %v; want a clean end", rest, err)
			}
		})
	}
}

// open sends a request and returns when its headers are there.
func (r *router) open(path, body string) *http.Response {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.app.URL()+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func TestClientThatLeavesIsNoticedByTheEngine(t *testing.T) {
	t.Parallel()

	e := newEngine(t, "m")
	left := make(chan struct{}, 2)
	e.serve = func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("when") == "stream" {
			fmt.Fprint(w, "data: 1\n\n")
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
		left <- struct{}{}
	}
	r := start(t, nil, e)

	resp := r.open(completions+"?when=stream", ids(1, 40))
	r.eventually("a request in flight", func() bool { return r.metric("replica_in_flight") == 1 })
	_ = resp.Body.Close()
	<-left

	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.app.URL()+completions, strings.NewReader(ids(1, 40)))
	if err != nil {
		t.Fatal(err)
	}
	canceled := make(chan struct{})
	req.Cancel = canceled //nolint:staticcheck // a context would tell the test's own engine too
	var wg sync.WaitGroup
	wg.Go(func() {
		resp, err := client.Do(req)
		if err == nil {
			_ = resp.Body.Close()
			t.Error("request that was given up got an answer")
		}
	})
	r.eventually("the engine to have it", func() bool { return len(e.seen()) == 2 })
	close(canceled)
	<-left
	wg.Wait()
	r.eventually("both to be counted", func() bool {
		return r.metric("requests_total", "code=canceled") == 2 && r.metric("replica_in_flight") == 0
	})
}

func TestBrokenAnswersLookBroken(t *testing.T) {
	t.Parallel()

	part := strings.Repeat("x", 1000)
	tests := map[string]http.HandlerFunc{
		"chunked": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, part)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
		"with a length": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "2000")
			_, _ = io.WriteString(w, part)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
		"after the headers": func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
	}
	for name, serve := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t, "m")
			e.serve = serve
			r := start(t, nil, e)
			// The break may overtake the headers: then the client has no answer at all.
			resp, err := r.client.Post(r.app.URL()+completions, "application/json", strings.NewReader(ids(1, 40)))
			if err == nil {
				var body []byte
				body, err = io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if err == nil {
					t.Errorf("client read %d bytes and a clean end, want an error", len(body))
				}
			}
			r.eventually("it to be counted", func() bool {
				return r.metric("requests_total", "code=aborted") == 1 && r.metric("upstream_errors_total", "reason=broken") == 1
			})
			if n := r.metric("replica_in_flight"); n != 0 {
				t.Errorf("%v requests in flight, want 0", n)
			}
		})
	}
}

func TestUsageIsFoundInEveryForm(t *testing.T) {
	t.Parallel()

	usage := `"usage":{"prompt_tokens":40,"prompt_tokens_details":{"cached_tokens":32}}`
	early := `"usage":{"prompt_tokens":40,"prompt_tokens_details":{"cached_tokens":0}}`
	tests := []struct{ name, kind, body string }{
		{"object", "application/json", `{"id":"x","choices":[],` + usage + `}`},
		{"last chunk", "text/event-stream", "data: {\"choices\":[{}],\"usage\":null}\n\ndata: {\"choices\":[]," + usage + "}\n\ndata: [DONE]\n\n"},
		{"every chunk", "text/event-stream", "data: {" + early + "}\n\ndata: {" + usage + "}\n\ndata: [DONE]\n\n"},
		{"after done", "text/event-stream; charset=utf-8", "data: [DONE]\n\ndata: {" + usage + "}\n\n"},
		{"CR LF", "text/event-stream", "data: {" + usage + "}\r\n\r\n"},
		{"beside a long line", "text/event-stream", "data: " + strings.Repeat("x", 300_000) + "\n\ndata: { " + usage + "}\n\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t, "m")
			r := start(t, nil, e)
			for i, size := range []int{1 << 20, 7, 1} {
				var parts [][]byte
				for rest := []byte(tt.body); len(rest) > 0; {
					n := min(size*max(1, len(tt.body)/10_000), len(rest))
					parts, rest = append(parts, rest[:n]), rest[n:]
				}
				e.set(func(e *engine) { e.serve = stream(tt.kind, parts...) })
				if a := r.post(completions, ids(1, 40)); a.body != tt.body {
					t.Error("body was changed")
				}
				if n := r.metric("cached_tokens_total"); n != float64(32*(i+1)) {
					t.Errorf("%v cached tokens seen after %d answers, want %d", n, i+1, 32*(i+1))
				}
			}
		})
	}
}

func TestAnswersAreNotDecoded(t *testing.T) {
	t.Parallel()

	e := newEngine(t, "m")
	zipped := []byte{0x1f, 0x8b, 1, 2, 3}
	e.serve = func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Accept-Encoding"); got != "" {
			t.Errorf("engine is asked for encoding %q, the client did not ask", got)
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(zipped)
	}
	r := start(t, nil, e)
	if a := r.post(completions, ids(1, 40)); !bytes.Equal([]byte(a.body), zipped) || a.header.Get("Content-Encoding") != "gzip" {
		t.Errorf("body %x, encoding %q; want the engine's", a.body, a.header.Get("Content-Encoding"))
	}
}

func TestManyStreamsAtOnce(t *testing.T) {
	t.Parallel()

	text := readFile(t, "sse", "normal.sse")
	var at []int
	for i := 40; i < len(text); i += 40 {
		at = append(at, i)
	}
	e1, e2 := newEngine(t, "m"), newEngine(t, "m")
	e1.serve, e2.serve = stream("text/event-stream", cut(text, at)...), stream("text/event-stream", cut(text, at)...)
	r := start(t, nil, e1, e2)
	var wg sync.WaitGroup
	errs := make(chan error, 64)
	for i := range 64 {
		wg.Go(func() {
			for range 5 {
				resp, err := r.client.Post(r.app.URL()+completions, "application/json", strings.NewReader(ids(i, 40)))
				if err != nil {
					errs <- err
					return
				}
				body, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if err != nil || !bytes.Equal(body, text) {
					errs <- errors.Join(err, fmt.Errorf("%d bytes, want %d", len(body), len(text)))
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	r.eventually("all to be over", func() bool { return r.metric("replica_in_flight") == 0 })
}

func TestOpenStreamsAreFinishedBeforeStopping(t *testing.T) {
	t.Parallel()

	e := newEngine(t, "m")
	release := make(chan struct{})
	e.serve = func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "first ")
		_ = http.NewResponseController(w).Flush()
		<-release
		fmt.Fprint(w, "last")
	}
	r := start(t, func(c *Config) { c.DrainTimeout = patience }, e)
	resp := r.open(completions, ids(1, 40))
	r.stop()
	r.eventually("the listener to be closed", func() bool {
		conn, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.app.URL()+"/v1/models", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		got, err := fresh.Do(conn)
		if err == nil {
			_ = got.Body.Close()
		}
		return err != nil
	})
	close(release)
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "first last" {
		t.Errorf("body %q, error %v; want the whole answer", body, err)
	}
	r.end()
	if err := r.app.ready(); err == nil {
		t.Error("router is ready after it stopped")
	}
}
