package web

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
	"github.com/prefixroute/prefixroute/pkg/replicas"
	"github.com/prefixroute/prefixroute/services/indexer/internal/belief"
	"github.com/prefixroute/prefixroute/services/indexer/internal/reports"
)

// newFleet has a live replica a, which holds something, and a silent b.
func newFleet(t *testing.T) (*belief.Fleet, *reports.Ledger, http.Handler) {
	t.Helper()
	fleet := belief.NewFleet(replicas.List{{Name: "a", URL: "http://u:hunter2@a", Model: "org/<m>"}, {Name: "b", URL: "http://b"}}, hashing.Scheme{}, func(*belief.Replica) {})
	a, _ := fleet.Replica("a")
	a.Renew("org/<m>")
	unknown := kvevents.Hash(99)
	a.Apply(kvevents.Batch{Events: []kvevents.Event{
		&kvevents.BlockStored{BlockHashes: []kvevents.Hash{2, 1}, TokenIDs: []uint32{1, 2, 3, 4}, BlockSize: 2, Medium: "GPU"},
		&kvevents.BlockStored{BlockHashes: []kvevents.Hash{2}, TokenIDs: []uint32{1, 2}, BlockSize: 2, Medium: "gpu"},
		&kvevents.BlockStored{BlockHashes: []kvevents.Hash{7}, TokenIDs: []uint32{1, 2}, BlockSize: 2, Parent: &unknown, Medium: "GPU"},
		&kvevents.BlockStored{BlockHashes: []kvevents.Hash{8}, TokenIDs: []uint32{1, 2}, BlockSize: 2, Medium: "ABACUS"},
	}}, belief.Position{Known: true, Seq: 41}, time.Now())
	a.SetState(belief.Live, "")
	a.KeepSample(belief.Sample{Seq: 40, Error: "cut", Payload: []byte{0x93}})
	var ledger reports.Ledger
	ledger.Began("a")
	ledger.Observe("a", 32, 32)
	mux := http.NewServeMux()
	New(fleet, &ledger, slog.New(slog.NewTextHandler(t.Output(), nil))).Register(mux)
	return fleet, &ledger, mux
}

func get(t *testing.T, h http.Handler, target, accept string) *httptest.ResponseRecorder {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, http.NoBody)
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w
}

func TestReplicasAsJSON(t *testing.T) {
	t.Parallel()

	_, _, h := newFleet(t)
	for _, w := range []*httptest.ResponseRecorder{
		get(t, h, "/replicas?format=json", ""),
		get(t, h, "/replicas", "application/json"),
		get(t, h, "/replicas", "application/json, text/html;q=0.1"),
	} {
		var got struct{ Replicas []Row }
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatalf("not JSON: %v in %s", err, w.Body)
		}
		a, b := got.Replicas[0], got.Replicas[1]
		if a.EventAge == nil || a.Generation.Epoch == hex64(0) || a.Digest == hex64(0) {
			t.Errorf("a has age %v, epoch %s, digest %s; want all", a.EventAge, a.Generation.Epoch, a.Digest)
		}
		a.EventAge, a.Generation.Epoch, a.Digest = nil, "", ""
		want := Row{
			Name: "a", URL: "http://u:xxxxx@a", Model: "org/<m>", KeyScheme: "prefixroute-v1", BlockSizes: []int{2}, State: "live",
			Generation: rowGeneration{Counter: 1, Local: true}, LastSeq: new(uint64(41)), Blocks: 3, Copies: 4, GPUCopies: 4, Orphans: 1, InFlight: 1,
			Precision: rowPrecision{Requests: 1, ExactRequests: 1, PredictedTokens: 32, ActualTokens: 32},
			Ignored:   map[string]int{"unknown_medium": 1},
		}
		if diff := cmp.Diff(want, a); diff != "" {
			t.Errorf("replica a (-want +got):\n%s", diff)
		}
		if b.State != "connecting" || b.LastSeq != nil || b.EventAge != nil || b.BlockSizes == nil || b.Reason == "" {
			t.Errorf("replica b is %+v, want connecting, no batch, no age, empty block sizes and a reason", b)
		}
	}
}

