package app

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/ops"
	"github.com/prefixroute/prefixroute/pkg/replicas"
	"github.com/prefixroute/prefixroute/pkg/scoring"
	"github.com/prefixroute/prefixroute/services/router/internal/approx"
	"github.com/prefixroute/prefixroute/services/router/internal/indexclient"
	"github.com/prefixroute/prefixroute/services/router/internal/pick"
)

// The names of tokenizers.
const (
	TokenizerLesson = "lesson" // split into words and hash each; what fakevllm does
	TokenizerEngine = "engine" // ask a replica's /tokenize
)

// Config is everything an operator can set. Each field has one flag, one
// environment variable and a default that works on a laptop.
type Config struct {
	Listen    string // host:port for clients
	ListenOps string // host:port of /metrics, /healthz and /readyz

	Replicas     replicas.List
	ReplicasFile string // YAML or JSON; ParseConfig adds it to Replicas

	Indexers      []string      // addresses; empty = no indexer, every replica approximate
	Index         string        // precise or approximate
	IndexDeadline time.Duration // for all lookups of one request
	KeySecretFile string        // secret of the key scheme; the indexers' one

	Policy                 string
	Weights                map[string]float64 // by scorer
	MatchLengthWeight      float64            // share of the match's length in the prefix score, 0..1
	MatchLengthScaleTokens int                // length that counts as full
	NeverUsed              string             // equal or ranked
	Seed                   uint64             // of tie breaking; 0 = random

	BlockSize        int    // tokens per block of the approximate chain
	ApproxCapacity   int    // blocks for each replica whose cache size is unknown
	Tokenizer        string // lesson or engine
	TokenizeDeadline time.Duration

	ScrapeInterval    time.Duration
	ScrapeTimeout     time.Duration
	MetricsStaleAfter time.Duration
	ModelsInterval    time.Duration

	MaxBodyBytes    int64
	ConnectTimeout  time.Duration
	ResponseTimeout time.Duration // until an engine's headers; 0 = no limit

	DrainTimeout time.Duration
	LogLevel     slog.Level
}

// DefaultConfig returns the defaults of the flags. It lacks replicas.
func DefaultConfig() Config {
	return Config{
		Listen: "127.0.0.1:8080", ListenOps: "127.0.0.1:8081",
		Index: pick.Precise, IndexDeadline: 20 * time.Millisecond,
		Policy: scoring.PolicyPrefix, Weights: scoring.DefaultWeights(),
		MatchLengthScaleTokens: scoring.DefaultMatchLengthScaleTokens, NeverUsed: scoring.Equal.String(),
		BlockSize: 16, ApproxCapacity: approx.DefaultCapacity,
		Tokenizer: TokenizerLesson, TokenizeDeadline: 100 * time.Millisecond,
		ScrapeInterval: 500 * time.Millisecond, ScrapeTimeout: time.Second, MetricsStaleAfter: 3 * time.Second,
		ModelsInterval: 5 * time.Second,
		MaxBodyBytes:   64 << 20, ConnectTimeout: 2 * time.Second, ResponseTimeout: 10 * time.Minute,
		DrainTimeout: 10 * time.Second, LogLevel: slog.LevelInfo,
	}
}

