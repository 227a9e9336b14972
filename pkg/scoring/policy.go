package scoring

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
)

// The policies that [New] knows.
const (
	PolicyPrefix     = "prefix"      // prefix, queue, kv and no-hit-lru, weighted
	PolicyPrefixOnly = "prefix-only" // the prefix scorer without the load scorers
	PolicyLeastQueue = "least-queue" // fewest requests in flight
	PolicyRoundRobin = "round-robin" // by name, in turn
	PolicyRandom     = "random"      // any
)

// Policies returns the names that [New] knows.
func Policies() []string {
	return []string{PolicyPrefix, PolicyPrefixOnly, PolicyLeastQueue, PolicyRoundRobin, PolicyRandom}
}

// The terms that a sum can have. Those of the policy prefix come from the
// configured weights; in-flight and turn are how least-queue and round-robin
// explain themselves.
const (
	TermPrefix    = "prefix"
	TermQueue     = "queue"
	TermKV        = "kv"
	TermNoHitLRU  = "no-hit-lru"
	TermActive    = "active-request"
	TermLoadAware = "load-aware"
	TermRunning   = "running-requests"

	termInFlight = "in-flight"
	termTurn     = "turn"
)

// weightable lists the terms that Config.Weights may name, in the order in which
// they are added up. The order is fixed because float addition is not
// associative: equal candidates must reach equal sums.
var weightable = []string{TermPrefix, TermQueue, TermKV, TermNoHitLRU, TermActive, TermLoadAware, TermRunning}

// DefaultWeights returns the weights of the policy prefix: prefix 3, queue 2, kv
// 2, no-hit-lru 1. A full match is worth 3, an idle queue and an empty cache
// together 4, so a deep enough queue overrules locality.
func DefaultWeights() map[string]float64 {
	return map[string]float64{TermPrefix: 3, TermQueue: 2, TermKV: 2, TermNoHitLRU: 1}
}

// Config tunes a policy. The zero value is the default.
type Config struct {
	// Weights maps a term to its weight, finite and not negative. Nil means
	// [DefaultWeights]; a term that is not in the map is not computed. The policy
	// prefix uses all of it, prefix-only the weight of its one term, 1 if absent.
	Weights map[string]float64
	Prefix  PrefixParams
	// NeverUsed is the treatment of replicas that never took a cold request.
	NeverUsed NeverUsed
	// QueueThreshold is the threshold of the term load-aware; 0 means
	// [DefaultQueueThreshold].
	QueueThreshold int
	// Active tunes the term active-request; nil means idle at 0 requests and a
	// busy score up to 1.
	Active *ActiveParams
}

func (c Config) validate() error {
	errs := []error{c.Prefix.Validate()}
	for _, name := range slices.Sorted(maps.Keys(c.Weights)) {
		w := c.Weights[name]
		switch {
		case !slices.Contains(weightable, name):
			errs = append(errs, fmt.Errorf("weight of %q: no such scorer, have %s", name, strings.Join(weightable, ", ")))
		case !(w >= 0) || math.IsInf(w, 0): // also NaN
			errs = append(errs, fmt.Errorf("weight of %s is %v, must be a finite number, 0 or more", name, w))
		}
	}
	return errors.Join(errs...)
}

// Policy decides. It is fixed after [New] and safe for concurrent use.
type Policy struct {
	name    string
	cfg     Config
	weights map[string]float64
	active  ActiveParams
}

// New returns the policy of that name, or an error that names every mistake in
// name and cfg.
func New(name string, cfg Config) (*Policy, error) {
	var errs []error
	if !slices.Contains(Policies(), name) {
		errs = append(errs, fmt.Errorf("policy is %q, must be one of %s", name, strings.Join(Policies(), ", ")))
	}
	if err := errors.Join(append(errs, cfg.validate())...); err != nil {
		return nil, err
	}
	weights := maps.Clone(cfg.Weights)
	if weights == nil {
		weights = DefaultWeights()
	}
	active := ActiveParams{MaxBusyScore: 1}
	if cfg.Active != nil {
		active = *cfg.Active
	}
	return &Policy{name: name, cfg: cfg, weights: weights, active: active}, nil
}

// Name returns the name the policy was made with.
func (p *Policy) Name() string { return p.name }

// State is what changes from one request to the next. The caller owns it:
// [Policy.Decide] only reads, so asking for an explanation changes nothing.
type State struct {
	// Cold is the replicas that took cold requests, oldest first, as
	// [ColdOrder.Names] gives them.
	Cold []string
	// Turn is the number of requests that were decided so far.
	Turn uint64
}

// Weighted is one term of the sum: what a scorer said about every candidate, and
// what that is worth.
type Weighted struct {
	Name   string
	Weight float64
	Scores []Score // parallel to the candidates
}

