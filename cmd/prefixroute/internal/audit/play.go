package audit

import (
	"fmt"
	"slices"
	"time"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/index"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// A player runs a tape through the index.
type player struct {
	tape   *tape
	scheme hashing.Scheme
	belief *index.Belief

	applied   int                      // batches so far
	lastBatch time.Duration            // when the last of them came
	reported  map[hashing.Key]struct{} // blocks that report mode announced as if stored, since the last clear
	reporters []*request               // requests for it that are still to be answered
	saltless  bool                     // noted that this release publishes no extra keys
}

// play predicts every request at the moment it was sent, from the events that
// had come by then.
func play(t *tape, rep *Report) {
	p := &player{tape: t, belief: index.NewBelief(hashing.Scheme{}, t.model), reported: make(map[hashing.Key]struct{})}
	for _, q := range t.requests {
		p.advance(q.sent)
		p.compare(q, rep)
	}
	if s := p.belief.Shape(); s.Ambiguous != "" {
		rep.Notes = append(rep.Notes, s.Ambiguous)
	}
	if n := p.belief.Stats().BelowZero; n > 0 {
		rep.Notes = append(rep.Notes, fmt.Sprintf("%d removals of blocks that were never stored: the recording lacks events", n))
	}
}

// advance applies the batches that came before now.
func (p *player) advance(now time.Duration) {
	for p.applied < len(p.tape.batches) && p.tape.batches[p.applied].at < now {
		b := p.tape.batches[p.applied]
		for _, ev := range b.Events {
			if p.belief.Apply(ev).Cleared {
				clear(p.reported)
			}
		}
		p.applied++
		p.lastBatch = b.at
	}
	p.reporters = slices.DeleteFunc(p.reporters, func(q *request) bool {
		if q.done >= now {
			return false
		}
		keys := p.keys(q, q.prompts[0])
		for _, k := range keys[:min(len(keys), p.blocks(q.cached))] {
			p.reported[k] = struct{}{}
		}
		return true
	})
}

func (p *player) blockSize() int { return p.belief.Shape().BlockSize }

// blocks converts tokens to whole blocks.
func (p *player) blocks(tokens int) int {
	if p.blockSize() == 0 {
		return 0
	}
	return tokens / p.blockSize()
}

// keys returns the keys of all full blocks of tokens, as q's.
func (p *player) keys(q *request, tokens []uint32) []hashing.Key {
	return p.scheme.Keys(p.tape.model, p.blockSize(), tokens, func(int) hashing.Extra { return q.extra })
}

// usable returns the keys of q that the engine can reuse. Of a batch of prompts
// the engine reports the last one's cached tokens.
func (p *player) usable(q *request) []hashing.Key {
	prompt := q.prompts[len(q.prompts)-1]
	return p.keys(q, prompt)[:hashing.Usable(len(prompt), p.blockSize())]
}

func (p *player) compare(q *request, rep *Report) {
	keys := p.usable(q)
	depth := p.belief.Match(p.blockSize(), keys).GPUCPUDisk
	promised := depth * p.blockSize()
	if q.reports {
		p.reporters = append(p.reporters, q)
	}
	p.warnSalt(q, rep)
	rep.Requests++
	if promised == q.cached {
		rep.Exact++
		return
	}
	d := Difference{
		Line: q.line, Note: q.note, Tokens: len(q.prompts[len(q.prompts)-1]),
		Promised: promised, Reported: q.cached,
	}
	d.Cause, d.Proof = p.explain(q, keys, promised)
	if promised > q.cached {
		rep.Over++
	} else {
		rep.Under++
	}
	if d.Cause != Unexplained {
		rep.Explained++
	}
	rep.Differences = append(rep.Differences, d)
}

// warnSalt notes once that salts are in use where events do not show them.
func (p *player) warnSalt(q *request, rep *Report) {
	if p.saltless || q.extra.Salt == "" || p.applied == 0 || p.belief.Shape().ExtraKeys {
		return
	}
	p.saltless = true
	rep.Notes = append(rep.Notes, "this engine's events carry no extra keys: its salted blocks cannot be told from plain ones by content")
}

// held returns the keys of the blocks that are believed to be in GPU memory.
func (p *player) held() map[hashing.Key]struct{} {
	set := make(map[hashing.Key]struct{})
	for _, b := range p.belief.Blocks() {
		if b.HasKey && kvevents.Medium(b.Medium).Tier() == kvevents.TierGPU {
			set[b.Key] = struct{}{}
		}
	}
	return set
}
