package scoring

import (
	"math"
	"math/rand/v2"
	"testing"
)

// The replicas of the lesson's simulation have 64 blocks; a tenant's prompt has
// 14, of which 12 are the tenant's own.
const (
	cacheBlocks  = 64
	promptBlocks = 14
	sharedBlocks = 12
)

func lessonPolicy(t *testing.T) *Policy {
	t.Helper()
	p, err := New(PolicyPrefix, Config{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// replica is one of the lesson's with so many of its blocks in use.
func replica(name string, matched, used int) Candidate {
	return Candidate{
		Name: name, Matched: matched, Total: promptBlocks, BlockSize: 16,
		Load: Load{Known: true, KVUsage: float64(used) / cacheBlocks},
	}
}

// printed is a sum as the lesson prints it.
func printed(sum float64) float64 { return math.Round(sum*100) / 100 }

// TestLessonDecisions replays the four decisions that the lesson shows.
func TestLessonDecisions(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name   string
		cands  []Candidate
		cold   []string
		chosen map[string]bool // any of these
		sums   map[string]float64
	}{
		{
			"1: cold, nobody holds a block",
			[]Candidate{replica("replica-1", 0, 0), replica("replica-2", 0, 0), replica("replica-3", 0, 0)},
			nil,
			map[string]bool{"replica-1": true, "replica-2": true, "replica-3": true},
			map[string]float64{"replica-1": 5, "replica-2": 5, "replica-3": 5},
		},
		{
			"2: cold, one took a cold request",
			[]Candidate{replica("replica-1", 0, 0), replica("replica-2", 0, promptBlocks), replica("replica-3", 0, 0)},
			[]string{"replica-2"},
			map[string]bool{"replica-1": true, "replica-3": true},
			map[string]float64{"replica-1": 5, "replica-3": 5},
		},
		{
			"3: match 12/14 blocks",
			[]Candidate{replica("replica-1", 0, 0), replica("replica-2", sharedBlocks, promptBlocks), replica("replica-3", 0, promptBlocks)},
			[]string{"replica-2", "replica-3"},
			map[string]bool{"replica-2": true},
			map[string]float64{"replica-1": 4.50, "replica-2": 6.63},
		},
		{
			"4: cold, two took cold requests",
			[]Candidate{replica("replica-1", 0, 0), replica("replica-2", 0, promptBlocks+2), replica("replica-3", 0, promptBlocks)},
			[]string{"replica-2", "replica-3"},
			map[string]bool{"replica-1": true},
			map[string]float64{"replica-1": 5, "replica-3": 3.90},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := lessonPolicy(t).Decide(tt.cands, State{Cold: tt.cold}, rand.New(rand.NewPCG(1, 1)))
			for i, c := range tt.cands {
				if want, ok := tt.sums[c.Name]; ok && printed(d.Sums[i]) != want {
					t.Errorf("sum of %s is %v, want %.2f", c.Name, d.Sums[i], want)
				}
			}
			if got := tt.cands[d.Chosen].Name; !tt.chosen[got] {
				t.Errorf("chose %s, want one of %v", got, tt.chosen)
			}
		})
	}
}

// TestLessonTrade holds what the weights mean: a full match is worth 3, an idle
// queue and an empty cache 4.
func TestLessonTrade(t *testing.T) {
	t.Parallel()

	full := replica("full", promptBlocks, 0)
	d := lessonPolicy(t).Decide([]Candidate{full}, State{}, nil)
	if got := d.Explain(0)[TermPrefix]; got != (Term{Score: 1, Weight: 3}) {
		t.Errorf("a full match has the term %+v, want score 1 and weight 3", got)
	}
	full.Load.Waiting, full.Load.KVUsage = 40, 1
	idle := replica("idle", 0, 0)
	d = lessonPolicy(t).Decide([]Candidate{full, idle}, State{}, nil)
	if d.Chosen != 1 || d.Sums[0] != 3.5 || d.Sums[1] != 4.5 {
		t.Errorf("sums %v, chose %d; want the idle replica with 4.5 against 3.5", d.Sums, d.Chosen)
	}
}

// TestLessonMatchLength is the lesson's exercise.
func TestLessonMatchLength(t *testing.T) {
	t.Parallel()

	long := Candidate{Name: "long", Matched: 4000, Total: 5000, BlockSize: 1}
	short := Candidate{Name: "short", Matched: 400, Total: 500, BlockSize: 1}
	f := func(w float64, check func(long, short float64) bool, want string) {
		t.Helper()
		p := PrefixParams{MatchLengthWeight: w, MatchLengthScaleTokens: DefaultMatchLengthScaleTokens}
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		s := Prefix([]Candidate{long, short}, p)
		if !check(s[0].Value, s[1].Value) {
			t.Errorf("with w = %v: 4000 of 5000 scores %v, 400 of 500 %v, want %s", w, s[0].Value, s[1].Value, want)
		}
	}
	f(0, func(l, s float64) bool { return l == 0.8 && s == 0.8 }, "0.8 for both")
	f(0.5, func(l, s float64) bool { return l > s && s > 0.4 }, "the long one ahead")
	for _, w := range []float64{-0.1, 1.1, math.NaN(), math.Inf(1)} {
		if err := (PrefixParams{MatchLengthWeight: w, MatchLengthScaleTokens: 1}).Validate(); err == nil {
			t.Errorf("a weight of %v is valid, want an error", w)
		}
	}
}

// TestNeverUsedEqual holds the lesson's cold scores beyond what it prints.
func TestNeverUsedEqual(t *testing.T) {
	t.Parallel()

	f := func(names, order []string, want ...float64) {
		t.Helper()
		cands := make([]Candidate, len(names))
		for i, name := range names {
			cands[i].Name = name
		}
		for i, s := range NoHitLRU(cands, order, Equal) {
			if !s.OK || math.Abs(s.Value-want[i]) > tolerance {
				t.Errorf("candidates %v, order %v: %s scores %+v, want %v", names, order, names[i], s, want[i])
			}
		}
	}
	f([]string{"a", "b", "c"}, nil, 1, 1, 1)
	f([]string{"a", "b", "c"}, []string{"b"}, 1, 1./3, 1)
	f([]string{"a", "b", "c"}, []string{"b", "c"}, 1, 2./3, 1./3)
	f([]string{"a", "b", "c"}, []string{"b", "c", "a"}, 1./3, 1, 2./3)
	f([]string{"a", "b", "c"}, []string{"gone", "b", "left"}, 1, 1./3, 1)
	f([]string{"a", "b"}, []string{"b", "a", "b"}, 0.5, 1)
	f([]string{"a"}, []string{"a"}, 1)
	f(nil, []string{"a"})
}
