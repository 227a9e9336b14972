package belief

import (
	"time"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/index"
)

// Query asks about one prompt.
type Query struct {
	Model     string
	Scheme    string // name of the key scheme that made the keys
	BlockSize int    // tokens per key
	Keys      []hashing.Key
}

// Look is what a look-up sees of one replica.
type Look struct {
	Name       string
	Scheme     string
	BlockSizes []int // that of keys first; empty while unknown
	// Fits: the query's keys can be compared with the replica's, and its
	// attention groups among each other. Depths are zero where it is false.
	Fits       bool
	Depths     index.Depths
	State      State
	Generation Generation
	Local      bool // the generation is not in the durable copy
	LastEvent  time.Time
}

// Look answers a query, or reports false if the replica serves another model.
// A replica that has not shown its block size yet fits every one: it holds
// nothing.
func (r *Replica) Look(q Query) (Look, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.model != q.Model {
		return Look{}, false
	}
	l := Look{
		Name: r.cfg.Name, Scheme: r.scheme.Name(), BlockSizes: r.blockSizes(),
		State: r.state, Generation: r.gen, Local: !r.shared, LastEvent: r.lastEvent,
	}
	size := r.keySize()
	l.Fits = q.Scheme == l.Scheme && (size == 0 || size == q.BlockSize) && r.ambiguous() == ""
	if l.Fits && r.set != nil {
		l.Depths = r.set.Match(q.BlockSize, q.Keys)
	}
	return l, true
}

// Status is everything there is to say about a replica, at one moment.
type Status struct {
	Name       string
	URL        string // without a password
	Model      string // "" while unknown
	Scheme     string
	BlockSizes []int // that of keys first; empty while unknown
	State      State
	Reason     string // why; empty for a live stream without doubts
	Doubts     Doubts
	Generation Generation
	Local      bool
	Position   Position
	LastEvent  time.Time // zero before the first batch of this process
	Stats      index.Stats
	Digest     uint64 // of the set, free of order
}

// Status returns the replica's present status.
func (r *Replica) Status() Status {
	r.mu.RLock()
	defer r.mu.RUnlock()
	s := Status{
		Name: r.cfg.Name, URL: r.shown, Model: r.model, Scheme: r.scheme.Name(), BlockSizes: r.blockSizes(),
		State: r.state, Reason: r.why(), Doubts: r.doubts,
		Generation: r.gen, Local: !r.shared, Position: r.pos, LastEvent: r.lastEvent,
	}
	if r.set != nil {
		s.Stats, s.Digest = r.set.Stats(), r.set.Digest()
	}
	return s
}

// Contents is the set at one position.
type Contents struct {
	Generation Generation
	Position   Position
	Blocks     []index.Block // sorted
}

// Contents returns the whole set, in time proportional to it.
func (r *Replica) Contents() Contents {
	r.mu.RLock()
	defer r.mu.RUnlock()
	c := Contents{Generation: r.gen, Position: r.pos}
	if r.set != nil {
		c.Blocks = r.set.Blocks()
	}
	return c
}

// Sample is a batch, or an event of one, that could not be read.
type Sample struct {
	Time    time.Time
	Seq     uint64
	Error   string
	Payload []byte // its first bytes, which can hold token ids of prompts
}

// Bounds on the samples kept of each replica.
const (
	maxSamples     = 8
	maxSampleBytes = 512
)

// KeepSample remembers s among the newest few; longer payloads are cut.
func (r *Replica) KeepSample(s Sample) {
	s.Payload = append([]byte(nil), s.Payload[:min(len(s.Payload), maxSampleBytes)]...)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.samples) == maxSamples {
		r.samples = append(r.samples[:0], r.samples[1:]...)
	}
	r.samples = append(r.samples, s)
}

// Samples returns the samples, oldest first.
func (r *Replica) Samples() []Sample {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return append([]Sample(nil), r.samples...)
}
