//go:build cgo

package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	zmq "github.com/pebbe/zmq4"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/index"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// connect opens a socket that is connected to endpoint.
func connect(t *testing.T, kind zmq.Type, endpoint string) *zmq.Socket {
	t.Helper()
	s, err := zmq.NewSocket(kind)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if kind == zmq.SUB {
		err = s.SetSubscribe("")
	}
	if err := errors.Join(err, s.SetLinger(0), s.SetRcvhwm(0), s.SetRcvtimeo(50*time.Millisecond), s.Connect(endpoint)); err != nil {
		t.Fatal(err)
	}
	return s
}

// history asks the replay socket for everything, until batch last is there.
func (r replica) history(t *testing.T, last uint64) []kvevents.Message {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		dealer := connect(t, zmq.DEALER, r.ReplayEndpoint())
		if _, err := dealer.SendMessage(kvevents.ReplayRequest(0)); err != nil {
			t.Fatal(err)
		}
		var list []kvevents.Message
		for time.Now().Before(deadline) {
			frames, err := dealer.RecvMessageBytes(0)
			if errors.Is(err, zmq.Errno(syscall.EAGAIN)) {
				continue
			}
			m, end, err := kvevents.ParseReply(frames)
			if err != nil {
				t.Fatal(err)
			}
			if end {
				break
			}
			if r.cfg.EventForm == FormArray {
				if m.Topic != "" {
					t.Fatalf("reply of an old release has topic %q, want none", m.Topic)
				}
				m.Topic = r.Topic()
			}
			list = append(list, m)
		}
		if n := len(list); n > 0 && list[n-1].Seq >= last {
			return list
		}
	}
	t.Fatalf("replay never reached batch %d", last)
	return nil
}

func decode(t *testing.T, m kvevents.Message) []kvevents.Event {
	t.Helper()
	batch, err := kvevents.Decode(m.Payload)
	if err != nil || len(batch.Rejected) > 0 {
		t.Fatalf("batch %d: %v, rejected %v", m.Seq, err, batch.Rejected)
	}
	return batch.Events
}

// believed is what a belief says in the form of /admin/blocks.
func believed(b *index.Belief) []block {
	list := []block{}
	for _, x := range b.Blocks() {
		list = append(list, block{
			Hash: fmt.Sprintf("0x%016x", uint64(x.Hash)), Key: fmt.Sprintf("0x%016x", uint64(x.Key)),
			Group: x.Group, Medium: x.Medium, Copies: x.Copies,
		})
	}
	return list
}

// TestBeliefEqualsBlocks has an index follow the live events of a server under
// load, and compares it with the server's own list at every batch for which
// there is one.
func TestBeliefEqualsBlocks(t *testing.T) {
	t.Parallel()

	for _, form := range []EventForm{FormMap, FormArray} {
		t.Run(string(form), func(t *testing.T) {
			t.Parallel()
			cfg := testConfig()
			cfg.NumGPUBlocks, cfg.MaxNumSeqs, cfg.EventForm = 48, 6, form
			cfg.LoRAs = Adapters{{Name: "la", Path: "/la"}}
			cfg.Overhead, cfg.PerToken, cfg.InterToken = 200*time.Microsecond, time.Microsecond, 100*time.Microsecond
			r := start(t, cfg)

			live := follow(t, r)
			snapshots := load(t, r)
			final := r.snapshot(t)
			snapshots = append(snapshots, final)
			messages := live(*final.LastSeq)
			// The first batches may have gone by before the subscription was there.
			messages = append(r.history(t, *final.LastSeq)[:messages[0].Seq], messages...)
			compare(t, r, messages, snapshots)
		})
	}
}