func TestReplicasAsPage(t *testing.T) {
	t.Parallel()

	_, _, h := newFleet(t)
	w := get(t, h, "/replicas", "text/html,application/xhtml+xml")
	body := w.Body.String()
	for _, want := range []string{"<!doctype html>", "/replicas/a/blocks", "org/&lt;m&gt;", ">live<", ">connecting<", "1 (local)", "1 of 1", "not contacted yet"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(body, "<script") || strings.Contains(body, "http-equiv") {
		t.Error("the page is not self-contained")
	}
	if w := get(t, h, "/", ""); w.Code != http.StatusFound || w.Header().Get("Location") != "/replicas" {
		t.Errorf("/ answered %d to %q, want a redirect to the page", w.Code, w.Header().Get("Location"))
	}
}

func TestBlocks(t *testing.T) {
	t.Parallel()

	fleet, _, h := newFleet(t)
	keys := fleet.Scheme().Keys("org/<m>", 2, []uint32{1, 2, 3, 4}, nil)
	want := contents{Replica: "a", Generation: 1, LastSeq: new(uint64(41)), Blocks: []block{
		{Hash: "0x0000000000000001", Key: hex64(uint64(keys[1])), Medium: "GPU", Copies: 1},
		{Hash: "0x0000000000000002", Key: hex64(uint64(keys[0])), Medium: "GPU", Copies: 2},
		{Hash: "0x0000000000000007", Medium: "GPU", Copies: 1},
	}}
	var got contents
	if err := json.Unmarshal(get(t, h, "/replicas/a/blocks", "").Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("blocks of a (-want +got):\n%s", diff)
	}
	if got := strings.TrimSpace(get(t, h, "/replicas/b/blocks", "").Body.String()); got != `{"replica":"b","generation":0,"last_seq":null,"blocks":[]}` {
		t.Errorf("blocks of b are %s", got)
	}
	if w := get(t, h, "/replicas/ghost/blocks", ""); w.Code != http.StatusNotFound {
		t.Errorf("unknown replica answered %d, want 404", w.Code)
	}
}

func TestSamples(t *testing.T) {
	t.Parallel()

	_, _, h := newFleet(t)
	if got := get(t, h, "/replicas/a/samples", "").Body.String(); !strings.Contains(got, `"seq":40,"error":"cut","payload_hex":"93"`) {
		t.Errorf("samples are %s", got)
	}
}

func TestCollector(t *testing.T) {
	t.Parallel()

	fleet, ledger, _ := newFleet(t)
	reg := prometheus.NewPedanticRegistry()
	RegisterCollector(reg, fleet, ledger)
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	want := `
# HELP prefixroute_indexer_replica_copies Physical copies of blocks that the replica is believed to hold.
# TYPE prefixroute_indexer_replica_copies gauge
prefixroute_indexer_replica_copies{replica="a"} 4
prefixroute_indexer_replica_copies{replica="b"} 0
# HELP prefixroute_indexer_replica_last_sequence Number of the last applied event batch.
# TYPE prefixroute_indexer_replica_last_sequence gauge
prefixroute_indexer_replica_last_sequence{replica="a"} 41
# HELP prefixroute_indexer_replica_exact_requests_total Requests whose cached tokens were predicted exactly.
# TYPE prefixroute_indexer_replica_exact_requests_total counter
prefixroute_indexer_replica_exact_requests_total{replica="a"} 1
prefixroute_indexer_replica_exact_requests_total{replica="b"} 0
# HELP prefixroute_indexer_replica_state 1 for the state that the replica's event stream is in, 0 for the others.
# TYPE prefixroute_indexer_replica_state gauge
prefixroute_indexer_replica_state{replica="a",state="connecting"} 0
prefixroute_indexer_replica_state{replica="a",state="down"} 0
prefixroute_indexer_replica_state{replica="a",state="gap"} 0
prefixroute_indexer_replica_state{replica="a",state="live"} 1
prefixroute_indexer_replica_state{replica="a",state="replaying"} 0
prefixroute_indexer_replica_state{replica="b",state="connecting"} 1
prefixroute_indexer_replica_state{replica="b",state="down"} 0
prefixroute_indexer_replica_state{replica="b",state="gap"} 0
prefixroute_indexer_replica_state{replica="b",state="live"} 0
prefixroute_indexer_replica_state{replica="b",state="replaying"} 0
`
	err := testutil.GatherAndCompare(reg, strings.NewReader(want), "prefixroute_indexer_replica_copies", "prefixroute_indexer_replica_last_sequence",
		"prefixroute_indexer_replica_exact_requests_total", "prefixroute_indexer_replica_state")
	if err != nil {
		t.Error(err)
	}
}
