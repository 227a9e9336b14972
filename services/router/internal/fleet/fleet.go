// Package fleet knows the engines behind the router: which of them answer, which
// models each serves, and how busy each is.
//
// # Model
//
// Every replica of the list is polled on its own: /metrics at each interval,
// /v1/models now and then and whenever it comes back. A replica is
//
//   - unreachable from a refused connection on (seen by the poll or by the
//     proxy), or from two polls in a row without an answer, until it answers
//     again. It gets no requests;
//   - reachable otherwise, also when its metrics page cannot be read. Its load is
//     unknown while the last readable page is older than the limit, and unknown
//     is never idle.
//
// When every replica of a model is unreachable and some merely did not answer in
// time, those are used after all: a fleet whose metrics are slow still serves.
//
// # Concurrency
//
// One goroutine polls each replica, so that one that hangs delays no other. A
// replica's state is guarded by its own lock.
package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prefixroute/prefixroute/pkg/enginemetrics"
	"github.com/prefixroute/prefixroute/pkg/replicas"
	"github.com/prefixroute/prefixroute/pkg/scoring"
)

// ErrUnknownModel is returned where no replica serves the model, reachable or not.
var ErrUnknownModel = errors.New("no replica serves the model")

// ErrUnavailable is returned where no replica that serves the model, or may serve
// it, can be reached.
var ErrUnavailable = errors.New("no replica of the model can be reached")

// Options tunes a Fleet. All durations are positive.
type Options struct {
	Interval       time.Duration // between two polls of one replica
	Timeout        time.Duration // for one answer
	StaleAfter     time.Duration // age from which a metrics page says nothing
	ModelsInterval time.Duration // between two looks at /v1/models

	// Restarted, if not nil, is told of an engine whose process is a new one.
	Restarted func(replica string)
	// Sized, if not nil, is told the size of an engine's cache when it is known,
	// in blocks and tokens per block.
	Sized func(replica string, blocks, blockSize int)
}

// Model is one entry of an engine's /v1/models.
type Model struct {
	ID     string `json:"id"`
	Parent string `json:"parent,omitempty"` // base model of a LoRA adapter; empty for a base model
	// Raw is the entry as the engine sent it.
	Raw json.RawMessage `json:"-"`
}

// Member is a replica that can take a request.
type Member struct {
	Name string
	URL  *url.URL // base of the engine's API; not to be changed
	// Adapter says that the model asked for is a LoRA adapter there.
	Adapter bool
	// BlockSize is the engine's tokens per block by its metrics page, 0 unknown.
	BlockSize int
	Load      scoring.Load
}

// Status is what is known of a replica.
type Status struct {
	Name, URL string // the URL without a password
	Reachable bool
	// Reason says in words why it is not reachable, or what is not known of it.
	Reason string
	Models []Model

	Load       scoring.Load
	MetricsAge time.Duration // of the last readable page; negative: none yet

	BlockSize, NumGPUBlocks int // 0 unknown
}

// Fleet is the list of replicas with what is known of each. Use [New]; it is
// safe for concurrent use.
type Fleet struct {
	opts     Options
	log      *slog.Logger
	metrics  *Metrics
	client   *http.Client
	replicas []*replica          // fixed after New
	byName   map[string]*replica // fixed after New
}

// replica is one entry of the list.
type replica struct {
	spec     replicas.Replica // fixed
	url      *url.URL         // fixed
	inFlight atomic.Int64

	mu    sync.Mutex
	state state // guarded by mu
}

// state is the changing part of a replica.
type state struct {
	polled    bool // asked at least once, for everything
	reachable bool
	slow      bool // unreachable for want of an answer in time only
	misses    int  // polls in a row without an answer
	reason    string

	models   []Model
	listed   bool      // models is what the engine or the operator said, not merely empty
	modelsAt time.Time // of the last list; zero: ask at the next poll

	page   enginemetrics.Metrics
	pageAt time.Time // zero: none yet
}

// New returns a fleet of which nothing is known yet. list is valid
// ([replicas.List.Validate]).
func New(list replicas.List, opts Options, metrics *Metrics, log *slog.Logger) (*Fleet, error) {
	f := &Fleet{opts: opts, log: log, metrics: metrics, client: newClient(), byName: map[string]*replica{}}
	for _, spec := range list {
		u, err := url.Parse(spec.URL)
		if err != nil {
			return nil, err
		}
		r := &replica{spec: spec, url: u}
		if spec.Model != "" {
			r.state.models, r.state.listed = []Model{{ID: spec.Model}}, true
		}
		f.replicas = append(f.replicas, r)
		f.byName[spec.Name] = r
	}
	return f, nil
}

// Run polls until ctx ends, and returns when every poll has stopped.
func (f *Fleet) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, r := range f.replicas {
		wg.Go(func() { f.follow(ctx, r) })
	}
	wg.Wait()
	f.client.CloseIdleConnections()
}

