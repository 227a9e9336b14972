package scoring

import (
	"fmt"
	"slices"
)

// NeverUsed says how [NoHitLRU] treats candidates that never took a cold
// request.
type NeverUsed uint8

const (
	// Equal gives each of them 1, so the other scorers and the random draw spread
	// cold requests over them.
	Equal NeverUsed = iota
	// Ranked gives them falling scores in the order of the candidates, as
	// llm-d-router does: deterministic, but every router of a fleet prefers the
	// same one.
	Ranked
)

// String returns the name in configuration: equal or ranked.
func (n NeverUsed) String() string {
	if n == Ranked {
		return "ranked"
	}
	return "equal"
}

// ParseNeverUsed reads what [NeverUsed.String] writes.
func ParseNeverUsed(s string) (NeverUsed, error) {
	switch s {
	case "equal":
		return Equal, nil
	case "ranked":
		return Ranked, nil
	default:
		return Equal, fmt.Errorf("never-used is %q, must be equal or ranked", s)
	}
}

// Cold reports that no candidate is known to hold a block of the prompt.
func Cold(cands []Candidate) bool {
	return !slices.ContainsFunc(cands, func(c Candidate) bool { return c.matched() > 0 })
}

// NoHitLRU spreads cold requests. While a candidate holds a block every score is
// 0.5, which never argues with locality. A cold request prefers the candidates
// that never took one, then the one that took one longest ago. order is the
// names of those that did, oldest first, as [ColdOrder.Names] gives them; names
// that are no candidates are passed over, so that departed replicas cannot push
// present ones down.
//
// With n candidates, u of them never used, and r = u + the place among the used
// ones from 0: [Ranked] scores 1 − r/(n−1) and the i-th never used 1 − i/(n−1);
// [Equal] scores 1 − r/n and the never used 1. A single candidate scores 1. The
// result is parallel to cands.
func NoHitLRU(cands []Candidate, order []string, mode NeverUsed) []Score {
	scores := make([]Score, len(cands))
	if !Cold(cands) || len(cands) == 1 {
		v := 0.5
		if Cold(cands) {
			v = 1
		}
		for i := range scores {
			scores[i] = scored(v)
		}
		return scores
	}

	place, used := places(cands, order)
	unused := len(cands) - used
	steps := float64(len(cands))
	if mode == Ranked {
		steps--
	}
	fresh := 0
	for i, p := range place {
		switch {
		case p >= 0:
			scores[i] = scored(1 - float64(unused+p)/steps)
		case mode == Ranked:
			scores[i] = scored(1 - float64(fresh)/steps)
			fresh++
		default:
			scores[i] = scored(1)
		}
	}
	return scores
}

// places returns, for each candidate, its place from 0 among the candidates in
// order, or −1, and how many have one.
func places(cands []Candidate, order []string) (place []int, used int) {
	place = make([]int, len(cands))
	byName := make(map[string]int, len(cands))
	for i := range cands {
		place[i] = -1
		byName[cands[i].Name] = i
	}
	for _, name := range order {
		if i, ok := byName[name]; ok && place[i] < 0 {
			place[i] = used
			used++
		}
	}
	return place, used
}

// DefaultColdLimit is how many names a [ColdOrder] keeps unless told otherwise.
const DefaultColdLimit = 1024

// ColdOrder remembers which replicas took cold requests, and in which order. It
// keeps at most a fixed number of names and drops the oldest beyond it. It is
// not safe for concurrent use. The zero value is empty and keeps
// [DefaultColdLimit] names.
type ColdOrder struct {
	limit int
	names []string // oldest first, distinct
}

// NewColdOrder returns an empty order of at most limit names; limit <= 0 means
// [DefaultColdLimit].
func NewColdOrder(limit int) *ColdOrder {
	return &ColdOrder{limit: limit}
}

// Touch makes name the newest. The caller does so for every cold request as soon
// as it is decided, so that the next one at the same instant goes elsewhere, and
// never for a decision that was only asked about. It costs a walk over the names.
func (o *ColdOrder) Touch(name string) {
	o.Forget(name)
	limit := o.limit
	if limit <= 0 {
		limit = DefaultColdLimit
	}
	if len(o.names) >= limit {
		o.names = slices.Delete(o.names, 0, len(o.names)-limit+1)
	}
	o.names = append(o.names, name)
}

// Forget drops name, for a replica that left. It does nothing for an unknown
// name.
func (o *ColdOrder) Forget(name string) {
	if i := slices.Index(o.names, name); i >= 0 {
		o.names = slices.Delete(o.names, i, i+1)
	}
}

// Names returns a copy, oldest first.
func (o *ColdOrder) Names() []string {
	return slices.Clone(o.names)
}
