package pick

import (
	"context"
	"sync"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/services/router/internal/fleet"
	"github.com/prefixroute/prefixroute/services/router/internal/indexclient"
)

// A Reason says why a candidate, or a decision, is not precise. Its values are
// label values.
type Reason string

// The reasons. None is that of a precise one.
const (
	ReasonNone        Reason = "none"
	ReasonConfigured  Reason = "configured"   // the operator chose the approximate index, or gave no indexer
	ReasonIndexerDown Reason = "indexer_down" // no indexer can be asked
	ReasonNotFollowed Reason = "not_followed" // the indexer does not know the replica, or did not answer for it
	ReasonConnecting  Reason = "stream_connecting"
	ReasonReplaying   Reason = "stream_replaying"
	ReasonGap         Reason = "stream_gap"
	ReasonDown        Reason = "stream_down"
	ReasonScheme      Reason = "scheme"     // keys of another scheme
	ReasonBlockSize   Reason = "block_size" // tokens per block unknown, or not those asked for
	ReasonDeadline    Reason = "deadline"   // the lookup was not answered in time
	ReasonUnavailable Reason = "unavailable"
	ReasonMatchError  Reason = "match_error"
	ReasonCanceled    Reason = "canceled"  // the client left before the answer
	ReasonTokenizer   Reason = "tokenizer" // the engine's tokens are not known
)

func reasons() []Reason {
	return []Reason{
		ReasonNone, ReasonConfigured, ReasonIndexerDown, ReasonNotFollowed, ReasonConnecting, ReasonReplaying, ReasonGap,
		ReasonDown, ReasonScheme, ReasonBlockSize, ReasonDeadline, ReasonUnavailable, ReasonMatchError, ReasonCanceled, ReasonTokenizer,
	}
}

// The labels of a decision: how many of its candidates are precise.
const (
	Precise     = "precise"     // all
	Approximate = "approximate" // none
	Mixed       = "mixed"       // some
)

// Candidate is a replica that can take the request, and what it is believed to
// hold of the prompt.
type Candidate struct {
	fleet.Member
	// Precise says that the belief comes from the engine's events.
	Precise bool
	Reason  Reason // why not; ReasonNone if it does
	// Matched of Total blocks of BlockSize tokens: usable full blocks where
	// precise, blocks of the chain with its partial last one where not.
	Matched, Total, BlockSize int

	group      *group                 // what its keys are; nil if it has none
	generation indexclient.Generation // of the belief, where precise
}

// View is what was known when the decision was made.
type View struct {
	Candidates []Candidate
	// Index is Precise, Approximate or Mixed; Reason is that of the first
	// candidate that is not precise.
	Index  string
	Reason Reason
	Prompt Prompt

	chains [][]uint64 // approximate chain of each prompt
}

// group is the candidates whose keys are the same.
type group struct {
	shape
	keys    [][]hashing.Key // of all full blocks, for each prompt
	usables []int           // blocks that an engine could reuse, for each prompt
	usable  int             // over all prompts
	members []*Candidate
}

// shape is what keys depend on beside the prompt.
type shape struct {
	model     string // base model
	adapter   string // LoRA adapter, empty for none
	blockSize int
}

// Look lists the candidates for a prompt with what each is believed to hold. The
// error is one of [fleet.Fleet.Serving]'s. It takes the lookups' deadline at
// most.
func (p *Picker) Look(ctx context.Context, prompt Prompt) (*View, error) {
	defer p.metrics.stage(stageLook)()
	members, err := p.fleet.Serving(prompt.Model)
	if err != nil {
		return nil, err
	}
	v := &View{Prompt: prompt, Candidates: make([]Candidate, len(members))}
	for i, m := range members {
		v.Candidates[i] = Candidate{Member: m}
	}
	for _, tokens := range prompt.own {
		// The zero byte keeps model and salt apart, which the chain itself does not.
		v.chains = append(v.chains, hashing.Approximate(prompt.Model+"\x00", prompt.Salt, tokens, p.cfg.BlockSize, p.cfg.MaxBlocks))
	}
	p.ask(ctx, v)
	for i := range v.Candidates {
		if c := &v.Candidates[i]; !c.Precise {
			p.guess(c, v.chains)
		}
	}
	v.label()
	return v, nil
}

// label sums up what the candidates rest on.
func (v *View) label() {
	precise := 0
	v.Reason = ReasonNone
	for i := range v.Candidates {
		switch c := &v.Candidates[i]; {
		case c.Precise:
			precise++
		case v.Reason == ReasonNone:
			v.Reason = c.Reason
		}
	}
	switch precise {
	case 0:
		v.Index = Approximate
	case len(v.Candidates):
		v.Index = Precise
	default:
		v.Index = Mixed
	}
}