func (f *Fleet) follow(ctx context.Context, r *replica) {
	tick := time.NewTicker(f.opts.Interval)
	defer tick.Stop()
	for {
		f.poll(ctx, r)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Ready says why the fleet cannot serve yet; nil when each replica was asked, and
// one answers whose models are known.
func (f *Fleet) Ready() error {
	reachable := false
	for _, r := range f.replicas {
		r.mu.Lock()
		polled := r.state.polled
		reachable = reachable || r.state.reachable && r.state.listed
		r.mu.Unlock()
		if !polled {
			return errors.New("replicas have not been asked yet")
		}
	}
	if !reachable {
		return errors.New("no replica answers with its models")
	}
	return nil
}

// Serving returns the replicas that can take a request for model, in the order
// of the list; an empty model means any. The error is [ErrUnknownModel] or
// [ErrUnavailable].
func (f *Fleet) Serving(model string) ([]Member, error) {
	now := time.Now()
	var up, slow []Member
	known := model == ""
	for _, r := range f.replicas {
		r.mu.Lock()
		m, serves := r.member(model, now.Sub(r.state.pageAt) <= f.opts.StaleAfter)
		switch {
		case !serves:
			// A replica whose models were never seen may serve anything.
			known = known || !r.state.listed
		case r.state.reachable:
			up = append(up, m)
		default:
			known = true
			if r.state.slow {
				slow = append(slow, m)
			}
		}
		r.mu.Unlock()
	}
	switch {
	case len(up) > 0:
		return up, nil
	case len(slow) > 0:
		return slow, nil
	case known:
		return nil, ErrUnavailable
	default:
		return nil, ErrUnknownModel
	}
}

// member describes r for a request to model and reports whether it serves it.
// The caller holds r.mu.
func (r *replica) member(model string, fresh bool) (Member, bool) {
	serves := model == ""
	adapter := false
	for i := range r.state.models {
		if m := &r.state.models[i]; m.ID == model {
			serves, adapter = true, m.Parent != ""
			break
		}
	}
	if !serves {
		return Member{}, false
	}
	return Member{
		Name: r.spec.Name, URL: r.url, Adapter: adapter,
		BlockSize: int(r.state.page.BlockSize.N), Load: r.load(fresh),
	}, true
}

// load is what the engine said of itself, if the page is fresh and says all of
// it: a sum of terms over replicas of which some lack one is not comparable.
func (r *replica) load(fresh bool) scoring.Load {
	p := &r.state.page
	l := scoring.Load{InFlight: int(r.inFlight.Load())}
	if fresh && p.Waiting.OK && p.Running.OK && p.KVUsage.OK {
		l.Known, l.Waiting, l.Running, l.KVUsage = true, int(p.Waiting.N), int(p.Running.N), p.KVUsage.Share
	}
	return l
}

// Failed says that a connection to the replica could not be made. It gets no
// requests until it answers a poll again.
func (f *Fleet) Failed(name string, err error) {
	r, ok := f.byName[name]
	if !ok {
		return
	}
	r.mu.Lock()
	was := r.state.reachable
	r.state.reachable, r.state.slow = false, false
	r.state.reason = "connection: " + err.Error()
	r.mu.Unlock()
	if was {
		f.log.Warn("replica lost", "replica", name, "err", err)
	}
}

// Begin counts a request in flight to the replica until the returned function is
// called, which has to be exactly once.
func (f *Fleet) Begin(name string) (end func()) {
	r, ok := f.byName[name]
	if !ok {
		return func() {}
	}
	r.inFlight.Add(1)
	return func() { r.inFlight.Add(-1) }
}

// Status describes every replica, in the order of the list.
func (f *Fleet) Status() []Status {
	now := time.Now()
	all := make([]Status, 0, len(f.replicas))
	for _, r := range f.replicas {
		r.mu.Lock()
		s := Status{
			Name: r.spec.Name, URL: r.url.Redacted(), Reachable: r.state.reachable, Reason: r.state.reason,
			Models: r.state.models, MetricsAge: -1,
			BlockSize: int(r.state.page.BlockSize.N), NumGPUBlocks: int(r.state.page.NumGPUBlocks.N),
			Load: r.load(now.Sub(r.state.pageAt) <= f.opts.StaleAfter),
		}
		if !r.state.pageAt.IsZero() {
			s.MetricsAge = now.Sub(r.state.pageAt)
		}
		if !r.state.polled {
			s.Reason = "not asked yet"
		}
		r.mu.Unlock()
		all = append(all, s)
	}
	return all
}

// Models returns every model that a reachable replica serves, once, in the order
// in which they are met.
func (f *Fleet) Models() []Model {
	var all []Model
	seen := map[string]bool{}
	for _, r := range f.replicas {
		r.mu.Lock()
		models, reachable := r.state.models, r.state.reachable
		r.mu.Unlock()
		if !reachable {
			continue
		}
		for _, m := range models {
			if !seen[m.ID] {
				seen[m.ID] = true
				all = append(all, m)
			}
		}
	}
	return all
}
