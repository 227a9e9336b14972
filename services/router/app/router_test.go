package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/prefixroute/prefixroute/pkg/replicas"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of these tests.
const patience = 10 * time.Second

// router is a running router with a client of its own.
type router struct {
	t      *testing.T
	app    *App
	client *http.Client
	stop   context.CancelFunc
	done   chan error
}

// start launches a router and waits until each engine was asked.
func start(t *testing.T, configure func(*Config), engines ...*engine) *router {
	t.Helper()
	r := launch(t, configure, engines...)
	r.eventually("the fleet to be known", func() bool { return r.app.fleet.Ready() == nil })
	return r
}

// launch runs a router over the engines, which get the names a, b, c and so on.
func launch(t *testing.T, configure func(*Config), engines ...*engine) *router {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Listen, cfg.ListenOps = "127.0.0.1:0", "127.0.0.1:0"
	cfg.ScrapeInterval, cfg.Seed = 20*time.Millisecond, 1
	for i, e := range engines {
		cfg.Replicas = append(cfg.Replicas, replicas.Replica{Name: string(rune('a' + i)), URL: e.URL})
	}
	if configure != nil {
		configure(&cfg)
	}
	ctx, cancel := context.WithCancel(t.Context())
	app, err := New(ctx, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	r := &router{t: t, app: app, client: &http.Client{Transport: &http.Transport{DisableCompression: true}}, stop: cancel, done: make(chan error, 1)}
	go func() { r.done <- app.Run(ctx) }()
	t.Cleanup(r.end)
	return r
}

// end stops the router and wants it to stop cleanly; it may be called again.
func (r *router) end() {
	r.client.CloseIdleConnections()
	r.stop()
	if r.done == nil {
		return
	}
	select {
	case err := <-r.done:
		if err != nil {
			r.t.Errorf("Run: %v", err)
		}
	case <-time.After(patience):
		r.t.Error("Run does not return")
	}
	r.done = nil
}

func (r *router) eventually(what string, ok func() bool) {
	r.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

// answer is what a client got.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) endpoint() string { return a.header.Get("X-Prefixroute-Endpoint") }
func (a answer) index() string    { return a.header.Get("X-Prefixroute-Index") }
func (a answer) match() string    { return a.header.Get("X-Prefixroute-Match") }

func (r *router) do(method, path, body string, header ...string) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.app.URL()+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return answer{status: resp.StatusCode, header: resp.Header, body: string(text)}
}

func (r *router) post(path, body string, header ...string) answer {
	r.t.Helper()
	return r.do(http.MethodPost, path, body, header...)
}

// state asks for /prefixroute/state.
func (r *router) state() stateDoc {
	r.t.Helper()
	var doc stateDoc
	a := r.do(http.MethodGet, "/prefixroute/state", "")
	if err := json.Unmarshal([]byte(a.body), &doc); err != nil || a.status != http.StatusOK {
		r.t.Fatalf("state: status %d, error %v: %s", a.status, err, a.body)
	}
	return doc
}

// precise waits until a decision about the replica would be precise, or not.
func (r *router) precise(name string, want bool) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("precise of %s to be %v", name, want), func() bool {
		for _, d := range r.state().Replicas {
			if d.Name == name {
				return d.Index.Precise == want
			}
		}
		return false
	})
}

// metric sums the series of a name that have all the label pairs.
func (r *router) metric(name string, labels ...string) float64 {
	r.t.Helper()
	families, err := r.app.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != "prefixroute_router_"+name {
			continue
		}
	series:
		for _, m := range f.GetMetric() {
			for _, want := range labels {
				found := false
				for _, l := range m.GetLabel() {
					found = found || l.GetName()+"="+l.GetValue() == want
				}
				if !found {
					continue series
				}
			}
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// ids is a completion body for a prompt of n token ids that begin with first.
func ids(first, n int, more ...string) string {
	var b bytes.Buffer
	b.WriteString(`{"model":"m","max_tokens":1,"prompt":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, first+i)
	}
	b.WriteString("]")
	for _, m := range more {
		b.WriteString("," + m)
	}
	b.WriteString("}")
	return b.String()
}

func readFile(t *testing.T, parts ...string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{"testdata"}, parts...)...))
	if err != nil {
		t.Fatal(err)
	}
	return text
}
