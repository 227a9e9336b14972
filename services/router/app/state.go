package app

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/prefixroute/prefixroute/services/router/internal/fleet"
	"github.com/prefixroute/prefixroute/services/router/internal/indexclient"
	"github.com/prefixroute/prefixroute/services/router/internal/pick"
)

// stateDoc is the answer of /prefixroute/state.
type stateDoc struct {
	Policy    string             `json:"policy"`
	Weights   map[string]float64 `json:"weights"`
	Index     string             `json:"index"`
	Tokenizer string             `json:"tokenizer"`
	BlockSize int                `json:"block_size"`
	KeyScheme string             `json:"key_scheme"`
	Indexer   *indexerDoc        `json:"indexer"` // null without one
	Replicas  []replicaDoc       `json:"replicas"`
	ColdOrder []string           `json:"cold_order"` // oldest first
	Turn      uint64             `json:"turn"`       // requests decided
}

type indexerDoc struct {
	Addresses []string `json:"addresses"`
	Connected bool     `json:"connected"`
	Reason    string   `json:"reason,omitempty"`
}

type replicaDoc struct {
	Name        string        `json:"name"`
	URL         string        `json:"url"`
	Reachable   bool          `json:"reachable"`
	Reason      string        `json:"reason,omitempty"`
	Models      []fleet.Model `json:"models"`
	Load        loadDoc       `json:"load"`
	Engine      engineDoc     `json:"engine"`
	Index       indexDoc      `json:"index"`
	Approximate approxDoc     `json:"approximate"`
}

// loadDoc has the engine's own figures, absent while they are unknown.
type loadDoc struct {
	Known      bool     `json:"known"`
	Waiting    *int     `json:"waiting,omitempty"`
	Running    *int     `json:"running,omitempty"`
	KVUsage    *float64 `json:"kv_usage,omitempty"`
	InFlight   int      `json:"in_flight"`
	AgeSeconds *float64 `json:"age_seconds,omitempty"` // of the last readable metrics
}

type engineDoc struct {
	BlockSize    int `json:"block_size"` // 0 = unknown, as the next
	NumGPUBlocks int `json:"num_gpu_blocks"`
}

type indexDoc struct {
	Precise    bool           `json:"precise"`
	Reason     string         `json:"reason"`           // why not; none if it is
	Detail     string         `json:"detail,omitempty"` // the indexer's words for it
	State      string         `json:"state,omitempty"`
	Model      string         `json:"model,omitempty"`
	KeyScheme  string         `json:"key_scheme,omitempty"`
	BlockSizes []int          `json:"block_sizes,omitempty"`
	Generation *generationDoc `json:"generation,omitempty"`
}

// generationDoc writes the epoch as text: it does not fit into the numbers of
// most JSON readers.
type generationDoc struct {
	Epoch   string `json:"epoch"`
	Counter uint64 `json:"counter"`
	Local   bool   `json:"local"`
}

type approxDoc struct {
	Blocks   int `json:"blocks"`
	Capacity int `json:"capacity"`
}

// state shows what the router knows and believes.
func (a *App) state(w http.ResponseWriter, _ *http.Request) {
	cold, turn := a.picker.State()
	doc := stateDoc{
		Policy: a.cfg.Policy, Weights: a.cfg.Weights, Index: a.cfg.Index, Tokenizer: a.cfg.Tokenizer, BlockSize: a.cfg.BlockSize,
		KeyScheme: a.scheme, ColdOrder: append([]string{}, cold...), Turn: turn,
	}
	if a.index != nil {
		s := a.index.Status()
		doc.Indexer = &indexerDoc{Addresses: s.Addresses, Connected: s.Connected, Reason: s.Reason}
	}
	for _, s := range a.fleet.Status() {
		doc.Replicas = append(doc.Replicas, a.replicaDoc(s))
	}
	writeJSON(w, doc)
}

func (a *App) replicaDoc(s fleet.Status) replicaDoc {
	d := replicaDoc{
		Name: s.Name, URL: s.URL, Reachable: s.Reachable, Reason: s.Reason, Models: append([]fleet.Model{}, s.Models...),
		Load:   loadDoc{Known: s.Load.Known, InFlight: s.Load.InFlight},
		Engine: engineDoc{BlockSize: s.BlockSize, NumGPUBlocks: s.NumGPUBlocks},
		Index:  a.indexDoc(s),
	}
	if s.Load.Known {
		d.Load.Waiting, d.Load.Running, d.Load.KVUsage = &s.Load.Waiting, &s.Load.Running, &s.Load.KVUsage
	}
	if s.MetricsAge >= 0 {
		age := s.MetricsAge.Seconds()
		d.Load.AgeSeconds = &age
	}
	d.Approximate.Blocks, d.Approximate.Capacity = a.approx.Size(s.Name)
	return d
}

func (a *App) indexDoc(s fleet.Status) indexDoc {
	var r indexclient.Replica
	known := false
	if a.index != nil {
		all, _, _ := a.index.Replicas()
		r, known = all[s.Name]
	}
	reason := a.picker.Outlook(s.Name, s.BlockSize)
	d := indexDoc{Precise: reason == pick.ReasonNone, Reason: string(reason)}
	if known {
		d.Detail = r.Reason
		d.State, d.Model, d.KeyScheme, d.BlockSizes = string(r.State), r.Model, r.Scheme, r.BlockSizes
		d.Generation = &generationDoc{Epoch: fmt.Sprintf("%016x", r.Generation.Epoch), Counter: r.Generation.Counter, Local: r.Generation.Local}
	}
	return d
}

// writeJSON answers with doc, indented: people read these pages too.
func writeJSON(w http.ResponseWriter, doc any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(doc) // the client is gone if it fails
}
