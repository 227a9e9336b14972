//go:build cgo

package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/index"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
	"github.com/prefixroute/prefixroute/pkg/ops"
	"github.com/prefixroute/prefixroute/pkg/replicas"
	indexv1 "github.com/prefixroute/prefixroute/proto/prefixroute/index/v1"
	"github.com/prefixroute/prefixroute/services/indexer/internal/enginetest"
	"github.com/prefixroute/prefixroute/services/indexer/internal/redistest"
)

// childEnv makes the test binary be the indexer, for the tests that kill it.
const childEnv = "PREFIXROUTE_INDEXER_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(ops.Main("indexer", func(ctx context.Context) error {
			cfg, err := ParseConfig(os.Args[1:], os.Getenv, os.Stderr)
			if err != nil {
				return err
			}
			return Run(ctx, cfg, ops.NewLogger(os.Stderr, cfg.LogLevel))
		}))
	}
	goleak.VerifyTestMain(m)
}

const blockSize = 4

// engine is a publisher with the engine's HTTP side, and the truth about it: the
// naive belief of everything that it has published.
type engine struct {
	*enginetest.Engine

	t     *testing.T
	http  *httptest.Server
	truth *index.Belief
}

func startEngine(t *testing.T) *engine {
	t.Helper()
	e := &engine{t: t, truth: index.NewBelief(hashing.Scheme{}, "m")}
	e.Engine = enginetest.Start(t, enginetest.Options{Topic: "kv@10.0.0.1:8000@m"})
	e.http = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/kv_event_sources" {
			http.NotFound(w, r)
			return
		}
		wild := func(endpoint string) string { return strings.Replace(endpoint, "127.0.0.1", "*", 1) }
		_ = json.NewEncoder(w).Encode(map[string]any{"0": map[string]any{
			"enable_kv_cache_events": true, "publisher": "zmq", "topic": "kv@10.0.0.1:8000@m",
			"endpoint": wild(e.Events), "replay_endpoint": wild(e.Replay),
		}})
	}))
	t.Cleanup(e.http.Close)
	return e
}

func (e *engine) restart() {
	e.Engine = e.Restart()
	e.truth = index.NewBelief(hashing.Scheme{}, "m")
}

func (e *engine) apply(events []kvevents.Event) {
	for _, ev := range events {
		e.truth.Apply(ev)
	}
}

func (e *engine) publish(events ...kvevents.Event) uint64 {
	e.apply(events)
	return e.Publish(events...)
}

// chain is blocks from up to before to of one prompt, whose block i has the hash
// i+1.
func chain(from, to int) kvevents.Event {
	ev := &kvevents.BlockStored{BlockSize: blockSize, Medium: "GPU"}
	if from > 0 {
		parent := kvevents.Hash(from)
		ev.Parent = &parent
	}
	for i := from; i < to; i++ {
		ev.BlockHashes = append(ev.BlockHashes, kvevents.Hash(i+1))
	}
	ev.TokenIDs = prompt(to)[from*blockSize:]
	return ev
}

func remove(hash kvevents.Hash) kvevents.Event {
	return &kvevents.BlockRemoved{BlockHashes: []kvevents.Hash{hash}, Medium: "GPU"}
}

func prompt(blocks int) []uint32 {
	tokens := make([]uint32, blocks*blockSize)
	for i := range tokens {
		tokens[i] = uint32(i * 3)
	}
	return tokens
}

func match(blocks int) *indexv1.MatchRequest {
	req := &indexv1.MatchRequest{Model: "m", KeyScheme: hashing.Scheme{}.Name(), BlockSize: blockSize}
	for _, k := range (hashing.Scheme{}).Keys("m", blockSize, prompt(blocks), nil) {
		req.Keys = append(req.Keys, uint64(k))
	}
	return req
}

// indexer is a running one, in this process or another.
type indexer struct {
	t      *testing.T
	ops    string
	client indexv1.IndexServiceClient
	stop   func()
}

func config(e *engine, redis string) Config {
	cfg := DefaultConfig()
	cfg.ListenGRPC, cfg.ListenOps, cfg.Redis = "127.0.0.1:0", "127.0.0.1:0", redis
	cfg.Replicas = replicas.List{{Name: "a", URL: e.http.URL}}
	cfg.ReplayIdleTimeout = 500 * time.Millisecond
	cfg.ProbeInterval = 300 * time.Millisecond
	return cfg
}

