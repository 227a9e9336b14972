package openai

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func tap(kind string) *Tap { return NewTap(http.Header{"Content-Type": {kind}}) }

func TestTapIsBounded(t *testing.T) {
	t.Parallel()

	usage := `"usage":{"prompt_tokens":4,"prompt_tokens_details":{"cached_tokens":3}}`
	tests := []struct {
		name, kind, text string
		want             bool
	}{
		{"object", "application/json", "{" + usage + "}", true},
		{"object at the limit", "application/json", "{" + usage + strings.Repeat(" ", maxAnswer-len(usage)-2) + "}", true},
		{"object beyond it", "application/json", "{" + usage + strings.Repeat(" ", maxAnswer) + "}", false},
		{"event after a line that is too long", "text/event-stream", "data: " + strings.Repeat("x", maxLine) + "\ndata: {" + usage + "}\n", true},
		{"event that is too long", "text/event-stream", "data: {" + usage + strings.Repeat(" ", maxLine) + "}\n", false},
		{"event without its end", "text/event-stream", "data: {" + usage + "}", false},
		{"comment", "text/event-stream", ": {" + usage + "}\n", false},
		{"other form", "text/plain", "{" + usage + "}", false},
		{"no form", "", "{" + usage + "}", false},
		{"no object", "application/json", "[1]", false},
		{"cut object", "application/json", "{" + usage, false},
	}
	for _, tt := range tests {
		for _, size := range []int{1 << 20, 4093} {
			tp := tap(tt.kind)
			for rest := tt.text; rest != ""; {
				n := min(size, len(rest))
				tp.Pass([]byte(rest[:n]))
				rest = rest[n:]
				if len(tp.kept) > maxAnswer || len(tp.usage) > maxLine {
					t.Fatalf("%s: tap keeps %d and %d bytes", tt.name, len(tp.kept), len(tp.usage))
				}
			}
			if u, ok := tp.Usage(); ok != tt.want || ok && (u != Usage{PromptTokens: 4, CachedTokens: 3, Told: true}) {
				t.Errorf("%s in parts of %d: usage %+v, %v; want %v", tt.name, size, u, ok, tt.want)
			}
		}
	}
}

func TestUsageThatDoesNotTell(t *testing.T) {
	t.Parallel()

	for _, details := range []string{"", `,"prompt_tokens_details":null`, `,"prompt_tokens_details":{}`, `,"prompt_tokens_details":{"cached_tokens":null}`} {
		tp := tap("application/json")
		tp.Pass([]byte(`{"usage":{"prompt_tokens":9` + details + `}}`))
		if u, ok := tp.Usage(); !ok || u.Told || u.PromptTokens != 9 {
			t.Errorf("usage with %q is %+v, %v; want 9 prompt tokens, cached ones not told", details, u, ok)
		}
	}
}

func TestErrorEvents(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]bool{
		`data: {"error":{"message":"engine died"}}`:                           true,
		`data:{ "error" : "engine died" }`:                                    true,
		`data: {"error":null,"choices":[]}`:                                   false,
		`data: {"choices":[{"finish_reason":"error"}]}`:                       false,
		`data: {"choices":[{"delta":{"content":"{\"error\":{\"a\":1}}"}}]}`:   false,
		`data: {"choices":[{"delta":{"content":"\"usage\":{}"}}],"error":{}}`: true,
	} {
		tp := tap("text/event-stream")
		tp.Pass([]byte(text + "\n\n"))
		if tp.Failed() != want {
			t.Errorf("%s: failed %v, want %v", text, tp.Failed(), want)
		}
	}
}

func TestErrorWrite(t *testing.T) {
	t.Parallel()

	w := httptest.NewRecorder()
	Error{Status: 503, Type: ServerError, Message: `no "replica"`, Code: "no_replica", RetryAfter: 1200 * time.Millisecond}.Write(w)
	want := `{"error":{"message":"no \"replica\"","type":"server_error","param":null,"code":"no_replica"}}`
	if w.Code != 503 || w.Body.String() != want || w.Header().Get("Retry-After") != "2" || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("status %d, headers %v, body %s; want 503, Retry-After 2, %s", w.Code, w.Header(), w.Body, want)
	}
}

// FuzzTap holds that where an answer is cut does not matter to what is learned
// from it.
func FuzzTap(f *testing.F) {
	f.Add("data: {\"usage\":{\"prompt_tokens\":1,\"prompt_tokens_details\":{\"cached_tokens\":1}}}\r\n\r\ndata: [DONE]\n\n", 3, true)
	f.Add(`{"usage":{"prompt_tokens":1}}`, 1, false)
	f.Add("data: {\"error\":{}}\n", 6, true)
	f.Fuzz(func(t *testing.T, text string, size int, stream bool) {
		kind := "application/json"
		if stream {
			kind = "text/event-stream"
		}
		whole, parts := tap(kind), tap(kind)
		whole.Pass([]byte(text))
		size = max(1, size%64)
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			parts.Pass([]byte(rest[:n]))
			rest = rest[n:]
		}
		u1, ok1 := whole.Usage()
		u2, ok2 := parts.Usage()
		if u1 != u2 || ok1 != ok2 || whole.Failed() != parts.Failed() {
			t.Errorf("%q: whole gives %v %v %v, in parts of %d %v %v %v", text, u1, ok1, whole.Failed(), size, u2, ok2, parts.Failed())
		}
	})
}