// follow receives live messages from now on. The function it returns waits for
// one with the number last and returns all.
func follow(t *testing.T, r replica) func(last uint64) []kvevents.Message {
	t.Helper()
	sub := connect(t, zmq.SUB, r.EventsEndpoint())
	target := make(chan uint64, 1)
	done := make(chan []kvevents.Message, 1)
	go func() {
		var list []kvevents.Message
		last, known := uint64(0), false
		deadline := time.Now().Add(time.Minute)
		for time.Now().Before(deadline) && (!known || len(list) == 0 || list[len(list)-1].Seq < last) {
			select {
			case last = <-target:
				known = true
			default:
			}
			if frames, err := sub.RecvMessageBytes(0); err == nil {
				if m, err := kvevents.ParseMessage(frames); err == nil {
					list = append(list, m)
				}
			}
		}
		done <- list
	}()
	return func(last uint64) []kvevents.Message {
		target <- last
		list := <-done
		if len(list) == 0 {
			t.Fatal("no live message came")
		}
		return list
	}
}

// load sends requests of all kinds from several clients, with evictions and
// resets between them, and collects snapshots on the way.
func load(t *testing.T, r replica) []snapshot {
	t.Helper()
	var clients sync.WaitGroup
	for c := range uint64(8) {
		clients.Go(func() {
			rnd := rand.New(rand.NewPCG(7, c))
			for range 60 {
				request(t, r, rnd)
			}
		})
	}
	var list []snapshot
	stopped := make(chan struct{})
	go func() { clients.Wait(); close(stopped) }()
	rnd := rand.New(rand.NewPCG(7, 99))
	for {
		select {
		case <-stopped:
			r.cached(t, tokens(1, 17)) // so that a last reset is announced
			return list
		default:
		}
		switch rnd.IntN(40) {
		case 0:
			r.call(t, http.MethodPost, "/admin/evict", object{"count": 1 + rnd.IntN(5)}, nil)
		case 1:
			r.call(t, http.MethodPost, "/admin/evict", object{"prefix": object{"tokens": tokens(uint32(rnd.IntN(3)), 40)}}, nil)
		case 2:
			r.call(t, http.MethodPost, "/reset_prefix_cache?reset_running_requests=true", nil, nil)
		default:
			list = append(list, r.snapshot(t))
		}
	}
}

