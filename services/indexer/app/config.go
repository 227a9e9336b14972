package app

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"time"

	"github.com/prefixroute/prefixroute/pkg/ops"
	"github.com/prefixroute/prefixroute/pkg/replicas"
	"github.com/prefixroute/prefixroute/services/indexer/internal/store"
)

// EnvPrefix begins the names of the environment variables, see [ops.ParseFlags].
const EnvPrefix = "PREFIXROUTE_INDEXER"

// Config is everything that can be set. Each field has one flag, one environment
// variable and a default that works on a laptop.
type Config struct {
	ListenGRPC string // host:port of the index API; port 0 takes a free one
	ListenOps  string // host:port of metrics, health and pages; port 0 takes a free one

	Replicas     replicas.List
	ReplicasFile string // YAML or JSON; its replicas are added to Replicas

	Redis        string        // URL; "" or "none" keeps no durable copy
	RedisPrefix  string        // of all keys
	RedisTimeout time.Duration // of each call
	WarmTimeout  time.Duration // how long the start waits for the durable copies

	KeySecretFile string // secret of the fleet's keys; "" = unkeyed

	// HeartbeatInterval and HeartbeatTimeout bound how long a half-open
	// connection to an engine stays unnoticed.
	HeartbeatInterval, HeartbeatTimeout time.Duration
	DownAfter                           time.Duration // unreachable for so long = down
	ProbeInterval                       time.Duration // a stream quiet for so long is asked for a lost tail

	ReplayIdleTimeout time.Duration // how long a replay socket may be silent
	ReplayAttempts    int           // without progress, in a row
	ReplayConcurrency int           // replays at once
	ReplayMaxMiB      int           // read before it is applied

	QueueMessages int // live messages that wait, per replica
	QueueMiB      int // and their size

	DrainTimeout time.Duration // how long open calls get after SIGTERM
	LogLevel     slog.Level
}

// DefaultConfig returns the defaults of the flags. They lack replicas.
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
	err := ops.ParseFlags(fs, EnvPrefix, args, getenv)
	if errors.Is(err, flag.ErrHelp) {
		return Config{}, err
	}
	errs := []error{err}
	if cfg.ReplicasFile != "" {
		list, err := replicas.ReadFile(cfg.ReplicasFile)
		errs = append(errs, err)
		cfg.Replicas = append(cfg.Replicas, list...)
	}
	if err := errors.Join(append(errs, cfg.Validate())...); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

func newFlags(c *Config) *flag.FlagSet {
	fs := flag.NewFlagSet("indexer", flag.ContinueOnError)
	fs.StringVar(&c.ListenGRPC, "listen-grpc", "127.0.0.1:9090", "`address` of the index API; port 0 takes a free one")
	fs.StringVar(&c.ListenOps, "listen-ops", "127.0.0.1:9091", "`address` of metrics, health and pages; port 0 takes a free one")
	fs.Var(&c.Replicas, "replica", "a `NAME=URL[,events=ADDR][,replay=ADDR][,topic=T][,model=M][,rank=N][,block-size=N]` to follow; can be given several times")
	fs.StringVar(&c.ReplicasFile, "replicas-file", "", "YAML or JSON `file` whose key replicas lists more of them")
	fs.StringVar(&c.Redis, "redis", "redis://127.0.0.1:6379/0", "`URL` of the durable copy; empty or none keeps none, so that a restart asks the engines for everything")
	fs.StringVar(&c.RedisPrefix, "redis-prefix", "prefixroute", "`prefix` of all keys in Redis")
	fs.DurationVar(&c.RedisTimeout, "redis-timeout", time.Second, "how long one call to Redis may take")
	fs.DurationVar(&c.WarmTimeout, "warm-timeout", 5*time.Second, "how long the start waits for the durable copies before it goes on without")
	fs.StringVar(&c.KeySecretFile, "key-secret-file", "", "`file` with the fleet's secret for block keys, the same for every indexer and router")
	fs.DurationVar(&c.HeartbeatInterval, "heartbeat-interval", 2*time.Second, "how often an idle connection to an engine is pinged")
	fs.DurationVar(&c.HeartbeatTimeout, "heartbeat-timeout", 6*time.Second, "how long a ping may stay unanswered")
	fs.DurationVar(&c.DownAfter, "down-after", 10*time.Second, "how long a replica may be unreachable before it counts as down")
	fs.DurationVar(&c.ProbeInterval, "probe-interval", 15*time.Second, "how long a stream may be quiet before the engine is asked for lost batches")
	fs.DurationVar(&c.ReplayIdleTimeout, "replay-idle-timeout", 2*time.Second, "how long a replay socket may be silent")
	fs.IntVar(&c.ReplayAttempts, "replay-attempts", 3, "`times` in a row that a replay is asked for without progress")
	fs.IntVar(&c.ReplayConcurrency, "replay-concurrency", 8, "`replays` at once, over all replicas")
	fs.IntVar(&c.ReplayMaxMiB, "replay-max-mib", 32, "`MiB` of a replay that are read before they are applied")
	fs.IntVar(&c.QueueMessages, "queue-messages", 16384, "live `messages` that may wait, for each replica")
	fs.IntVar(&c.QueueMiB, "queue-mib", 16, "`MiB` of live messages that may wait, for each replica")
	fs.DurationVar(&c.DrainTimeout, "drain-timeout", 10*time.Second, "how long open calls get after SIGTERM")
	fs.TextVar(&c.LogLevel, "log-level", slog.LevelInfo, "`level`: debug, info, warn or error")
	return fs
}