// ParseConfig reads flags over environment (PREFIXROUTE_ROUTER_*) over defaults
// and reports all mistakes at once. [flag.ErrHelp] comes back as it is.
func ParseConfig(args []string, getenv func(string) string, stderr io.Writer) (Config, error) {
	cfg := DefaultConfig()
	fs := flag.NewFlagSet("router", flag.ContinueOnError)
	fs.SetOutput(stderr)
	cfg.flags(fs)
	err := ops.ParseFlags(fs, "PREFIXROUTE_ROUTER", args, getenv)
	if errors.Is(err, flag.ErrHelp) {
		return Config{}, err
	}
	if cfg.ReplicasFile != "" {
		list, ferr := replicas.ReadFile(cfg.ReplicasFile)
		err = errors.Join(err, ferr)
		cfg.Replicas = append(cfg.Replicas, list...)
	}
	if err := errors.Join(err, cfg.validate()); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

func (c *Config) flags(fs *flag.FlagSet) {
	fs.StringVar(&c.Listen, "listen", c.Listen, "`address` for clients")
	fs.StringVar(&c.ListenOps, "listen-ops", c.ListenOps, "metrics and health `address`")
	fs.Var(&c.Replicas, "replica", "`NAME=URL` of an engine; can be given several times")
	fs.StringVar(&c.ReplicasFile, "replicas-file", c.ReplicasFile, "`file` with a list of replicas")

	fs.Var((*addresses)(&c.Indexers), "indexer", "`address` of an indexer, several with commas; none = every replica approximate")
	fs.StringVar(&c.Index, "index", c.Index, "precise or approximate: what to know the engines' caches by")
	fs.DurationVar(&c.IndexDeadline, "index-deadline", c.IndexDeadline, "how long a request waits for the indexer")
	fs.StringVar(&c.KeySecretFile, "key-secret-file", c.KeySecretFile, "`file` with the secret of the key scheme, the same as the indexer's")

	fs.StringVar(&c.Policy, "policy", c.Policy, "one of "+strings.Join(scoring.Policies(), ", "))
	fs.Var((*weights)(&c.Weights), "weights", "`scorer=weight` pairs of the policy prefix, with commas; a scorer that is left out is off")
	fs.Float64Var(&c.MatchLengthWeight, "match-length-weight", c.MatchLengthWeight, "share of the match's length in the prefix score, 0 to 1")
	fs.IntVar(&c.MatchLengthScaleTokens, "match-length-scale-tokens", c.MatchLengthScaleTokens, "`tokens` of a match that count as full length")
	fs.StringVar(&c.NeverUsed, "never-used", c.NeverUsed, "equal or ranked: order of replicas that never took a cold request")
	fs.Uint64Var(&c.Seed, "seed", c.Seed, "seed of tie breaking; 0 = random")

	fs.IntVar(&c.BlockSize, "block-size", c.BlockSize, "`tokens` per block of the approximate index; precise sizes come from the indexer")
	fs.IntVar(&c.ApproxCapacity, "approx-capacity", c.ApproxCapacity, "`blocks` of the approximate index for a replica whose cache size is unknown")
	fs.StringVar(&c.Tokenizer, "tokenizer", c.Tokenizer, "lesson or engine; precise matching of engines with a tokenizer of their own needs engine")
	fs.DurationVar(&c.TokenizeDeadline, "tokenize-deadline", c.TokenizeDeadline, "how long a request waits for an engine's tokens")

	fs.DurationVar(&c.ScrapeInterval, "scrape-interval", c.ScrapeInterval, "time between two looks at an engine's /metrics")
	fs.DurationVar(&c.ScrapeTimeout, "scrape-timeout", c.ScrapeTimeout, "how long such a look may take")
	fs.DurationVar(&c.MetricsStaleAfter, "metrics-stale-after", c.MetricsStaleAfter, "age from which metrics say nothing")
	fs.DurationVar(&c.ModelsInterval, "models-interval", c.ModelsInterval, "time between two looks at an engine's /v1/models")

	fs.Int64Var(&c.MaxBodyBytes, "max-body-bytes", c.MaxBodyBytes, "largest request body in `bytes`")
	fs.DurationVar(&c.ConnectTimeout, "connect-timeout", c.ConnectTimeout, "how long a connection to an engine may take to be made")
	fs.DurationVar(&c.ResponseTimeout, "response-timeout", c.ResponseTimeout, "how long an engine may take to begin its answer; 0 = no limit")
	fs.DurationVar(&c.DrainTimeout, "drain-timeout", c.DrainTimeout, "how long open requests get after SIGTERM")
	fs.TextVar(&c.LogLevel, "log-level", c.LogLevel, "debug, info, warn or error")
}

// validate reports every mistake, with its flag and value.
func (c *Config) validate() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, a := range []struct{ name, value string }{{"listen", c.Listen}, {"listen-ops", c.ListenOps}} {
		if _, _, err := net.SplitHostPort(a.value); err != nil {
			fail("%s: %w", a.name, err)
		}
	}
	if len(c.Replicas) == 0 {
		fail("replica: none given, expected at least one NAME=URL")
	}
	errs = append(errs, c.Replicas.Validate())
	if c.Index != pick.Precise && c.Index != pick.Approximate {
		fail("index is %q, must be precise or approximate", c.Index)
	}
	if c.Tokenizer != TokenizerLesson && c.Tokenizer != TokenizerEngine {
		fail("tokenizer is %q, must be lesson or engine", c.Tokenizer)
	}
	if len(c.Indexers) > 0 {
		errs = append(errs, indexclient.Config{Addresses: c.Indexers}.Validate())
	}
	_, err := c.policy()
	errs = append(errs, err)
	for _, n := range []struct {
		name  string
		value int64
	}{{"block-size", int64(c.BlockSize)}, {"approx-capacity", int64(c.ApproxCapacity)}, {"max-body-bytes", c.MaxBodyBytes}} {
		if n.value <= 0 {
			fail("%s is %d, must be positive", n.name, n.value)
		}
	}
	if c.ApproxCapacity > approx.MaxCapacity {
		fail("approx-capacity is %d, must be at most %d", c.ApproxCapacity, approx.MaxCapacity)
	}
	errs = append(errs, c.validateTimes())
	return errors.Join(errs...)
}

