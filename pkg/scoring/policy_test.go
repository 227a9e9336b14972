package scoring

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func mustNew(tb interface {
	Helper()
	Fatal(args ...any)
}, name string, cfg Config,
) *Policy {
	tb.Helper()
	p, err := New(name, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()

	f := func(name string, cfg Config, want ...string) {
		t.Helper()
		_, err := New(name, cfg)
		if err == nil {
			t.Errorf("New(%q, %+v) accepted it", name, cfg)
			return
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("New(%q): error %q lacks %q", name, err, w)
			}
		}
	}
	f("best", Config{}, `policy is "best", must be one of prefix, prefix-only, least-queue, round-robin, random`)
	f(PolicyPrefix, Config{Weights: map[string]float64{"prefx": 1}}, `weight of "prefx": no such scorer, have prefix, queue`)
	f("", Config{Weights: map[string]float64{TermKV: math.NaN(), TermQueue: -1}, Prefix: PrefixParams{MatchLengthWeight: 2}},
		"policy is", "weight of kv is NaN", "weight of queue is -1", "match-length-weight is 2", "match-length-scale-tokens is 0")
	f(PolicyPrefix, Config{Weights: map[string]float64{TermQueue: math.Inf(1)}}, "must be a finite number")
}

func TestNeverUsedText(t *testing.T) {
	t.Parallel()

	for _, n := range []NeverUsed{Equal, Ranked} {
		if got, err := ParseNeverUsed(n.String()); err != nil || got != n {
			t.Errorf("ParseNeverUsed(%q) = %v, %v", n, got, err)
		}
	}
	if _, err := ParseNeverUsed("best"); err == nil || !strings.Contains(err.Error(), `never-used is "best", must be equal or ranked`) {
		t.Errorf("error %v", err)
	}
}

// TestBaselines holds what the policies without weights go by.
func TestBaselines(t *testing.T) {
	t.Parallel()

	cands := []Candidate{
		{Name: "c", Matched: 1, Total: 4, Load: Load{InFlight: 2, Known: true}},
		{Name: "a", Matched: 3, Total: 4, Load: Load{InFlight: 9, Known: true, Waiting: 50, KVUsage: 1}},
		{Name: "b", Load: Load{InFlight: 1}},
	}
	f := func(policy string, state State, want, terms string) {
		t.Helper()
		d := mustNew(t, policy, Config{}).Decide(cands, state, rand.New(rand.NewPCG(3, 4)))
		if got := cands[d.Chosen].Name; want != "" && got != want {
			t.Errorf("%s chose %s, want %s", policy, got, want)
		}
		explained, err := json.Marshal(d.Explain(d.Chosen))
		if err != nil || string(explained) != terms {
			t.Errorf("%s explains it by %s, want %s (%v)", policy, explained, terms, err)
		}
	}
	f(PolicyPrefixOnly, State{}, "a", `{"prefix":{"score":0.75,"weight":3}}`)
	f(PolicyLeastQueue, State{}, "b", `{"in-flight":{"score":1,"weight":1}}`)
	for turn, want := range []string{"a", "b", "c", "a"} {
		f(PolicyRoundRobin, State{Turn: uint64(turn)}, want, `{"turn":{"score":1,"weight":1}}`)
	}
	f(PolicyRoundRobin, State{Turn: math.MaxUint64}, "a", `{"turn":{"score":1,"weight":1}}`)
	f(PolicyRandom, State{}, "", `{}`)

	for _, name := range Policies() {
		p := mustNew(t, name, Config{})
		if d := p.Decide(nil, State{}, nil); d.Chosen != -1 || len(d.Sums) != 0 {
			t.Errorf("%s without candidates: %+v, want none chosen", name, d)
		}
	}
}

// TestWithoutMatch (BB-148): no index, no tokens or no prompt leaves the decision
// to the other scorers.
func TestWithoutMatch(t *testing.T) {
	t.Parallel()

	cands := []Candidate{
		{Name: "busy", Load: Load{Known: true, Waiting: 9, KVUsage: 0.9}},
		{Name: "idle", Load: Load{Known: true, Waiting: 0, KVUsage: 0.1}},
	}
	d := mustNew(t, PolicyPrefix, Config{}).Decide(cands, State{}, nil)
	want := map[string]Term{
		TermPrefix: {Weight: 3, Unscored: true}, TermQueue: {Score: 1, Weight: 2}, TermKV: {Score: 0.9, Weight: 2}, TermNoHitLRU: {Score: 1, Weight: 1},
	}
	if diff := cmp.Diff(want, d.Explain(d.Chosen)); d.Chosen != 1 || diff != "" {
		t.Errorf("chose %d (-want +got):\n%s", d.Chosen, diff)
	}
}

