package store

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/prefixroute/prefixroute/pkg/kvevents"
	"github.com/prefixroute/prefixroute/services/indexer/internal/redistest"
)

func TestWipedWhileRunning(t *testing.T) {
	t.Parallel()

	srv := redistest.Start(t)
	g := newRig(t, srv.URL())
	g.warm()
	g.r.Renew("m")
	g.apply(0, store(1, 0), store(2, 1))
	g.flush()
	srv.Restart() // empty
	g.apply(1, store(3, 2))
	for !g.w.flush(t.Context()) { // connections of the old process fail first
	}
	g.wantWhole(srv.URL())
	if g.count(mismatch) != 1 {
		t.Errorf("%v writes did not fit, want the one after the restart", g.count(mismatch))
	}
}

func TestFence(t *testing.T) {
	t.Parallel()

	srv := redistest.Start(t)
	old := newRig(t, srv.URL())
	old.warm()
	old.r.Renew("m")
	old.apply(0, store(1, 0))
	old.flush()

	next := newRig(t, srv.URL())
	next.warm()
	old.apply(1, store(66, 0))
	old.flush() // refused, which is no failure of Redis
	if old.count(fenced) != 1 {
		t.Errorf("%v writes were refused, want 1", old.count(fenced))
	}
	old.apply(2, store(67, 0))
	old.flush()
	if old.count(fenced) != 1 {
		t.Error("the loser has not stopped writing")
	}
	// A whole write of the loser is refused as well.
	late := newRig(t, srv.URL())
	late.w.copies["a"] = &replicaCopy{token: old.w.copyOf(old.r).token, whole: true}
	late.r.Renew("m")
	late.flush()
	if late.count(fenced) != 1 {
		t.Error("a whole write with an old token was not refused")
	}
	next.apply(1, store(2, 1))
	next.flush()
	next.wantWhole(srv.URL())
}

// TestFenceOutlivesTheCopy: who starts after Redis was wiped is the newer writer
// still, though the tokens of the time before are gone with the copy.
func TestFenceOutlivesTheCopy(t *testing.T) {
	t.Parallel()

	srv := redistest.Start(t)
	old := newRig(t, srv.URL())
	old.warm()
	old.r.Renew("m")
	old.apply(0, store(1, 0))
	old.flush()

	srv.Restart() // empty
	next := newRig(t, srv.URL())
	next.warm()
	next.r.Renew("m")
	next.apply(0, store(1, 0))
	next.flush()
	old.apply(1, store(66, 0))
	for !old.w.flush(t.Context()) { // connections of the old process fail first
	}
	next.apply(1, store(2, 1))
	next.flush()
	if old.count(fenced) != 1 || next.count(fenced) != 0 || next.count(mismatch) != 0 {
		t.Errorf("refused: %v writes of the old one and %v of the new one, %v unfit; want 1, 0, 0",
			old.count(fenced), next.count(fenced), next.count(mismatch))
	}
	next.wantWhole(srv.URL())
}

// TestTokensGrow also where Redis's clock has gone back.
func TestTokensGrow(t *testing.T) {
	t.Parallel()

	g := newRig(t, redistest.Start(t).URL())
	const ahead = 1 << 52 // microseconds: more than a century from now
	if err := g.s.rdb.HSet(t.Context(), g.s.key("a", "meta"), "fence", ahead).Err(); err != nil {
		t.Fatal(err)
	}
	if token, err := g.s.Acquire(t.Context(), "a"); err != nil || token != ahead+1 {
		t.Errorf("token is %d (%v), want %d", token, err, ahead+1)
	}
}

// TestWholeWrite stays for good, and is refused where what was staged is gone.
func TestWholeWrite(t *testing.T) {
	t.Parallel()

	srv := redistest.Start(t)
	g := newRig(t, srv.URL())
	g.warm()
	g.r.Renew("m")
	g.apply(0, store(1, 0))
	g.flush()
	keys := []string{g.s.key("a", "meta"), g.s.key("a", "blocks"), g.s.key("a", "new:lost")}
	if ttl, err := g.s.rdb.TTL(t.Context(), keys[1]).Result(); err != nil || ttl != -1 {
		t.Errorf("the set expires in %v (%v), want never", ttl, err)
	}
	token := g.w.copyOf(g.r).token
	if v, err := g.s.run(t.Context(), replaceScript, keys, []any{token, "r", 1, 0}); err != nil || v != mismatch {
		t.Errorf("a set that is not there: %v, %v, want a mismatch", v, err)
	}
	g.wantWhole(srv.URL())
}

// TestLostAnswer: a write that was done, and whose answer was lost, is not done
// twice and does not cost a whole write.
func TestLostAnswer(t *testing.T) {
	t.Parallel()

	srv := redistest.Start(t)
	g := newRig(t, srv.URL())
	g.warm()
	g.r.Renew("m")
	g.apply(0, store(1, 0))
	g.flush()
	g.apply(1, store(2, 1))
	c := g.w.copyOf(g.r)
	if !g.w.prepare(g.r, c) {
		t.Fatal("nothing to write")
	}
	if v, err := g.s.apply(t.Context(), c.pending); err != nil || v != written {
		t.Fatalf("write: %v, %v", v, err)
	}
	g.apply(2, store(3, 2)) // meanwhile
	g.flush()               // the pending one again, and what came meanwhile
	if g.count(repeated) != 1 || g.count(mismatch) != 0 {
		t.Errorf("%v repeated and %v unfit writes, want 1 and 0", g.count(repeated), g.count(mismatch))
	}
	g.wantWhole(srv.URL())
}

// TestScriptLists: lists longer than Lua's stack arrive whole.
func TestScriptLists(t *testing.T) {
	t.Parallel()

	srv := redistest.Start(t)
	g := newRig(t, srv.URL())
	g.warm()
	g.r.Renew("m")
	g.flush()
	var stores, removes []kvevents.Event
	for h := range kvevents.Hash(9_999) {
		stores = append(stores, store(h+1, 0))
		if h%2 == 0 {
			removes = append(removes, remove(h+1))
		}
	}
	g.apply(0, stores...)
	g.flush()
	g.apply(1, removes...)
	g.flush()
	if got := testutil.ToFloat64(g.w.metrics.Whole); got != 1 {
		t.Errorf("%v whole writes, want the first alone", got)
	}
	if cp := g.wantWhole(srv.URL()); len(cp.Records) != 4_999 {
		t.Errorf("%d records are stored, want 4999", len(cp.Records))
	}
}