func (c *Config) validateTimes() error {
	var errs []error
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"index-deadline", c.IndexDeadline},
		{"tokenize-deadline", c.TokenizeDeadline},
		{"scrape-interval", c.ScrapeInterval},
		{"scrape-timeout", c.ScrapeTimeout},
		{"metrics-stale-after", c.MetricsStaleAfter},
		{"models-interval", c.ModelsInterval},
		{"connect-timeout", c.ConnectTimeout},
	} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("%s is %v, must be positive", d.name, d.value))
		}
	}
	if c.ResponseTimeout < 0 || c.DrainTimeout < 0 {
		errs = append(errs, fmt.Errorf("response-timeout is %v and drain-timeout %v, must be 0 or more", c.ResponseTimeout, c.DrainTimeout))
	}
	if c.MetricsStaleAfter <= c.ScrapeInterval {
		errs = append(errs, fmt.Errorf("metrics-stale-after is %v, must be more than scrape-interval (%v), or every load is always unknown",
			c.MetricsStaleAfter, c.ScrapeInterval))
	}
	return errors.Join(errs...)
}

// policy makes the policy of the configuration.
func (c *Config) policy() (*scoring.Policy, error) {
	never, err := scoring.ParseNeverUsed(c.NeverUsed)
	p, perr := scoring.New(c.Policy, scoring.Config{
		Weights:   c.Weights,
		Prefix:    scoring.PrefixParams{MatchLengthWeight: c.MatchLengthWeight, MatchLengthScaleTokens: c.MatchLengthScaleTokens},
		NeverUsed: never,
	})
	return p, errors.Join(err, perr)
}

// scheme makes the key scheme of the configuration.
func (c *Config) scheme() (hashing.Scheme, error) {
	secret, err := ops.ReadSecret(c.KeySecretFile)
	if err != nil {
		return hashing.Scheme{}, fmt.Errorf("key-secret-file: %w", err)
	}
	return hashing.NewScheme(secret), nil
}

// LogValue implements [slog.LogValuer]: the configuration in effect, without
// secrets.
func (c Config) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("listen", c.Listen), slog.String("listen_ops", c.ListenOps), slog.Any("replicas", c.Replicas.Names()),
		slog.String("indexers", strings.Join(c.Indexers, ",")), slog.String("index", c.Index), slog.String("policy", c.Policy),
		slog.String("weights", (*weights)(&c.Weights).String()), slog.String("tokenizer", c.Tokenizer),
		slog.Int("block_size", c.BlockSize), slog.Int("approx_capacity", c.ApproxCapacity), slog.Uint64("seed", c.Seed),
		slog.Duration("index_deadline", c.IndexDeadline), slog.Duration("scrape_interval", c.ScrapeInterval),
		slog.Duration("metrics_stale_after", c.MetricsStaleAfter), slog.Int64("max_body_bytes", c.MaxBodyBytes),
	)
}

// addresses is a list of host:port, with commas or given several times.
type addresses []string

// String implements [flag.Value].
func (a *addresses) String() string {
	if a == nil {
		return ""
	}
	return strings.Join(*a, ",")
}

// Set implements [flag.Value].
func (a *addresses) Set(s string) error {
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" && !slices.Contains(*a, part) {
			*a = append(*a, part)
		}
	}
	return nil
}

// weights is a map of scorer to weight. A value replaces the default as a whole.
type weights map[string]float64

// String implements [flag.Value].
func (w *weights) String() string {
	if w == nil {
		return ""
	}
	parts := make([]string, 0, len(*w))
	for name, v := range *w {
		parts = append(parts, name+"="+strconv.FormatFloat(v, 'g', -1, 64))
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

// Set implements [flag.Value].
func (w *weights) Set(s string) error {
	m := weights{}
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		name, value, _ := strings.Cut(part, "=")
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return fmt.Errorf("weight is %q, expected scorer=number, for example prefix=3", part)
		}
		m[name] = v
	}
	*w = m
	return nil
}