// Validate reports every mistake, each with its flag and value.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, a := range []struct{ flag, value string }{{"listen-grpc", c.ListenGRPC}, {"listen-ops", c.ListenOps}} {
		if _, _, err := net.SplitHostPort(a.value); err != nil {
			bad("%s is %q, expected HOST:PORT: %w", a.flag, a.value, err)
		}
	}
	if len(c.Replicas) == 0 {
		bad("no replicas: give -replica or -replicas-file")
	}
	if err := c.Replicas.Validate(); err != nil {
		errs = append(errs, err)
	}
	if c.durable() {
		if _, err := store.ParseURL(c.Redis); err != nil {
			bad("redis is %q, expected redis://HOST:PORT/DB: %w", redact(c.Redis), err)
		}
		if c.RedisPrefix == "" {
			bad("redis-prefix is empty, expected the beginning of all keys")
		}
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"redis-timeout", c.RedisTimeout},
		{"warm-timeout", c.WarmTimeout},
		{"heartbeat-interval", c.HeartbeatInterval},
		{"heartbeat-timeout", c.HeartbeatTimeout},
		{"down-after", c.DownAfter},
		{"probe-interval", c.ProbeInterval},
		{"replay-idle-timeout", c.ReplayIdleTimeout},
		{"drain-timeout", c.DrainTimeout},
	} {
		if d.value < time.Millisecond {
			bad("%s is %v, expected at least 1ms", d.flag, d.value)
		}
	}
	// ZMTP tells the peer in tenths of a second, in 16 bits.
	if most := time.Hour; c.HeartbeatInterval > most || c.HeartbeatTimeout > most/2 {
		bad("heartbeat-interval is %v and heartbeat-timeout %v, expected at most %v and %v", c.HeartbeatInterval, c.HeartbeatTimeout, most, most/2)
	}
	for _, n := range []struct {
		flag       string
		value, max int
	}{
		{"replay-attempts", c.ReplayAttempts, 100},
		{"replay-concurrency", c.ReplayConcurrency, 1000},
		{"replay-max-mib", c.ReplayMaxMiB, 1 << 16},
		{"queue-messages", c.QueueMessages, 1 << 24},
		{"queue-mib", c.QueueMiB, 1 << 16},
	} {
		if n.value < 1 || n.value > n.max {
			bad("%s is %d, expected 1 to %d", n.flag, n.value, n.max)
		}
	}
	return errors.Join(errs...)
}

// durable reports whether a durable copy is kept. "none" says the same as "",
// which an environment variable cannot say: there it counts as unset.
func (c Config) durable() bool { return c.Redis != "" && c.Redis != "none" }

// redact hides a password, also in a URL that does not parse.
func redact(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "(not a URL)"
	}
	return u.Redacted()
}
