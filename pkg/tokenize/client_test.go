package tokenize

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// call is one recorded exchange.
type call struct {
	Note, Path string
	Status     int
	Request    json.RawMessage
	Response   json.RawMessage
}

// engine is a server that knows the recorded calls of /tokenize and answers what
// it does not know as vLLM answers a bad request. It remembers what it was asked.
type engine struct {
	t     *testing.T
	known []call

	mu    sync.Mutex
	asked []string
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || r.Method != http.MethodPost || r.URL.Path != "/tokenize" || r.Header.Get("Content-Type") != "application/json" {
		e.t.Errorf("%s %s of type %q: %v", r.Method, r.URL.Path, r.Header.Get("Content-Type"), err)
	}
	e.mu.Lock()
	e.asked = append(e.asked, string(body))
	e.mu.Unlock()
	for _, c := range e.known {
		if c.Path == r.URL.Path && sameJSON(c.Request, body) {
			w.WriteHeader(c.Status)
			_, _ = w.Write(c.Response)
			return
		}
	}
	w.WriteHeader(http.StatusBadRequest)
	_, _ = io.WriteString(w, `{"error":{"message":"not recorded","type":"BadRequestError","param":null,"code":400}}`)
}

func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && cmp.Equal(x, y)
}

// serve starts h and returns a client for it.
func serve(t *testing.T, h http.Handler) *Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return &Client{URL: srv.URL + "/", HTTP: srv.Client()}
}

func recorded(t *testing.T, note string) call {
	t.Helper()
	for _, c := range readLines[call](t, "vllm_tokenize.jsonl") {
		if c.Note == note {
			return c
		}
	}
	t.Fatalf("no recorded call %q", note)
	return call{}
}

