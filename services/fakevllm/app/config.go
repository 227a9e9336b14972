package app

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/ops"
)

// EnvPrefix begins the names of the environment variables, see [ops.ParseFlags].
const EnvPrefix = "PREFIXROUTE_FAKEVLLM"

// Config is everything that can be set. Each field has one flag, one environment
// variable and a default that works on a laptop. Sizes are in tokens unless they
// say otherwise.
type Config struct {
	Listen string   // host:port of the HTTP API; port 0 takes a free one
	Model  string   // served name
	LoRAs  Adapters // adapters served beside it

	BlockSize    int // tokens per block
	NumGPUBlocks int // blocks, the first of which is never usable
	MaxModelLen  int // prompt and answer together; 0 is what the blocks hold
	MaxNumSeqs   int // sequences that run at once
	MaxQueued    int // sequences that run or wait

	Overhead     time.Duration // before the first token, always
	PerToken     time.Duration // for each prompt token that is not cached
	InterToken   time.Duration // for each token after the first
	Jitter       float64       // share by which these vary, 0 to 1
	AnswerTokens int           // length of a chat's answer without a limit
	Seed         uint64        // of answers and jitter

	HashAlgo hashing.Algorithm // as vLLM's --prefix-caching-hash-algo
	HashSeed *string           // as PYTHONHASHSEED; nil is unset

	Events      string // endpoint of the live events; "" is off
	Replay      string // endpoint of the replay socket; "" is off
	Topic       string // "" is kv@<ip>:<port>@<model>
	BufferSteps int    // batches that can be replayed
	EventForm   EventForm

	DrainTimeout time.Duration // how long open requests get after SIGTERM
	LogLevel     slog.Level
}

// DefaultConfig returns the defaults of the flags, which are valid.
func DefaultConfig() Config {
	var cfg Config
	_ = newFlags(&cfg) // sets the defaults
	return cfg
}

// ParseConfig reads flags over environment over defaults, and reports all
// mistakes at once. [flag.ErrHelp] comes back as it is.
func ParseConfig(args []string, getenv func(string) string, stderr io.Writer) (Config, error) {
	var cfg Config
	fs := newFlags(&cfg)
	fs.SetOutput(stderr)
	if err := ops.ParseFlags(fs, EnvPrefix, args, getenv); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return Config{}, err
		}
		return Config{}, errors.Join(err, cfg.Validate())
	}
	return cfg, cfg.Validate()
}

