package scoring

import "math"

// Queue scores by the engine's waiting requests, normalised over the
// candidates: the shortest queue 1, the longest 0, all equal 1. Candidates
// without known load, or with a negative count, are unscored and do not shift
// the others. The result is parallel to cands.
func Queue(cands []Candidate) []Score {
	return fewest(cands, func(l *Load) (int, bool) { return l.Waiting, l.Known })
}

// Running is [Queue] over the requests that the engines are running.
func Running(cands []Candidate) []Score {
	return fewest(cands, func(l *Load) (int, bool) { return l.Running, l.Known })
}

// InFlight is [Queue] over the requests that the router has in flight. It needs
// no metrics of the engines.
func InFlight(cands []Candidate) []Score {
	return fewest(cands, func(l *Load) (int, bool) { return l.InFlight, true })
}

// fewest scores (max−n)/(max−min) over the candidates for which count has a
// number.
func fewest(cands []Candidate, count func(*Load) (n int, ok bool)) []Score {
	scores := make([]Score, len(cands))
	low, high := math.MaxInt, -1
	for i := range cands {
		if n, ok := count(&cands[i].Load); ok && n >= 0 {
			low, high = min(low, n), max(high, n)
		}
	}
	for i := range cands {
		n, ok := count(&cands[i].Load)
		switch {
		case !ok || n < 0:
		case low == high:
			scores[i] = scored(1)
		default:
			scores[i] = scored(float64(high-n) / float64(high-low))
		}
	}
	return scores
}

// KV scores 1 − KVUsage. Candidates without known load are unscored, and so are
// those whose usage is NaN, infinite or negative; usage above 1 scores 0. The
// result is parallel to cands.
func KV(cands []Candidate) []Score {
	scores := make([]Score, len(cands))
	for i := range cands {
		l := &cands[i].Load
		// A negative usage would otherwise be the best score of all.
		if l.Known && l.KVUsage >= 0 && !math.IsInf(l.KVUsage, 0) {
			scores[i] = scored(1 - l.KVUsage)
		}
	}
	return scores
}

// DefaultQueueThreshold is the number of waiting requests from which [LoadAware]
// gives 0, unless configured otherwise.
const DefaultQueueThreshold = 128

// LoadAware scores the engine's waiting requests on an absolute scale: 0.5 for
// an empty queue, falling to 0 at threshold requests. A threshold that is not
// positive means [DefaultQueueThreshold]. Candidates without known load are
// unscored. The result is parallel to cands.
func LoadAware(cands []Candidate, threshold int) []Score {
	if threshold <= 0 {
		threshold = DefaultQueueThreshold
	}
	scores := make([]Score, len(cands))
	for i := range cands {
		l := &cands[i].Load
		if l.Known && l.Waiting >= 0 {
			scores[i] = scored(0.5 * (1 - float64(min(l.Waiting, threshold))/float64(threshold)))
		}
	}
	return scores
}

// ActiveParams tunes [Active].
type ActiveParams struct {
	// IdleThreshold is the number of requests in flight up to which a replica
	// counts as idle and scores 1.
	IdleThreshold int
	// MaxBusyScore is the best score, 0..1, that a busy replica can get; a value
	// outside means 1.
	MaxBusyScore float64
}

// Active scores the requests that the router has in flight: 1 for an idle
// candidate, else (max−n)/max·MaxBusyScore, with max taken over all. A negative
// count is unscored. The result is parallel to cands.
func Active(cands []Candidate, p ActiveParams) []Score {
	busy := p.MaxBusyScore
	if !(busy >= 0 && busy <= 1) { // also NaN
		busy = 1
	}
	high := 0
	for i := range cands {
		high = max(high, cands[i].Load.InFlight)
	}
	scores := make([]Score, len(cands))
	for i := range cands {
		switch n := cands[i].Load.InFlight; {
		case n < 0:
		case n <= p.IdleThreshold || high == 0:
			scores[i] = scored(1)
		default:
			scores[i] = scored(float64(high-n) / float64(high) * busy)
		}
	}
	return scores
}