// Decision is a choice with all that led to it. Its slices are parallel to the
// candidates.
type Decision struct {
	Terms []Weighted
	Sums  []float64
	// Chosen is the index of the winner, −1 when there was no candidate.
	Chosen int
	// Cold says that no candidate is known to hold a block. The caller then moves
	// the replica to the end of its cold order.
	Cold bool
}

// Term is one term of one candidate's sum, in the form that explanations show.
type Term struct {
	Score  float64 `json:"score"`
	Weight float64 `json:"weight"`
	// Unscored marks a candidate that the scorer left out, so a score of 0 that
	// was measured can be told from one that stands for nothing.
	Unscored bool `json:"unscored,omitempty"`
}

// Explain returns the terms of candidate i by name.
func (d Decision) Explain(i int) map[string]Term {
	terms := make(map[string]Term, len(d.Terms))
	for _, t := range d.Terms {
		s := t.Scores[i]
		terms[t.Name] = Term{Score: s.Value, Weight: t.Weight, Unscored: !s.OK}
	}
	return terms
}

// Decide scores the candidates and picks one. It changes nothing but rnd, from
// which it draws only to break a tie; with a nil rnd the first of a tie wins.
func (p *Policy) Decide(cands []Candidate, state State, rnd *rand.Rand) Decision {
	d := Decision{Terms: p.terms(cands, state), Cold: Cold(cands)}
	d.Sums = Sum(len(cands), d.Terms)
	d.Chosen = PickMax(d.Sums, rnd)
	return d
}

// terms computes what the policy adds up.
func (p *Policy) terms(cands []Candidate, state State) []Weighted {
	switch p.name {
	case PolicyPrefixOnly:
		w, ok := p.weights[TermPrefix]
		if !ok {
			w = 1
		}
		return []Weighted{{Name: TermPrefix, Weight: w, Scores: Prefix(cands, p.cfg.Prefix)}}
	case PolicyLeastQueue:
		return []Weighted{{Name: termInFlight, Weight: 1, Scores: InFlight(cands)}}
	case PolicyRoundRobin:
		return []Weighted{{Name: termTurn, Weight: 1, Scores: turn(cands, state.Turn)}}
	case PolicyRandom:
		return nil
	default:
		return p.weighted(cands, state)
	}
}

// weighted computes the terms that have a weight, in their fixed order.
func (p *Policy) weighted(cands []Candidate, state State) []Weighted {
	terms := make([]Weighted, 0, len(p.weights))
	for _, name := range weightable {
		w, ok := p.weights[name]
		if !ok {
			continue
		}
		terms = append(terms, Weighted{Name: name, Weight: w, Scores: p.score(name, cands, state)})
	}
	return terms
}

func (p *Policy) score(name string, cands []Candidate, state State) []Score {
	switch name {
	case TermPrefix:
		return Prefix(cands, p.cfg.Prefix)
	case TermQueue:
		return Queue(cands)
	case TermKV:
		return KV(cands)
	case TermNoHitLRU:
		return NoHitLRU(cands, state.Cold, p.cfg.NeverUsed)
	case TermActive:
		return Active(cands, p.active)
	case TermLoadAware:
		return LoadAware(cands, p.cfg.QueueThreshold)
	default: // TermRunning: New refuses every other name
		return Running(cands)
	}
}

// turn gives 1 to the candidate whose turn it is and 0 to the others. The
// rotation goes by name, so it does not depend on the order of the list.
func turn(cands []Candidate, n uint64) []Score {
	scores := make([]Score, len(cands))
	if len(cands) == 0 {
		return scores
	}
	byName := make([]int, len(cands))
	for i := range byName {
		byName[i] = i
		scores[i] = scored(0)
	}
	slices.SortFunc(byName, func(a, b int) int { return strings.Compare(cands[a].Name, cands[b].Name) })
	scores[byName[n%uint64(len(cands))]] = scored(1)
	return scores
}

// Sum adds up weight times score for each of n candidates; what is unscored adds
// nothing.
func Sum(n int, terms []Weighted) []float64 {
	sums := make([]float64, n)
	for _, t := range terms {
		for i, s := range t.Scores {
			if s.OK {
				sums[i] += t.Weight * s.Value
			}
		}
	}
	return sums
}

// PickMax returns the index of the largest sum, −1 for none. Exact ties are
// drawn from rnd with equal chances; with a nil rnd the first one wins. A NaN is
// never picked unless there is nothing else.
func PickMax(sums []float64, rnd *rand.Rand) int {
	best, ties := -1, 0
	for i, s := range sums {
		switch {
		case best < 0, s > sums[best], math.IsNaN(sums[best]) && !math.IsNaN(s):
			best, ties = i, 1
		case s == sums[best]:
			// The k-th of a tie replaces the held one with chance 1/k: uniform in
			// one pass.
			ties++
			if rnd != nil && rnd.IntN(ties) == 0 {
				best = i
			}
		}
	}
	return best
}
