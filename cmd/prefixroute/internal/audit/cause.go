package audit

import (
	"fmt"
	"slices"
	"time"

	"github.com/prefixroute/prefixroute/pkg/hashing"
)

// A Cause says why a prediction from events alone had to differ. The set is
// closed, and each cause is proved from the recording.
type Cause string

// The causes.
const (
	// Unexplained: nothing in the recording proves a cause, so the index is wrong.
	Unexplained Cause = "unexplained"
	// InFlight: other requests, or other parts of this one, were being computed.
	// Their blocks are usable from the step that schedules them, before any
	// event is out. Proved if the reported tokens are no more than what was held
	// together with the blocks of exactly those requests.
	InFlight Cause = "in flight"
	// Cleared: the cache was emptied, and no batch has come since. Engines say so
	// with their next step. Proved if the engine found nothing but what was in
	// flight.
	Cleared Cause = "cleared"
	// Reported: an earlier request had its reused blocks announced as if they
	// were stored once more (kv_cache_report_mode "full"), which no removal takes
	// back. Proved if the first block that was missing is one of those.
	Reported Cause = "report"
)

// explain looks for the cause of a difference. keys are q's usable ones,
// promised is in tokens.
func (p *player) explain(q *request, keys []hashing.Key, promised int) (Cause, string) {
	flying, what := p.inFlight(q)
	if c, ok := p.pendingClear(q); ok {
		if leading(keys, flying, nil) >= p.blocks(q.cached) {
			return Cleared, fmt.Sprintf("%s at %.3f s, no batch since", c.path, c.done.Seconds())
		}
	}
	if promised < q.cached {
		if what != "" && leading(keys, flying, p.held()) >= p.blocks(q.cached) {
			return InFlight, what
		}
		return Unexplained, ""
	}
	if missing := p.blocks(q.cached); missing < len(keys) {
		if _, ok := p.reported[keys[missing]]; ok {
			return Reported, fmt.Sprintf("block %d was reported, not stored", missing)
		}
	}
	return Unexplained, ""
}

// pendingClear returns the last clearing before q, if no batch came after it.
func (p *player) pendingClear(q *request) (clearing, bool) {
	var last clearing
	found := false
	for _, c := range p.tape.clears {
		if c.at < q.sent+clockMargin {
			last, found = c, true
		}
	}
	return last, found && p.lastBatch <= last.done
}

// inFlight returns the keys of all blocks that were being computed beside q, or
// by its other parts, and says in words what those were; "" if nothing was.
func (p *player) inFlight(q *request) (map[hashing.Key]struct{}, string) {
	keys := make(map[hashing.Key]struct{})
	others := 0
	for _, o := range p.tape.work {
		if o.sent > q.done {
			break
		}
		if o != q && o.done >= q.sent {
			others++
			p.addBlocks(keys, o)
		}
	}
	switch {
	case others > 0:
		return keys, fmt.Sprintf("%d other requests between %.3f and %.3f s", others, seconds(q.sent), seconds(q.done))
	case q.choices > 1:
		p.addBlocks(keys, q)
		return keys, fmt.Sprintf("n = %d", q.choices)
	case len(q.prompts) > 1:
		p.addBlocks(keys, q)
		return keys, fmt.Sprintf("a batch of %d prompts", len(q.prompts))
	default:
		return keys, ""
	}
}

// addBlocks adds the keys of all blocks that q can have filled: its prompts, each
// continued by its answer where the recording has it.
func (p *player) addBlocks(keys map[hashing.Key]struct{}, q *request) {
	for i, prompt := range q.prompts {
		whole := prompt
		if len(q.prompts) == len(q.answers) {
			whole = slices.Concat(prompt, q.answers[i])
		}
		for _, k := range p.keys(q, whole) {
			keys[k] = struct{}{}
		}
	}
}

// leading counts the leading keys that are in one of the sets.
func leading(keys []hashing.Key, a, b map[hashing.Key]struct{}) int {
	for i, k := range keys {
		_, inA := a[k]
		_, inB := b[k]
		if !inA && !inB {
			return i
		}
	}
	return len(keys)
}

func seconds(d time.Duration) float64 { return max(0, d.Seconds()) }
