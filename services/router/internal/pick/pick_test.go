package pick

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/scoring"
	"github.com/prefixroute/prefixroute/pkg/tokenize"
	"github.com/prefixroute/prefixroute/services/router/internal/approx"
	"github.com/prefixroute/prefixroute/services/router/internal/fleet"
	"github.com/prefixroute/prefixroute/services/router/internal/indexclient"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// members is a fleet that stands still.
type members []fleet.Member

func (m members) Serving(string) ([]fleet.Member, error) {
	if len(m) == 0 {
		return nil, fleet.ErrUnavailable
	}
	return m, nil
}

// idle is n replicas without load, named r0, r1 and so on.
func idle(n int) members {
	var m members
	for i := range n {
		name := fmt.Sprintf("r%d", i)
		m = append(m, fleet.Member{Name: name, URL: &url.URL{Scheme: "http", Host: name}, Load: scoring.Load{Known: true}})
	}
	return m
}

// index holds, of any prompt, a number of leading blocks for each replica.
type index struct {
	mu       sync.Mutex
	replicas map[string]indexclient.Replica
	held     map[string]int
	state    indexclient.State // of every match
	err      error
	queries  []indexclient.Query
	commits  []indexclient.Commit
	complete []uint64
}

// following is an index of all members, live, in blocks of 16.
func following(all members) *index {
	x := &index{replicas: map[string]indexclient.Replica{}, held: map[string]int{}, state: indexclient.Live}
	for _, m := range all {
		x.replicas[m.Name] = indexclient.Replica{
			Name: m.Name, Model: "m", Scheme: hashing.Scheme{}.Name(), BlockSizes: []int{16}, State: indexclient.Live,
		}
	}
	return x
}

func (x *index) Replicas() (map[string]indexclient.Replica, bool, string) {
	return x.replicas, true, ""
}

func (x *index) Match(_ context.Context, q indexclient.Query) (indexclient.Answer, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.queries = append(x.queries, q)
	a := indexclient.Answer{Matches: make(map[string]indexclient.Match, len(q.Replicas))}
	for _, name := range q.Replicas {
		a.Matches[name] = indexclient.Match{GPU: min(x.held[name], len(q.Keys)), State: x.state}
	}
	return a, x.err
}

func (x *index) Commit(c indexclient.Commit) uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.commits = append(x.commits, c)
	return uint64(len(x.commits))
}

func (x *index) Complete(id uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.complete = append(x.complete, id)
}

func (x *index) Observe(indexclient.Observation) {}

