// Package belief holds what is believed of each replica, and how far that can be
// trusted: its block set, the position in the engine's history that the set
// stands at, and the state of the stream that keeps it up to date.
//
// # Model
//
// A [Replica] is written by the goroutine that follows its stream, one batch at
// a time, and read by everybody else: look-ups, lists, the writer of the durable
// copy. Set and position change together, so whoever reads both sees the exact
// result of the batches up to that number.
//
// A [Generation] names one unbroken history of the set. When the set can no
// longer be vouched for it is dropped, and a new generation begins.
//
// # Concurrency
//
// Every method of [Replica] and [Fleet] may be called from any goroutine.
// Replicas share nothing, and no method holds two locks.
package belief

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/index"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
	"github.com/prefixroute/prefixroute/pkg/replicas"
)

// State says where a replica's stream stands.
type State uint8

// The states, in the order in which a replica usually goes through them.
const (
	Connecting State = iota // no connection, or none again yet
	Replaying               // connected, history is being asked
	Live                    // every batch up to the newest is applied
	Gap                     // a hole was seen and is not filled yet
	Down                    // unreachable for longer than allowed
)

var stateNames = [...]string{Connecting: "connecting", Replaying: "replaying", Live: "live", Gap: "gap", Down: "down"}

// String is the state as the API's users and metric labels have it.
func (s State) String() string { return stateNames[s] }

// States lists every state, for those who label metrics with them.
func States() []State { return []State{Connecting, Replaying, Live, Gap, Down} }

// Generation names one unbroken history of a replica's set. The zero value is
// that of a replica without one.
type Generation struct {
	Epoch   uint64 // random identity of the history's first writer; 0 = no history yet
	Counter uint64 // grows by one whenever the set starts anew
}

// Position is how far a set has followed its engine.
type Position struct {
	// Known is false before the first batch of a generation; the other fields
	// are zero then.
	Known bool
	// Seq is the number of the last applied batch.
	Seq uint64
	// Digest is the [Digest] of that batch's payload. Payloads carry the
	// engine's clock, so an engine process that shows the same digest at the
	// same number is the one that the set was built from.
	Digest uint64
}

// Replica is what is believed of one replica. Make one with [NewReplica].
type Replica struct {
	// Fixed after NewReplica.
	cfg    replicas.Replica
	shown  string // cfg.URL without a password
	scheme hashing.Scheme
	// changed is called, without the lock, after a change that List shows in
	// state, generation, model or shape; dirty after one that the durable copy
	// lacks. Neither blocks.
	changed, dirty func()

	// Guarded by mu. The set's read-only methods run under the read lock.
	mu        sync.RWMutex
	model     string
	set       *index.Belief // nil while the model is unknown
	gen       Generation
	shared    bool // gen is in the durable copy
	pos       Position
	state     State
	reason    string // why the state is what it is
	doubts    Doubts
	lastEvent time.Time
	samples   []Sample
}

// NewReplica returns a replica about which nothing is known.
func NewReplica(cfg replicas.Replica, scheme hashing.Scheme, changed, dirty func()) *Replica {
	return &Replica{
		cfg: cfg, shown: redact(cfg.URL), scheme: scheme, changed: changed, dirty: dirty,
		model: cfg.Model, reason: "not contacted yet",
	}
}

// redact hides the password of a URL, for all who only show it.
func redact(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Redacted()
}

// Name is the replica's identity.
func (r *Replica) Name() string { return r.cfg.Name }

// Config is the replica's line in the list of replicas.
func (r *Replica) Config() replicas.Replica { return r.cfg }

// Position returns the position of the set.
func (r *Replica) Position() Position {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.pos
}

// Serves returns the name of the model that the set's keys are for, and whether
// there is a set. A configured model is known before there is one.
func (r *Replica) Serves() (model string, has bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.model, r.set != nil
}

// SetState says where the stream stands, and why.
func (r *Replica) SetState(s State, reason string) {
	r.mu.Lock()
	same := r.state == s && r.reason == reason
	r.state, r.reason = s, reason
	r.mu.Unlock()
	if !same {
		r.changed()
	}
}

// Renew drops the set and begins a new generation, for a replica that serves
// model.
func (r *Replica) Renew(model string) Generation {
	r.mu.Lock()
	if r.gen.Epoch == 0 {
		for r.gen.Epoch == 0 {
			r.gen.Epoch = rand.Uint64()
		}
		r.gen.Counter = 0
	}
	r.gen.Counter++
	r.shared = false
	r.model, r.set = model, nil
	if model != "" {
		r.set = index.NewBelief(r.scheme, model)
	}
	r.pos, r.doubts = Position{}, Doubts{}
	gen := r.gen
	r.mu.Unlock()
	r.changed()
	r.dirty()
	return gen
}

// Outcome is what one batch did to the set.
type Outcome struct {
	BelowZero int // GPU removals of copies that the set does not have
	// Contradicts: one of these came when the set was not in doubt, and no clear
	// after it. In doubt, they are to be expected.
	Contradicts bool
	Cleared     bool // the batch had an AllBlocksCleared
	// Ignored counts the events, or parts of them, left aside by reason.
	Ignored map[index.Ignored]int
	// Unread counts the events that were rejected, other than those of types
	// that this release does not know.
	Unread int
}

