package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/prefixroute/prefixroute/pkg/blockpool"
	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const blockSize = 4

// journal is a Publisher that keeps everything. It belongs to the engine's
// goroutine until the engine has stopped or sleeps.
type journal struct{ batches [][]kvevents.Event }

func (j *journal) Publish(_ context.Context, events []kvevents.Event) (uint64, error) {
	j.batches = append(j.batches, events)
	return uint64(len(j.batches) - 1), nil
}

func testConfig(t *testing.T, blocks int) Config {
	t.Helper()
	hash, err := hashing.NewEngine(hashing.SHA256, nil, hashing.Tagged)
	if err != nil {
		t.Fatal(err)
	}
	hasher, err := blockpool.NewHasher(hash, hashing.Scheme{}, "m", blockSize)
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Blocks:      blocks,
		BlockSize:   blockSize,
		MaxSeqs:     16,
		MaxRequests: 64,
		Hasher:      hasher,
		Metrics:     NewMetrics(prometheus.NewRegistry(), "m"),
	}
}

// start runs an engine until the test ends.
func start(t *testing.T, cfg Config) *Engine {
	t.Helper()
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- e.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-stopped; err != nil {
			t.Errorf("Run = %v, want nil after a clean stop", err)
		}
	})
	return e
}

func prompt(root uint32, n int) []uint32 {
	p := make([]uint32, n)
	for i := range p {
		p[i] = root + uint32(i)
	}
	return p
}

// generate starts one request and fails the test if it is refused.
func generate(t *testing.T, e *Engine, r Request) *Stream {
	t.Helper()
	s, err := e.Generate(t.Context(), []Request{r})
	if err != nil {
		t.Fatalf("Generate: %v", err)
	}
	return s
}

// all reads a stream to its end.
func all(t *testing.T, s *Stream) []Token {
	t.Helper()
	defer s.Close()
	var tokens []Token
	for {
		next, err := s.Next(t.Context())
		if err != nil {
			t.Errorf("Next: %v", err)
			return tokens
		}
		if len(next) == 0 {
			return tokens
		}
		tokens = append(tokens, next...)
	}
}

func TestLatencyFollowsFromUncachedTokens(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig(t, 64)
		cfg.Overhead, cfg.PerToken, cfg.InterToken = 10*time.Millisecond, time.Millisecond, 2*time.Millisecond
		e := start(t, cfg)

		first := func() (cached int, ttft, rest time.Duration) {
			begin := time.Now()
			s := generate(t, e, Request{Prompt: prompt(100, 21), MaxTokens: 3})
			tokens, err := s.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ttft = time.Since(begin)
			all(t, s)
			return tokens[0].Cached, ttft, time.Since(begin) - ttft
		}
		if cached, ttft, rest := first(); cached != 0 || ttft != 31*time.Millisecond || rest != 4*time.Millisecond {
			t.Errorf("cold: %d tokens cached, first token after %v, the others after %v more; want 0, 31ms, 4ms", cached, ttft, rest)
		}
		if cached, ttft, rest := first(); cached != 20 || ttft != 11*time.Millisecond || rest != 4*time.Millisecond {
			t.Errorf("warm: %d tokens cached, first token after %v, the others after %v more; want 20, 11ms, 4ms", cached, ttft, rest)
		}
	})
}

func TestNoTimePassesWithoutLatency(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		e := start(t, testConfig(t, 256))
		begin := time.Now()
		if got := len(all(t, generate(t, e, Request{Prompt: prompt(1, 9), MaxTokens: 500}))); got != 500 {
			t.Errorf("%d tokens, want 500", got)
		}
		if d := time.Since(begin); d != 0 {
			t.Errorf("took %v, want no time at all", d)
		}
	})
}

func TestEventsComeBeforeTheAnswer(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig(t, 64)
		var j journal
		cfg.Publisher, cfg.Overhead = &j, time.Second
		e := start(t, cfg)
		s := generate(t, e, Request{Prompt: prompt(1, 9), MaxTokens: 1})
		synctest.Wait()
		if len(j.batches) != 1 {
			t.Errorf("%d batches while the prompt is computed, want 1", len(j.batches))
		}
		// Its blocks can be hit by then.
		if tokens := all(t, generate(t, e, Request{Prompt: prompt(1, 9), MaxTokens: 1})); tokens[0].Cached != 8 {
			t.Errorf("a second prompt hit %d tokens of the running first, want 8", tokens[0].Cached)
		}
		all(t, s)
	})
}

// A step that admits several prompts publishes one batch for all of them.
func TestOneBatchPerStep(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig(t, 64)
		var j journal
		cfg.Publisher, cfg.InterToken = &j, time.Millisecond
		e := start(t, cfg)
		s, err := e.Generate(t.Context(), []Request{
			{Prompt: prompt(1, 9), MaxTokens: 5, Sample: 0},
			{Prompt: prompt(1, 9), MaxTokens: 5, Sample: 1},
			{Prompt: prompt(500, 9), MaxTokens: 5},
		})
		if err != nil {
			t.Fatal(err)
		}
		tokens := all(t, s)
		var cached []int
		for _, tok := range tokens[:3] {
			cached = append(cached, tok.Cached)
		}
		if want := []int{0, 8, 0}; !slices.Equal(cached, want) {
			t.Errorf("cached tokens %v, want %v: the second answer shares the first one's prompt", cached, want)
		}
		// 9 prompt tokens and 5 more fill the third block with the third token
		// that is fed back, and the last one is never fed back.
		var sizes []int
		for _, b := range j.batches {
			sizes = append(sizes, len(b))
		}
		if want := []int{2, 3}; !slices.Equal(sizes, want) {
			t.Errorf("events per batch %v, want %v", sizes, want)
		}
	})
}

