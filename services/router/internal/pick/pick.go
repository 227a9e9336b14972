// Package pick decides which replica gets a request, and keeps what the router
// believes because of it.
//
// # Model
//
// A decision has four steps that the caller takes one by one:
//
//   - [Picker.Prepare] tokenizes the prompt;
//   - [Picker.Look] lists the replicas that can take the request with what each is
//     believed to hold: precisely, where an indexer follows its event stream and
//     the stream is live, by the router's own earlier choices elsewhere;
//   - [Picker.Choose] scores them and picks one, which takes its turn of the cold
//     requests and of the rotation. After a failed connection it chooses again
//     from the same view, without those that were tried;
//   - [Picker.Commit] says that the request was really sent. Only then are its
//     blocks believed to be there.
//
// [Picker.Explain] takes the third step without any effect, so that an
// explanation is the decision that the next request would get.
//
// # Concurrency
//
// A Picker is safe for concurrent use. Lookups run outside its lock, which is
// held only for the scoring of a few candidates.
package pick

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/scoring"
	"github.com/prefixroute/prefixroute/pkg/tokenize"
	"github.com/prefixroute/prefixroute/services/router/internal/approx"
	"github.com/prefixroute/prefixroute/services/router/internal/fleet"
	"github.com/prefixroute/prefixroute/services/router/internal/indexclient"
)

// Fleet is what a Picker needs of the fleet.
type Fleet interface {
	Serving(model string) ([]fleet.Member, error)
}

// Index is what a Picker needs of the indexers.
type Index interface {
	Replicas() (all map[string]indexclient.Replica, ok bool, reason string)
	Match(ctx context.Context, q indexclient.Query) (indexclient.Answer, error)
	Commit(c indexclient.Commit) (request uint64)
	Complete(request uint64)
	Observe(o indexclient.Observation)
}

// Config fixes how a Picker decides.
type Config struct {
	Policy *scoring.Policy
	Scheme hashing.Scheme // of this router's keys
	// BlockSize is the tokens per block of the approximate chain.
	BlockSize int
	// MaxBlocks is the length at which an approximate chain is cut.
	MaxBlocks int
	// Deadline is the time that all lookups of one request have together.
	Deadline time.Duration
	// Tokenizer asks the engines for tokens; nil means the lesson's scheme alone.
	Tokenizer *EngineTokenizer
	// Seed makes ties fall the same way again; 0 takes a random one.
	Seed uint64
}

// Picker decides. Use [New].
type Picker struct {
	cfg     Config
	fleet   Fleet
	index   Index // nil: every replica is approximate
	approx  *approx.Index
	metrics *Metrics
	log     *slog.Logger

	// forward picks for requests without a prompt of ours.
	forward *scoring.Policy

	mu     sync.Mutex
	cold   scoring.ColdOrder // guarded by mu
	turn   uint64            // guarded by mu
	random *rand.PCG         // guarded by mu
}

// New returns a Picker. index may be nil: then every replica is approximate.
func New(cfg Config, members Fleet, index Index, own *approx.Index, metrics *Metrics, log *slog.Logger) (*Picker, error) {
	forward, err := scoring.New(scoring.PolicyLeastQueue, scoring.Config{})
	if err != nil {
		return nil, err
	}
	seed := cfg.Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	return &Picker{
		cfg: cfg, fleet: members, index: index, approx: own, metrics: metrics, log: log,
		forward: forward, random: rand.NewPCG(seed, seed),
	}, nil
}

// Prompt is a request that was tokenized.
type Prompt struct {
	Model, Salt string

	// engine holds the tokens that the engines will have, own those that this
	// router always has for the text. They are the same lists unless engines are
	// asked. One entry for each prompt of a batch, which may be nil.
	engine, own [][]uint32
	// reason says why the engine's tokens are not known; empty when they are.
	reason Reason
	// single says that the prompt is one, answered once, so that what the engine
	// reports about its cache can be compared with what was expected.
	single bool
}

// Tokens is the number of tokens over all prompts.
func (p *Prompt) Tokens() int {
	n := 0
	for _, list := range p.engine {
		n += len(list)
	}
	return n
}

// maxPrompts is how many prompts of a batch count in a decision. The engine
// answers them all on one replica in any case.
const maxPrompts = tokenize.DefaultMaxPrompts

// Prepare tokenizes r. It does not fail: without the engine's tokens, the
// router's own still tell what the router itself sent where.
func (p *Picker) Prepare(ctx context.Context, r tokenize.Request) Prompt {
	defer p.metrics.stage(stageTokenize)()
	out := Prompt{Model: r.Model, Salt: r.Salt, single: r.N == 1 && (len(r.Messages) > 0 || len(r.Prompts) == 1)}
	own, err := tokenize.Lesson{}.Tokens(ctx, r)
	if err != nil { // the lesson's scheme has no way to fail
		p.log.ErrorContext(ctx, "own tokenizer", "err", err)
	}
	out.own = own[:min(len(own), maxPrompts)]
	out.engine = out.own
	if len(own) == 0 {
		out.reason = ReasonTokenizer
		return out
	}
	if p.cfg.Tokenizer == nil || p.index == nil {
		return out
	}
	lists, err := p.cfg.Tokenizer.tokens(ctx, p.fleet, r)
	if err != nil {
		out.reason = ReasonTokenizer
		p.metrics.Fallbacks.WithLabelValues(fallbackOf(err)).Inc()
		p.log.DebugContext(ctx, "engine did not tokenize", "err", err)
		return out
	}
	out.engine = lists[:min(len(lists), maxPrompts)]
	return out
}
