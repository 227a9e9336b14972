package store

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/prefixroute/prefixroute/services/indexer/internal/redistest"
)

// TestWipedWhileQuiet: a store that loses its copies while nothing happens gets
// them back, although no event gives a reason to write.
func TestWipedWhileQuiet(t *testing.T) {
	t.Parallel()

	srv := redistest.Start(t)
	g := newRig(t, srv.URL())
	g.warm()
	g.r.Renew("m")
	g.apply(0, store(1, 0), store(2, 1))
	g.flush()
	g.w.audit(t.Context())
	if list := g.w.takeDirty(); len(list) != 0 {
		t.Fatal("a copy that is as it was written is to be written again")
	}

	if err := g.s.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	g.w.audit(t.Context())
	g.flush()
	g.wantWhole(srv.URL())
}

// TestRunAudits: the writer looks by itself.
func TestRunAudits(t *testing.T) {
	t.Parallel()

	srv := redistest.Start(t)
	g := newRig(t, srv.URL())
	g.warm()
	g.r.Renew("m")
	g.apply(0, store(1, 0))
	g.flush()
	if err := g.s.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	g.w.auditEvery = 10 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	var running sync.WaitGroup
	running.Go(func() { g.w.Run(ctx) })
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for whole := false; !whole && ctx.Err() == nil; <-tick.C {
		rev, err := g.s.revision(ctx, "a")
		whole = err == nil && rev != ""
	}
	if ctx.Err() != nil {
		t.Error("the copy did not come back")
	}
	cancel()
	running.Wait()
}