// TestClientChat asks for the tokens of a chat that was really sent and wants the
// ids that the engine used for it.
func TestClientChat(t *testing.T) {
	t.Parallel()

	sent := recorded(t, "turn 1")
	var answer struct {
		Want []uint32 `json:"prompt_token_ids"`
	}
	if err := json.Unmarshal(sent.Response, &answer); err != nil {
		t.Fatal(err)
	}
	// The recorded call names the default that the chat left out.
	body := append(slices.Clone(sent.Request[:len(sent.Request)-1]), `,"add_generation_prompt":true}`...)
	r, err := ParseChat(body)
	if err != nil {
		t.Fatal(err)
	}
	c := serve(t, &engine{t: t, known: []call{recorded(t, "tokenize chat")}})
	got, err := c.Tokens(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([][]uint32{answer.Want}, got); diff != "" {
		t.Errorf("tokens (-want +got):\n%s", diff)
	}
}

func TestClientCompletion(t *testing.T) {
	t.Parallel()

	r, err := ParseCompletion([]byte(`{"model":"tiny","prompt":"the quick brown fox","max_tokens":4}`))
	if err != nil {
		t.Fatal(err)
	}
	c := serve(t, &engine{t: t, known: []call{recorded(t, "tokenize text")}})
	got, err := c.Tokens(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([][]uint32{{360, 354, 353, 349}}, got); diff != "" {
		t.Errorf("tokens (-want +got):\n%s", diff)
	}
}

// TestClientAsks holds what the engine is asked for each kind of request.
func TestClientAsks(t *testing.T) {
	t.Parallel()

	const answer = `{"count":2,"max_model_len":1000,"tokens":[1,2],"token_strs":null}`
	image := `{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,a"}}]}`
	tail := Text(`### user: ` + digest([]byte(`{"type":"image_url","image_url":{"url":"data:,a"}}`)) + "\n")
	tests := []struct {
		name  string
		parse func([]byte) (Request, error)
		body  string
		asked []string
		want  [][]uint32
	}{
		{
			"template arguments", ParseChat,
			`{"model":"m","tools":[{"x":1E2}],"messages":[{"role":"user","content":"h\ud800"}],"chat_template_kwargs":{"a":1},` +
				`"reasoning_effort":"low","documents":[],"temperature":1,"continue_final_message":true,"cache_salt":"s"}`,
			[]string{`{"model":"m","messages":[{"role":"user","content":"h\ud800"}],"tools":[{"x":1E2}],"continue_final_message":true,` +
				`"chat_template_kwargs":{"a":1,"documents":[],"reasoning_effort":"low"}}`},
			[][]uint32{{1, 2}},
		},
		{
			"effort alone", ParseChat,
			`{"model":"m","messages":[{"role":"user"}],"chat_template_kwargs":{ },"reasoning_effort":"high"}`,
			[]string{`{"model":"m","messages":[{"role":"user"}],"chat_template_kwargs":{"reasoning_effort":"high"}}`},
			[][]uint32{{1, 2}},
		},
		{
			"an image ends what the engine is asked", ParseChat,
			`{"model":"m","add_generation_prompt":true,"messages":[{"role":"system","content":"s"} , ` + image + `]}`,
			[]string{`{"model":"m","messages":[{"role":"system","content":"s"}],"add_generation_prompt":false,"continue_final_message":false}`},
			[][]uint32{append([]uint32{1, 2}, tail...)},
		},
		{
			"nothing behind an image is asked, though text comes last", ParseChat,
			`{"model":"m","messages":[{"role":"system","content":"s"},` + image + `,{"role":"assistant"}]}`,
			[]string{`{"model":"m","messages":[{"role":"system","content":"s"}],"add_generation_prompt":false,"continue_final_message":false}`},
			[][]uint32{append(append([]uint32{1, 2}, tail...), Text("### assistant: \n")...)},
		},
		{
			"an image first asks nothing", ParseChat,
			`{"model":"m","messages":[` + image + `]}`, nil,
			[][]uint32{tail},
		},
		{
			"a batch", ParseCompletion,
			`{"model":"m","prompt":["a","\u00e9","c","d"],"add_special_tokens":false}`,
			[]string{
				`{"model":"m","prompt":"a","add_special_tokens":false}`, `{"model":"m","prompt":"\u00e9","add_special_tokens":false}`,
				`{"model":"m","prompt":"c","add_special_tokens":false}`,
			},
			[][]uint32{{1, 2}, {1, 2}, {1, 2}, nil},
		},
		{"token ids", ParseCompletion, `{"model":"m","prompt":[[5,6],[7]]}`, nil, [][]uint32{{5, 6}, {7}}},
		{"no prompt", ParseCompletion, `{"model":"m","prompt":[]}`, nil, [][]uint32{}},
		{"embeddings", ParseCompletion, `{"model":"m","prompt":"x","prompt_embeds":"AAAA"}`, nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := tt.parse([]byte(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			var known []call
			for _, q := range tt.asked {
				known = append(known, call{Path: "/tokenize", Status: http.StatusOK, Request: json.RawMessage(q), Response: json.RawMessage(answer)})
			}
			e := &engine{t: t, known: known}
			c := serve(t, e)
			c.MaxPrompts = 3
			got, err := c.Tokens(t.Context(), r)
			if err != nil {
				t.Fatalf("%v, asked %q", err, e.asked)
			}
			if !slices.Equal(e.asked, tt.asked) {
				t.Errorf("asked\n got %q\nwant %q", e.asked, tt.asked)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("tokens (-want +got):\n%s", diff)
			}
		})
	}
}

// TestClientAgrees holds that the client loses nothing on the way: from an engine
// that tokenizes as the lesson does it gets the lesson's tokens, for every sample.
func TestClientAgrees(t *testing.T) {
	t.Parallel()

	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		parse := ParseCompletion
		if bytes.Contains(body, []byte(`"messages":`)) {
			parse = ParseChat
		}
		q, err := parse(body)
		if err != nil {
			t.Errorf("asked %.300s: %v", body, err)
		}
		lists, err := Lesson{}.Tokens(r.Context(), q)
		if err != nil || len(lists) != 1 {
			t.Errorf("asked %.300s: %d lists, %v", body, len(lists), err)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"count": len(lists[0]), "tokens": lists[0]})
	}))
	seen := 0
	for _, body := range append(sampleBodies(t), []byte(`{"model":"m","reasoning_effort":"low","tools":[{"a": 1}],"documents":[{"b":2}],`+
		`"messages":[{"role":"system","content":"s "},{"role":"user","content":[{"type":"image_url"}," t"]},{"role":"assistant"}]}`)) {
		for _, parse := range []func([]byte) (Request, error){ParseChat, ParseCompletion} {
			r, err := parse(body)
			if err != nil {
				continue
			}
			seen++
			want, err := Lesson{}.Tokens(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			got, err := c.Tokens(t.Context(), r)
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("%.200s: %v (-want +got):\n%s", body, err, diff)
			}
		}
	}
	if seen < 25 {
		t.Errorf("compared %d requests", seen)
	}
}

