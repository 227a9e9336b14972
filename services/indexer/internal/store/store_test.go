package store

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/index"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
	"github.com/prefixroute/prefixroute/pkg/replicas"
	"github.com/prefixroute/prefixroute/services/indexer/internal/belief"
	"github.com/prefixroute/prefixroute/services/indexer/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is one process's store and writer, with one replica.
type rig struct {
	t *testing.T
	s *Store
	w *Writer
	r *belief.Replica
}

func newRig(t *testing.T, url string) *rig {
	t.Helper()
	s, err := Open(url, "test", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	w := NewWriter(s, NewMetrics(prometheus.NewRegistry()), slog.New(slog.NewTextHandler(t.Output(), nil)))
	g := &rig{t: t, s: s, w: w}
	g.r = belief.NewReplica(replicas.Replica{Name: "a"}, hashing.Scheme{}, func() {}, func() { w.Dirty(g.r) })
	return g
}

func (g *rig) warm() { g.warmWithin(5 * time.Second) }

func (g *rig) warmWithin(d time.Duration) {
	ctx, cancel := context.WithTimeout(g.t.Context(), d)
	defer cancel()
	g.w.WarmStart(ctx, []*belief.Replica{g.r})
}

func (g *rig) apply(seq uint64, events ...kvevents.Event) {
	g.r.Apply(kvevents.Batch{Events: events}, belief.Position{Known: true, Seq: seq, Digest: seq * 31}, time.Now())
}

func (g *rig) flush() {
	g.t.Helper()
	if !g.w.flush(g.t.Context()) {
		g.t.Fatal("Redis did not take the write")
	}
}

func (g *rig) count(v verdict) float64 {
	return testutil.ToFloat64(g.w.metrics.Writes.WithLabelValues(v.String()))
}

// wantWhole compares the durable copy, read by another process, with memory.
func (g *rig) wantWhole(url string) Copy {
	g.t.Helper()
	cp, ok, err := newRig(g.t, url).s.Load(g.t.Context(), "a")
	if err != nil || !ok {
		g.t.Fatalf("no copy: %v", err)
	}
	d, _ := g.r.TakeAll()
	g.w.copyOf(g.r).whole = true // TakeAll has taken the changes
	if diff := cmp.Diff(d.Changes.Set, cp.Records); diff != "" {
		g.t.Errorf("stored records (-memory +stored):\n%s", diff)
	}
	if diff := cmp.Diff(d.Head, cp.Head); diff != "" {
		g.t.Errorf("stored head (-memory +stored):\n%s", diff)
	}
	return cp
}

func store(hash, parent kvevents.Hash) kvevents.Event {
	ev := &kvevents.BlockStored{BlockHashes: []kvevents.Hash{hash}, TokenIDs: []uint32{uint32(hash), 1, 2, 3}, BlockSize: 4, Medium: "GPU"}
	if parent != 0 {
		ev.Parent = &parent
	}
	return ev
}

func remove(hash kvevents.Hash) kvevents.Event {
	return &kvevents.BlockRemoved{BlockHashes: []kvevents.Hash{hash}, Medium: "GPU"}
}

func TestWriteAndWarmStart(t *testing.T) {
	t.Parallel()

	srv := redistest.Start(t)
	g := newRig(t, srv.URL())
	g.warm()
	gen := g.r.Renew("org/m")
	if s := g.r.Status(); !s.Local {
		t.Error("a generation that was never written is not called local")
	}
	g.apply(0, store(1, 0), store(2, 1), store(9, 8)) // 9 is an orphan
	g.apply(1, remove(2), store(3, 1), store(3, 1))
	g.flush()
	if s := g.r.Status(); s.Local {
		t.Error("a generation that was written is still called local")
	}
	g.apply(2, remove(1), store(4, 3)) // a delta
	g.r.Doubt(belief.Doubts{Incomplete: "it begins at batch 7"})
	g.flush()
	cp := g.wantWhole(srv.URL())
	if cp.Head.Generation != gen || cp.Head.Position.Seq != 2 || cp.Head.Doubts.Incomplete == "" {
		t.Errorf("head is %+v, want generation %v at 2, incomplete", cp.Head, gen)
	}

	again := newRig(t, srv.URL())
	again.warm()
	if diff := cmp.Diff(g.r.Contents(), again.r.Contents()); diff != "" {
		t.Errorf("restored (-was +is):\n%s", diff)
	}
	if got := testutil.ToFloat64(again.w.metrics.Up); got != 1 {
		t.Errorf("up is %v after a warm start and before the first change, want 1", got)
	}
	// The next write is a delta on the same revision.
	again.apply(3, store(5, 4))
	again.flush()
	again.wantWhole(srv.URL())
	if got := again.count(mismatch); got != 0 {
		t.Errorf("%v writes did not fit after a warm start", got)
	}
	if got := testutil.ToFloat64(again.w.metrics.Whole); got != 0 {
		t.Errorf("%v whole writes after a warm start, want 0", got)
	}
}

// TestEmptySet: a set without blocks is a copy too.
func TestEmptySet(t *testing.T) {
	t.Parallel()

	srv := redistest.Start(t)
	g := newRig(t, srv.URL())
	g.warm()
	g.r.Renew("m")
	g.flush()
	g.wantWhole(srv.URL())
	g.apply(0, store(1, 0))
	g.apply(1, &kvevents.AllBlocksCleared{})
	g.flush()
	g.wantWhole(srv.URL())
}

// TestCutAnywhere is the crash test: a process that writes dies after a random
// number of bytes on the wire; another one takes over from what Redis has.
// Whatever the instant, the stored set is that of the stored position.
func TestCutAnywhere(t *testing.T) {
	t.Parallel()

	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	srv := redistest.Start(t)
	engine := newHistory(rnd, 400)

	var reached uint64
	lives, kept := 0, 0
	for ; lives < 150; lives++ {
		cut := newCutter(t, srv.Addr(), int64(rnd.IntN(30_000)))
		g := newRig(t, "redis://"+cut.addr())
		g.w.maxDelta, g.s.chunk = 5+rnd.IntN(30), 3 // whole writes of several pieces are as common as deltas
		g.warmWithin(150 * time.Millisecond)
		if pos := g.r.Position(); pos.Known {
			kept++
		}
		engine.live(t, g, rnd)
		cut.close()

		cp, ok, err := newRig(t, srv.URL()).s.Load(t.Context(), "a")
		if err != nil {
			t.Fatalf("life %d: %v", lives, err)
		}
		if !ok || !cp.Head.Position.Known {
			continue
		}
		want := engine.at(cp.Head.Position.Seq)
		if diff := cmp.Diff(want, cp.Records); diff != "" {
			t.Fatalf("life %d: stored set at %d (-want +got):\n%s", lives, cp.Head.Position.Seq, diff)
		}
		reached = max(reached, cp.Head.Position.Seq)
	}
	t.Logf("%d of %d lives began warm, highest position %d", kept, lives, reached)
	if kept < lives/3 || reached < 20 {
		t.Errorf("%d of %d lives began warm and %d was the highest position: the test shows nothing", kept, lives, reached)
	}
}

// history is an engine's: batches, and the records of the set after each.
type history struct {
	batches [][]kvevents.Event
	after   [][]index.Record
}

func newHistory(rnd *rand.Rand, n int) *history {
	h := &history{}
	b := index.NewBelief(hashing.Scheme{}, "m")
	for range n {
		var events []kvevents.Event
		for range 1 + rnd.IntN(6) {
			hash := kvevents.Hash(1 + rnd.IntN(60))
			switch rnd.IntN(20) {
			case 0:
				if rnd.IntN(5) == 0 {
					events = append(events, &kvevents.AllBlocksCleared{})
				}
			case 1, 2, 3, 4, 5, 6:
				events = append(events, remove(hash))
			default:
				events = append(events, store(hash, kvevents.Hash(rnd.IntN(int(hash)))))
			}
		}
		for _, ev := range events {
			b.Apply(ev)
		}
		records, _ := b.Records()
		h.batches, h.after = append(h.batches, events), append(h.after, records)
	}
	return h
}

func (h *history) at(seq uint64) []index.Record { return h.after[seq] }

// live applies batches from the replica's position on, writing now and then,
// until writing fails: the process is dead then.
func (h *history) live(t *testing.T, g *rig, rnd *rand.Rand) {
	t.Helper()
	next := uint64(0)
	if pos := g.r.Position(); pos.Known {
		next = pos.Seq + 1
	}
	if next == 0 || int(next) >= len(h.batches) {
		g.r.Renew("m")
		next = 0
	}
	for ; int(next) < len(h.batches); next++ {
		g.apply(next, h.batches[next]...)
		if rnd.IntN(3) == 0 && !g.w.flush(t.Context()) {
			return
		}
	}
}

// cutter is a TCP relay that dies after a number of bytes.
type cutter struct {
	lis net.Listener

	mu    sync.Mutex
	conns []net.Conn
	left  int64
	dead  bool
	wg    sync.WaitGroup
}

func newCutter(t *testing.T, target string, limit int64) *cutter {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{lis: lis, left: limit}
	c.wg.Go(func() {
		for {
			in, err := lis.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil || !c.add(in, out) {
				in.Close()
				continue
			}
			c.wg.Go(func() { _, _ = io.Copy(out, &cutReader{c, in}); c.kill() })
			c.wg.Go(func() { _, _ = io.Copy(in, out); c.kill() })
		}
	})
	return c
}

func (c *cutter) addr() string { return c.lis.Addr().String() }

func (c *cutter) add(conns ...net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns = append(c.conns, conns...)
	return !c.dead
}

func (c *cutter) kill() {
	c.lis.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dead = true
	for _, conn := range c.conns {
		conn.Close()
	}
}

func (c *cutter) close() {
	c.kill()
	c.wg.Wait()
	c.kill() // connections accepted meanwhile
}

// cutReader reads until the cutter's bytes are used up.
type cutReader struct {
	c  *cutter
	in net.Conn
}

func (r *cutReader) Read(p []byte) (int, error) {
	n, err := r.in.Read(p[:min(len(p), 512)])
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	pass := min(int64(n), r.c.left)
	r.c.left -= pass
	if pass < int64(n) {
		return int(pass), io.EOF
	}
	return n, err
}

// TestRedisAway: a store that hangs or is gone holds up nobody, and the copy
// becomes whole by itself.
func TestRedisAway(t *testing.T) {
	t.Parallel()

	srv := redistest.Start(t)
	g := newRig(t, srv.URL())
	g.s.timeout = 100 * time.Millisecond
	g.warm()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { g.w.Run(ctx) })
	defer wg.Wait()
	defer cancel()

	g.r.Renew("m")
	g.apply(0, store(1, 0))
	g.awaitStored(srv.URL(), 0)
	srv.Pause()
	for seq := uint64(1); seq <= 100; seq++ {
		began := time.Now()
		g.apply(seq, store(kvevents.Hash(seq+1), kvevents.Hash(seq)))
		if took := time.Since(began); took > 50*time.Millisecond {
			t.Errorf("a batch took %v while Redis hung", took)
		}
	}
	srv.Resume()
	g.awaitStored(srv.URL(), 100)

	srv.Kill()
	g.apply(101, remove(1))
	srv.Restart()
	g.apply(102, store(500, 0))
	g.awaitStored(srv.URL(), 102)
	cancel()
	wg.Wait()
	g.wantWhole(srv.URL())
}

