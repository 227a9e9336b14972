package app

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// call is one request as an engine received it.
type call struct {
	method, path, query, host string
	header                    http.Header
	body                      string
	length                    int64
	trailer                   http.Header
}

// engine behaves like an engine's HTTP API as far as a router can tell. It
// answers every generation with a usage.
type engine struct {
	*httptest.Server

	mu     sync.Mutex
	calls  []call           // generations and forwarded calls, not polls
	serve  http.HandlerFunc // answers them; nil = answer
	models []string         // "adapter<base" is an adapter
	page   string           // of /metrics
	cached int              // cached_tokens of the usage
}

func newEngine(t *testing.T, models ...string) *engine {
	t.Helper()
	e := &engine{models: models, page: metricsPage(0, 0, 0)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		e.mu.Lock()
		defer e.mu.Unlock()
		fmt.Fprint(w, e.page)
	})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		e.mu.Lock()
		defer e.mu.Unlock()
		fmt.Fprint(w, modelsPage(e.models))
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		e.mu.Lock()
		c := call{
			method: r.Method, path: r.URL.Path, query: r.URL.RawQuery, host: r.Host, header: r.Header.Clone(), body: string(body),
			length: r.ContentLength, trailer: r.Trailer.Clone(),
		}
		if err == nil {
			e.calls = append(e.calls, c)
		}
		serve := e.serve
		e.mu.Unlock()
		if serve == nil {
			serve = e.answer
		}
		serve(w, r)
	})
	e.Server = httptest.NewServer(mux)
	t.Cleanup(e.Close)
	return e
}

// answer is what an engine says when all is well.
func (e *engine) answer(w http.ResponseWriter, _ *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"id":"x","choices":[{"index":0,"text":"ok"}],"usage":{"prompt_tokens":64,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":%d}}}`, e.cached)
}

func (e *engine) set(change func(*engine)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(e)
}

func (e *engine) seen() []call {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.calls)
}

func metricsPage(waiting, running int, usage float64) string {
	return fmt.Sprintf("vllm:num_requests_waiting{engine=\"0\"} %d\nvllm:num_requests_running{engine=\"0\"} %d\n"+
		"vllm:kv_cache_usage_perc{engine=\"0\"} %g\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\"} 1\n", waiting, running, usage)
}

func modelsPage(models []string) string {
	type entry struct {
		ID      string  `json:"id"`
		Object  string  `json:"object"`
		OwnedBy string  `json:"owned_by"`
		Parent  *string `json:"parent"`
	}
	list := struct {
		Object string  `json:"object"`
		Data   []entry `json:"data"`
	}{Object: "list", Data: []entry{}}
	for _, m := range models {
		id, base, adapter := strings.Cut(m, "<")
		e := entry{ID: id, Object: "model", OwnedBy: "vllm"}
		if adapter {
			e.Parent = &base
		}
		list.Data = append(list.Data, e)
	}
	text, err := json.Marshal(list)
	if err != nil {
		panic(err)
	}
	return string(text)
}
