// Package web serves people: the replicas as a page and as JSON, each one's
// blocks, and the metrics that belong to a single replica.
package web

import (
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prefixroute/prefixroute/pkg/index"
	"github.com/prefixroute/prefixroute/services/indexer/internal/belief"
	"github.com/prefixroute/prefixroute/services/indexer/internal/reports"
)

// Pages serves the pages of a fleet.
type Pages struct {
	fleet  *belief.Fleet
	ledger *reports.Ledger
	log    *slog.Logger
}

// New returns the pages; Register puts them into a mux.
func New(fleet *belief.Fleet, ledger *reports.Ledger, log *slog.Logger) *Pages {
	return &Pages{fleet: fleet, ledger: ledger, log: log}
}

// Register adds /replicas, /replicas/{name}/blocks, /replicas/{name}/samples and
// a redirect from / to mux.
func (p *Pages) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET /replicas", p.replicas)
	mux.HandleFunc("GET /replicas/{name}/blocks", p.blocks)
	mux.HandleFunc("GET /replicas/{name}/samples", p.samples)
	mux.Handle("GET /{$}", http.RedirectHandler("/replicas", http.StatusFound))
}

// Row is one replica in /replicas. Counts are blocks, requests or tokens.
type Row struct {
	Name       string         `json:"name"`
	URL        string         `json:"url"`
	Model      string         `json:"model"`
	KeyScheme  string         `json:"key_scheme"`
	BlockSizes []int          `json:"block_sizes"` // that of keys first
	State      string         `json:"state"`
	Reason     string         `json:"reason"` // empty while live and without doubts
	Generation rowGeneration  `json:"generation"`
	LastSeq    *uint64        `json:"last_seq"`          // null before the first batch
	EventAge   *float64       `json:"event_age_seconds"` // null before the first batch
	Blocks     int            `json:"blocks"`
	Copies     int            `json:"copies"`
	GPUCopies  int            `json:"gpu_copies"`
	Orphans    int            `json:"orphans"`
	Digest     string         `json:"digest"`
	InFlight   uint64         `json:"in_flight"`
	Precision  rowPrecision   `json:"precision"`
	Ignored    map[string]int `json:"ignored_events"`
}

type rowGeneration struct {
	Epoch   string `json:"epoch"` // a 64-bit number that JSON readers would round
	Counter uint64 `json:"counter"`
	Local   bool   `json:"local"`
}

type rowPrecision struct {
	Requests        uint64 `json:"requests"`
	ExactRequests   uint64 `json:"exact_requests"`
	PredictedTokens uint64 `json:"predicted_tokens"`
	ActualTokens    uint64 `json:"actual_tokens"`
	OverTokens      uint64 `json:"over_tokens"`
	UnderTokens     uint64 `json:"under_tokens"`
}