// request sends one request of a random kind; every fifth client goes away.
func request(t *testing.T, r replica, rnd *rand.Rand) {
	body := object{
		"model":      []string{"tiny", "tiny", "la"}[rnd.IntN(3)],
		"prompt":     tokens(uint32(rnd.IntN(3)), 1+rnd.IntN(200)),
		"max_tokens": 1 + rnd.IntN(40),
		"stream":     rnd.IntN(2) == 0,
		"n":          1 + rnd.IntN(2),
	}
	if rnd.IntN(4) == 0 {
		body["cache_salt"] = "s"
	}
	if rnd.IntN(8) == 0 {
		body["prompt_logprobs"] = 1
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if rnd.IntN(5) == 0 {
		time.AfterFunc(time.Duration(rnd.IntN(3000))*time.Microsecond, cancel)
	}
	status, answer, err := r.do(ctx, http.MethodPost, "/v1/completions", body)
	if ctx.Err() == nil && (err != nil || status != http.StatusOK) {
		t.Errorf("request got %d %s, %v; want 200", status, answer, err)
	}
}

// compare applies the messages one by one and looks at every snapshot when its
// batch has come.
func compare(t *testing.T, r replica, messages []kvevents.Message, snapshots []snapshot) {
	t.Helper()
	belief := index.NewBelief(hashing.Scheme{}, "tiny")
	compared := 0
	for i, m := range messages {
		if m.Seq != uint64(i) || m.Topic != r.Topic() {
			t.Fatalf("message %d is number %d of %q, want no gap and topic %q", i, m.Seq, m.Topic, r.Topic())
		}
		for _, ev := range decode(t, m) {
			if eff := belief.Apply(ev); eff.BelowZero > 0 || eff.Conflicts > 0 {
				t.Fatalf("batch %d: %T has effect %+v", m.Seq, ev, eff)
			}
		}
		for _, s := range snapshots {
			if s.LastSeq == nil || *s.LastSeq != m.Seq || s.Pending > 0 {
				continue
			}
			compared++
			if d := cmp.Diff(s.Blocks, believed(belief)); d != "" {
				t.Fatalf("at batch %d: blocks of the server (-) and believed (+):\n%s", m.Seq, d)
			}
		}
	}
	if compared < 20 {
		t.Errorf("%d snapshots compared, expected 20 at least: the load is too short", compared)
	}
	t.Logf("%d batches, %d snapshots", len(messages), compared)
}

// TestAcceptanceScenario is a workload that was run on vLLM 0.31.0 by others:
// the figures are that engine's.
func TestAcceptanceScenario(t *testing.T) {
	t.Parallel()

	cfg := testConfig()
	cfg.NumGPUBlocks, cfg.BlockSize = 585, 16
	cfg.Overhead = 2 * time.Millisecond // so that concurrent requests overlap
	r := start(t, cfg)
	prompts := func(root uint32, common, own, n int) (list [][]uint32) {
		for k := range uint32(n) {
			list = append(list, append(tokens(root, common), tokens(root+1_000_000+10_000*k, own)...))
		}
		return list
	}
	shared, burst := prompts(1, 512, 128, 8), prompts(50_000_000, 512, 128, 8)
	evict := prompts(100_000_000, 0, 1024, 120)
	after := func(first, n, others int) []int { return append([]int{first}, slices.Repeat([]int{others}, n-1)...) }

	phase(t, r, "shared", 1, shared, after(0, 8, 512))
	phase(t, r, "repeat", 1, shared, after(624, 8, 624))
	phase(t, r, "burst", 8, burst, after(0, 8, 512))
	phase(t, r, "evict", 4, evict, after(0, 120, 0))
	phase(t, r, "recheck", 1, shared, after(0, 8, 512))
	var reset struct{ Success bool }
	if r.call(t, http.MethodPost, "/reset_prefix_cache", nil, &reset); !reset.Success {
		t.Fatal("reset of an idle server was refused")
	}
	phase(t, r, "after reset", 1, shared[:2], after(0, 2, 512))

	got := map[string]int{}
	for _, m := range r.history(t, *r.snapshot(t).LastSeq) {
		for _, ev := range decode(t, m) {
			switch ev := ev.(type) {
			case *kvevents.BlockStored:
				got["stored"]++
				if ev.Parent == nil {
					got["stored without parent"]++
				}
				if !ev.Aligned() {
					t.Errorf("batch %d: %d tokens for %d blocks", m.Seq, len(ev.TokenIDs), len(ev.BlockHashes))
				}
			case *kvevents.BlockRemoved:
				got["removed"] += len(ev.BlockHashes)
			case *kvevents.AllBlocksCleared:
				got["cleared"]++
			}
		}
	}
	want := map[string]int{"stored": 154, "stored without parent": 124, "removed": 7392, "cleared": 1}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("events (-vLLM +fakevllm):\n%s", d)
	}
}

// phase sends prompts from so many clients and compares the cached tokens, in
// ascending order.
func phase(t *testing.T, r replica, name string, clients int, prompts [][]uint32, want []int) {
	t.Helper()
	var mu sync.Mutex
	var got []int
	next := make(chan []uint32)
	var workers sync.WaitGroup
	for range clients {
		workers.Go(func() {
			for p := range next {
				c := r.cached(t, p)
				mu.Lock()
				got = append(got, c)
				mu.Unlock()
			}
		})
	}
	for _, p := range prompts {
		next <- p
	}
	close(next)
	workers.Wait()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%s: cached tokens %v, want %v", name, got, want)
	}
}