func TestLastTokenIsNeverCached(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		e := start(t, testConfig(t, 64))
		var ids []uint32
		for _, tok := range all(t, generate(t, e, Request{Prompt: prompt(1, 5), MaxTokens: 8})) {
			ids = append(ids, tok.ID)
		}
		next := append(prompt(1, 5), ids...) // 13 tokens: 12 were fed
		if got := all(t, generate(t, e, Request{Prompt: append(next, 7, 8, 9, 10), MaxTokens: 1}))[0].Cached; got != 12 {
			t.Errorf("the next turn hit %d tokens, want 12", got)
		}
		if got := all(t, generate(t, e, Request{Prompt: append(prompt(1, 5), ids[:4]...), MaxTokens: 1}))[0].Cached; got != 8 {
			t.Errorf("a prompt that ends in the middle of the answer hit %d tokens, want 8", got)
		}
	})
}

func TestRequestsWaitForBlocksInOrder(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig(t, 9) // 8 blocks of 4 tokens
		cfg.Overhead = time.Second
		e := start(t, cfg)
		begin := time.Now()
		big := generate(t, e, Request{Prompt: prompt(100, 20), MaxTokens: 1})   // 5 blocks
		large := generate(t, e, Request{Prompt: prompt(200, 16), MaxTokens: 1}) // 4: waits
		small := generate(t, e, Request{Prompt: prompt(300, 4), MaxTokens: 1})  // 1: would fit, but is behind
		synctest.Wait()
		if got := testutil.ToFloat64(cfg.Metrics.waiting); got != 2 {
			t.Errorf("vllm:num_requests_waiting = %v, want 2", got)
		}
		if got := testutil.ToFloat64(cfg.Metrics.usage); got != 5.0/8 {
			t.Errorf("vllm:kv_cache_usage_perc = %v, want %v", got, 5.0/8)
		}
		all(t, big)
		all(t, large)
		all(t, small)
		if d := time.Since(begin); d != 2*time.Second {
			t.Errorf("all done after %v, want 2s: the second and third run together after the first", d)
		}
		if got := testutil.ToFloat64(cfg.Metrics.usage); got != 0 {
			t.Errorf("vllm:kv_cache_usage_perc of an idle, warm cache = %v, want 0", got)
		}
	})
}

func TestMaxSeqsBoundsWhatRuns(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig(t, 64)
		cfg.MaxSeqs, cfg.Overhead = 2, time.Second
		e := start(t, cfg)
		begin := time.Now()
		var streams []*Stream
		for i := range 5 {
			streams = append(streams, generate(t, e, Request{Prompt: prompt(uint32(100*i), 4), MaxTokens: 1}))
		}
		for _, s := range streams {
			all(t, s)
		}
		if d := time.Since(begin); d != 3*time.Second {
			t.Errorf("five requests in two lanes took %v, want 3s", d)
		}
	})
}

func TestQueueIsBounded(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig(t, 64)
		cfg.MaxRequests, cfg.Overhead = 2, time.Second
		e := start(t, cfg)
		first := generate(t, e, Request{Prompt: prompt(1, 4), MaxTokens: 1})
		two := []Request{{Prompt: prompt(1, 4), MaxTokens: 1}, {Prompt: prompt(1, 4), MaxTokens: 1}}
		if _, err := e.Generate(t.Context(), two); !errors.Is(err, ErrQueueFull) {
			t.Errorf("Generate of two beyond the limit = %v, want ErrQueueFull", err)
		}
		second := generate(t, e, two[0]) // none of the refused ones has stayed
		all(t, first)
		all(t, second)
		if got := testutil.ToFloat64(cfg.Metrics.rejected); got != 1 {
			t.Errorf("vllm:admission_rejections_total = %v, want 1", got)
		}
	})
}