// TestLoadSense holds the trials of measured load: a stuck engine (BB-149), a
// usage near zero on all (BB-154), a replica that was never scraped, and figures
// that make no sense.
func TestLoadSense(t *testing.T) {
	t.Parallel()

	busy := Load{Known: true, Running: 20, KVUsage: 0.5}
	f := func(what string, loser, winner Candidate) {
		t.Helper()
		loser.Name, winner.Name = "loser", "winner"
		p := mustNew(t, PolicyPrefix, Config{})
		for _, cands := range [][]Candidate{{loser, winner}, {winner, loser}} {
			if d := p.Decide(cands, State{}, nil); cands[d.Chosen].Name != "winner" {
				t.Errorf("%s: it won with sums %v, terms %+v", what, d.Sums, d.Terms)
			}
		}
	}
	f("stuck engine", Candidate{Load: Load{Known: true, Waiting: 64}}, Candidate{Load: busy})
	f("usage near zero", Candidate{Load: Load{Known: true, Waiting: 1, KVUsage: 0}}, Candidate{Load: Load{Known: true, KVUsage: 0.00001}})
	f("usage near zero, match", Candidate{Total: 100, Load: Load{Known: true, KVUsage: 0}},
		Candidate{Total: 100, Matched: 1, Load: Load{Known: true, KVUsage: 0.00001}})
	f("never scraped", Candidate{}, Candidate{Load: busy})
	f("usage NaN", Candidate{Load: Load{Known: true, KVUsage: math.NaN()}}, Candidate{Load: busy})
	f("usage infinite", Candidate{Load: Load{Known: true, KVUsage: math.Inf(-1)}}, Candidate{Load: busy})
	f("usage negative", Candidate{Load: Load{Known: true, KVUsage: -3}}, Candidate{Load: busy})
	f("usage beyond 1", Candidate{Load: Load{Known: true, KVUsage: 97.5}}, Candidate{Load: busy})
	f("queue negative", Candidate{Load: Load{Known: true, Waiting: math.MinInt}}, Candidate{Load: busy})
	f("matched without total", Candidate{Matched: 99}, Candidate{Load: busy})
	f("matched beyond total", Candidate{Matched: 99, Total: 10, Load: Load{Known: true, KVUsage: 0.6}},
		Candidate{Matched: 10, Total: 10, Load: busy})
}

// TestUnscored holds which figures leave a candidate out instead of giving it 0.
func TestUnscored(t *testing.T) {
	t.Parallel()

	for _, usage := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -0.1} {
		if got := KV([]Candidate{{Load: Load{Known: true, KVUsage: usage}}}); got[0].OK {
			t.Errorf("KV with a usage of %v = %+v, want unscored", usage, got[0])
		}
	}
	nonsense := []Candidate{{Matched: 5, Load: Load{Known: true, Waiting: -1, Running: -1, InFlight: -1}}}
	for name, got := range map[string][]Score{
		"Prefix": Prefix(nonsense, PrefixParams{}), "Queue": Queue(nonsense), "Running": Running(nonsense),
		"InFlight": InFlight(nonsense), "LoadAware": LoadAware(nonsense, 0), "Active": Active(nonsense, ActiveParams{}),
	} {
		if got[0] != (Score{}) {
			t.Errorf("%s = %+v, want unscored", name, got[0])
		}
	}
	if !Cold(nonsense) {
		t.Error("blocks matched of none make the request warm")
	}
	beyond := []Candidate{{Matched: 90, Total: 10, BlockSize: 16}, {Matched: 10, Total: 10, BlockSize: 16}}
	if got := Prefix(beyond, PrefixParams{MatchLengthWeight: 1, MatchLengthScaleTokens: 1000}); got[0] != got[1] {
		t.Errorf("Prefix = %+v, want a match beyond the prompt to count as the prompt", got)
	}
}

