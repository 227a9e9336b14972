package engine

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prefixroute/prefixroute/pkg/blockpool"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

func TestResetIsAnnouncedByTheNextStep(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig(t, 64)
		var j journal
		cfg.Publisher = &j
		e := start(t, cfg)
		all(t, generate(t, e, Request{Prompt: prompt(1, 9), MaxTokens: 1}))
		if ok, err := e.Reset(t.Context(), false); !ok || err != nil {
			t.Fatalf("Reset of an idle engine = %v, %v; want true", ok, err)
		}
		time.Sleep(time.Minute)
		if len(j.batches) != 1 {
			t.Errorf("%d batches after a reset of an idle engine, want the 1 from before", len(j.batches))
		}
		snap, err := e.Snapshot(t.Context())
		if err != nil || len(snap.Blocks) != 0 || snap.Pending != 1 || snap.Generation != 2 || snap.LastSeq != 0 {
			t.Errorf("Snapshot = %+v, %v; want no blocks, 1 event pending, generation 2, last batch 0", snap, err)
		}

		if tokens := all(t, generate(t, e, Request{Prompt: prompt(1, 3), MaxTokens: 1})); tokens[0].Cached != 0 {
			t.Errorf("hit %d tokens after a reset", tokens[0].Cached)
		}
		if _, cleared := j.batches[1][0].(*kvevents.AllBlocksCleared); !cleared || len(j.batches[1]) != 1 {
			t.Errorf("next batch is %v, want AllBlocksCleared alone: the prompt fills no block", j.batches[1])
		}
	})
}

func TestResetOfABusyEngine(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig(t, 64)
		cfg.Overhead = time.Second
		e := start(t, cfg)
		s := generate(t, e, Request{Prompt: prompt(1, 9), MaxTokens: 2})
		if ok, err := e.Reset(t.Context(), false); ok || err != nil {
			t.Errorf("Reset with a request running = %v, %v; want false", ok, err)
		}
		if ok, err := e.Reset(t.Context(), true); !ok || err != nil {
			t.Errorf("Reset that sends running requests back = %v, %v; want true", ok, err)
		}
		if got := len(all(t, s)); got != 2 {
			t.Errorf("the request got %d tokens after all, want 2", got)
		}
	})
}

func TestEvictPublishesAtOnce(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig(t, 64)
		var j journal
		cfg.Publisher, cfg.Overhead = &j, time.Second
		e := start(t, cfg)
		all(t, generate(t, e, Request{Prompt: prompt(1, 13), MaxTokens: 1}))
		running := generate(t, e, Request{Prompt: prompt(500, 9), MaxTokens: 1})
		synctest.Wait()

		if got, err := e.Evict(t.Context(), 1); err != nil || got != (blockpool.Eviction{Evicted: 1, InUse: 2}) {
			t.Errorf("Evict(1) = %+v, %v; want 1 evicted, 2 in use", got, err)
		}
		if got, err := e.EvictPrefix(t.Context(), prompt(1, 13), blockpool.Content{}); err != nil || got != (blockpool.Eviction{Evicted: 2}) {
			t.Errorf("EvictPrefix = %+v, %v; want the 2 that are left", got, err)
		}
		if got, err := e.EvictAll(t.Context()); err != nil || got != (blockpool.Eviction{InUse: 2}) {
			t.Errorf("EvictAll = %+v, %v; want 2 in use", got, err)
		}
		snap, err := e.Snapshot(t.Context())
		if err != nil || snap.LastSeq != 3 || len(j.batches) != 4 {
			t.Errorf("last batch is %d of %d, %v; want 3 of 4: two prompts and two evictions", snap.LastSeq, len(j.batches), err)
		}
		all(t, running)
	})
}

func TestAnswersAreDeterministic(t *testing.T) {
	t.Parallel()

	text := func(seed uint64, sample int) string {
		var b strings.Builder
		synctest.Test(t, func(t *testing.T) {
			cfg := testConfig(t, 64)
			cfg.Seed = seed
			e := start(t, cfg)
			for _, tok := range all(t, generate(t, e, Request{Prompt: prompt(1, 9), MaxTokens: 12, Sample: sample})) {
				b.WriteString(tok.Text)
			}
		})
		return b.String()
	}
	if a, b := text(1, 0), text(1, 0); a != b {
		t.Errorf("two engines with one seed answer %q and %q, want the same", a, b)
	}
	for _, other := range []string{text(2, 0), text(1, 1)} {
		if other == text(1, 0) {
			t.Errorf("another seed or sample gives the same answer %q", other)
		}
	}
}