// Two answers grow until the pool is full. The one that came last gives way and
// is computed again later; both get the tokens that they get alone.
func TestPreemption(t *testing.T) {
	t.Parallel()

	answers := func(blocks int) (a, b []Token, preemptions float64) {
		synctest.Test(t, func(t *testing.T) {
			cfg := testConfig(t, blocks)
			cfg.Overhead, cfg.InterToken = time.Millisecond, time.Millisecond
			var j journal
			cfg.Publisher = &j
			e := start(t, cfg)
			first := generate(t, e, Request{Prompt: prompt(100, 8), MaxTokens: 24})
			second := generate(t, e, Request{Prompt: prompt(200, 8), MaxTokens: 24})
			a, b = all(t, first), all(t, second)
			preemptions = testutil.ToFloat64(cfg.Metrics.preemptions)

			snap, err := e.Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(copies(snap.Blocks), counted(j.batches)); d != "" {
				t.Errorf("blocks held (-) and counted from events (+):\n%s", d)
			}
			// A resumed request is no second query.
			if got := testutil.ToFloat64(cfg.Metrics.queries); got != 16 {
				t.Errorf("vllm:prefix_cache_queries_total = %v, want 16", got)
			}
		})
		return a, b, preemptions
	}
	a, b, n := answers(64)
	if n != 0 {
		t.Errorf("%v preemptions in a pool with room for both, want none", n)
	}
	tightA, tightB, n := answers(11)
	if n == 0 {
		t.Error("no preemption in a pool without room for both")
	}
	if d := cmp.Diff(a, tightA); d != "" {
		t.Errorf("the first answer depends on the room (-wide +tight):\n%s", d)
	}
	if d := cmp.Diff(b, tightB); d != "" {
		t.Errorf("the preempted answer depends on the room (-wide +tight):\n%s", d)
	}
}

// A preempted request comes before those that have never run, and nothing is
// admitted by the step that preempts.
func TestPreemptedComesFirst(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig(t, 9) // 8 blocks
		cfg.Overhead, cfg.InterToken = time.Millisecond, time.Millisecond
		e := start(t, cfg)
		ends := make([]time.Time, 3)
		var clients sync.WaitGroup
		for i, r := range []Request{
			{Prompt: prompt(100, 8), MaxTokens: 20},
			{Prompt: prompt(200, 8), MaxTokens: 20}, // both grow to 7 blocks
			{Prompt: prompt(300, 28), MaxTokens: 1}, // 7 blocks: waits
		} {
			s := generate(t, e, r)
			clients.Go(func() { all(t, s); ends[i] = time.Now() })
		}
		clients.Wait()
		if !ends[0].Before(ends[1]) || !ends[1].Before(ends[2]) {
			t.Errorf("requests ended at %v, want in order of arrival", ends)
		}
		if testutil.ToFloat64(cfg.Metrics.preemptions) == 0 {
			t.Error("no preemption: the test has lost its point")
		}
	})
}

func TestCloseFreesWhatIsLeft(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig(t, 16)
		cfg.Overhead, cfg.InterToken = time.Second, time.Second
		e := start(t, cfg)
		s, err := e.Generate(t.Context(), []Request{
			{Prompt: prompt(1, 40), MaxTokens: 10},
			{Prompt: prompt(200, 40), MaxTokens: 10}, // waits
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Close()
		synctest.Wait()
		if ok, err := e.Reset(t.Context(), false); !ok || err != nil {
			t.Errorf("Reset after the only client left = %v, %v; want true: nothing may be in use", ok, err)
		}
		if got := testutil.ToFloat64(cfg.Metrics.success[finishAbort]); got != 2 {
			t.Errorf("aborted requests = %v, want 2", got)
		}
	})
}

func TestStopFailsOpenRequests(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig(t, 16)
		cfg.Overhead = time.Hour
		e, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		go func() { _ = e.Run(ctx) }()
		s := generate(t, e, Request{Prompt: prompt(1, 4), MaxTokens: 1})
		stop()
		if _, err := s.Next(t.Context()); !errors.Is(err, ErrStopped) {
			t.Errorf("Next on a stopped engine = %v, want ErrStopped", err)
		}
		s.Close()
		if _, err := e.Generate(t.Context(), []Request{{Prompt: prompt(1, 4), MaxTokens: 1}}); !errors.Is(err, ErrStopped) {
			t.Errorf("Generate on a stopped engine = %v, want ErrStopped", err)
		}
	})
}

func TestGenerateRefusesWhatCanNeverFit(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		e := start(t, testConfig(t, 4)) // 12 tokens
		for _, r := range []Request{
			{Prompt: nil, MaxTokens: 1},
			{Prompt: prompt(1, 4), MaxTokens: 0},
			{Prompt: prompt(1, 12), MaxTokens: 1},
		} {
			if _, err := e.Generate(t.Context(), []Request{r}); err == nil {
				t.Errorf("a prompt of %d tokens and %d to generate was accepted, want an error", len(r.Prompt), r.MaxTokens)
			}
		}
	})
}

func copies(blocks []blockpool.Block) map[kvevents.Hash]int {
	m := map[kvevents.Hash]int{}
	for _, b := range blocks {
		m[b.Hash] += b.Copies
	}
	return m
}

// counted adds up events as a subscriber does.
func counted(batches [][]kvevents.Event) map[kvevents.Hash]int {
	m := map[kvevents.Hash]int{}
	for _, ev := range slices.Concat(batches...) {
		switch ev := ev.(type) {
		case *kvevents.BlockStored:
			for _, h := range ev.BlockHashes {
				m[h]++
			}
		case *kvevents.BlockRemoved:
			for _, h := range ev.BlockHashes {
				if m[h]--; m[h] == 0 {
					delete(m, h)
				}
			}
		case *kvevents.AllBlocksCleared:
			clear(m)
		}
	}
	return m
}
