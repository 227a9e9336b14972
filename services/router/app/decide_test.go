package app

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/prefixroute/prefixroute/pkg/scoring"
	indexv1 "github.com/prefixroute/prefixroute/proto/prefixroute/index/v1"
)

const completions = "/v1/completions"

func with(x *indexer) func(*Config) {
	return func(c *Config) { c.Indexers = []string{x.addr} }
}

// unhurried gives lookups all the time they need, for tests that are about
// something else on a machine that is busy.
func unhurried(x *indexer) func(*Config) {
	return func(c *Config) {
		c.Indexers = []string{x.addr}
		c.IndexDeadline = patience
	}
}

func TestPreciseRoutesToTheHolder(t *testing.T) {
	t.Parallel()

	x := newIndexer(t, live("a"), live("b"), live("c"))
	x.set(func(x *indexer) { x.held["b"] = 5 })
	r := start(t, unhurried(x), newEngine(t, "m"), newEngine(t, "m"), newEngine(t, "m"))
	for _, name := range []string{"a", "b", "c"} {
		r.precise(name, true)
	}
	a := r.post(completions, ids(100, 113)) // 7 full blocks and one token
	if a.status != http.StatusOK || a.endpoint() != "b" || a.index() != "precise" || a.match() != "5/7" || a.header.Get("X-Prefixroute-Policy") != "prefix" {
		t.Errorf("status %d, headers %v; want 200 from b, precise, 5/7, prefix", a.status, a.header)
	}
	asked := x.asked()
	if len(asked) != 1 {
		t.Fatalf("%d lookups, want one for the whole fleet", len(asked))
	}
	if m := asked[0]; m.GetModel() != "m" || m.GetKeyScheme() != "prefixroute-v1" || m.GetBlockSize() != 16 || len(m.GetKeys()) != 7 {
		t.Errorf("lookup is model %q, scheme %q, block size %d, %d keys; want m, prefixroute-v1, 16, 7",
			m.GetModel(), m.GetKeyScheme(), m.GetBlockSize(), len(m.GetKeys()))
	}
	// A prompt of whole blocks: the engine computes its last token, and so its
	// last block, in any case.
	r.post(completions, ids(100, 112))
	if m := x.asked()[1]; len(m.GetKeys()) != 6 {
		t.Errorf("lookup for 112 tokens has %d keys, want 6", len(m.GetKeys()))
	}
	// Nothing to look up, but only an answer shows that the streams are followed.
	if a := r.post(completions, ids(100, 16)); a.index() != "precise" || a.match() != "0/0" || len(x.asked()) != 3 {
		t.Errorf("prompt of one block: index %s, match %s after %d lookups; want precise, 0/0, 3", a.index(), a.match(), len(x.asked()))
	}
}

