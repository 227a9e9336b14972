package app

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// raw sends bytes over a connection of their own and returns the answer.
func (r *router) raw(t *testing.T, method string, parts ...[]byte) (*http.Response, string, error) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(r.app.URL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	for i, p := range parts {
		if _, err := conn.Write(p); err != nil {
			t.Fatal(err)
		}
		if i < len(parts)-1 { // the head alone: the server has to ask for the rest
			line, err := in.ReadString('\n')
			if err != nil || !strings.HasPrefix(line, "HTTP/1.1 100 ") {
				return nil, "", fmt.Errorf("first line is %q, error %w, want 100", line, err)
			}
			if _, err := in.ReadString('\n'); err != nil {
				return nil, "", err
			}
		}
	}
	resp, err := http.ReadResponse(in, &http.Request{Method: method})
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

func TestRawRequests(t *testing.T) {
	t.Parallel()

	const chat = `{"model":"org/model-a","messages":[{"role":"user","content":"hi"}]}`
	e := newEngine(t, "org/model-a")
	r := start(t, nil, e)
	send := func(name, method string) (*http.Response, string, []call) {
		t.Helper()
		e.set(func(e *engine) { e.calls = nil })
		text := readFile(t, "http", name)
		parts := [][]byte{text}
		if head, body, ok := bytes.Cut(text, []byte("\r\n\r\n")); ok && name == "expect_100.http" {
			parts = [][]byte{append(head, "\r\n\r\n"...), body}
		}
		resp, body, err := r.raw(t, method, parts...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return resp, body, e.seen()
	}

	for _, name := range []string{"chunked.http", "chunked_trailer.http", "expect_100.http", "te_and_cl.http", "hop_by_hop.http", "http10.http"} {
		resp, body, calls := send(name, http.MethodPost)
		if name == "http10.http" {
			// A chat body sent to the other endpoint: it has no prompt.
			if resp.StatusCode != http.StatusBadRequest || resp.TransferEncoding != nil {
				t.Errorf("%s: status %d, encoding %v; want 400, not chunked", name, resp.StatusCode, resp.TransferEncoding)
			}
			continue
		}
		if resp.StatusCode != http.StatusOK || len(calls) != 1 || calls[0].body != chat || calls[0].length != int64(len(chat)) {
			t.Errorf("%s: status %d, %d calls: %s; want 200 and the body once, with its length", name, resp.StatusCode, len(calls), body)
			continue
		}
		for _, h := range []string{"X-Secret-Hop", "Keep-Alive", "Proxy-Authorization", "Te", "Upgrade", "Trailer", "Expect", "Connection"} {
			if v := calls[0].header.Get(h); v != "" {
				t.Errorf("%s: engine got %s: %s", name, h, v)
			}
		}
		if len(calls[0].trailer) > 0 {
			t.Errorf("%s: engine got trailers %v, want none beside a length", name, calls[0].trailer)
		}
	}

	if resp, _, calls := send("gzip_request.http", http.MethodPost); resp.StatusCode != http.StatusUnsupportedMediaType || len(calls) > 0 {
		t.Errorf("compressed request: status %d, %d calls; want 415 and none", resp.StatusCode, len(calls))
	}
	if resp, _, calls := send("request_id_injection.http", http.MethodPost); resp.StatusCode != http.StatusBadRequest || len(calls) > 0 {
		t.Errorf("control characters: status %d, %d calls; want 400 and none", resp.StatusCode, len(calls))
	}
	if resp, body, calls := send("head_models.http", http.MethodHead); resp.StatusCode != http.StatusOK || body != "" || len(calls) > 0 {
		t.Errorf("HEAD: status %d, body %q, %d calls; want 200 of the router's own", resp.StatusCode, body, len(calls))
	}
	e.set(func(e *engine) {
		e.serve = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Access-Control-Allow-Origin", "https://app.example")
			w.WriteHeader(http.StatusNoContent)
		}
	})
	resp, _, calls := send("options_cors.http", http.MethodOptions)
	if resp.StatusCode != http.StatusNoContent || len(calls) != 1 || len(resp.Header.Values("Access-Control-Allow-Origin")) != 1 {
		t.Errorf("OPTIONS: status %d, %d calls, headers %v; want the engine's answer", resp.StatusCode, len(calls), resp.Header)
	}
}

func TestOldClientGetsAStreamWithoutChunks(t *testing.T) {
	t.Parallel()

	e := newEngine(t, "m")
	e.serve = stream("text/event-stream", []byte("data: 1\n\n"), []byte("data: 2\n\n"))
	r := start(t, nil, e)
	body := ids(1, 40)
	resp, got, err := r.raw(t, http.MethodPost, fmt.Appendf(nil, "POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	if err != nil || resp.TransferEncoding != nil || got != "data: 1\n\ndata: 2\n\n" {
		t.Errorf("encoding %v, body %q, error %v; want both events and no chunks", resp.TransferEncoding, got, err)
	}
}

func TestHugeHeadersAreRefused(t *testing.T) {
	t.Parallel()

	r := start(t, nil, newEngine(t, "m"))
	text := "GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Big: " + strings.Repeat("x", 100_000) + "\r\n\r\n"
	resp, _, err := r.raw(t, http.MethodGet, []byte(text))
	if err == nil && resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("status %d, want 431", resp.StatusCode)
	}
}

func TestTrailersOfAnswersPass(t *testing.T) {
	t.Parallel()

	e := newEngine(t, "m")
	e.serve = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Announced")
		fmt.Fprint(w, "body")
		_ = http.NewResponseController(w).Flush()
		w.Header().Set("X-Announced", "1")
		w.Header().Set(http.TrailerPrefix+"X-Unannounced", "2")
	}
	r := start(t, nil, e)
	resp := r.open(completions, ids(1, 40))
	if _, err := io.ReadAll(resp.Body); err != nil {
		t.Fatal(err)
	}
	if resp.Trailer.Get("X-Announced") != "1" || resp.Trailer.Get("X-Unannounced") != "2" {
		t.Errorf("trailers are %v, want both", resp.Trailer)
	}
}