// TestTies (BB-127): equal idle replicas share cold requests evenly.
func TestTies(t *testing.T) {
	t.Parallel()

	const replicas, requests = 8, 8000
	p := mustNew(t, PolicyPrefix, Config{})
	cands := make([]Candidate, replicas)
	for i := range cands {
		cands[i] = Candidate{Name: fmt.Sprint("r", i), Total: 10, Load: Load{Known: true}}
	}
	spread := func(next func(i int) int) {
		t.Helper()
		var counts [replicas]int
		for i := range requests {
			counts[next(i)]++
		}
		for i, n := range counts {
			if share := float64(n) / requests; math.Abs(share-1./replicas) > 0.03 {
				t.Errorf("replica %d got %.1f %% of the requests, want 12.5 %% ± 3", i, 100*share)
			}
		}
	}
	// Nobody sends anything: only the draw decides, by one seed and over seeds.
	rnd := rand.New(rand.NewPCG(1, 0))
	spread(func(int) int { return p.Decide(cands, State{}, rnd).Chosen })
	spread(func(i int) int { return p.Decide(cands, State{}, rand.New(rand.NewPCG(uint64(i), 1))).Chosen })
	// And each is sent before the next is decided.
	var order ColdOrder
	spread(func(int) int {
		chosen := p.Decide(cands, State{Cold: order.Names()}, rnd).Chosen
		order.Touch(cands[chosen].Name)
		return chosen
	})
}

// TestColdOrder (BB-146): only what is sent counts, each replica once, the oldest
// goes first, and who leaves is forgotten.
func TestColdOrder(t *testing.T) {
	t.Parallel()

	p := mustNew(t, PolicyPrefix, Config{})
	var order ColdOrder
	decide := func(matched int, names ...string) string {
		cands := make([]Candidate, len(names))
		for i, name := range names {
			cands[i] = Candidate{Name: name, Total: 10, Load: Load{Known: true}}
		}
		cands[0].Matched = matched
		d := p.Decide(cands, State{Cold: order.Names()}, rand.New(rand.NewPCG(5, 5)))
		if d.Cold != (matched == 0) {
			t.Errorf("matched %d is cold: %v", matched, d.Cold)
		}
		return names[d.Chosen]
	}

	first := decide(0, "a", "b", "c")
	for range 100 { // undecided requests at once, and warm ones, change nothing
		if got := decide(0, "a", "b", "c"); got != first {
			t.Fatalf("the same seed chose %s, then %s", first, got)
		}
		decide(5, "a", "b", "c")
	}
	if names := order.Names(); len(names) != 0 {
		t.Fatalf("order %v after decisions that were not sent", names)
	}

	for _, name := range []string{"a", "b", "c"} {
		order.Touch(name)
	}
	for _, want := range []string{"a", "b", "c", "a"} {
		if got := decide(0, "c", "b", "a"); got != want {
			t.Errorf("cold request to %s, want %s; order %v", got, want, order.Names())
		}
		order.Touch(want)
	}
	order.Forget("b")
	order.Forget("nobody")
	if got := decide(0, "a", "b", "c"); got != "b" {
		t.Errorf("a replica that came back was not taken as new: got %s, order %v", got, order.Names())
	}
	if got, want := order.Names(), []string{"c", "a"}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}

	for i := range 3000 {
		order.Touch(fmt.Sprint("pod-", i))
	}
	if got := order.Names(); len(got) != DefaultColdLimit || got[0] != "pod-1976" {
		t.Errorf("%d names from %s, want the last %d", len(got), got[0], DefaultColdLimit)
	}
}

// drawn is any list of candidates, sensible or not.
func drawn(t *rapid.T) []Candidate {
	count := rapid.OneOf(rapid.IntRange(0, 20), rapid.Int())
	usage := rapid.OneOf(rapid.Float64Range(0, 1), rapid.Float64(), rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1)}))
	cands := make([]Candidate, rapid.IntRange(0, 8).Draw(t, "n"))
	for i := range cands {
		cands[i] = Candidate{
			Name: fmt.Sprint("r", i), Matched: count.Draw(t, "matched"), Total: count.Draw(t, "total"), BlockSize: count.Draw(t, "block"),
			Load: Load{
				Known: rapid.Bool().Draw(t, "known"), Waiting: count.Draw(t, "waiting"), Running: count.Draw(t, "running"),
				KVUsage: usage.Draw(t, "usage"), InFlight: count.Draw(t, "in flight"),
			},
		}
	}
	return cands
}

