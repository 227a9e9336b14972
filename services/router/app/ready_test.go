package app

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/prefixroute/prefixroute/services/router/internal/indexclient"
)

// TestReadyWaitsForTheIndex: a router that joins others gets no traffic before it
// knows what they know, unless nobody tells it for a while.
func TestReadyWaitsForTheIndex(t *testing.T) {
	t.Parallel()

	x := newIndexer(t, live("a"))
	with := start(t, func(c *Config) { c.Indexers = []string{x.addr} }, newEngine(t, "m"))
	with.eventually("the index to be known", func() bool { return with.app.ready() == nil })
	if !with.app.index.Answered() {
		t.Error("ready before the indexer has answered")
	}

	without := &App{cfg: with.app.cfg, fleet: with.app.fleet, index: unanswered(t), made: time.Now()}
	if err := without.ready(); err == nil || !strings.Contains(err.Error(), "no indexer has answered") {
		t.Errorf("ready() at the start = %v, want it to wait for the indexer", err)
	}
	without.made = time.Now().Add(-indexGrace)
	if err := without.ready(); err != nil {
		t.Errorf("ready() after %v = %v, want to go on without an indexer", indexGrace, err)
	}
}

// unanswered is a client of an indexer that is not there; it never runs.
func unanswered(t *testing.T) *indexclient.Client {
	t.Helper()
	c, err := indexclient.New(indexclient.Config{Addresses: []string{"127.0.0.1:1"}}, indexclient.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// TestFirstRequestWaits: a request that comes before the router knows anything
// waits for what it will know, instead of being refused or sent at random.
func TestFirstRequestWaits(t *testing.T) {
	t.Parallel()

	x := newIndexer(t, live("a"), live("b"))
	x.set(func(x *indexer) { x.held["b"] = 2 })
	engines := []*engine{newEngine(t, "m"), newEngine(t, "m")}
	r := launch(t, func(c *Config) { c.Indexers = []string{x.addr} }, engines...)
	if a := r.post(completions, ids(1, 60)); a.status != http.StatusOK || a.endpoint() != "b" || a.index() != "precise" {
		t.Errorf("first request: status %d from %s by the %s index, want the precise holder b", a.status, a.endpoint(), a.index())
	}
}
