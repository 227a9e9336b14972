package httpapi

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/prefixroute/prefixroute/pkg/blockpool"
	"github.com/prefixroute/prefixroute/pkg/tokenize"
	"github.com/prefixroute/prefixroute/services/fakevllm/internal/publish"
)

// reset answers POST /reset_prefix_cache. It fails, with 200, while a request
// runs, unless reset_running_requests sends those back to the queue.
func (s *Server) reset(w http.ResponseWriter, r *http.Request) {
	preempt, _ := strconv.ParseBool(r.URL.Query().Get("reset_running_requests"))
	ok, err := s.cfg.Engine.Reset(r.Context(), preempt)
	if err != nil {
		s.fail(w, err)
		return
	}
	s.json(w, http.StatusOK, struct {
		Success bool `json:"success"`
	}{ok})
}

type eventSource struct {
	Enabled        bool    `json:"enable_kv_cache_events"`
	Publisher      string  `json:"publisher"`
	Endpoint       string  `json:"endpoint"`
	ReplayEndpoint *string `json:"replay_endpoint"`
	BufferSteps    int     `json:"buffer_steps"`
	HWM            int     `json:"hwm"`
	MaxQueueSize   int     `json:"max_queue_size"`
	Topic          string  `json:"topic"`
}

// sources answers GET /kv_event_sources: where the events of each rank are.
func (s *Server) sources(w http.ResponseWriter, _ *http.Request) {
	sources := map[string]eventSource{}
	if p := s.cfg.Publisher; p != nil {
		rank0 := eventSource{
			Enabled: true, Publisher: "zmq", Endpoint: p.Endpoint(), BufferSteps: s.cfg.BufferSteps,
			HWM: publish.HWM, MaxQueueSize: publish.MaxQueue, Topic: p.Topic(),
		}
		if replay := p.ReplayEndpoint(); replay != "" {
			rank0.ReplayEndpoint = &replay
		}
		sources["0"] = rank0
	}
	s.json(w, http.StatusOK, sources)
}

type (
	blocksAnswer struct {
		Epoch      int64   `json:"epoch"` // microseconds since 1970
		Generation uint64  `json:"generation"`
		LastSeq    *uint64 `json:"last_seq"`
		Pending    int     `json:"pending_events"`
		Blocks     []block `json:"blocks"`
	}
	// Hashes are 64 bits, more than a JSON number keeps in many languages.
	block struct {
		Hash   string `json:"hash"`
		Key    string `json:"key"`
		Group  int    `json:"group"`
		Medium string `json:"medium"`
		Copies int    `json:"copies"`
	}
)

// blocks answers GET /admin/blocks: what is cached, at one moment between two
// steps, and the batch after which a subscriber believes the same.
func (s *Server) blocks(w http.ResponseWriter, r *http.Request) {
	snap, err := s.cfg.Engine.Snapshot(r.Context())
	if err != nil {
		s.fail(w, err)
		return
	}
	answer := blocksAnswer{
		Epoch:      snap.Epoch.UnixMicro(),
		Generation: snap.Generation,
		Pending:    snap.Pending,
		Blocks:     make([]block, 0, len(snap.Blocks)),
	}
	if snap.Published {
		answer.LastSeq = &snap.LastSeq
	}
	for _, b := range snap.Blocks {
		answer.Blocks = append(answer.Blocks, block{
			Hash:   fmt.Sprintf("0x%016x", uint64(b.Hash)),
			Key:    fmt.Sprintf("0x%016x", uint64(b.Key)),
			Group:  b.Group,
			Medium: string(b.Medium),
			Copies: b.Copies,
		})
	}
	s.json(w, http.StatusOK, answer)
}

type evictRequest struct {
	Count  *int            `json:"count"`
	All    bool            `json:"all"`
	Prefix json.RawMessage `json:"prefix"`
}

type evictAnswer struct {
	Evicted int `json:"evicted"`
	InUse   int `json:"in_use"`
}

// evict answers POST /admin/evict: it takes cached blocks away as memory
// pressure would, never one that is in use.
func (s *Server) evict(w http.ResponseWriter, r *http.Request) {
	var req evictRequest
	if err := readJSON(r, &req); err != nil {
		s.fail(w, err)
		return
	}
	result, err := s.evicted(r, req)
	if err != nil {
		s.fail(w, err)
		return
	}
	s.json(w, http.StatusOK, evictAnswer(result))
}