func (p *Pages) rows(now time.Time) []Row {
	rows := make([]Row, 0, len(p.fleet.Replicas()))
	for _, r := range p.fleet.Replicas() {
		st, sum := r.Status(), p.ledger.Of(r.Name())
		row := Row{
			Name: st.Name, URL: st.URL, Model: st.Model, KeyScheme: st.Scheme, BlockSizes: st.BlockSizes,
			State: st.State.String(), Reason: st.Reason,
			Generation: rowGeneration{Epoch: hex64(st.Generation.Epoch), Counter: st.Generation.Counter, Local: st.Local},
			LastSeq:    lastSeq(st.Position),
			Blocks:     st.Stats.Blocks, Copies: st.Stats.Copies, GPUCopies: st.Stats.GPUCopies, Orphans: st.Stats.Orphans,
			Digest: hex64(st.Digest), InFlight: sum.InFlight, Precision: rowPrecision(sum.Precision), Ignored: map[string]int{},
		}
		if row.BlockSizes == nil {
			row.BlockSizes = []int{}
		}
		if !st.LastEvent.IsZero() {
			age := max(0, now.Sub(st.LastEvent).Seconds())
			row.EventAge = &age
		}
		for _, reason := range index.IgnoredReasons() {
			if n := st.Stats.Ignored[reason]; n > 0 {
				row.Ignored[reason.String()] = int(min(n, 1<<53))
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// lastSeq is nil where there is none.
func lastSeq(p belief.Position) *uint64 {
	if !p.Known {
		return nil
	}
	return &p.Seq
}

func hex64(n uint64) string { return fmt.Sprintf("0x%016x", n) }

func (p *Pages) replicas(w http.ResponseWriter, r *http.Request) {
	rows := p.rows(time.Now())
	if wantsJSON(r) {
		p.json(w, r, map[string]any{"replicas": rows})
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	if err := page.Execute(w, rows); err != nil {
		p.log.DebugContext(r.Context(), "page not written", "err", err)
	}
}

// wantsJSON prefers what is asked for by name, then what Accept names first.
func wantsJSON(r *http.Request) bool {
	switch r.URL.Query().Get("format") {
	case "json":
		return true
	case "html":
		return false
	}
	accept := r.Header.Get("Accept")
	j := strings.Index(accept, "application/json")
	h := strings.Index(accept, "text/html")
	return j >= 0 && (h < 0 || j < h)
}

func (p *Pages) json(w http.ResponseWriter, r *http.Request, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		p.log.DebugContext(r.Context(), "page not written", "err", err)
	}
}

// find answers 404 where there is no such replica.
func (p *Pages) find(w http.ResponseWriter, r *http.Request) (*belief.Replica, bool) {
	name := r.PathValue("name")
	rep, ok := p.fleet.Replica(name)
	if !ok {
		http.Error(w, fmt.Sprintf("replica is %q, expected one of those in /replicas", name), http.StatusNotFound)
	}
	return rep, ok
}

type contents struct {
	Replica    string  `json:"replica"`
	Generation uint64  `json:"generation"`
	LastSeq    *uint64 `json:"last_seq"` // null before the first batch
	Blocks     []block `json:"blocks"`
}

type block struct {
	Hash   string `json:"hash"`
	Key    string `json:"key"` // "" where the content is not known
	Group  int    `json:"group"`
	Medium string `json:"medium"`
	Copies int    `json:"copies"`
}

// blocks answers with the whole set at one position, in the form in which
// fakevllm lists its own.
func (p *Pages) blocks(w http.ResponseWriter, r *http.Request) {
	rep, ok := p.find(w, r)
	if !ok {
		return
	}
	c := rep.Contents()
	out := contents{Replica: rep.Name(), Generation: c.Generation.Counter, LastSeq: lastSeq(c.Position), Blocks: []block{}}
	for _, b := range c.Blocks {
		key := ""
		if b.HasKey {
			key = hex64(uint64(b.Key))
		}
		out.Blocks = append(out.Blocks, block{Hash: hex64(uint64(b.Hash)), Key: key, Group: b.Group, Medium: b.Medium, Copies: b.Copies})
	}
	p.json(w, r, out)
}

type sample struct {
	Time    time.Time `json:"time"`
	Seq     uint64    `json:"seq"`
	Error   string    `json:"error"`
	Payload string    `json:"payload_hex"` // cut
}

// samples answers with the newest batches that could not be read. They can hold
// token ids of prompts, which is why they are here and not in a log.
func (p *Pages) samples(w http.ResponseWriter, r *http.Request) {
	rep, ok := p.find(w, r)
	if !ok {
		return
	}
	list := []sample{}
	for _, s := range rep.Samples() {
		list = append(list, sample{Time: s.Time, Seq: s.Seq, Error: s.Error, Payload: hex.EncodeToString(s.Payload)})
	}
	p.json(w, r, map[string]any{"replica": rep.Name(), "samples": list})
}

//go:embed replicas.html
var pageText string

var page = template.Must(template.New("replicas").Funcs(template.FuncMap{
	"age": func(age *float64) string {
		if age == nil {
			return "–"
		}
		return time.Duration(*age * float64(time.Second)).Round(100 * time.Millisecond).String()
	},
	"exact": func(p rowPrecision) string {
		if p.Requests == 0 {
			return "–"
		}
		return fmt.Sprintf("%d of %d", p.ExactRequests, p.Requests)
	},
}).Parse(pageText))
