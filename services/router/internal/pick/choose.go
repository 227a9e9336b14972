package pick

import (
	"math/rand/v2"
	"slices"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/scoring"
	"github.com/prefixroute/prefixroute/services/router/internal/fleet"
	"github.com/prefixroute/prefixroute/services/router/internal/indexclient"
)

// Decision is a choice with all that led to it.
type Decision struct {
	Policy string
	// View is what was known; the candidates that were tried before are left out.
	View *View
	// Scores are parallel to the candidates.
	Scores scoring.Decision
}

// Chosen is the replica that was picked.
func (d *Decision) Chosen() *Candidate { return &d.View.Candidates[d.Scores.Chosen] }

// Choose picks from v, leaving out the replicas in tried. The error is
// [fleet.ErrUnavailable] if that leaves none.
func (p *Picker) Choose(v *View, tried []string) (*Decision, error) {
	defer p.metrics.stage(stageScore)()
	policy := p.cfg.Policy
	d, err := p.choose(policy, v, tried)
	if err == nil && len(tried) == 0 {
		p.metrics.Decisions.WithLabelValues(policy.Name(), v.Index, string(v.Reason)).Inc()
	}
	return d, err
}

// Forward picks for a request without a prompt to match: the replica of the
// model with the fewest requests in flight from here. An empty model means any
// replica. The errors are those of Look and Choose.
func (p *Picker) Forward(model string, tried []string) (*Decision, error) {
	members, err := p.fleet.Serving(model)
	if err != nil {
		return nil, err
	}
	v := &View{Candidates: make([]Candidate, len(members))}
	for i, m := range members {
		v.Candidates[i] = Candidate{Member: m}
	}
	return p.choose(p.forward, v, tried)
}

func (p *Picker) choose(policy *scoring.Policy, v *View, tried []string) (*Decision, error) {
	v = v.without(tried)
	if len(v.Candidates) == 0 {
		return nil, fleet.ErrUnavailable
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	scores := policy.Decide(v.scored(), p.state(), rand.New(p.random)) //nolint:gosec // breaks ties, guards nothing
	// Turns pass with the choice, not once it was sent: requests at the same
	// instant would otherwise all be given to the same replica.
	if policy == p.cfg.Policy {
		if len(tried) == 0 {
			p.turn++
		}
		if scores.Cold {
			p.cold.Touch(v.Candidates[scores.Chosen].Name)
		}
	}
	return &Decision{Policy: policy.Name(), View: v, Scores: scores}, nil
}

// Explain returns the decision that [Picker.Choose] would make on v now, without
// any effect.
func (p *Picker) Explain(v *View) *Decision {
	p.mu.Lock()
	defer p.mu.Unlock()
	random := *p.random                                                     // the draw is repeated by whoever comes next
	scores := p.cfg.Policy.Decide(v.scored(), p.state(), rand.New(&random)) //nolint:gosec // breaks ties, guards nothing
	return &Decision{Policy: p.cfg.Policy.Name(), View: v, Scores: scores}
}

// state is the policy's view of what changes between requests. The caller holds
// p.mu.
func (p *Picker) state() scoring.State {
	return scoring.State{Cold: p.cold.Names(), Turn: p.turn}
}

// State returns the replicas that took cold requests, oldest first, and how many
// requests were decided.
func (p *Picker) State() (cold []string, turn uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cold.Names(), p.turn
}

// without returns v without the named candidates.
func (v *View) without(names []string) *View {
	if len(names) == 0 {
		return v
	}
	less := *v
	less.Candidates = slices.DeleteFunc(slices.Clone(v.Candidates), func(c Candidate) bool {
		return slices.Contains(names, c.Name)
	})
	less.label()
	return &less
}

// scored lists the candidates as the scorers take them.
func (v *View) scored() []scoring.Candidate {
	out := make([]scoring.Candidate, len(v.Candidates))
	for i := range v.Candidates {
		c := &v.Candidates[i]
		out[i] = scoring.Candidate{Name: c.Name, Matched: c.Matched, Total: c.Total, BlockSize: c.BlockSize, Load: c.Load}
	}
	return out
}

// Commit takes over that d's request was sent: the router's own index has its
// blocks from now on, and the indexers are told. The returned function, to be
// called once, says that the request is over.
func (p *Picker) Commit(d *Decision) (end func()) {
	c := d.Chosen()
	for _, chain := range d.View.chains {
		p.approx.Record(c.Name, chain)
	}
	if p.index == nil {
		return func() {}
	}
	report := indexclient.Commit{Replica: c.Name, Model: d.View.Prompt.Model, Scheme: p.cfg.Scheme.Name()}
	if c.Precise {
		report.Model, report.BlockSize = c.group.model, c.group.blockSize
		report.Keys = slices.Concat(c.group.keys...)
	}
	id := p.index.Commit(report)
	return func() { p.index.Complete(id) }
}

// Observe sets what the engine reported of d's request, in tokens, beside what
// was expected of it.
func (p *Picker) Observe(d *Decision, promptTokens, cachedTokens int) {
	if !d.View.Prompt.single {
		return
	}
	c := d.Chosen()
	expected := c.expected(&d.View.Prompt)
	p.metrics.observe(c.Precise, expected, cachedTokens)
	if c.Precise && p.index != nil {
		p.index.Observe(indexclient.Observation{
			Replica: c.Name, Generation: c.generation, Prompt: promptTokens, Predicted: expected, Actual: cachedTokens,
		})
	}
}

// expected is the number of tokens that c was believed to have cached, as an
// engine would count them: of an approximate match, the partial block and the
// last token are left out, since no engine reuses them.
func (c *Candidate) expected(p *Prompt) int {
	blocks := c.Matched
	if !c.Precise {
		n := 0
		for _, list := range p.own {
			n += hashing.Usable(len(list), c.BlockSize)
		}
		blocks = min(blocks, n)
	}
	return blocks * c.BlockSize
}