func newPicker(t testing.TB, all members, x *index) *Picker {
	t.Helper()
	policy, err := scoring.New(scoring.PolicyPrefix, scoring.Config{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Policy: policy, BlockSize: 16, MaxBlocks: 10_000, Deadline: 10 * time.Second, Seed: 42}
	var i Index
	if x != nil {
		i = x
	}
	p, err := New(cfg, all, i, approx.New(1000), NewMetrics(prometheus.NewRegistry(), policy.Name()), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// request is a completion of prompts that are token ids.
func request(t testing.TB, prompts ...string) tokenize.Request {
	t.Helper()
	body := `{"model":"m","prompt":[` + strings.Join(prompts, ",") + `]}`
	r, err := tokenize.ParseCompletion([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// prompt is n token ids from first on.
func prompt(first, n int) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = strconv.Itoa(first + i)
	}
	return "[" + strings.Join(parts, ",") + "]"
}

// send decides r and commits it.
func send(t testing.TB, p *Picker, r tokenize.Request) *Decision {
	t.Helper()
	v, err := p.Look(context.Background(), p.Prepare(context.Background(), r))
	if err != nil {
		t.Fatal(err)
	}
	d, err := p.Choose(v, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Commit(d)()
	return d
}

func TestColdPromptsInSequenceSpreadEvenly(t *testing.T) {
	t.Parallel()

	p := newPicker(t, idle(8), nil)
	count := map[string]int{}
	for i := range 8000 {
		count[send(t, p, request(t, prompt(100*i, 20))).Chosen().Name]++
	}
	for name, n := range count {
		if n < 760 || n > 1240 { // 12.5 % and 3 points either way
			t.Errorf("%s got %d of 8000, want 1000 or near", name, n)
		}
	}
}

func TestColdPromptsAtOnceSpread(t *testing.T) {
	t.Parallel()

	all := idle(8)
	p := newPicker(t, all, following(all))
	var wg sync.WaitGroup
	var mu sync.Mutex
	count := map[string]int{}
	for i := range 800 {
		wg.Go(func() {
			name := send(t, p, request(t, prompt(100*i, 20))).Chosen().Name
			mu.Lock()
			count[name]++
			mu.Unlock()
		})
	}
	wg.Wait()
	for name, n := range count {
		if n > 200 {
			t.Errorf("%s got %d of 800, want at most twice the mean of 100", name, n)
		}
	}
}

func TestOnlyWhatWasSentIsBelieved(t *testing.T) {
	t.Parallel()

	all := idle(3)
	x := following(all)
	p := newPicker(t, all, x)
	r := request(t, prompt(0, 40))
	v, err := p.Look(t.Context(), p.Prepare(t.Context(), r))
	if err != nil {
		t.Fatal(err)
	}
	told := p.Explain(v).Chosen().Name
	if cold, turn := p.State(); len(cold) > 0 || turn > 0 {
		t.Errorf("cold order %v, turn %d after an explanation; want none", cold, turn)
	}
	d, err := p.Choose(v, nil)
	if err != nil {
		t.Fatal(err)
	}
	name := d.Chosen().Name
	if name != told {
		t.Errorf("chose %s, explained as %s", name, told)
	}
	if n := p.approx.Match(name, v.chains[0]); n > 0 || len(x.commits) > 0 {
		t.Errorf("%d blocks believed, %d commits before anything was sent; want none", n, len(x.commits))
	}
	end := p.Commit(d)
	if n := p.approx.Match(name, v.chains[0]); n != 3 || len(x.commits) != 1 || len(x.complete) != 0 {
		t.Errorf("%d blocks, %d commits, %d completions; want 3, 1, 0", n, len(x.commits), len(x.complete))
	}
	end()
	if !cmp.Equal([]uint64{1}, x.complete) {
		t.Errorf("completions %v, want 1", x.complete)
	}

	// A request that matches somewhere says nothing about who takes cold ones.
	x.held["r2"] = 2
	warm := send(t, p, request(t, prompt(0, 40)))
	if cold, _ := p.State(); warm.Chosen().Name != "r2" || !cmp.Equal([]string{name}, cold) {
		t.Errorf("warm request went to %s, cold order %v; want r2 and no change", warm.Chosen().Name, cold)
	}
}

func TestChooseAgainWithoutTheTried(t *testing.T) {
	t.Parallel()

	all := idle(3)
	x := following(all)
	x.held["r0"], x.held["r1"] = 5, 3
	p := newPicker(t, all, x)
	v, err := p.Look(t.Context(), p.Prepare(t.Context(), request(t, prompt(0, 100))))
	if err != nil {
		t.Fatal(err)
	}
	var tried []string
	for range 3 {
		d, err := p.Choose(v, tried)
		if err != nil {
			t.Fatal(err)
		}
		tried = append(tried, d.Chosen().Name)
	}
	if diff := cmp.Diff([]string{"r0", "r1", "r2"}, tried); diff != "" {
		t.Errorf("order of choice (-want +got):\n%s", diff)
	}
	if _, err := p.Choose(v, tried); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("Choose with all tried: error %v, want ErrUnavailable", err)
	}
	if len(x.queries) != 1 {
		t.Errorf("%d lookups, want one", len(x.queries))
	}
	if _, turn := p.State(); turn != 1 {
		t.Errorf("%d turns passed, want one for the request", turn)
	}
	if n := testutil.ToFloat64(p.metrics.Decisions.WithLabelValues("prefix", Precise, "none")); n != 1 {
		t.Errorf("%v decisions counted, want 1", n)
	}
}

// An indexer that does not answer vouches for nobody, not even for a prompt of
// which there is nothing to reuse.
func TestShortPromptIsPreciseOnlyByAnAnswer(t *testing.T) {
	t.Parallel()

	all := idle(2)
	x := following(all)
	p := newPicker(t, all, x)
	if v := send(t, p, request(t, prompt(0, 16))).View; v.Index != Precise || v.Candidates[0].Total != 0 {
		t.Errorf("index %s of %d blocks, want precise of 0", v.Index, v.Candidates[0].Total)
	}
	x.err = context.DeadlineExceeded
	if v := send(t, p, request(t, prompt(0, 16))).View; v.Index != Approximate || v.Reason != ReasonDeadline || v.Candidates[0].Total != 1 {
		t.Errorf("index %s for %s of %d blocks, want approximate for deadline of 1", v.Index, v.Reason, v.Candidates[0].Total)
	}
}

// A stream can break between the watch and the lookup.
func TestStateOfTheAnswerCounts(t *testing.T) {
	t.Parallel()

	all := idle(2)
	x := following(all)
	x.held["r1"], x.state = 2, indexclient.Gap
	p := newPicker(t, all, x)
	if d := send(t, p, request(t, prompt(0, 40))); d.View.Index != Approximate || d.View.Reason != ReasonGap || d.Chosen().Matched != 0 {
		t.Errorf("index %s for %s with %d blocks, want approximate for stream_gap with 0", d.View.Index, d.View.Reason, d.Chosen().Matched)
	}
}

func TestModelAndSaltStayApart(t *testing.T) {
	t.Parallel()

	p := newPicker(t, idle(1), nil)
	chain := func(model, salt string) []uint64 {
		v, err := p.Look(t.Context(), p.Prepare(t.Context(), tokenize.Request{Model: model, Salt: salt, Prompts: []tokenize.Prompt{{Tokens: []uint32{1}}}}))
		if err != nil {
			t.Fatal(err)
		}
		return v.chains[0]
	}
	if cmp.Equal(chain("m", "2"), chain("m2", "")) {
		t.Error("model m with salt 2 has the blocks of model m2 without one")
	}
}

// No index knows anything of a prompt that only the engine can read.
func TestOpaquePromptIsNeverPrecise(t *testing.T) {
	t.Parallel()

	all := idle(2)
	p := newPicker(t, all, following(all))
	r, err := tokenize.ParseCompletion([]byte(`{"model":"m","prompt_embeds":"AAAA"}`))
	if err != nil {
		t.Fatal(err)
	}
	d := send(t, p, r)
	if d.View.Index != Approximate || d.View.Reason != ReasonTokenizer || d.Chosen().Total != 0 {
		t.Errorf("index %s for %s of %d blocks, want approximate for tokenizer of 0", d.View.Index, d.View.Reason, d.Chosen().Total)
	}
}

// What a decision rests on is what is left of the candidates.
func TestIndexIsThatOfTheCandidatesLeft(t *testing.T) {
	t.Parallel()

	all := idle(2)
	x := following(all)
	delete(x.replicas, "r0")
	x.held["r1"] = 1
	p := newPicker(t, all, x)
	v, err := p.Look(t.Context(), p.Prepare(t.Context(), request(t, prompt(0, 100))))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		tried  []string
		index  string
		reason Reason
	}{
		{nil, Mixed, ReasonNotFollowed},
		{[]string{"r0"}, Precise, ReasonNone},
		{[]string{"r1"}, Approximate, ReasonNotFollowed},
	} {
		d, err := p.Choose(v, tt.tried)
		if err != nil {
			t.Fatal(err)
		}
		if d.View.Index != tt.index || d.View.Reason != tt.reason {
			t.Errorf("without %v: index %s for %s, want %s for %s", tt.tried, d.View.Index, d.View.Reason, tt.index, tt.reason)
		}
	}
}

// The indexers count every request in flight, also where they could not say what
// the replica holds.
func TestCommitOfAGuess(t *testing.T) {
	t.Parallel()

	all := idle(1)
	x := following(all)
	x.err = context.DeadlineExceeded
	p := newPicker(t, all, x)
	send(t, p, request(t, prompt(0, 40)))
	want := []indexclient.Commit{{Replica: "r0", Model: "m", Scheme: hashing.Scheme{}.Name()}}
	if diff := cmp.Diff(want, x.commits); diff != "" {
		t.Errorf("commits (-want +got):\n%s", diff)
	}
	if len(x.complete) != 1 {
		t.Errorf("%d completions, want 1", len(x.complete))
	}
}

// A client that left says nothing about the indexers.
func TestLookupThatNobodyWaitsFor(t *testing.T) {
	t.Parallel()

	all := idle(1)
	x := following(all)
	x.err = context.Canceled
	p := newPicker(t, all, x)
	if v := send(t, p, request(t, prompt(0, 40))).View; v.Reason != ReasonCanceled {
		t.Errorf("reason %s, want canceled", v.Reason)
	}
}

func TestBatchIsJudgedAsAWhole(t *testing.T) {
	t.Parallel()

	all := idle(2)
	x := following(all)
	x.held["r1"] = 2
	p := newPicker(t, all, x)
	d := send(t, p, request(t, prompt(0, 40), prompt(1000, 100)))
	c := d.Chosen()
	if c.Name != "r1" || c.Matched != 4 || c.Total != 2+6 || !c.Precise {
		t.Errorf("batch went to %s with %d/%d, precise %v; want r1 with 4/8", c.Name, c.Matched, c.Total, c.Precise)
	}
	if len(x.queries) != 2 {
		t.Errorf("%d lookups, want one for each prompt", len(x.queries))
	}
	if len(x.commits) != 1 || len(x.commits[0].Keys) != 2+6 {
		t.Errorf("commits %v, want one, with the keys of both prompts", x.commits)
	}
	p.Observe(d, 140, 32) // of which prompt?
	if n := testutil.ToFloat64(p.metrics.Cached.WithLabelValues(Precise)); n != 0 {
		t.Errorf("%v cached tokens counted for a batch, want none", n)
	}

	// Several answers to one prompt: the later ones hit what the first one stored.
	r := request(t, prompt(0, 40))
	r.N = 2
	p.Observe(send(t, p, r), 40, 32)
	if n := testutil.ToFloat64(p.metrics.Cached.WithLabelValues(Precise)); n != 0 {
		t.Errorf("%v cached tokens counted for two answers, want none", n)
	}

	var many []string
	for i := range 50 {
		many = append(many, prompt(1000*i, 40))
	}
	if d := send(t, p, request(t, many...)); d.Chosen().Total != 2*maxPrompts {
		t.Errorf("batch of 50 has %d blocks, want those of its first %d prompts", d.Chosen().Total, maxPrompts)
	}
}

func TestExpectedTokens(t *testing.T) {
	t.Parallel()

	p := newPicker(t, idle(1), nil)
	first := send(t, p, request(t, prompt(0, 40)))
	p.Observe(first, 40, 0)
	again := send(t, p, request(t, prompt(0, 40)))
	if again.Chosen().Matched != 3 {
		t.Fatalf("match is %d blocks, want 3 with the partial one", again.Chosen().Matched)
	}
	p.Observe(again, 40, 32) // two full blocks: exactly what an engine can reuse
	p.Observe(again, 40, 0)  // they were evicted
	m := p.metrics
	got := []float64{
		testutil.ToFloat64(m.Observations.WithLabelValues(Approximate, verdictExact)), testutil.ToFloat64(m.Observations.WithLabelValues(Approximate, verdictOver)),
		testutil.ToFloat64(m.Over.WithLabelValues(Approximate)), testutil.ToFloat64(m.Under.WithLabelValues(Approximate)),
	}
	if diff := cmp.Diff([]float64{2, 1, 32, 0}, got); diff != "" {
		t.Errorf("exact, over, tokens over, tokens under (-want +got):\n%s", diff)
	}
}

func TestForwardTakesTheLeastBusy(t *testing.T) {
	t.Parallel()

	all := idle(3)
	all[0].Load.InFlight, all[1].Load.InFlight, all[2].Load.InFlight = 4, 1, 2
	p := newPicker(t, all, nil)
	d, err := p.Forward("", nil)
	if err != nil || d.Chosen().Name != "r1" {
		t.Fatalf("Forward: %v, want r1", err)
	}
	d, err = p.Forward("", []string{"r1"})
	if err != nil || d.Chosen().Name != "r2" {
		t.Fatalf("Forward without r1: %v, want r2", err)
	}
	if _, turn := p.State(); turn != 0 {
		t.Errorf("%d requests decided, want none: these have no prompt", turn)
	}
	if _, err := newPicker(t, nil, nil).Forward("", nil); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("Forward with nobody: error %v, want ErrUnavailable", err)
	}
}

// BenchmarkDecision is the whole decision for one request, lookup over the
// network apart.
func BenchmarkDecision(b *testing.B) {
	words := strings.Repeat("the quick brown fox jumps over the lazy dog ", 334)
	chat, err := tokenize.ParseChat([]byte(`{"model":"m","messages":[{"role":"user","content":"` + words + `"}]}`))
	if err != nil {
		b.Fatal(err)
	}
	for _, bb := range []struct {
		name    string
		request tokenize.Request
		precise bool
	}{
		{"lesson/approximate", chat, false},
		{"lesson/precise", chat, true},
		{"ids/precise", request(b, prompt(0, 3000)), true},
	} {
		b.Run(bb.name+"/tokens=3000/replicas=8", func(b *testing.B) {
			all := idle(8)
			var x *index
			if bb.precise {
				x = following(all)
				x.held["r3"] = 100
			}
			p := newPicker(b, all, x)
			send(b, p, bb.request)
			b.ReportAllocs()
			for b.Loop() {
				send(b, p, bb.request)
				if x != nil {
					x.queries, x.commits, x.complete = x.queries[:0], x.commits[:0], x.complete[:0]
				}
			}
		})
	}
}