func TestClientErrors(t *testing.T) {
	t.Parallel()

	refusal := recorded(t, "render chat")
	tests := []struct {
		name   string
		status int
		answer string
		want   string
	}{
		{"refused", refusal.Status, string(refusal.Response), "engine answered 403: Scale-out endpoints are disabled."},
		{"plain text", http.StatusBadGateway, "no healthy\nupstream", "engine answered 502: no healthy upstream"},
		{"nothing", http.StatusNotFound, "", "engine answered 404: "},
		{"a page", http.StatusInternalServerError, "<html>" + strings.Repeat("é", 1000), "<html>"},
		{"not JSON", http.StatusOK, "hello", "not a JSON object"},
		{"cut", http.StatusOK, `{"count":3,"tokens":[1,2`, "unexpected end of input"},
		{"no tokens", http.StatusOK, `{"count":3}`, "has no tokens"},
		{"tokens are a text", http.StatusOK, `{"tokens":"1,2"}`, "tokens is not a list"},
		{"negative", http.StatusOK, `{"tokens":[1,-2]}`, "token id is not in 0..4294967295"},
		{"too large", http.StatusOK, `{"tokens":[4294967296]}`, "token id is not in 0..4294967295"},
		{"a fraction", http.StatusOK, `{"tokens":[1.0]}`, "token id is not in 0..4294967295"},
		{"one lost", http.StatusOK, `{"count":3,"tokens":[1,2]}`, "count is 3, but there are 2 tokens"},
		{"trailing data", http.StatusOK, `{"tokens":[1]} {}`, "data after the value"},
		{"too long", http.StatusOK, `{"tokens":[` + strings.Repeat("1,", 1000) + `1]}`, "answer is larger than allowed: more than 1000 bytes"},
	}
	r, err := ParseCompletion([]byte(`{"model":"m","prompt":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.answer)
			}))
			c.MaxAnswer = 1000
			got, err := c.Tokens(t.Context(), r)
			if err == nil || got != nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("tokens %v, error %v; want an error with %q", got, err, tt.want)
			}
			var se *StatusError
			if is := errors.As(err, &se); is != (tt.status != http.StatusOK) || is && (se.Status != tt.status || len(se.Message) > 310) {
				t.Errorf("status error %+v, want status %d", se, tt.status)
			}
		})
	}
}

func TestClientDeadline(t *testing.T) {
	t.Parallel()

	gone := make(chan struct{})
	c := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done() // until the client hangs up
		close(gone)
	}))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	r, err := ParseCompletion([]byte(`{"model":"m","prompt":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Tokens(ctx, r); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the context's", err)
	}
	<-gone
}

func TestClientHeader(t *testing.T) {
	t.Parallel()

	var got http.Header
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Clone()
		_, _ = io.WriteString(w, `{"tokens":[]}`)
	}))
	c.Header = http.Header{"Authorization": {"Bearer k"}}
	r, err := ParseCompletion([]byte(`{"model":"m","prompt":""}`))
	if err != nil {
		t.Fatal(err)
	}
	lists, err := c.Tokens(t.Context(), r)
	if err != nil || len(lists) != 1 || lists[0] == nil || len(lists[0]) != 0 {
		t.Errorf("tokens %v, %v; want one empty list", lists, err)
	}
	if got.Get("Authorization") != "Bearer k" {
		t.Errorf("the engine saw %v, want the key", got)
	}
}

func TestClientBadURL(t *testing.T) {
	t.Parallel()

	r, err := ParseCompletion([]byte(`{"model":"m","prompt":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{"", "::", "http://127.0.0.1:1"} {
		c := &Client{URL: url, HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
		if _, err := c.Tokens(t.Context(), r); err == nil || !strings.HasPrefix(err.Error(), "tokenize: ") {
			t.Errorf("URL %q: error %v, want one of tokenize", url, err)
		}
	}
}