func newFlags(c *Config) *flag.FlagSet {
	fs := flag.NewFlagSet("fakevllm", flag.ContinueOnError)
	fs.StringVar(&c.Listen, "listen", "127.0.0.1:8000", "`address` of the HTTP API; port 0 takes a free one")
	fs.StringVar(&c.Model, "model", "tiny", "`name` of the served model")
	fs.Var(&c.LoRAs, "lora", "LoRA adapter to serve beside the model, as `NAME[=PATH]`; can be given several times, or several in one value, separated by spaces")

	fs.IntVar(&c.BlockSize, "block-size", 16, "`tokens` per KV-cache block")
	fs.IntVar(&c.NumGPUBlocks, "num-gpu-blocks", 1024, "KV-cache `blocks`; the first one is never usable")
	fs.IntVar(&c.MaxModelLen, "max-model-len", 0, "most `tokens` of a prompt and its answer together; 0 is what the blocks hold")
	fs.IntVar(&c.MaxNumSeqs, "max-num-seqs", 256, "`sequences` that run at once; others wait")
	fs.IntVar(&c.MaxQueued, "max-num-queued-reqs", 1024, "`sequences` that run or wait; further requests get 503")

	fs.DurationVar(&c.Overhead, "overhead", 0, "`time` to the first token when the whole prompt is cached; 0 is no waiting")
	fs.DurationVar(&c.PerToken, "per-token", 0, "`time` to compute one prompt token that is not cached, for example 80us")
	fs.DurationVar(&c.InterToken, "inter-token", 0, "`time` between two tokens of an answer")
	fs.Float64Var(&c.Jitter, "jitter", 0, "`share` by which these three times vary, 0 to 1")
	fs.IntVar(&c.AnswerTokens, "answer-tokens", 32, "`tokens` of a chat's answer when the request sets no limit; a completion's has 16")
	fs.Uint64Var(&c.Seed, "seed", 0, "`number` that decides answers and jitter; servers with the same one give the same answers")

	c.HashAlgo = hashing.SHA256
	fs.Func("hash-algo", "block hash `algorithm`: sha256, sha256_cbor, xxhash or xxhash_cbor (default sha256)", func(s string) error {
		c.HashAlgo = hashing.Algorithm(s)
		return nil
	})
	fs.Func("hash-seed", "`text` that seeds block hashes, as PYTHONHASHSEED does in vLLM; without it sha256 and sha256_cbor hash like every unseeded vLLM, and xxhash* like no other process", func(s string) error {
		c.HashSeed = &s
		return nil
	})

	fs.StringVar(&c.Events, "events", "tcp://127.0.0.1:*", "ZMQ `endpoint` of the KV-cache events, bound if it has a '*' or port 0, else connected to; empty switches them off")
	fs.StringVar(&c.Replay, "replay", "tcp://127.0.0.1:*", "ZMQ `endpoint` to bind for replays of lost events; empty switches it off")
	fs.StringVar(&c.Topic, "topic", "", "`topic` of the events; empty is kv@<ip>:<port of the HTTP API>@<model>")
	fs.IntVar(&c.BufferSteps, "buffer-steps", 10_000, "last `batches` of events that can be replayed")
	c.EventForm = FormMap
	fs.Func("event-form", "`form` of the events: map, as since vLLM 0.24, or array, as before, with replays that have no topic (default map)", func(s string) error {
		c.EventForm = EventForm(s)
		return nil
	})

	fs.DurationVar(&c.DrainTimeout, "drain-timeout", 10*time.Second, "`time` that open requests get to finish after SIGTERM")
	fs.TextVar(&c.LogLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	return fs
}

// Validate reports every value that cannot be used, by the name of its flag.
func (c Config) Validate() error {
	var errs []error
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		errs = append(errs, fmt.Errorf("listen is %q, expected HOST:PORT: %w", c.Listen, err))
	}
	bad(c.Model != "", "model is empty, expected a name")
	bad(c.BlockSize > 0, "block-size is %d, expected 1 token or more", c.BlockSize)
	bad(c.NumGPUBlocks >= 2, "num-gpu-blocks is %d, expected 2 or more", c.NumGPUBlocks)
	bad(c.MaxModelLen >= 0 && c.MaxModelLen <= c.room(),
		"max-model-len is %d, expected 0 to %d: what num-gpu-blocks (%d, one of them unusable) of block-size (%d) hold", c.MaxModelLen, c.room(), c.NumGPUBlocks, c.BlockSize)
	bad(c.MaxNumSeqs > 0, "max-num-seqs is %d, expected 1 or more", c.MaxNumSeqs)
	bad(c.MaxQueued > 0, "max-num-queued-reqs is %d, expected 1 or more", c.MaxQueued)
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"overhead", c.Overhead}, {"per-token", c.PerToken}, {"inter-token", c.InterToken}, {"drain-timeout", c.DrainTimeout}} {
		bad(d.value >= 0, "%s is %v, expected 0 or more", d.name, d.value)
	}
	bad(c.Jitter >= 0 && c.Jitter <= 1, "jitter is %v, expected 0 to 1", c.Jitter)
	bad(c.AnswerTokens > 0, "answer-tokens is %d, expected 1 or more", c.AnswerTokens)
	if _, err := hashing.NewEngine(c.HashAlgo, nil, hashing.Tagged); err != nil {
		errs = append(errs, fmt.Errorf("hash-algo: %w", err))
	}
	for _, e := range []struct{ name, value string }{{"events", c.Events}, {"replay", c.Replay}} {
		bad(e.value == "" || strings.Contains(e.value, "://"), "%s is %q, expected a ZMQ endpoint such as tcp://*:5557", e.name, e.value)
	}
	bad(c.BufferSteps >= 0, "buffer-steps is %d, expected 0 or more", c.BufferSteps)
	bad(c.EventForm == FormMap || c.EventForm == FormArray, "event-form is %q, expected map or array", c.EventForm)
	return errors.Join(append(errs, c.LoRAs.validate(c.Model))...)
}

// room is how many tokens the usable blocks hold.
func (c Config) room() int { return max(0, c.NumGPUBlocks-1) * max(0, c.BlockSize) }

// maxModelLen is MaxModelLen with its default.
func (c Config) maxModelLen() int {
	if c.MaxModelLen == 0 {
		return c.room()
	}
	return c.MaxModelLen
}

// An EventForm is how events are written.
type EventForm string

// The forms: vLLM has had maps since 0.24.
const (
	FormMap   EventForm = "map"
	FormArray EventForm = "array"
)

// An Adapter is a LoRA adapter to serve.
type Adapter struct {
	Name string
	// Path is where vLLM would have loaded it from. It is part of the hashes of
	// its blocks.
	Path string
}

// Adapters is a list of adapters, and a [flag.Value] that can be given several
// times.
type Adapters []Adapter

// String implements [flag.Value].
func (a *Adapters) String() string {
	if a == nil {
		return ""
	}
	var parts []string
	for _, x := range *a {
		parts = append(parts, x.Name+"="+x.Path)
	}
	return strings.Join(parts, " ")
}

// Set implements [flag.Value].
func (a *Adapters) Set(s string) error {
	for field := range strings.FieldsSeq(s) {
		name, path, ok := strings.Cut(field, "=")
		if name == "" || ok && path == "" {
			return fmt.Errorf("adapter is %q, expected NAME or NAME=PATH", field)
		}
		if !ok {
			path = name
		}
		*a = append(*a, Adapter{Name: name, Path: path})
	}
	return nil
}

func (a Adapters) validate(model string) error {
	names := []string{model}
	var errs []error
	for _, x := range a {
		if x.Name == "" || slices.Contains(names, x.Name) {
			errs = append(errs, fmt.Errorf("lora is %q, expected names that differ from each other and from the model's", x.Name))
		}
		names = append(names, x.Name)
	}
	return errors.Join(errs...)
}