// guess fills in c by the router's own earlier choices.
func (p *Picker) guess(c *Candidate, chains [][]uint64) {
	c.BlockSize = p.cfg.BlockSize
	for _, chain := range chains {
		c.Matched += p.approx.Match(c.Name, chain)
		c.Total += len(chain)
	}
}

// ask has the indexers fill in the candidates that can be precise, and gives the
// others their reasons.
func (p *Picker) ask(ctx context.Context, v *View) {
	groups := p.groups(v)
	if len(groups) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Deadline)
	defer cancel()
	if len(groups) == 1 && len(v.Prompt.engine) <= 1 {
		p.match(ctx, groups[0])
		return
	}
	var wg sync.WaitGroup
	for _, g := range groups {
		wg.Go(func() { p.match(ctx, g) })
	}
	wg.Wait()
}

// groups sorts the candidates that can be precise by their shape.
func (p *Picker) groups(v *View) []*group {
	var all map[string]indexclient.Replica
	blanket := ReasonConfigured
	if p.index != nil {
		var ok bool
		all, ok, _ = p.index.Replicas()
		switch {
		case !ok:
			blanket = ReasonIndexerDown
		case v.Prompt.reason != "":
			blanket = v.Prompt.reason
		default:
			blanket = ReasonNone
		}
	}
	var groups []*group
	for i := range v.Candidates {
		c := &v.Candidates[i]
		if c.Reason = blanket; blanket != ReasonNone {
			continue
		}
		r, known := all[c.Name]
		s, reason := p.shape(r, known, c.Member.BlockSize)
		if c.Adapter {
			s.adapter = v.Prompt.Model
		}
		if c.Reason = reason; reason != ReasonNone {
			continue
		}
		groups = join(groups, s, c)
	}
	for _, g := range groups {
		g.compute(p.cfg.Scheme, &v.Prompt)
	}
	return groups
}

func join(groups []*group, s shape, c *Candidate) []*group {
	for _, g := range groups {
		if g.shape == s {
			g.members = append(g.members, c)
			c.group = g
			return groups
		}
	}
	g := &group{shape: s, members: []*Candidate{c}}
	c.group = g
	return append(groups, g)
}

// shape is what the keys for r depend on, or why there is no use in asking. own
// is the block size that the engine says of itself, 0 unknown.
func (p *Picker) shape(r indexclient.Replica, known bool, own int) (shape, Reason) {
	if !known {
		return shape{}, ReasonNotFollowed
	}
	if reason := streamReason(r.State); reason != ReasonNone {
		return shape{}, reason
	}
	if r.Scheme != p.cfg.Scheme.Name() {
		return shape{}, ReasonScheme
	}
	s := shape{model: r.Model, blockSize: own}
	// What events said counts more than what the engine says of itself.
	if len(r.BlockSizes) > 0 {
		s.blockSize = r.BlockSizes[0]
	}
	if s.blockSize <= 0 {
		return shape{}, ReasonBlockSize
	}
	return s, ReasonNone
}

// Outlook says why a decision would not be precise for a replica now;
// [ReasonNone] if it would be. own is the block size that the engine says of
// itself, 0 unknown.
func (p *Picker) Outlook(replica string, own int) Reason {
	if p.index == nil {
		return ReasonConfigured
	}
	all, ok, _ := p.index.Replicas()
	if !ok {
		return ReasonIndexerDown
	}
	r, known := all[replica]
	_, reason := p.shape(r, known, own)
	return reason
}

func streamReason(s indexclient.State) Reason {
	switch s {
	case indexclient.Live:
		return ReasonNone
	case indexclient.Replaying:
		return ReasonReplaying
	case indexclient.Gap:
		return ReasonGap
	case indexclient.Down:
		return ReasonDown
	default:
		return ReasonConnecting
	}
}

// compute fills in the group's keys.
func (g *group) compute(scheme hashing.Scheme, prompt *Prompt) {
	extra := func(block int) hashing.Extra {
		x := hashing.Extra{LoRA: g.adapter}
		if block == 0 {
			x.Salt = prompt.Salt
		}
		return x
	}
	if g.adapter == "" && prompt.Salt == "" {
		extra = nil
	}
	for _, tokens := range prompt.engine {
		g.keys = append(g.keys, scheme.Keys(g.model, g.blockSize, tokens, extra))
		usable := hashing.Usable(len(tokens), g.blockSize)
		g.usables = append(g.usables, usable)
		g.usable += usable
	}
}
