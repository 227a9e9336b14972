package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/prefixroute/prefixroute/pkg/replicas"
	"github.com/prefixroute/prefixroute/pkg/scoring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

// page is one way for an engine to answer a path.
type page func(w http.ResponseWriter, r *http.Request)

func text(s string) page { return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, s) } }

func status(code int) page {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", code) }
}

// hang answers nothing for as long as it is asked.
func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

const (
	idle   = "vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n"
	busy   = "vllm:num_requests_waiting 3\nvllm:num_requests_running 7\nvllm:kv_cache_usage_perc 0.5\n"
	models = `{"object":"list","data":[{"id":"m","parent":null},{"id":"ad","parent":"m"}]}`
)

// engine serves pages that can be changed.
type engine struct {
	*httptest.Server
	mu      sync.Mutex
	metrics page
	models  page
}

func newEngine(t *testing.T, metrics, models page) *engine {
	t.Helper()
	e := &engine{metrics: metrics, models: models}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		serve := e.models
		if r.URL.Path == "/metrics" {
			serve = e.metrics
		}
		e.mu.Unlock()
		serve(w, r)
	}))
	t.Cleanup(e.Close)
	return e
}

func (e *engine) set(metrics page) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.metrics = metrics
}

// run polls the engines, which are named a, b, c and so on.
func run(t *testing.T, opts Options, urls ...string) (*Fleet, *Metrics) {
	t.Helper()
	var list replicas.List
	for i, u := range urls {
		list = append(list, replicas.Replica{Name: string(rune('a' + i)), URL: u})
	}
	if opts.Interval == 0 {
		opts.Interval = 5 * time.Millisecond
	}
	if opts.Timeout == 0 {
		opts.Timeout = patience
	}
	if opts.StaleAfter == 0 {
		opts.StaleAfter = patience
	}
	if opts.ModelsInterval == 0 {
		opts.ModelsInterval = 10 * time.Millisecond
	}
	m := NewMetrics(prometheus.NewRegistry())
	f, err := New(list, opts, m, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { f.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return f, m
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

// names of the members that serve the model.
func names(t *testing.T, f *Fleet, model string) []string {
	t.Helper()
	members, err := f.Serving(model)
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	for _, m := range members {
		out = append(out, m.Name)
	}
	return out
}

func TestServing(t *testing.T) {
	t.Parallel()

	one := newEngine(t, text(busy+"vllm:cache_config_info{block_size=\"32\",num_gpu_blocks=\"100\"} 1\n"), text(models))
	other := newEngine(t, text(idle), text(`{"data":[{"id":"n"},{"id":""}]}`))
	f, _ := run(t, Options{}, one.URL, other.URL, one.URL)
	eventually(t, "all models", func() bool { return len(f.Models()) == 3 && len(names(t, f, "m")) == 2 })
	for model, want := range map[string][]string{
		"m": {"a", "c"}, "ad": {"a", "c"}, "n": {"b"}, "": {"a", "b", "c"}, "x": {ErrUnknownModel.Error()},
	} {
		if diff := cmp.Diff(want, names(t, f, model)); diff != "" {
			t.Errorf("Serving(%q) (-want +got):\n%s", model, diff)
		}
	}
	members, err := f.Serving("ad")
	if err != nil {
		t.Fatal(err)
	}
	want := Member{Name: "a", Adapter: true, BlockSize: 32, Load: scoring.Load{Known: true, Waiting: 3, Running: 7, KVUsage: 0.5}}
	if diff := cmp.Diff(want, members[0], cmpopts.IgnoreFields(Member{}, "URL")); diff != "" {
		t.Errorf("member (-want +got):\n%s", diff)
	}
	if members[0].URL.String() != one.URL {
		t.Errorf("member's URL is %s, want %s", members[0].URL, one.URL)
	}
}

func TestBadPagesLeaveTheReplicaIn(t *testing.T) {
	t.Parallel()

	huge := func(w http.ResponseWriter, _ *http.Request) {
		line := []byte(strings.Repeat("#", 1<<16) + "\n")
		for range 100 {
			if _, err := w.Write(line); err != nil {
				return
			}
		}
	}
	zipped := func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("\x1f\x8b\x08\x00no header says so"))
	}
	tests := []struct {
		name    string
		metrics page
		outcome outcome
	}{
		{"error status", status(http.StatusInternalServerError), wrongStatus},
		{"not found", status(http.StatusNotFound), wrongStatus},
		{"json", text("[]"), unreadable},
		{"login page", text("<html>login</html>"), unreadable},
		{"compressed", zipped, unreadable},
		{"too large", huge, unreadable},
		{"elsewhere", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/other", http.StatusFound) }, wrongStatus},
		{"one value missing", text("vllm:num_requests_waiting 0\nvllm:num_requests_running 0\n"), answered},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f, m := run(t, Options{}, newEngine(t, tt.metrics, text(models)).URL)
			eventually(t, "the models", func() bool { return len(f.Models()) == 2 })
			members, err := f.Serving("m")
			if err != nil {
				t.Fatal(err)
			}
			if members[0].Load.Known {
				t.Errorf("load is %+v, want unknown", members[0].Load)
			}
			if n := testutil.ToFloat64(m.Scrapes.WithLabelValues(string(tt.outcome))); n == 0 {
				t.Errorf("no scrape counted as %s", tt.outcome)
			}
			if s := f.Status()[0]; tt.outcome != answered && s.Reason == "" {
				t.Error("status gives no reason")
			}
		})
	}
}

