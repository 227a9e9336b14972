package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/prefixroute/prefixroute/cmd/prefixroute/internal/compare"
	"github.com/prefixroute/prefixroute/cmd/prefixroute/internal/stack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quick is the default load on engines that are ten times as fast.
func quick() (compare.Load, stack.Config) {
	load := defaultLoad()
	cfg := stackConfig(load, defaultEngineBlocks, io.Discard)
	cfg.Engine.Overhead, cfg.Engine.PerToken = time.Millisecond, 50*time.Microsecond
	return load, cfg
}

func silent(string, int, int) {}

func run(t *testing.T, load compare.Load, cfg stack.Config) []compare.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	results, err := compareStacks(ctx, load, cfg, silent)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

// TestEvictionsFoolTheApproximateIndexOnly is what the product is for.
func TestEvictionsFoolTheApproximateIndexOnly(t *testing.T) {
	load, cfg := quick()
	results := run(t, load, cfg)
	if err := compare.Check(results); err != nil {
		t.Error(err)
	}
	for _, r := range results {
		served := 0
		for _, n := range r.Requests {
			served += n
		}
		if served != load.Trace.Requests || len(r.Requests) != cfg.Engines {
			t.Errorf("%s: requests %v, want %d over %d replicas", r.Index, r.Requests, load.Trace.Requests, cfg.Engines)
		}
		// Eight prompts miss, the evicted half of them again; of each other
		// request all but the question hits.
		if r.HitRate < 0.6 || r.HitRate > 0.9 {
			t.Errorf("%s: hit rate %.3f, want 0.6 to 0.9", r.Index, r.HitRate)
		}
		if r.TTFTp50MS <= 0 || r.TTFTp95MS < r.TTFTp50MS {
			t.Errorf("%s: time to first token p50 %v, p95 %v ms", r.Index, r.TTFTp50MS, r.TTFTp95MS)
		}
	}
}

// TestCheckSeesEvictionsOff: without evictions the approximate index is right,
// and a comparison that claims to have forced some must not pass.
func TestCheckSeesEvictionsOff(t *testing.T) {
	load, cfg := quick()
	load.Evict = false
	results := run(t, load, cfg)
	if results[0].Wrong != 0 {
		t.Errorf("approximate: %d wrong predictions without evictions, want 0", results[0].Wrong)
	}
	if err := compare.Check(results); err == nil || !strings.Contains(err.Error(), "nothing was evicted") {
		t.Errorf("Check = %v, want it to see that nothing was evicted", err)
	}
}

// TestCheckSeesEventsCut: a precise router whose indexer hears nothing must not
// pass for precise.
func TestCheckSeesEventsCut(t *testing.T) {
	load, cfg := quick()
	cfg.CutEvents = true
	results := run(t, load, cfg)
	if results[1].Wrong == 0 || results[1].Fallbacks != load.Trace.Requests {
		t.Errorf("precise without events: %d wrong, %d fallbacks; want some, and %d", results[1].Wrong, results[1].Fallbacks, load.Trace.Requests)
	}
	if err := compare.Check(results); err == nil || !strings.Contains(err.Error(), "fallback index") {
		t.Errorf("Check = %v, want it to see the fallback", err)
	}
}

// TestCompareURLs compares two running routers over the same engines.
func TestCompareURLs(t *testing.T) {
	load, cfg := quick()
	cfg.Routers = indexes
	s, err := stack.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}()
	args := []string{"compare", "--json"}
	for i, index := range indexes {
		args = append(args, "--router", index+"="+s.Routers[i])
	}
	for _, e := range s.Engines {
		args = append(args, "--server", e.Name+"="+e.URL)
	}
	var out, progress bytes.Buffer
	cmd := newCommand()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&progress)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"approximate  32/64", "precise      64/64"} {
		if !strings.Contains(progress.String(), want) {
			t.Errorf("progress lacks %q:\n%s", want, progress.String())
		}
	}

	var objects []map[string]any
	if err := json.Unmarshal(out.Bytes(), &objects); err != nil {
		t.Fatalf("%v in %s", err, out.Bytes())
	}
	want := []string{"errors", "hit_rate", "index", "requests", "ttft_p50_ms", "ttft_p95_ms", "wrong"}
	for i, o := range objects {
		var keys []string
		for k := range o {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		if !slices.Equal(keys, want) || o["index"] != indexes[i] || o["errors"] != 0.0 {
			t.Errorf("result %d is %v, want the keys %v", i, o, want)
		}
	}
	if len(objects) != 2 || objects[0]["wrong"] == 0.0 || objects[1]["wrong"] != 0.0 {
		t.Errorf("results %s, want wrong predictions from approximate alone", out.Bytes())
	}
	if load.Trace.Requests != 64 {
		t.Errorf("default load has %d requests, want 64", load.Trace.Requests)
	}
}

func TestDemo(t *testing.T) {
	var out bytes.Buffer
	load, _ := quick()
	if err := runDemo(t.Context(), load, defaultEngineBlocks, &out, io.Discard); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{
		"approximate router: match 1", // 11 or 12 of 14 blocks
		"precise     router: cold, no replica holds a block",
		"reuses 0 tokens of the ",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, out.String())
		}
	}
}

func TestCompareRefuses(t *testing.T) {
	t.Parallel()

	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--router", "exact=http://h:1", "--server", "a=http://h:2"}, `index "exact"`},
		{[]string{"--router", "precise=http://h:1"}, "--router and --server go together"},
		{[]string{"--concurrency", "0"}, "concurrency is 0"},
		{[]string{"--requests", "0"}, "requests is 0"},
		{[]string{"stray"}, "stray"},
	} {
		cmd := newCommand()
		cmd.SetArgs(append([]string{"compare"}, tt.args...))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("compare %v: error %v, want one with %q", tt.args, err, tt.want)
		}
	}
}