func TestDecideProperties(t *testing.T) {
	t.Parallel()

	weights := map[string]float64{}
	for i, name := range weightable {
		weights[name] = float64(i) / 2
	}
	rapid.Check(t, func(t *rapid.T) {
		cands := drawn(t)
		cfg := Config{
			Weights: weights, QueueThreshold: rapid.IntRange(-1, 200).Draw(t, "threshold"),
			Prefix: PrefixParams{MatchLengthWeight: rapid.Float64Range(0, 1).Draw(t, "w"), MatchLengthScaleTokens: rapid.IntRange(1, 9000).Draw(t, "scale")},
			Active: &ActiveParams{IdleThreshold: rapid.Int().Draw(t, "idle"), MaxBusyScore: rapid.Float64().Draw(t, "busy")},
		}
		var cold []string
		for _, i := range rapid.SliceOfDistinct(rapid.IntRange(0, 11), rapid.ID).Draw(t, "cold") {
			cold = append(cold, fmt.Sprint("r", i))
		}
		state := State{Cold: cold, Turn: rapid.Uint64().Draw(t, "turn")}
		order := rapid.Permutation(indexes(len(cands))).Draw(t, "order")
		shuffled := make([]Candidate, len(cands))
		for i, from := range order {
			shuffled[i] = cands[from]
		}
		for _, name := range Policies() {
			p := mustNew(t, name, cfg)
			d := p.Decide(cands, state, rand.New(rand.NewPCG(1, 2)))
			checkDecision(t, name, d, len(cands))
			other := p.Decide(shuffled, state, nil)
			for i, from := range order {
				if diff := cmp.Diff(d.Explain(from), other.Explain(i)); diff != "" || d.Sums[from] != other.Sums[i] {
					t.Fatalf("%s: another order of the candidates changes the terms of %s:\n%s", name, shuffled[i].Name, diff)
				}
			}
			if again := p.Decide(cands, state, rand.New(rand.NewPCG(1, 2))); again.Chosen != d.Chosen {
				t.Fatalf("%s: the same seed chose %d, then %d", name, d.Chosen, again.Chosen)
			}
		}
	})
}

func indexes(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// checkDecision holds what is true of every decision.
func checkDecision(t *rapid.T, name string, d Decision, n int) {
	for _, term := range d.Terms {
		for i, s := range term.Scores {
			if !(s.Value >= 0 && s.Value <= 1) || !s.OK && s.Value != 0 {
				t.Fatalf("%s: %s scores candidate %d %+v", name, term.Name, i, s)
			}
		}
	}
	if len(d.Sums) != n || n == 0 && d.Chosen != -1 || n > 0 && d.Sums[d.Chosen] != slices.Max(d.Sums) {
		t.Fatalf("%s: chose %d of sums %v", name, d.Chosen, d.Sums)
	}
	for i, sum := range d.Sums {
		want := 0.0
		for _, term := range d.Explain(i) {
			want += term.Score * term.Weight
		}
		if !(math.Abs(sum-want) < tolerance) {
			t.Fatalf("%s: sum %d is %v, its terms make %v", name, i, sum, want)
		}
	}
}

func TestPickMax(t *testing.T) {
	t.Parallel()

	nan := math.NaN()
	f := func(want int, sums ...float64) {
		t.Helper()
		if got := PickMax(sums, nil); got != want {
			t.Errorf("PickMax(%v) = %d, want %d", sums, got, want)
		}
	}
	f(-1)
	f(0, 0)
	f(1, 1, 3, 2)
	f(0, 2, 2)
	f(1, nan, -1)
	f(0, -1, nan)
	f(0, nan, nan)
	f(2, nan, 1, 5, nan)
}

func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{3, 16, 128} {
		b.Run(fmt.Sprint("replicas=", n), func(b *testing.B) {
			cands := make([]Candidate, n)
			order := make([]string, 0, n)
			for i := range cands {
				cands[i] = Candidate{Name: fmt.Sprint("r", i), Total: 100, BlockSize: 16, Load: Load{Known: true, Waiting: i % 5, KVUsage: 0.3}}
				order = append(order, cands[i].Name)
			}
			p, rnd := mustNew(b, PolicyPrefix, Config{}), rand.New(rand.NewPCG(1, 1))
			b.ReportAllocs()
			for b.Loop() {
				p.Decide(cands, State{Cold: order}, rnd)
			}
		})
	}
}