func (g *rig) awaitStored(url string, seq uint64) {
	g.t.Helper()
	s := newRig(g.t, url).s
	deadline := time.Now().Add(20 * time.Second)
	for {
		cp, ok, err := s.Load(g.t.Context(), "a")
		if err == nil && ok && cp.Head.Position.Seq == seq {
			return
		}
		if time.Now().After(deadline) {
			g.t.Fatalf("stored position is %+v (%v), want %d", cp.Head.Position, err, seq)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func TestWarmStartRefusesBadCopies(t *testing.T) {
	t.Parallel()

	srv := redistest.Start(t)
	tests := []struct {
		name   string
		spoil  func(ctx context.Context, s *Store) error
		result string
	}{
		{"none", func(ctx context.Context, s *Store) error { return s.rdb.FlushAll(ctx).Err() }, warmEmpty},
		{"another model", set("model", "other"), warmForeign},
		{"another scheme", set("scheme", "prefixroute-v0"), warmForeign},
		{"another layout", set("layout", "0"), warmBroken},
		{"a number that is none", set("seq", "many"), warmBroken},
		{"groups that are none", set("groups", "\xdd\xff\xff\xff\xff"), warmBroken},
		{"another digest", set("set_digest", "1"), warmBroken},
		{"a block is missing", func(ctx context.Context, s *Store) error {
			return s.rdb.HDel(ctx, s.key("a", "blocks"), encodeHash(1)).Err()
		}, warmBroken},
		{"a record that is none", func(ctx context.Context, s *Store) error {
			return s.rdb.HSet(ctx, s.key("a", "blocks"), encodeHash(1), "\xdd\xff\xff\xff\xff").Err()
		}, warmBroken},
		{"a hash that is none", func(ctx context.Context, s *Store) error {
			return s.rdb.HSet(ctx, s.key("a", "blocks"), "x", "y").Err()
		}, warmBroken},
	}
	for _, tt := range tests { // one after the other: they share the server
		g := newRig(t, srv.URL())
		g.warm()
		g.r.Renew("m")
		g.apply(0, store(1, 0), store(2, 1))
		g.flush()
		if err := tt.spoil(t.Context(), g.s); err != nil {
			t.Fatal(err)
		}
		next := newRig(t, srv.URL())
		next.r = belief.NewReplica(replicas.Replica{Name: "a", Model: "m"}, hashing.Scheme{}, func() {}, func() { next.w.Dirty(next.r) })
		next.warm()
		for _, result := range []string{warmRestored, warmEmpty, warmForeign, warmBroken, warmFailed} {
			want := 0.0
			if result == tt.result {
				want = 1
			}
			if got := testutil.ToFloat64(next.w.metrics.WarmStarts.WithLabelValues(result)); got != want {
				t.Errorf("%s: %v warm starts are %s, want %v", tt.name, got, result, want)
			}
		}
		if next.r.Position().Known {
			t.Errorf("%s: the replica has a position", tt.name)
		}
		// A cold start replaces the copy.
		next.r.Renew("m")
		next.apply(5, store(7, 0))
		next.flush()
		next.wantWhole(srv.URL())
	}
}

func set(field, value string) func(context.Context, *Store) error {
	return func(ctx context.Context, s *Store) error {
		return s.rdb.HSet(ctx, s.key("a", "meta"), field, value).Err()
	}
}

func TestWarmStartWithoutRedis(t *testing.T) {
	t.Parallel()

	g := newRig(t, "redis://127.0.0.1:1")
	g.warmWithin(300 * time.Millisecond)
	if got := testutil.ToFloat64(g.w.metrics.WarmStarts.WithLabelValues(warmFailed)); got != 1 {
		t.Errorf("%v warm starts failed, want 1", got)
	}
	if got := testutil.ToFloat64(g.w.metrics.Up); got != 0 {
		t.Errorf("up is %v without Redis, want 0", got)
	}
	g.r.Renew("m")
	if g.w.flush(t.Context()) {
		t.Error("a write to nobody succeeded")
	}
	if got := testutil.ToFloat64(g.w.metrics.Pending); got != 1 {
		t.Errorf("%v replicas are pending, want 1", got)
	}
}

func TestRecordRoundTrip(t *testing.T) {
	t.Parallel()

	parent := kvevents.Hash(1 << 63)
	for _, want := range []index.Record{
		{Hash: 1, Copies: []index.Copies{{Medium: "GPU", N: 1}}},
		{Hash: 0, Key: 1<<64 - 1, HasKey: true, BlockSize: 16, Local: 1 << 63, Copies: []index.Copies{{Medium: "CPU", Group: 63, N: 7}, {Medium: "DISK", N: 1}}},
		{Hash: 1<<64 - 1, BlockSize: 528, Local: 3, Parent: &parent, Conflict: true, Copies: []index.Copies{{Medium: "GPU", N: 2}}},
	} {
		value, err := encodeRecord(&want)
		if err != nil {
			t.Fatal(err)
		}
		hash, err := decodeHash(encodeHash(want.Hash))
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeRecord(hash, string(value))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("record (-want +got):\n%s", diff)
		}
	}
	if _, err := decodeRecord(1, string(make([]byte, maxValue+1))); err == nil {
		t.Error("an oversized record was read")
	}
}

// FuzzDecodeRecord: whatever Redis holds, reading it neither panics nor takes
// more than it is worth, and what is read is written the same again.
func FuzzDecodeRecord(f *testing.F) {
	parent := kvevents.Hash(7)
	for _, r := range []index.Record{
		{Copies: []index.Copies{{Medium: "GPU", N: 1}}},
		{Key: 1, HasKey: true, BlockSize: 16, Local: 2, Parent: &parent, Copies: []index.Copies{{Medium: "CPU", Group: 1, N: 2}}},
	} {
		value, err := encodeRecord(&r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(value))
	}
	f.Add("\x96\xc0\x00\x00\xc0\xc2\xdd\xff\xff\xff\xff")
	f.Add("\x96\xc0\x00\x00\xc0\xc2\x91\x93\xdb\xff\xff\xff\xff")
	f.Fuzz(func(t *testing.T, value string) {
		_, _ = decodeGroups(value)
		first, err := decodeRecord(1, value)
		if err != nil {
			return
		}
		again, err := encodeRecord(&first)
		if err != nil {
			t.Fatal(err)
		}
		second, err := decodeRecord(1, string(again))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(first, second); diff != "" {
			t.Errorf("round trip (-first +second):\n%s", diff)
		}
	})
}

func TestParseURL(t *testing.T) {
	t.Parallel()

	for _, bad := range []string{"127.0.0.1:6379", "http://h:1", "redis://h:1/x"} {
		if _, err := ParseURL(bad); err == nil {
			t.Errorf("ParseURL(%q) = nil error", bad)
		}
	}
	if _, err := Open("nonsense", "p", time.Second); err == nil {
		t.Error("Open took nonsense for a URL")
	}
}

// TestLoadBesideAWriter: a reader that has not acquired the copy never mixes two
// revisions.
func TestLoadBesideAWriter(t *testing.T) {
	t.Parallel()

	srv := redistest.Start(t)
	g := newRig(t, srv.URL())
	g.warm()
	g.r.Renew("m")
	g.flush()
	reader := newRig(t, srv.URL())
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for seq := uint64(0); ctx.Err() == nil; seq++ {
			g.apply(seq, store(kvevents.Hash(seq+1), kvevents.Hash(seq)))
			g.w.flush(ctx)
		}
	})
	read := 0
	for range 200 {
		cp, ok, err := reader.s.Load(t.Context(), "a")
		if errors.Is(err, errMoved) || !ok {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		read++
		if cp.Head.Position.Known && uint64(len(cp.Records)) != cp.Head.Position.Seq+1 {
			t.Fatalf("%d records at position %d", len(cp.Records), cp.Head.Position.Seq)
		}
	}
	cancel()
	wg.Wait()
	t.Logf("%d of 200 reads were undisturbed", read)
}
