package scoring

import (
	"errors"
	"fmt"
)

// DefaultMatchLengthScaleTokens is the matched length at which the match-length
// term is full, unless configured otherwise.
const DefaultMatchLengthScaleTokens = 8192

// PrefixParams tunes [Prefix]. The zero value scores by the matched part alone.
type PrefixParams struct {
	// MatchLengthWeight is the part, 0..1, of the score that the absolute length
	// of the match decides; the rest is the matched part of the prompt. Above 0,
	// a long shared prefix outranks a short one that covers as much of its
	// prompt.
	MatchLengthWeight float64
	// MatchLengthScaleTokens is the length, in tokens, from which a match counts
	// as long; it must be positive when the weight is.
	MatchLengthScaleTokens int
}

// Validate reports every value that [Prefix] cannot work with.
func (p PrefixParams) Validate() error {
	var errs []error
	// Written so that NaN fails it.
	if !(p.MatchLengthWeight >= 0 && p.MatchLengthWeight <= 1) {
		errs = append(errs, fmt.Errorf("match-length-weight is %v, must be in 0..1", p.MatchLengthWeight))
	}
	if p.MatchLengthWeight > 0 && p.MatchLengthScaleTokens <= 0 {
		errs = append(errs, fmt.Errorf("match-length-scale-tokens is %d, must be positive when match-length-weight is",
			p.MatchLengthScaleTokens))
	}
	return errors.Join(errs...)
}

// Prefix scores by the part of the prompt a candidate already holds:
//
//	w·min(1, matched tokens/scale)² + (1−w)·matched/total
//
// Candidates without Total are unscored. The result is parallel to cands. p must
// be valid.
func Prefix(cands []Candidate, p PrefixParams) []Score {
	scores := make([]Score, len(cands))
	w := p.MatchLengthWeight
	for i := range cands {
		c := &cands[i]
		if c.Total <= 0 {
			continue
		}
		v := (1 - w) * float64(c.matched()) / float64(c.Total)
		if w > 0 {
			long := min(1, float64(c.matched())*float64(max(0, c.BlockSize))/float64(p.MatchLengthScaleTokens))
			v += w * long * long
		}
		scores[i] = scored(v)
	}
	return scores
}
