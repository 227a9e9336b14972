package engine

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestRandomLoad has clients come, wait, leave early, evict and reset, in a pool
// that is too small for them, and compares at random moments what is held with
// what was published.
func TestRandomLoad(t *testing.T) {
	t.Parallel()

	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			cfg := testConfig(t, 20)
			cfg.MaxSeqs, cfg.Jitter, cfg.Seed = 6, 0.5, seed
			cfg.Overhead, cfg.PerToken, cfg.InterToken = 2*time.Millisecond, 100*time.Microsecond, time.Millisecond
			var j journal
			cfg.Publisher = &j
			e := start(t, cfg)

			var clients sync.WaitGroup
			for c := range uint64(10) {
				clients.Go(func() { client(t, e, rand.New(rand.NewPCG(seed, c))) })
			}
			rnd := rand.New(rand.NewPCG(seed, 99))
			for range 200 {
				time.Sleep(time.Duration(rnd.IntN(2000)) * time.Microsecond)
				disturb(t, e, rnd)
				// The journal is read while the engine runs a call: it stands still.
				if err := e.do(t.Context(), func(context.Context) {
					if e.pool.Pending() > 0 {
						return // a reset that the next step will announce
					}
					if d := cmp.Diff(copies(e.pool.Blocks()), counted(j.batches)); d != "" {
						t.Errorf("seed %d: blocks held (-) and counted from events (+):\n%s", seed, d)
					}
				}); err != nil {
					t.Fatal(err)
				}
			}
			clients.Wait()
			if ok, err := e.Reset(t.Context(), false); !ok || err != nil {
				t.Errorf("seed %d: Reset after all clients left = %v, %v; want true: blocks are still in use", seed, ok, err)
			}
			if seed == 0 && testutil.ToFloat64(cfg.Metrics.preemptions) == 0 {
				t.Error("no preemption in the whole load: the test has lost its point")
			}
		})
	}
}

// client sends requests over few prompts and sometimes goes away.
func client(t *testing.T, e *Engine, rnd *rand.Rand) {
	for range 20 {
		s, err := e.Generate(t.Context(), []Request{{
			Prompt:     prompt(uint32(rnd.IntN(3)), 1+rnd.IntN(30)),
			MaxTokens:  1 + rnd.IntN(20),
			SkipLookup: rnd.IntN(8) == 0,
		}})
		if err != nil {
			t.Errorf("Generate: %v", err)
			return
		}
		ctx, cancel := context.WithCancel(t.Context())
		if rnd.IntN(4) == 0 {
			time.AfterFunc(time.Duration(rnd.IntN(10))*time.Millisecond, cancel)
		}
		for {
			if tokens, err := s.Next(ctx); err != nil || len(tokens) == 0 {
				break
			}
		}
		s.Close()
		cancel()
	}
}

func disturb(t *testing.T, e *Engine, rnd *rand.Rand) {
	t.Helper()
	var err error
	switch rnd.IntN(12) {
	case 0:
		_, err = e.Evict(t.Context(), 1+rnd.IntN(4))
	case 1:
		_, err = e.Reset(t.Context(), rnd.IntN(4) == 0)
	}
	if err != nil {
		t.Errorf("disturb: %v", err)
	}
}
