package scoring

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// tolerance is the oracle's.
const tolerance = 1e-9

func readJSON(tb testing.TB, name string, v any) {
	tb.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		tb.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		tb.Fatalf("%s: %v", name, err)
	}
}

// endpoint is a candidate as the oracle writes it.
type endpoint struct {
	ID       string
	Waiting  int
	Running  int
	KVUsage  float64 `json:"kv_usage"`
	Matched  int     `json:"match_blocks"`
	Total    int     `json:"total_blocks"`
	Block    int     `json:"block_size_tokens"`
	InFlight int     `json:"inflight_requests"`
}

func candidates(endpoints []endpoint) []Candidate {
	cands := make([]Candidate, len(endpoints))
	for i, e := range endpoints {
		cands[i] = Candidate{
			Name: e.ID, Matched: e.Matched, Total: e.Total, BlockSize: e.Block,
			Load: Load{Known: true, Waiting: e.Waiting, Running: e.Running, KVUsage: e.KVUsage, InFlight: e.InFlight},
		}
	}
	return cands
}

type params struct {
	Weight       *float64 `json:"matchLengthWeight"`
	Scale        *int     `json:"matchLengthScaleTokens"`
	Threshold    int      `json:"threshold"`
	IdleAt       int      `json:"idleThreshold"`
	MaxBusyScore *float64 `json:"maxBusyScore"`
}

func (p params) prefix() PrefixParams {
	out := PrefixParams{MatchLengthScaleTokens: DefaultMatchLengthScaleTokens}
	if p.Weight != nil {
		out.MatchLengthWeight = *p.Weight
	}
	if p.Scale != nil {
		out.MatchLengthScaleTokens = *p.Scale
	}
	return out
}

func (p params) active() ActiveParams {
	out := ActiveParams{IdleThreshold: p.IdleAt, MaxBusyScore: 1}
	if p.MaxBusyScore != nil {
		out.MaxBusyScore = *p.MaxBusyScore
	}
	return out
}

type scorersFile struct {
	Cases map[string][]struct {
		Name      string
		Params    params
		Endpoints []endpoint
		Expected  map[string]float64
	}
	Parameters []struct {
		Params string
		OK     bool
	} `json:"parameter_validation"`
	Weighted []struct {
		Name      string
		Endpoints []endpoint
		Weights   map[string]float64
		Totals    map[string]float64
		Winners   []string `json:"max_score_winners"`
	} `json:"weighted_profile_cases"`
}

func TestOracleScorers(t *testing.T) {
	t.Parallel()

	scorers := map[string]func([]Candidate, params) []Score{
		"prefix-cache-scorer":          func(c []Candidate, p params) []Score { return Prefix(c, p.prefix()) },
		"queue-scorer":                 func(c []Candidate, _ params) []Score { return Queue(c) },
		"running-requests-size-scorer": func(c []Candidate, _ params) []Score { return Running(c) },
		"kv-cache-utilization-scorer":  func(c []Candidate, _ params) []Score { return KV(c) },
		"load-aware-scorer":            func(c []Candidate, p params) []Score { return LoadAware(c, p.Threshold) },
		"active-request-scorer":        func(c []Candidate, p params) []Score { return Active(c, p.active()) },
	}
	var file scorersFile
	readJSON(t, "scorers.json", &file)
	if len(file.Cases) != len(scorers) {
		t.Fatalf("the oracle has %d scorers, the test %d", len(file.Cases), len(scorers))
	}
	for scorer, cases := range file.Cases {
		for _, tt := range cases {
			t.Run(scorer+"/"+tt.Name, func(t *testing.T) {
				t.Parallel()
				for i, s := range scorers[scorer](candidates(tt.Endpoints), tt.Params) {
					id := tt.Endpoints[i].ID
					// The reference cuts to 0..1 where the scores are added up.
					want := min(1, max(0, tt.Expected[id]))
					if math.Abs(s.Value-want) > tolerance {
						t.Errorf("%s scores %v, want %v", id, s.Value, want)
					}
				}
			})
		}
	}
}

func TestOracleWeighted(t *testing.T) {
	t.Parallel()

	names := map[string]string{
		"prefix-cache-scorer": TermPrefix, "queue-scorer": TermQueue, "kv-cache-utilization-scorer": TermKV,
		"running-requests-size-scorer": TermRunning, "load-aware-scorer": TermLoadAware, "active-request-scorer": TermActive,
	}
	var file scorersFile
	readJSON(t, "scorers.json", &file)
	for _, tt := range file.Weighted {
		t.Run(tt.Name, func(t *testing.T) {
			t.Parallel()
			weights := map[string]float64{}
			for scorer, w := range tt.Weights {
				name, ok := names[scorer]
				if !ok {
					t.Fatalf("no term for %s", scorer)
				}
				weights[name] = w
			}
			p, err := New(PolicyPrefix, Config{Weights: weights})
			if err != nil {
				t.Fatal(err)
			}
			d := p.Decide(candidates(tt.Endpoints), State{}, rand.New(rand.NewPCG(1, 2)))
			for i, sum := range d.Sums {
				if want := tt.Totals[tt.Endpoints[i].ID]; math.Abs(sum-want) > tolerance {
					t.Errorf("sum of %s is %v, want %v", tt.Endpoints[i].ID, sum, want)
				}
			}
			if got := tt.Endpoints[d.Chosen].ID; !slices.Contains(tt.Winners, got) {
				t.Errorf("chose %s, want one of %v", got, tt.Winners)
			}
		})
	}
}