func TestSwitchedFaultsLoseBatches(t *testing.T) {
	t.Parallel()

	r := start(t, testConfig())
	sub := connect(t, zmq.SUB, r.EventsEndpoint())
	receive := func() (m kvevents.Message, ok bool) {
		frames, err := sub.RecvMessageBytes(0)
		if err != nil {
			return m, false
		}
		if m, err = kvevents.ParseMessage(frames); err != nil {
			t.Fatal(err)
		}
		return m, true
	}
	next := uint32(0)
	serve := func() { r.cached(t, tokens(1000*next, 16)); next++ }
	deadline := time.Now().Add(20 * time.Second)
	for connected := false; !connected; _, connected = receive() {
		if serve(); time.Now().After(deadline) {
			t.Fatal("subscriber got nothing in 20 s")
		}
	}

	var status struct {
		Dropping int
		Dropped  int `json:"dropped_total"`
	}
	r.call(t, http.MethodPost, "/admin/events", object{"drop": 2, "replayable": true}, &status)
	if status.Dropping != 2 {
		t.Errorf("dropping %d, want 2", status.Dropping)
	}
	lost := *r.snapshot(t).LastSeq + 1
	serve()
	serve()
	serve()
	if m, ok := receive(); !ok || m.Seq != lost+2 {
		t.Errorf("after the loss came number %d, want %d", m.Seq, lost+2)
	}
	history := r.history(t, lost+2)
	if len(history) != int(lost)+3 {
		t.Errorf("replay has %d batches, want all %d", len(history), lost+3)
	}
	r.call(t, http.MethodPost, "/admin/events", object{"drop": 0}, &status)
	if status.Dropped != 2 {
		t.Errorf("%d dropped in total, want 2", status.Dropped)
	}
}

// Two servers on one port would mix their events: the second one has to fail,
// naming the address.
func TestTakenPortsAreErrors(t *testing.T) {
	t.Parallel()

	first := start(t, testConfig())
	for name, change := range map[string]func(*Config){
		"http":   func(c *Config) { c.Listen = first.URL()[len("http://"):] },
		"events": func(c *Config) { c.Events = "tcp://*:" + port(first.EventsEndpoint()) },
		"replay": func(c *Config) { c.Replay = "tcp://*:" + port(first.ReplayEndpoint()) },
	} {
		cfg := testConfig()
		change(&cfg)
		a, err := New(t.Context(), cfg, first.log)
		if err == nil {
			t.Errorf("%s: a second server on the same port starts, want an error", name)
			_ = a.Close()
		} else if !bytes.Contains([]byte(err.Error()), []byte("address already in use")) {
			t.Errorf("%s: error is %q, want address already in use", name, err)
		}
	}
}

func TestWildcardEndpointIsReachable(t *testing.T) {
	t.Parallel()

	cfg := testConfig()
	cfg.Events, cfg.Replay = "tcp://*:*", "ipc://"+filepath.Join(t.TempDir(), "replay")
	r := start(t, cfg)
	if got, want := r.EventsEndpoint(), "tcp://127.0.0.1:"+port(r.EventsEndpoint()); got != want {
		t.Errorf("EventsEndpoint() = %q, want %q", got, want)
	}
	if got := r.ReplayEndpoint(); got != cfg.Replay {
		t.Errorf("ReplayEndpoint() = %q, want %q", got, cfg.Replay)
	}
	r.cached(t, tokens(1, 16))
	if got := len(r.history(t, 0)); got != 1 {
		t.Errorf("replay over ipc has %d batches, want 1", got)
	}
	var sources map[string]struct {
		Endpoint string
		Replay   string `json:"replay_endpoint"`
		Topic    string
	}
	r.call(t, http.MethodGet, "/kv_event_sources", nil, &sources)
	if s := sources["0"]; s.Endpoint != "tcp://*:"+port(r.EventsEndpoint()) || s.Replay != cfg.Replay || s.Topic != r.Topic() {
		t.Errorf("/kv_event_sources = %+v, want the wildcard with its real port", sources)
	}
}

func port(endpoint string) string {
	return endpoint[bytes.LastIndexByte([]byte(endpoint), ':')+1:]
}
