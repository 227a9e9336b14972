// Package httpapi answers HTTP the way vLLM's OpenAI server does, from an
// engine that computes nothing, and adds the switches that tests of a router
// need.
//
// Bodies and errors have the fields of vLLM 0.32.0, in its order. What has no
// meaning without a model (log probabilities, sampling parameters) is accepted
// and answered with null.
package httpapi

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/prefixroute/prefixroute/pkg/blockpool"
	"github.com/prefixroute/prefixroute/services/fakevllm/internal/engine"
	"github.com/prefixroute/prefixroute/services/fakevllm/internal/publish"
)

// Release is the vLLM release whose behaviour this is.
const Release = "0.32.0"

// maxBody bounds a request: more than the longest prompt that fits into any
// sensible pool, as token ids.
const maxBody = 64 << 20

// Config is what a server needs to know.
type Config struct {
	Engine    *engine.Engine
	Publisher *publish.Publisher // nil without events
	Registry  *prometheus.Registry
	Log       *slog.Logger

	Model        string
	Adapters     []blockpool.Adapter // served beside the model, under their names
	BlockSize    int                 // tokens
	MaxModelLen  int                 // tokens of a prompt and its answer
	AnswerTokens int                 // length of a chat's answer that the request doesn't limit
	MaxRequests  int                 // of the engine
	BufferSteps  int                 // of the publisher, for /kv_event_sources
}

// A Server handles the requests of one replica.
type Server struct {
	cfg     Config
	started int64 // unix seconds
	mux     *http.ServeMux
	open    atomic.Int64 // completions and chats that are being answered
}

// New returns a server.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, started: time.Now().Unix(), mux: http.NewServeMux()}
	s.handle(http.MethodPost, "/v1/chat/completions", s.chat)
	s.handle(http.MethodPost, "/v1/completions", s.completions)
	s.handle(http.MethodPost, "/tokenize", s.tokenize)
	s.handle(http.MethodGet, "/v1/models", s.models)
	s.handle(http.MethodGet, "/version", s.version)
	s.handle(http.MethodGet, "/health", s.health)
	s.handle(http.MethodGet, "/ping", s.health)
	s.handle(http.MethodGet, "/load", s.load)
	s.handle(http.MethodGet, "/metrics", promhttp.HandlerFor(cfg.Registry, promhttp.HandlerOpts{Registry: cfg.Registry}).ServeHTTP)
	s.handle(http.MethodPost, "/reset_prefix_cache", s.reset)
	s.handle(http.MethodGet, "/kv_event_sources", s.sources)
	s.handle(http.MethodGet, "/admin/blocks", s.blocks)
	s.handle(http.MethodPost, "/admin/evict", s.evict)
	s.handle(http.MethodPost, "/admin/events", s.events)
	s.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		s.json(w, http.StatusNotFound, detail{"Not Found"})
	})
	return s
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	s.mux.ServeHTTP(w, r)
}

// detail is the body of an error that vLLM's web framework answers by itself.
type detail struct {
	Detail string `json:"detail"`
}

func (s *Server) handle(method, path string, h http.HandlerFunc) {
	s.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != method && (method != http.MethodGet || r.Method != http.MethodHead) {
			w.Header().Set("Allow", method)
			s.json(w, http.StatusMethodNotAllowed, detail{"Method Not Allowed"})
			return
		}
		h(w, r)
	})
}

// json writes v. What goes wrong while writing is the client's affair: it is
// gone.
func (s *Server) json(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"error":{"message":"answer cannot be written as JSON","type":"InternalServerError","param":null,"code":500}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// content is what requests to a model of this name have in common; ok is false
// if no such model is served.
func (s *Server) content(model, salt string) (c blockpool.Content, ok bool) {
	c.Salt = salt
	if model == s.cfg.Model {
		return c, true
	}
	i := slices.IndexFunc(s.cfg.Adapters, func(a blockpool.Adapter) bool { return a.Name == model })
	if i < 0 {
		return c, false
	}
	c.LoRA = &s.cfg.Adapters[i]
	return c, true
}

// fingerprint is the system_fingerprint of answers.
const fingerprint = "fakevllm-" + Release