func TestOraclePrefixParams(t *testing.T) {
	t.Parallel()

	var file scorersFile
	readJSON(t, "scorers.json", &file)
	for _, tt := range file.Parameters {
		var p struct {
			params
			Unknown *int
		}
		if err := json.Unmarshal([]byte(tt.Params), &p); err != nil || p.Unknown != nil {
			continue // about reading the file, not about the values
		}
		if err := p.prefix().Validate(); (err == nil) != tt.OK {
			t.Errorf("%s: %v, want valid: %v", tt.Params, err, tt.OK)
		}
	}
}

// coldStep is one step of a recorded sequence: a request is scored, or one that
// was scored is sent.
type coldStep struct {
	Op, Request string
	Candidates  []string
	Match       map[string]int     `json:"match_blocks"`
	Scores      map[string]float64 `json:"expected_scores"`
	Primary     string             `json:"primary_target"`
	Prefill     string             `json:"prefill_target"`
	Order       []string           `json:"expected_lru_oldest_first"`
}

// TestOracleNoHitLRU replays the recorded sequences. Where the order holds names
// that are no candidates the reference ranks candidates by places that they
// cannot take, and several end at 0; there only the ranking must agree.
func TestOracleNoHitLRU(t *testing.T) {
	t.Parallel()

	var file struct {
		Cases []struct {
			Name    string
			LRUSize int `json:"lru_size"`
			Steps   []coldStep
		}
	}
	readJSON(t, "no_hit_lru.json", &file)
	scored, exact := 0, 0
	for _, tt := range file.Cases {
		order := NewColdOrder(tt.LRUSize)
		cold := map[string]bool{} // requests scored and not yet sent
		for i, s := range tt.Steps {
			if s.Op == "pre_request" {
				for _, name := range []string{s.Primary, s.Prefill} {
					if cold[s.Request] && name != "" {
						order.Touch(name)
					}
				}
				delete(cold, s.Request)
				if got := order.Names(); !slices.Equal(got, s.Order) {
					t.Errorf("%s step %d: order %v, want %v", tt.Name, i, got, s.Order)
				}
				continue
			}
			cands := make([]Candidate, len(s.Candidates))
			for j, name := range s.Candidates {
				cands[j] = Candidate{Name: name, Matched: s.Match[name], Total: 10}
			}
			cold[s.Request] = Cold(cands)
			foreign := slices.ContainsFunc(order.Names(), func(n string) bool { return !slices.Contains(s.Candidates, n) })
			if scored++; !foreign {
				exact++
			}
			if !agrees(NoHitLRU(cands, order.Names(), Ranked), s, !foreign) {
				t.Errorf("%s step %d: scores of %v are %v, want %v", tt.Name, i, s.Candidates, NoHitLRU(cands, order.Names(), Ranked), s.Scores)
			}
		}
	}
	if scored < 600 || exact < 100 {
		t.Errorf("compared %d steps, %d of them exactly", scored, exact)
	}
}

// agrees compares scores with the recorded ones, by value or by rank.
func agrees(got []Score, s coldStep, exactly bool) bool {
	for i, a := range s.Candidates {
		if exactly && math.Abs(got[i].Value-s.Scores[a]) > tolerance {
			return false
		}
		for j, b := range s.Candidates {
			if s.Scores[a] > s.Scores[b] && got[i].Value <= got[j].Value {
				return false
			}
		}
	}
	return true
}

func TestOraclePicker(t *testing.T) {
	t.Parallel()

	var file struct {
		Picker struct {
			Cases []struct {
				Name      string
				Scores    map[string]float64
				Frequency map[string]float64 `json:"observed_first_pick_frequency_20000"`
			}
		} `json:"max-score-picker"`
	}
	readJSON(t, "pickers.json", &file)
	const rounds = 20_000
	for _, tt := range file.Picker.Cases {
		var names []string
		var sums []float64
		for name, score := range tt.Scores {
			names, sums = append(names, name), append(sums, score)
		}
		counts := map[string]int{}
		rnd := rand.New(rand.NewPCG(7, 7))
		for range rounds {
			counts[names[PickMax(sums, rnd)]]++
		}
		for _, name := range names {
			if got, want := float64(counts[name])/rounds, tt.Frequency[name]; math.Abs(got-want) > 0.02 {
				t.Errorf("%s: %s picked in %.3f of the rounds, want %.3f", tt.Name, name, got, want)
			}
		}
	}
}