func TestOldMetricsSayNothing(t *testing.T) {
	t.Parallel()

	e := newEngine(t, text(idle), text(models))
	f, _ := run(t, Options{StaleAfter: 50 * time.Millisecond}, e.URL)
	eventually(t, "the load", func() bool { return f.Status()[0].Load.Known })
	e.set(status(http.StatusServiceUnavailable))
	eventually(t, "the load to be unknown", func() bool { return !f.Status()[0].Load.Known })
	if diff := cmp.Diff([]string{"a"}, names(t, f, "m")); diff != "" {
		t.Errorf("Serving (-want +got):\n%s", diff)
	}
	e.set(text(busy))
	eventually(t, "the load again", func() bool { return f.Status()[0].Load.Waiting == 3 })
}

func TestOneHangsTheOthersGoOn(t *testing.T) {
	t.Parallel()

	bad := newEngine(t, text(idle), text(models))
	good := newEngine(t, text(idle), text(models))
	f, _ := run(t, Options{Timeout: 100 * time.Millisecond}, bad.URL, good.URL)
	eventually(t, "both", func() bool { return len(names(t, f, "m")) == 2 })
	bad.set(hang)
	good.set(text(busy))
	eventually(t, "the good one's news", func() bool { return f.Status()[1].Load.Waiting == 3 })
	eventually(t, "the bad one to be out", func() bool { return len(names(t, f, "m")) == 1 })
	if diff := cmp.Diff([]string{"b"}, names(t, f, "m")); diff != "" {
		t.Errorf("Serving (-want +got):\n%s", diff)
	}
	// With nobody else left, one that was merely slow is worth a try.
	good.Close()
	eventually(t, "the slow one to be used", func() bool { return cmp.Equal([]string{"a"}, names(t, f, "m")) })
	bad.set(text(idle))
	eventually(t, "the bad one to be back", func() bool { return f.Status()[0].Reachable })
}

func TestRefusedReplicaIsOutUntilItAnswers(t *testing.T) {
	t.Parallel()

	e := newEngine(t, text(idle), text(models))
	f, m := run(t, Options{}, e.URL)
	eventually(t, "the model", func() bool { return cmp.Equal([]string{"a"}, names(t, f, "m")) })
	e.Close()
	eventually(t, "it to be out", func() bool { return cmp.Equal([]string{ErrUnavailable.Error()}, names(t, f, "m")) })
	if _, err := f.Serving("x"); !errors.Is(err, ErrUnknownModel) {
		t.Errorf("Serving of a model that nobody ever had: error %v, want ErrUnknownModel", err)
	}
	if n := testutil.ToFloat64(m.Scrapes.WithLabelValues(string(refused))); n == 0 {
		t.Error("no scrape counted as refused")
	}
	if f.Ready() == nil {
		t.Error("fleet is ready with nobody answering")
	}
}

func TestFailedConnectionTakesItOut(t *testing.T) {
	t.Parallel()

	e := newEngine(t, text(idle), text(models))
	f, _ := run(t, Options{}, e.URL, e.URL)
	eventually(t, "both", func() bool { return len(names(t, f, "m")) == 2 })
	f.Failed("a", errors.New("no route to host"))
	f.Failed("nobody", errors.New("x"))
	eventually(t, "it to answer the next poll", func() bool { return len(names(t, f, "m")) == 2 })
}

func TestReachability(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name            string
		polls           []outcome
		reachable, slow bool
	}{
		{"answers", []outcome{answered}, true, false},
		{"misses one", []outcome{answered, noAnswer}, true, false},
		{"misses one now and then", []outcome{answered, noAnswer, answered, broken, unreadable, noAnswer}, true, false},
		{"misses two in a row", []outcome{answered, noAnswer, broken}, false, true},
		{"is back after two", []outcome{answered, noAnswer, noAnswer, wrongStatus}, true, false},
		{"never answered", []outcome{noAnswer}, false, true},
		{"refuses once", []outcome{answered, refused}, false, false},
		{"is there but silent after a refusal", []outcome{answered, refused, noAnswer}, false, true},
		{"is back after a refusal", []outcome{refused, answered}, true, false},
	}
	for _, tt := range tests {
		var s state
		for _, how := range tt.polls {
			s.apply(how, nil)
		}
		if s.reachable != tt.reachable || s.slow != tt.slow {
			t.Errorf("%s: reachable %v, slow %v; want %v, %v", tt.name, s.reachable, s.slow, tt.reachable, tt.slow)
		}
	}
}

