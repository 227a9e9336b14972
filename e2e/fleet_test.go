package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/prefixroute/prefixroute/e2e/harness"
	"github.com/prefixroute/prefixroute/pkg/trace"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := harness.Cleanup(); err != nil {
		fmt.Fprintln(os.Stderr, "clean up:", err)
		code = 1
	}
	os.Exit(code)
}

const model = "tiny"

// fleet is the whole product as processes on one machine.
type fleet struct {
	redis, indexer *harness.Process
	engines        map[string]*harness.Process
	routers        []*harness.Process

	engineURL  map[string]string
	indexerOps string
	routerURL  []string
	routerOps  []string
}

// patient routers wait for the indexer for as long as a busy machine may take to
// answer, and for less than the indexer waits for Redis. They are for tests of what
// the index says: a missed deadline is a right reason to answer as approximate.
var patient = []string{"-index-deadline", "500ms"}

// startFleet starts three engines, Redis, an indexer and two precise routers with
// the given arguments beside the fleet's own, and waits until both routers decide
// from live streams.
func startFleet(t *testing.T, routerArgs ...string) *fleet {
	t.Helper()
	f := &fleet{engines: map[string]*harness.Process{}, engineURL: map[string]string{}}

	redis := harness.FreeAddr(t)
	dir := t.TempDir()
	f.redis = harness.Start(t, "redis", "redis-server", "--bind", "127.0.0.1", "--port", port(redis), "--dir", dir, "--save", "", "--appendonly", "yes")

	var list []string
	for _, name := range []string{"sim-a", "sim-b", "sim-c"} {
		list = append(list, "-replica", f.startEngine(t, name))
	}

	grpc, ops := harness.FreeAddr(t), harness.FreeAddr(t)
	f.indexerOps = "http://" + ops
	f.indexer = harness.Start(t, "indexer", harness.Program(t, "indexer"), append([]string{
		"-listen-grpc", grpc, "-listen-ops", ops, "-redis", "redis://" + redis + "/0", "-down-after", "2s",
	}, list...)...)

	for i := range 2 {
		listen, ops := harness.FreeAddr(t), harness.FreeAddr(t)
		f.routerURL = append(f.routerURL, "http://"+listen)
		f.routerOps = append(f.routerOps, "http://"+ops)
		f.routers = append(f.routers, harness.Start(t, fmt.Sprintf("router-%d", i), harness.Program(t, "router"), append([]string{
			"-listen", listen, "-listen-ops", ops, "-indexer", grpc, "-seed", strconv.Itoa(i + 1), "-scrape-interval", "100ms",
		}, slices.Concat(list, routerArgs)...)...))
	}
	f.waitPrecise(t, "sim-a", "sim-b", "sim-c")
	return f
}

func (f *fleet) startEngine(t *testing.T, name string) (replica string) {
	t.Helper()
	listen, events, replay := harness.FreeAddr(t), harness.FreeAddr(t), harness.FreeAddr(t)
	f.engineURL[name] = "http://" + listen
	f.engines[name] = harness.Start(t, name, harness.Program(t, "fakevllm"),
		"-listen", listen, "-model", model, "-num-gpu-blocks", "129", "-overhead", "1ms", "-per-token", "20us",
		"-events", "tcp://"+"*:"+port(events), "-replay", "tcp://"+"*:"+port(replay))
	return fmt.Sprintf("%s=http://%s,events=tcp://%s,replay=tcp://%s", name, listen, events, replay)
}

func port(addr string) string {
	_, p, _ := bytes.Cut([]byte(addr), []byte(":"))
	return string(p)
}

// state is what a router says of its replicas.
type state struct {
	Replicas []struct {
		Name      string
		Reachable bool
		Index     struct {
			Precise bool
			State   string
			Reason  string
		}
	}
}

// waitPrecise waits until every router decides for the named replicas from the index.
func (f *fleet) waitPrecise(t *testing.T, names ...string) {
	t.Helper()
	for _, url := range f.routerURL {
		harness.Eventually(t, "precise routing", func(ctx context.Context) error {
			var s state
			if err := harness.GetJSON(ctx, url+"/prefixroute/state", &s); err != nil {
				return err
			}
			want := map[string]bool{}
			for _, n := range names {
				want[n] = true
			}
			for _, r := range s.Replicas {
				if want[r.Name] && (!r.Reachable || !r.Index.Precise) {
					return fmt.Errorf("%s: reachable %v, stream %s (%s)", r.Name, r.Reachable, r.Index.State, r.Index.Reason)
				}
			}
			return nil
		})
	}
}

// requireEqualSets compares the index with the named engines, block by block.
func (f *fleet) requireEqualSets(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		harness.RequireEqualSets(t, name, f.engineURL[name], f.indexerOps)
	}
}

// reply is what the load notes of one answer.
type reply struct {
	router   int
	status   int
	endpoint string
	index    string
	took     time.Duration
	err      error
}

// ask sends one chat request through a router.
func (f *fleet) ask(ctx context.Context, router int, body []byte) reply {
	start := time.Now()
	r := reply{router: router}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.routerURL[router]+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := harness.Client.Do(req)
	if err != nil {
		r.err = err
		return r
	}
	defer resp.Body.Close()
	_, r.err = io.Copy(io.Discard, resp.Body)
	r.status, r.took = resp.StatusCode, time.Since(start)
	r.endpoint, r.index = resp.Header.Get("X-Prefixroute-Endpoint"), resp.Header.Get("X-Prefixroute-Index")
	return r
}

// bodies is the load of a test.
func bodies(t *testing.T, requests int, seed uint64) [][]byte {
	t.Helper()
	c := trace.Default(model)
	c.Requests, c.Seed, c.Tenants, c.MaxTokens = requests, seed, 24, 20
	reqs, err := trace.Generate(c)
	if err != nil {
		t.Fatal(err)
	}
	out := make([][]byte, len(reqs))
	for i, r := range reqs {
		if out[i], err = r.Body.JSON(); err != nil {
			t.Fatal(err)
		}
	}
	return out
}