func (s *Server) evicted(r *http.Request, req evictRequest) (blockpool.Eviction, error) {
	const choice = `expected one of {"count": n}, {"all": true} and {"prefix": {...}}`
	given := 0
	for _, g := range []bool{req.Count != nil, req.All, req.Prefix != nil} {
		if g {
			given++
		}
	}
	switch {
	case given != 1:
		return blockpool.Eviction{}, badRequest("", fmt.Sprintf("body has %d of them, %s", given, choice))
	case req.All:
		return s.cfg.Engine.EvictAll(r.Context())
	case req.Prefix != nil:
		return s.evictPrefix(r, req.Prefix)
	case *req.Count < 0:
		return blockpool.Eviction{}, badRequest("count", fmt.Sprintf("count is %d, expected 0 or more blocks", *req.Count))
	default:
		return s.cfg.Engine.Evict(r.Context(), *req.Count)
	}
}

// evictPrefix takes the prefix as the body of the request that it belongs to,
// or its tokens.
func (s *Server) evictPrefix(r *http.Request, raw json.RawMessage) (blockpool.Eviction, error) {
	var direct struct {
		Tokens []uint32 `json:"tokens"`
		Model  string   `json:"model"`
		Salt   string   `json:"cache_salt"`
	}
	if err := json.Unmarshal(raw, &direct); err != nil {
		return blockpool.Eviction{}, invalid(err)
	}
	prompts := [][]uint32{direct.Tokens}
	if direct.Model == "" {
		direct.Model = s.cfg.Model
	}
	if direct.Tokens == nil {
		req, err := s.prompt(raw)
		if err != nil {
			return blockpool.Eviction{}, err
		}
		if prompts, err = (tokenize.Lesson{}).Tokens(r.Context(), req); err != nil {
			return blockpool.Eviction{}, err
		}
	}
	content, ok := s.content(direct.Model, direct.Salt)
	if !ok {
		return blockpool.Eviction{}, s.unknownModel(direct.Model)
	}
	var sum blockpool.Eviction
	for _, p := range prompts {
		e, err := s.cfg.Engine.EvictPrefix(r.Context(), p, content)
		if err != nil {
			return sum, err
		}
		sum.Evicted += e.Evicted
		sum.InUse += e.InUse
	}
	return sum, nil
}

type eventsRequest struct {
	Drop       *int  `json:"drop"`
	Pause      *bool `json:"pause"`
	Replayable bool  `json:"replayable"`
}

type eventsAnswer struct {
	Dropping int    `json:"dropping"`
	Paused   bool   `json:"paused"`
	Dropped  uint64 `json:"dropped_total"`
}

// events answers POST /admin/events: it loses batches on their way, so that a
// subscriber's repair can be tested. Their sequence numbers are used up.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	p := s.cfg.Publisher
	if p == nil {
		s.fail(w, badRequest("", "events are off"))
		return
	}
	var req eventsRequest
	if err := readJSON(r, &req); err != nil {
		s.fail(w, err)
		return
	}
	faults := publish.Faults{Replayable: req.Replayable}
	switch {
	case (req.Drop == nil) == (req.Pause == nil):
		s.fail(w, badRequest("", `expected either {"drop": n} or {"pause": true or false}, with "replayable" or without`))
		return
	case req.Pause != nil:
		faults.Paused = *req.Pause
	case *req.Drop < 0:
		s.fail(w, badRequest("drop", fmt.Sprintf("drop is %d, expected 0 or more batches", *req.Drop)))
		return
	default:
		faults.Drop = *req.Drop
	}
	p.SetFaults(faults)
	status := p.Faults()
	s.json(w, http.StatusOK, eventsAnswer{Dropping: status.Drop, Paused: status.Paused, Dropped: status.Dropped})
}

// readJSON reads a body of which every member has to be known: a switch that is
// misspelt must not be taken for one that is off.
func readJSON(r *http.Request, v any) error {
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return invalid(err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return badRequest("", "body goes on after the JSON object")
	}
	return nil
}