func start(t *testing.T, cfg Config) *indexer {
	t.Helper()
	a, err := New(t.Context(), cfg, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := a.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	x := dial(t, a.GRPCAddr(), a.OpsURL())
	x.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(x.stop)
	return x
}

func dial(t *testing.T, grpcAddr, opsURL string) *indexer {
	t.Helper()
	conn, err := grpc.NewClient(grpcAddr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &indexer{t: t, ops: opsURL, client: indexv1.NewIndexServiceClient(conn)}
}

func (x *indexer) get(path string) (int, string) {
	x.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(x.t.Context(), http.MethodGet, x.ops+path, http.NoBody)
	if err != nil {
		x.t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(body)
}

func eventually(t *testing.T, check func() string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; {
		got := check()
		if got == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(got)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// awaitEqual waits until the indexer stands at seq and holds exactly the truth.
func (x *indexer) awaitEqual(e *engine, seq uint64) {
	x.t.Helper()
	var want []map[string]any
	for _, b := range e.truth.Blocks() {
		key := ""
		if b.HasKey {
			key = fmt.Sprintf("0x%016x", uint64(b.Key))
		}
		want = append(want, map[string]any{
			"hash": fmt.Sprintf("0x%016x", uint64(b.Hash)), "key": key, "group": float64(b.Group), "medium": b.Medium, "copies": float64(b.Copies),
		})
	}
	eventually(x.t, func() string {
		_, body := x.get("/replicas/a/blocks")
		var got struct {
			LastSeq *uint64 `json:"last_seq"`
			Blocks  []map[string]any
		}
		if err := json.Unmarshal([]byte(body), &got); err != nil || got.LastSeq == nil || *got.LastSeq != seq {
			return fmt.Sprintf("indexer is not at %d: %.200s", seq, body)
		}
		if diff := cmp.Diff(want, got.Blocks); diff != "" {
			return fmt.Sprintf("set at %d (-engine +indexer):\n%s", seq, diff)
		}
		return ""
	})
}

func (x *indexer) generation() *indexv1.Generation {
	x.t.Helper()
	resp, err := x.client.ListReplicas(x.t.Context(), &indexv1.ListReplicasRequest{})
	if err != nil {
		x.t.Fatal(err)
	}
	return resp.GetReplicas()[0].GetGeneration()
}

func TestFromEventToAnswer(t *testing.T) {
	t.Parallel()

	e := startEngine(t)
	x := start(t, config(e, ""))
	e.AwaitSubscribers(1)
	x.awaitEqual(e, e.publish(chain(0, 10)))
	resp, err := x.client.Match(t.Context(), match(12))
	if err != nil || len(resp.GetMatches()) != 1 || resp.GetMatches()[0].GetGpu() != 10 {
		t.Fatalf("Match = %v, %v; want 10 blocks", resp, err)
	}
	if m := resp.GetMatches()[0]; m.GetState() != indexv1.StreamState_STREAM_STATE_LIVE || !m.GetGeneration().GetLocal() {
		t.Errorf("answer is %v, want live with a local generation: there is no durable copy", m)
	}
	// A hole ends the prefix, and its return gives it back.
	x.awaitEqual(e, e.publish(remove(5)))
	if resp, err = x.client.Match(t.Context(), match(12)); err != nil || resp.GetMatches()[0].GetGpu() != 4 {
		t.Errorf("with a hole: %v, %v; want 4 blocks", resp, err)
	}
	x.awaitEqual(e, e.publish(chain(4, 5)))
	if resp, err = x.client.Match(t.Context(), match(12)); err != nil || resp.GetMatches()[0].GetGpu() != 10 {
		t.Errorf("with the hole filled: %v, %v; want 10 blocks", resp, err)
	}
	// The engine starts anew and has passed its old numbers already.
	e.restart()
	var seq uint64
	for i := range 5 {
		ev := chain(i, i+1)
		e.apply([]kvevents.Event{ev})
		seq = e.Lose(ev)
	}
	x.awaitEqual(e, seq)
	if g := x.generation(); g.GetCounter() != 2 {
		t.Errorf("generation is %v, want the second", g)
	}

	_, metrics := x.get("/metrics")
	problems, err := promlint.New(strings.NewReader(metrics)).Lint()
	if err != nil {
		t.Error(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "prefixroute_") {
			t.Errorf("metric %s: %s", p.Metric, p.Text)
		}
	}
	for path, want := range map[string]string{
		"/readyz":               "ok",
		"/healthz":              "ok",
		"/metrics":              `prefixroute_indexer_replica_state{replica="a",state="live"} 1`,
		"/replicas":             "<!doctype html>",
		"/replicas?format=json": `"state":"live"`,
	} {
		if code, body := x.get(path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("GET %s answered %d, want 200 with %q in %.200s", path, code, want, body)
		}
	}
}

// TestRestartGoesOnWhereItWas: with a durable copy, nothing but the tail is
// asked of an engine that went on, and nothing is taken over of one that did not.
func TestRestartGoesOnWhereItWas(t *testing.T) {
	t.Parallel()

	srv := redistest.Start(t)
	e := startEngine(t)
	x := start(t, config(e, srv.URL()))
	e.AwaitSubscribers(1)
	for i := range 20 {
		e.publish(chain(i, i+1))
	}
	x.awaitEqual(e, 19)
	eventually(t, func() string {
		if g := x.generation(); g.GetLocal() {
			return "the generation never reached Redis"
		}
		return ""
	})
	before := x.generation()
	x.stop()
	e.AwaitSubscribers(0)
	e.publish(remove(20))
	asked := len(e.Asked())

	x = start(t, config(e, srv.URL()))
	x.awaitEqual(e, 20)
	if g := x.generation(); g.GetEpoch() != before.GetEpoch() || g.GetCounter() != before.GetCounter() {
		t.Errorf("generation is %v, want still %v", g, before)
	}
	if starts := e.Asked()[asked:]; starts[0] != 19 {
		t.Errorf("asked the engine from %d, want from the last batch, 19", starts[0])
	}
	x.stop()

	e.restart()
	e.publish(chain(0, 3))
	x = start(t, config(e, srv.URL()))
	x.awaitEqual(e, 0)
	if g := x.generation(); g.GetEpoch() != before.GetEpoch() || g.GetCounter() != before.GetCounter()+1 {
		t.Errorf("generation is %v, want the one after %v", g, before)
	}
}

func TestWarmingUp(t *testing.T) {
	t.Parallel()

	srv := redistest.Start(t)
	srv.Pause()
	t.Cleanup(srv.Resume)
	e := startEngine(t)
	cfg := config(e, srv.URL())
	cfg.WarmTimeout, cfg.RedisTimeout = 2*time.Second, 300*time.Millisecond
	x := start(t, cfg)
	if _, err := x.client.Match(t.Context(), match(1)); status.Code(err) != codes.Unavailable {
		t.Errorf("while Redis hangs at the start: %v, want UNAVAILABLE", err)
	}
	if code, body := x.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "warming up") {
		t.Errorf("/readyz answered %d %q, want 503 with the reason", code, body)
	}
	// It goes on without: the start is bounded.
	e.AwaitSubscribers(1)
	x.awaitEqual(e, e.publish(chain(0, 2)))
	if resp, err := x.client.Match(t.Context(), match(3)); err != nil || resp.GetMatches()[0].GetGpu() != 2 {
		t.Errorf("cold: %v, %v; want 2 blocks", resp, err)
	}
	srv.Resume()
	eventually(t, func() string {
		if x.generation().GetLocal() {
			return "the generation never reached Redis"
		}
		return ""
	})
}

func TestNewFailures(t *testing.T) {
	t.Parallel()

	e := startEngine(t)
	taken := start(t, config(e, ""))
	log := slog.New(slog.DiscardHandler)
	for name, change := range map[string]func(*Config){
		"listen on":       func(c *Config) { c.ListenOps = strings.TrimPrefix(taken.ops, "http://") },
		"key-secret-file": func(c *Config) { c.KeySecretFile = filepath.Join(t.TempDir(), "nothing") },
		"no replicas":     func(c *Config) { c.Replicas = nil },
	} {
		cfg := config(e, "redis://127.0.0.1:1")
		change(&cfg)
		if _, err := New(t.Context(), cfg, log); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("New() = %v, want an error with %q", err, name)
		}
	}
}

func TestKeySecret(t *testing.T) {
	t.Parallel()

	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("correct horse battery staple\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := startEngine(t)
	cfg := config(e, "")
	cfg.KeySecretFile = file
	x := start(t, cfg)
	e.AwaitSubscribers(1)
	e.publish(chain(0, 3))
	scheme := hashing.NewScheme([]byte("correct horse battery staple"))
	req := match(3)
	req.KeyScheme = scheme.Name()
	req.Keys = nil
	for _, k := range scheme.Keys("m", blockSize, prompt(3), nil) {
		req.Keys = append(req.Keys, uint64(k))
	}
	eventually(t, func() string {
		resp, err := x.client.Match(t.Context(), req)
		if err != nil || len(resp.GetMatches()) == 0 || resp.GetMatches()[0].GetGpu() != 3 {
			return fmt.Sprintf("with the secret: %v, %v; want 3 blocks", resp, err)
		}
		return ""
	})
	if _, err := x.client.Match(t.Context(), match(3)); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("without the secret: %v, want FAILED_PRECONDITION", err)
	}
}

// TestKill9 kills the indexer's process at random instants under load, and looks
// at what the next one makes of it: at the same number, the same set.
func TestKill9(t *testing.T) {
	t.Parallel()

	srv := redistest.Start(t)
	e := startEngine(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex // of e, between the load and the comparison
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(500 * time.Microsecond):
			}
			mu.Lock()
			if n := i % 40; n < 30 {
				e.publish(chain(n, n+1))
			} else {
				e.publish(remove(kvevents.Hash(41-n)), remove(kvevents.Hash(n-9)))
			}
			mu.Unlock()
		}
	})
	defer wg.Wait()
	defer close(stop)
	for round := range 6 {
		x := child(t, e, srv.URL())
		eventually(t, func() string {
			if code, body := x.get("/readyz"); code != http.StatusOK {
				return body
			}
			return ""
		})
		<-time.After(time.Duration(50+37*round) * time.Millisecond) // a span under load, not a wait for something
		if round%2 == 1 {
			mu.Lock()
			seq := e.publish(chain(0, 1))
			x.awaitEqual(e, seq)
			mu.Unlock()
		}
		x.stop()
	}
	x := child(t, e, srv.URL())
	defer x.stop()
	mu.Lock()
	defer mu.Unlock()
	x.awaitEqual(e, e.publish(chain(0, 1)))
	_, metrics := x.get("/metrics")
	if !strings.Contains(metrics, `prefixroute_indexer_warm_starts_total{result="restored"} 1`) {
		t.Error("the last process did not start from the durable copy")
	}
	if g := x.generation(); g.GetCounter() != 1 {
		t.Errorf("generation is %v, want the first: the engine has never been another", g)
	}
}

// child runs the indexer as a process; stop kills it.
func child(t *testing.T, e *engine, redis string) *indexer {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0], "-listen-grpc", "127.0.0.1:0", "-listen-ops", "127.0.0.1:0",
		"-redis", redis, "-replica", "a="+e.http.URL, "-probe-interval", "300ms")
	cmd.Env = append(os.Environ(), childEnv+"=1")
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	addrs := make(chan [2]string, 1)
	reading.Go(func() {
		dec := json.NewDecoder(out)
		for {
			var line struct{ Msg, GRPC, Ops string }
			if dec.Decode(&line) != nil {
				_, _ = io.Copy(io.Discard, out)
				return
			}
			if line.Msg == "serving" {
				addrs <- [2]string{line.GRPC, line.Ops}
			}
		}
	})
	kill := sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		reading.Wait()
		_ = cmd.Wait() // an error says that it was killed
	})
	t.Cleanup(kill)
	select {
	case a := <-addrs:
		x := dial(t, a[0], a[1])
		x.stop = kill
		return x
	case <-time.After(20 * time.Second):
		t.Fatal("the indexer did not start")
		return nil
	}
}