func TestExplainIsTheDecision(t *testing.T) {
	t.Parallel()

	for _, policy := range []string{"prefix", "prefix-only", "least-queue", "round-robin", "random"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			x := newIndexer(t, live("a"), live("b")) // c is not followed
			x.set(func(x *indexer) { x.held["a"], x.held["b"] = 1, 3 })
			configure := func(c *Config) {
				unhurried(x)(c)
				c.Policy = policy
				c.ScrapeInterval, c.MetricsStaleAfter = time.Hour, 2*time.Hour // the load stands still
			}
			r := start(t, configure, newEngine(t, "m"), newEngine(t, "m"), newEngine(t, "m"))
			r.precise("b", true)
			for i := range 12 {
				body := ids(1000*(i%5), 90)
				path := completions
				if i%3 == 0 {
					path = "/v1/chat/completions"
					body = fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]}`, strings.Repeat("word ", 40+i))
				}
				before := r.state()
				told := r.post("/prefixroute/explain", body)
				var doc explainDoc
				if err := json.Unmarshal([]byte(told.body), &doc); err != nil {
					t.Fatalf("explain: %v: %s", err, told.body)
				}
				if diff := cmp.Diff(before, r.state(), ignoreAge); diff != "" {
					t.Errorf("explain changed the state (-before +after):\n%s", diff)
				}
				a := r.post(path, body)
				chosen := doc.Candidates[0]
				for _, c := range doc.Candidates {
					if c.Replica == doc.Chosen {
						chosen = c
					}
				}
				got := fmt.Sprintf("%s %s %s", a.endpoint(), a.index(), a.match())
				want := fmt.Sprintf("%s %s %d/%d", doc.Chosen, doc.Index, chosen.Matched, chosen.Total)
				if got != want {
					t.Errorf("request %d went %s, explained as %s", i, got, want)
				}
				if doc.Index != "mixed" || doc.Reason != "not_followed" || doc.Blocks != chosen.Total || doc.Tokens == 0 {
					t.Errorf("explanation is %+v, want mixed because not_followed, with tokens and the chosen one's blocks", doc)
				}
			}
		})
	}
}

// ignoreAge leaves out what moves on with time alone.
var ignoreAge = cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".AgeSeconds" }, cmp.Ignore())

func TestExplainTermsAddUp(t *testing.T) {
	t.Parallel()

	x := newIndexer(t, live("a"), live("b"))
	x.set(func(x *indexer) { x.held["a"] = 4 })
	busy := newEngine(t, "m")
	busy.set(func(e *engine) { e.page = metricsPage(6, 20, 0.75) })
	r := start(t, unhurried(x), busy, newEngine(t, "m"))
	r.precise("a", true)
	r.precise("b", true)

	var doc explainDoc
	if err := json.Unmarshal([]byte(r.post("/prefixroute/explain", ids(1, 129)).body), &doc); err != nil {
		t.Fatal(err)
	}
	want := explainDoc{
		Tokens: 129, Blocks: 8, Index: "precise", Reason: "none", Policy: "prefix", Chosen: "b",
		Candidates: []candidateDoc{
			{
				Replica: "a", Matched: 4, Total: 8, BlockSize: 16, Index: "precise", Reason: "none", Sum: 1.5 + 0 + 0.5 + 0.5,
				Terms: terms(0.5, 0, 0.25, 0.5),
			},
			{
				Replica: "b", Matched: 0, Total: 8, BlockSize: 16, Index: "precise", Reason: "none", Sum: 0 + 2 + 2 + 0.5,
				Terms: terms(0, 1, 1, 0.5),
			},
		},
	}
	if diff := cmp.Diff(want, doc); diff != "" {
		t.Errorf("explain (-want +got):\n%s", diff)
	}
}

func TestIndexerTrouble(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name   string
		harm   func(*indexer)
		reason string
	}{
		{"hangs", func(x *indexer) { x.hang = true }, "deadline"},
		{"fails", func(x *indexer) { x.fail = status.Error(codes.Internal, "internal error") }, "match_error"},
		{"warms up", func(x *indexer) { x.fail = status.Error(codes.Unavailable, "warming up") }, "unavailable"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			x := newIndexer(t, live("a"), live("b"))
			configure := unhurried(x) // a failure must not be taken for lateness
			if tt.reason == "deadline" {
				configure = with(x)
			}
			r := start(t, configure, newEngine(t, "m"), newEngine(t, "m"))
			r.precise("b", true)
			x.set(tt.harm)
			first := r.post(completions, ids(1, 200))
			second := r.post(completions, ids(1, 200))
			if first.status != http.StatusOK || first.index() != "approximate" || first.match() != "0/13" {
				t.Errorf("first: status %d, index %s, match %s; want 200, approximate, 0/13", first.status, first.index(), first.match())
			}
			// 12 full blocks and the partial one, by what was sent before.
			if second.endpoint() != first.endpoint() || second.match() != "13/13" {
				t.Errorf("second: %s with %s, want %s again with 13/13", second.endpoint(), second.match(), first.endpoint())
			}
			if n := r.metric("decisions_total", "index=approximate", "reason="+tt.reason); n != 2 {
				t.Errorf("%v decisions approximate because of %s, want 2", n, tt.reason)
			}
			if n := r.metric("match_calls_total", "outcome="+tt.reason); n != 2 {
				t.Errorf("%v lookups ended as %s, want 2", n, tt.reason)
			}
		})
	}
}

func TestIndexerDeadlineBoundsTheDelay(t *testing.T) {
	t.Parallel()

	x := newIndexer(t, live("a"))
	r := start(t, func(c *Config) {
		with(x)(c)
		c.IndexDeadline = 300 * time.Millisecond
	}, newEngine(t, "m"))
	r.precise("a", true)
	x.set(func(x *indexer) { x.hang = true })
	started := time.Now()
	a := r.post(completions, ids(1, 200))
	took := time.Since(started)
	if a.index() != "approximate" || took < 300*time.Millisecond || took > 2*time.Second {
		t.Errorf("index %s after %v, want approximate after the deadline of 300ms and not much more", a.index(), took)
	}
}

func TestIndexerGoesAndComesBack(t *testing.T) {
	t.Parallel()

	x := newIndexer(t, live("a"))
	x.set(func(x *indexer) { x.held["a"] = 2 })
	r := start(t, unhurried(x), newEngine(t, "m"))
	r.precise("a", true)
	x.stop()
	r.eventually("the indexer to be missed", func() bool { return r.metric("indexer_connected") == 0 })
	r.precise("a", false)
	if a := r.post(completions, ids(1, 200)); a.status != http.StatusOK || a.index() != "approximate" {
		t.Errorf("without indexer: status %d, index %s; want 200, approximate", a.status, a.index())
	}
	if d := r.state(); d.Indexer.Connected || d.Indexer.Reason == "" || d.Replicas[0].Index.Reason != "indexer_down" {
		t.Errorf("state is %+v, %+v; want not connected with a reason, and indexer_down", d.Indexer, d.Replicas[0].Index)
	}
	x.restart(t)
	r.precise("a", true)
	if a := r.post(completions, ids(1, 200)); a.index() != "precise" || a.match() != "2/12" {
		t.Errorf("with the indexer back: index %s, match %s; want precise, 2/12", a.index(), a.match())
	}
}

func TestApproximateFromTheStart(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name      string
		configure func(*Config)
	}{
		{"no indexer", nil},
		{"indexer that is not there", func(c *Config) { c.Indexers = []string{"127.0.0.1:1"} }},
		{"configured", func(c *Config) { c.Indexers, c.Index = []string{"127.0.0.1:1"}, "approximate" }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := start(t, tt.configure, newEngine(t, "m"), newEngine(t, "m"))
			first := r.post(completions, ids(1, 70))
			second := r.post(completions, ids(1, 70))
			if first.match() != "0/5" || second.match() != "5/5" || second.endpoint() != first.endpoint() || second.index() != "approximate" {
				t.Errorf("got %s at %s, then %s at %s; want 0/5, then 5/5 at the same", first.match(), first.endpoint(), second.match(), second.endpoint())
			}
		})
	}
}

func TestMixedFleet(t *testing.T) {
	t.Parallel()

	replaying := live("b")
	replaying.State, replaying.Reason = indexv1.StreamState_STREAM_STATE_REPLAYING, "asking for 40 batches"
	other := live("c")
	other.KeyScheme = "prefixroute-v1-0badcafe"
	bare := live("e")
	bare.BlockSizes = nil // no event yet: the engine's own word counts
	x := newIndexer(t, live("a"), replaying, other, bare)
	x.set(func(x *indexer) { x.held["a"] = 3 })
	var engines []*engine
	for range 5 {
		engines = append(engines, newEngine(t, "m"))
	}
	r := start(t, unhurried(x), engines...)
	r.precise("a", true)
	a := r.post(completions, ids(1, 100))
	if a.endpoint() != "a" || a.index() != "mixed" || a.match() != "3/6" {
		t.Errorf("went to %s, index %s, match %s; want a, mixed, 3/6", a.endpoint(), a.index(), a.match())
	}
	want := map[string]string{"a": "none", "b": "stream_replaying", "c": "scheme", "d": "not_followed", "e": "none"}
	for _, d := range r.state().Replicas {
		if d.Index.Reason != want[d.Name] {
			t.Errorf("reason of %s is %s, want %s", d.Name, d.Index.Reason, want[d.Name])
		}
		if d.Name == "b" && d.Index.Detail != replaying.GetReason() {
			t.Errorf("detail of b is %q, want the indexer's %q", d.Index.Detail, replaying.GetReason())
		}
	}
	x.set(func(x *indexer) {
		x.replicas = []*indexv1.Replica{live("a"), live("b"), live("c"), live("d"), live("e")}
	})
	for _, name := range []string{"b", "c", "d"} {
		r.precise(name, true)
	}
	if a := r.post(completions, ids(1, 100)); a.index() != "precise" {
		t.Errorf("index is %s once all streams are live, want precise", a.index())
	}
}

func TestOneLookupForEachKindOfKeys(t *testing.T) {
	t.Parallel()

	wide := live("c")
	wide.BlockSizes = []uint32{32, 16} // keys have the first
	x := newIndexer(t, live("a"), live("b"), wide)
	x.set(func(x *indexer) { x.held["c"] = 2 })
	r := start(t, unhurried(x), newEngine(t, "m", "ad<m"), newEngine(t, "m"), newEngine(t, "m", "ad<m"))
	r.precise("c", true)
	if a := r.post(completions, ids(1, 100)); a.endpoint() != "c" || a.match() != "2/3" || a.header.Get("X-Prefixroute-Block-Size") != "32" {
		t.Errorf("went to %s with %s in blocks of %s, want c with 2/3 in blocks of 32", a.endpoint(), a.match(), a.header.Get("X-Prefixroute-Block-Size"))
	}
	plain := x.asked()
	if len(plain) != 2 {
		t.Fatalf("%d lookups, want 2", len(plain))
	}
	// An adapter's blocks are its own, under the base model.
	a := r.post(completions, strings.Replace(ids(1, 100), `"m"`, `"ad"`, 1))
	if a.endpoint() == "b" || a.status != http.StatusOK {
		t.Errorf("adapter's request: status %d from %s, want a replica that has the adapter", a.status, a.endpoint())
	}
	for _, m := range x.asked()[2:] {
		if m.GetModel() != "m" {
			t.Errorf("lookup for the adapter is about model %q, want its base m", m.GetModel())
		}
		for _, p := range plain {
			if p.GetBlockSize() == m.GetBlockSize() && p.GetKeys()[0] == m.GetKeys()[0] {
				t.Error("the adapter's keys are those of its base model")
			}
		}
	}
}

func TestSaltSeparates(t *testing.T) {
	t.Parallel()

	x := newIndexer(t, live("a"))
	r := start(t, unhurried(x), newEngine(t, "m"), newEngine(t, "m"), newEngine(t, "m"))
	r.precise("a", true)
	salted := ids(1, 100, `"cache_salt":"tenant-a"`)
	r.post(completions, ids(1, 100))
	r.post(completions, salted)
	r.post(completions, ids(1, 100, `"cache_salt":"tenant-b"`))
	asked := x.asked()
	seen := map[uint64]bool{}
	for _, m := range asked {
		for _, k := range m.GetKeys() {
			if seen[k] {
				t.Fatalf("key %x is shared by prompts of different salts", k)
			}
			seen[k] = true
		}
	}

	own := start(t, nil, newEngine(t, "m"))
	for _, step := range []struct{ body, want string }{
		{ids(1, 100), "0/7"},
		{salted, "0/7"},
		{salted, "7/7"},
		{ids(1, 100, `"cache_salt":"tenant-b"`), "0/7"},
	} {
		if a := own.post(completions, step.body); a.match() != step.want {
			t.Errorf("match is %s, want %s for ...%s", a.match(), step.want, step.body[len(step.body)-30:])
		}
	}
}

func TestReports(t *testing.T) {
	t.Parallel()

	x := newIndexer(t, live("a"))
	x.set(func(x *indexer) { x.held["a"] = 2 })
	e := newEngine(t, "m")
	e.set(func(e *engine) { e.cached = 48 })
	r := start(t, unhurried(x), e)
	r.precise("a", true)
	var first []*indexv1.ReportRequest
	r.eventually("the report stream", func() bool {
		r.post(completions, ids(1, 65))
		// What was reported before the stream was open is gone.
		all := x.reported()
		whole := slices.IndexFunc(all, func(r *indexv1.ReportRequest) bool { return r.GetCommit() != nil })
		if whole < 0 || len(all) < whole+3 {
			return false
		}
		first = all[whole : whole+3]
		return true
	})
	commit, completion, observation := first[0].GetCommit(), first[2].GetCompletion(), first[1].GetObservation()
	if commit == nil || completion == nil || observation == nil {
		t.Fatalf("reports are %v, want a commit, an observation, a completion", first)
	}
	if commit.GetReplica() != "a" || commit.GetModel() != "m" || commit.GetBlockSize() != 16 || len(commit.GetKeys()) != 4 {
		t.Errorf("commit is %v, want a, m, 16, with the keys of all 4 full blocks", commit)
	}
	if completion.GetRequest() != commit.GetRequest() {
		t.Errorf("completion is of request %d, want %d", completion.GetRequest(), commit.GetRequest())
	}
	if o := observation; o.GetPredictedCachedTokens() != 32 || o.GetActualCachedTokens() != 48 || o.GetPromptTokens() != 64 || o.GetGeneration().GetEpoch() != 7 {
		t.Errorf("observation is %v, want 32 predicted, 48 cached, of 64, generation 7", o)
	}
	if first[0].GetRouter() == "" || first[0].GetRouter() != first[2].GetRouter() {
		t.Errorf("routers are %q and %q, want one name", first[0].GetRouter(), first[2].GetRouter())
	}
	if over, under := r.metric("over_tokens_total"), r.metric("under_tokens_total", "index=precise"); over != 0 || under < 16 {
		t.Errorf("over %v, under %v tokens; want 0 and 16 for each request", over, under)
	}
}

func TestRestartedEngineHoldsNothing(t *testing.T) {
	t.Parallel()

	started := func(at string) string { return metricsPage(0, 0, 0) + "process_start_time_seconds " + at + "\n" }
	e := newEngine(t, "m")
	e.page = started("1.5e9")
	r := start(t, nil, e)
	r.post(completions, ids(1, 50))
	if a := r.post(completions, ids(1, 50)); a.match() != "4/4" {
		t.Errorf("match is %s, want 4/4", a.match())
	}
	e.set(func(e *engine) { e.page = started("1.6e9") })
	r.eventually("the blocks to be forgotten", func() bool { return r.state().Replicas[0].Approximate.Blocks == 0 })
}

func TestColdRequestsSpread(t *testing.T) {
	t.Parallel()

	r := start(t, nil, newEngine(t, "m"), newEngine(t, "m"), newEngine(t, "m"))
	count := map[string]int{}
	for i := range 12 {
		count[r.post(completions, ids(1000*i, 50)).endpoint()]++
	}
	if diff := cmp.Diff(map[string]int{"a": 4, "b": 4, "c": 4}, count); diff != "" {
		t.Errorf("cold requests by replica (-want +got):\n%s", diff)
	}
	if d := r.state(); len(d.ColdOrder) != 3 || d.Turn != 12 || d.Replicas[0].Approximate.Blocks != 16 {
		t.Errorf("state has cold order %v, turn %d, %d blocks at a; want 3 names, 12, 16", d.ColdOrder, d.Turn, d.Replicas[0].Approximate.Blocks)
	}
}

func TestEngineTokenizer(t *testing.T) {
	t.Parallel()

	x := newIndexer(t, live("a"))
	e := newEngine(t, "m")
	tokens := make(chan http.HandlerFunc, 1)
	e.set(func(e *engine) {
		e.serve = func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/tokenize" {
				e.answer(w, r)
				return
			}
			(<-tokens)(w, r)
		}
	})
	r := start(t, func(c *Config) {
		unhurried(x)(c)
		c.Tokenizer, c.TokenizeDeadline = TokenizerEngine, patience
	}, e)
	r.precise("a", true)

	text := `{"model":"m","prompt":"` + strings.Repeat("one two ", 20) + `"}`
	tokens <- func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"count":33,"tokens":[`+strings.Repeat("7,", 32)+`8]}`)
	}
	if a := r.post(completions, text); a.index() != "precise" || a.match() != "0/2" {
		t.Errorf("index %s, match %s; want precise, 0/2 by the engine's 33 tokens", a.index(), a.match())
	}
	tokens <- func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusNotFound) }
	if a := r.post(completions, text); a.index() != "approximate" || a.match() != "3/3" {
		t.Errorf("index %s, match %s; want approximate, 3/3 by the router's own 40 tokens", a.index(), a.match())
	}
	if n := r.metric("tokenizer_fallbacks_total", "reason=status"); n != 1 {
		t.Errorf("%v fallbacks for the engine's status, want 1", n)
	}
	if n := r.metric("decisions_total", "reason=tokenizer"); n != 1 {
		t.Errorf("%v decisions approximate because of the tokenizer, want 1", n)
	}
	// Token ids need no tokenizer.
	if a := r.post(completions, ids(1, 100)); a.index() != "precise" || a.match() != "0/6" {
		t.Errorf("token ids: index %s, match %s; want precise, 0/6", a.index(), a.match())
	}
}

func terms(prefix, queue, kv, cold float64) map[string]scoring.Term {
	return map[string]scoring.Term{
		"prefix": {Score: prefix, Weight: 3}, "queue": {Score: queue, Weight: 2}, "kv": {Score: kv, Weight: 2}, "no-hit-lru": {Score: cold, Weight: 1},
	}
}