// What comes back may be another process with other models.
func TestModelsAreAskedForAgain(t *testing.T) {
	t.Parallel()

	start := func(at string) page { return text(idle + "process_start_time_seconds " + at + "\n") }
	e := newEngine(t, start("1.5e9"), text(models))
	f, _ := run(t, Options{Timeout: 100 * time.Millisecond, ModelsInterval: time.Hour}, e.URL)
	change := func(id string, metrics page) {
		t.Helper()
		e.mu.Lock()
		e.metrics, e.models = metrics, text(`{"data":[{"id":"`+id+`"}]}`)
		e.mu.Unlock()
		eventually(t, id, func() bool { return cmp.Equal([]string{"a"}, names(t, f, id)) })
	}
	eventually(t, "the model", func() bool { return cmp.Equal([]string{"a"}, names(t, f, "m")) })
	change("restarted", start("1.6e9"))
	e.set(hang)
	eventually(t, "it to be out", func() bool { return !f.Status()[0].Reachable })
	change("back", start("1.6e9"))
}

func TestNothingKnownYet(t *testing.T) {
	t.Parallel()

	f, _ := run(t, Options{}, newEngine(t, hang, hang).URL)
	if _, err := f.Serving("m"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("Serving before the first answer: error %v, want ErrUnavailable", err)
	}
	if s := f.Status()[0]; s.Reachable || s.Reason == "" || s.MetricsAge >= 0 {
		t.Errorf("status is %+v, want not reachable, with a reason and no metrics", s)
	}
	if f.Ready() == nil {
		t.Error("fleet is ready before it was asked")
	}
}

func TestNewProcessIsNoticed(t *testing.T) {
	t.Parallel()

	var mu sync.Mutex
	var restarted []string
	sized := map[string]int{}
	opts := Options{
		Restarted: func(name string) {
			mu.Lock()
			defer mu.Unlock()
			restarted = append(restarted, name)
		},
		Sized: func(name string, blocks, blockSize int) {
			mu.Lock()
			defer mu.Unlock()
			sized[name] = blocks * blockSize
		},
	}
	at := func(start string) page {
		return text(idle + "process_start_time_seconds " + start + "\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1\n" +
			"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"64\"} 1\n")
	}
	e, steady := newEngine(t, at("1.5e9"), text(models)), newEngine(t, at("1.5e9"), text(models))
	f, _ := run(t, opts, e.URL, steady.URL)
	eventually(t, "both", func() bool { return len(names(t, f, "m")) == 2 })
	e.set(at("1.6e9"))
	eventually(t, "the restart", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(restarted) > 0
	})
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff([]string{"a"}, restarted); diff != "" {
		t.Errorf("restarted (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int{"a": 1024, "b": 1024}, sized); diff != "" {
		t.Errorf("tokens of cache (-want +got):\n%s", diff)
	}
}

func TestInFlight(t *testing.T) {
	t.Parallel()

	f, _ := run(t, Options{}, newEngine(t, text(idle), text(models)).URL)
	end := f.Begin("a")
	f.Begin("nobody")()
	if n := f.Status()[0].Load.InFlight; n != 1 {
		t.Errorf("%d in flight, want 1", n)
	}
	end()
	if n := f.Status()[0].Load.InFlight; n != 0 {
		t.Errorf("%d in flight after the end, want 0", n)
	}
}

func TestModelGivenByTheOperator(t *testing.T) {
	t.Parallel()

	e := newEngine(t, text(idle), status(http.StatusUnauthorized))
	f, err := New(replicas.List{{Name: "a", URL: e.URL, Model: "given"}}, Options{
		Interval: time.Millisecond, Timeout: patience, StaleAfter: patience, ModelsInterval: time.Millisecond,
	}, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { f.Run(ctx) })
	eventually(t, "the replica", func() bool { return cmp.Equal([]string{"a"}, names(t, f, "given")) })
	cancel()
	wg.Wait()
}

func TestCollectorShowsWhatIsKnown(t *testing.T) {
	t.Parallel()

	f, _ := run(t, Options{}, newEngine(t, text(busy), text(models)).URL, newEngine(t, status(500), text(models)).URL)
	eventually(t, "both", func() bool { return len(names(t, f, "m")) == 2 && f.Status()[0].Load.Known })
	want := `
		# HELP prefixroute_router_replica_waiting Waiting requests by the engine's own metrics; absent while unknown.
		# TYPE prefixroute_router_replica_waiting gauge
		prefixroute_router_replica_waiting{replica="a"} 3
		# HELP prefixroute_router_replica_up 1 while the replica answers, 0 while it gets no requests.
		# TYPE prefixroute_router_replica_up gauge
		prefixroute_router_replica_up{replica="a"} 1
		prefixroute_router_replica_up{replica="b"} 1
	`
	if err := testutil.CollectAndCompare(f.Collector(), strings.NewReader(want), "prefixroute_router_replica_waiting", "prefixroute_router_replica_up"); err != nil {
		t.Error(err)
	}
}
