package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prefixroute/prefixroute/e2e/harness"
)

var everyEngine = []string{"sim-a", "sim-b", "sim-c"}

// TestIndexerKilled kills the indexer at arbitrary points of a load that evicts
// all the time. What Redis has kept and what the replay sockets resend must
// make the exact set again.
func TestIndexerKilled(t *testing.T) {
	t.Parallel()

	f := startFleet(t)
	l := f.startLoad(t, bodies(t, 200, 1), 0, 1)
	for round := range 4 {
		harness.Eventually(t, "load", l.await(60+17*round))
		f.indexer.Kill(t)
		harness.Eventually(t, "load without an indexer", l.await(30))
		f.indexer.Restart(t)
		f.waitPrecise(t, everyEngine...)
	}
	replies := l.stop()
	requireAnswered(t, replies)
	if !slices.ContainsFunc(replies, func(r reply) bool { return r.index == "approximate" }) {
		t.Error("no answer said approximate, although the indexer was dead for a while")
	}
	f.requireEqualSets(t, everyEngine...)
	if page := text(t, f.indexerOps+"/metrics"); !strings.Contains(page, `prefixroute_indexer_warm_starts_total{result="restored"} 3`+"\n") {
		t.Error("the last start did not take all three sets over from Redis")
	}
	if generations := generationsOf(t, f); !allOnes(generations) {
		t.Errorf("generations %v, want 1 for each: a restart of the indexer loses no history", generations)
	}
}

// TestIndexerDown holds a router without an indexer to its deadline.
func TestIndexerDown(t *testing.T) {
	t.Parallel()

	f := startFleet(t)
	requests := bodies(t, 40, 2)
	usual := f.askAll(t, requests)
	requireAnswered(t, usual)
	f.indexer.Kill(t)
	replies := f.askAll(t, requests)
	requireAnswered(t, replies)
	for i, r := range replies {
		if r.index != "approximate" {
			t.Fatalf("request %d: index %q without an indexer, want approximate", i, r.index)
		}
	}
	// The bound is the deadline of a Match, which a dead indexer may cost each
	// request, beside the usual time; twice that, and medians, because the machine
	// is shared.
	const deadline = 20 * time.Millisecond
	if with, without := median(usual), median(replies); without > 2*with+deadline {
		t.Errorf("median answer %v without the indexer, %v with it; want at most %v more", without, with, deadline)
	}
	harness.EventuallyOnPage(t, f.routerOps[0], "prefixroute_router_indexer_connected 0")
}

// TestRedisKilled goes on from memory while Redis is gone, and writes the whole
// set again when an empty Redis comes back.
func TestRedisKilled(t *testing.T) {
	t.Parallel()

	f := startFleet(t, patient...)
	l := f.startLoad(t, bodies(t, 200, 3), 0, 1)
	harness.Eventually(t, "load", l.await(60))
	f.redis.Kill(t)
	before := l.count()
	harness.Eventually(t, "load without Redis", l.await(100))
	for _, r := range l.since(before) {
		if r.index != "precise" {
			t.Fatalf("index %q without Redis, want precise: memory serves", r.index)
		}
	}
	harness.Eventually(t, "metrics say that writes fail", func(context.Context) error {
		page := text(t, f.indexerOps+"/metrics")
		if !failedWrite.MatchString(page) || !strings.Contains(page, "prefixroute_indexer_store_up 0\n") {
			return errors.New("no failed write is counted")
		}
		return nil
	})
	f.redis.Restart(t)
	harness.Eventually(t, "load with Redis again", l.await(60))
	requireAnswered(t, l.stop())
	f.requireEqualSets(t, everyEngine...)

	// What was written since is whole: a fresh process starts from it.
	harness.EventuallyOnPage(t, f.indexerOps, "prefixroute_indexer_store_up 1", "prefixroute_indexer_store_pending_replicas 0")
	f.indexer.Kill(t)
	f.indexer.Restart(t)
	f.waitPrecise(t, everyEngine...)
	f.requireEqualSets(t, everyEngine...)
}

// TestRouterKilled leaves the other router serving as before.
func TestRouterKilled(t *testing.T) {
	t.Parallel()

	f := startFleet(t, patient...)
	l := f.startLoad(t, bodies(t, 200, 4), 1)
	harness.Eventually(t, "load", l.await(40))
	f.routers[0].Kill(t)
	harness.Eventually(t, "load on the other router", l.await(80))
	harness.EventuallyOnPage(t, f.indexerOps, "prefixroute_indexer_report_streams 1")
	replies := l.stop()
	requireAnswered(t, replies)
	for _, r := range replies {
		if r.index != "precise" {
			t.Fatalf("index %q after another router died, want precise", r.index)
		}
	}
}

// TestEngineKilled kills one engine under load. Requests that it had begun to
// answer may break; every other one is answered by the engines that are left,
// and the headers say what the answers rest on. Started again, it is a new
// engine with an empty cache, and the index knows.
func TestEngineKilled(t *testing.T) {
	t.Parallel()

	f := startFleet(t)
	l := f.startLoad(t, bodies(t, 200, 5), 0, 1)
	harness.Eventually(t, "load", l.await(80))
	f.engines["sim-b"].Kill(t)
	before := l.count()
	harness.Eventually(t, "load without sim-b", l.await(150))
	broken := 0
	for _, r := range l.since(before) {
		if r.err != nil || r.status != http.StatusOK {
			broken++
		}
	}
	if broken > clients {
		t.Errorf("%d requests broke with sim-b, want at most the %d that were open", broken, clients)
	}
	harness.Eventually(t, "the index says that sim-b is gone", func(ctx context.Context) error {
		var s state
		if err := harness.GetJSON(ctx, f.routerURL[0]+"/prefixroute/state", &s); err != nil {
			return err
		}
		for _, r := range s.Replicas {
			if r.Name == "sim-b" && (r.Reachable || r.Index.Precise) {
				return fmt.Errorf("sim-b: reachable %v, stream %s", r.Reachable, r.Index.State)
			}
		}
		return nil
	})
	harness.EventuallyOnPage(t, f.routerOps[0], `prefixroute_router_replica_up{replica="sim-b"} 0`)
	harness.EventuallyOnPage(t, f.indexerOps, `prefixroute_indexer_replica_state{replica="sim-b",state="down"} 1`)
	f.engines["sim-b"].Restart(t)
	f.waitPrecise(t, everyEngine...)
	harness.Eventually(t, "load on all engines", l.await(150))
	after := l.stop()[before:]
	if !slices.ContainsFunc(after, func(r reply) bool { return r.endpoint == "sim-b" && r.index == "precise" }) {
		t.Error("sim-b was never picked again from the index")
	}
	f.requireEqualSets(t, everyEngine...)
	if got := generationsOf(t, f)["sim-b"]; got < 2 {
		t.Errorf("sim-b is in generation %d after a restart, want a new one", got)
	}
}

// TestStopIsClean sends SIGTERM to every program of the product.
func TestStopIsClean(t *testing.T) {
	t.Parallel()

	f := startFleet(t)
	requireAnswered(t, f.askAll(t, bodies(t, 10, 6)))
	for _, p := range f.routers {
		p.Stop(t)
	}
	f.indexer.Stop(t)
	for _, name := range everyEngine {
		f.engines[name].Stop(t)
	}
}