// Apply takes one batch into account, all of it or, for a look-up beside it,
// none, and moves the position to pos. The replica must have a model.
func (r *Replica) Apply(batch kvevents.Batch, pos Position, now time.Time) Outcome {
	var out Outcome
	for _, rej := range batch.Rejected {
		if rej.Reason != kvevents.ReasonUnknownTag {
			out.Unread++
		}
	}
	r.mu.Lock()
	sizes, reason := r.blockSizes(), r.why()
	for _, ev := range batch.Events {
		eff := r.set.Apply(ev)
		if eff.BelowZero > 0 {
			out.BelowZero += eff.BelowZero
			out.Contradicts = out.Contradicts || r.doubts == Doubts{}
		}
		if eff.Cleared {
			out.Cleared = true
			// What was missed before is gone as well.
			out.Contradicts, r.doubts = false, Doubts{}
		}
		if eff.Ignored != index.IgnoredNone {
			if out.Ignored == nil {
				out.Ignored = map[index.Ignored]int{}
			}
			out.Ignored[eff.Ignored]++
		}
	}
	if out.Unread > 0 {
		r.doubts.Suspect = fmt.Sprintf("batch %d has %d events that could not be read", pos.Seq, out.Unread)
	}
	r.pos, r.lastEvent = pos, now
	news := reason != r.why() || !slices.Equal(sizes, r.blockSizes())
	r.mu.Unlock()
	if news {
		r.changed()
	}
	r.dirty()
	return out
}

// Skip moves the position past a batch that could not be decoded. Asking for it
// again would bring the same bytes, so the stream goes on; but what was removed
// in it may still be believed, and the set is suspect until it is cleared or
// starts anew.
func (r *Replica) Skip(pos Position, now time.Time) {
	r.mu.Lock()
	r.pos, r.lastEvent = pos, now
	r.doubts.Suspect = fmt.Sprintf("batch %d could not be decoded", pos.Seq)
	r.mu.Unlock()
	r.changed()
	r.dirty()
}

// keySize is the number of tokens that keys must have; 0 while unknown.
// Its caller holds mu.
func (r *Replica) keySize() int {
	if r.set != nil {
		if n := r.set.Shape().BlockSize; n > 0 {
			return n
		}
	}
	return r.cfg.BlockSize
}

// ambiguous says why nothing can be promised for the replica although it holds
// blocks, see [index.Shape]. Its caller holds mu.
func (r *Replica) ambiguous() string {
	if r.set == nil {
		return ""
	}
	return r.set.Shape().Ambiguous
}

// blockSizes lists the sizes that events have shown, that of keys first.
// Its caller holds mu.
func (r *Replica) blockSizes() []int {
	key := r.keySize()
	if key == 0 {
		return nil
	}
	sizes := []int{key}
	if r.set != nil {
		for _, n := range r.set.Shape().BlockSizes {
			if !slices.Contains(sizes, n) {
				sizes = append(sizes, n)
			}
		}
	}
	return sizes
}

// Doubts are the reasons for which a set may differ from what the engine holds
// although its stream is live. They end with the generation, and with a clear.
type Doubts struct {
	// Incomplete says why stores before some point are missing: blocks may be
	// held that are not believed, and removals of them are no contradiction.
	Incomplete string
	// Suspect says what made the set doubtful in both directions.
	Suspect string
}

// Doubt adds to the replica's doubts; empty fields leave what is there.
func (r *Replica) Doubt(d Doubts) {
	r.mu.Lock()
	before := r.doubts
	if d.Incomplete != "" {
		r.doubts.Incomplete = d.Incomplete
	}
	if d.Suspect != "" {
		r.doubts.Suspect = d.Suspect
	}
	same := r.doubts == before
	r.mu.Unlock()
	if !same {
		r.changed()
		r.dirty()
	}
}

// Completed says that the set's history begins with the engine's first batch.
func (r *Replica) Completed() {
	r.mu.Lock()
	news := r.doubts.Incomplete != ""
	r.doubts.Incomplete = ""
	r.mu.Unlock()
	if news {
		r.changed()
	}
}

// Doubts returns the present doubts.
func (r *Replica) Doubts() Doubts {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.doubts
}

// why joins the state's reason, the doubts and the set's own ambiguity.
// Its caller holds mu.
func (r *Replica) why() string {
	var parts []string
	if r.reason != "" {
		parts = append(parts, r.reason)
	}
	if r.doubts.Incomplete != "" {
		parts = append(parts, "history incomplete: "+r.doubts.Incomplete)
	}
	if r.doubts.Suspect != "" {
		parts = append(parts, "suspect: "+r.doubts.Suspect)
	}
	if a := r.ambiguous(); a != "" {
		parts = append(parts, "ambiguous: "+a)
	}
	return strings.Join(parts, "; ")
}
