package app

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func parse(env map[string]string, args ...string) (Config, error) {
	return ParseConfig(args, func(k string) string { return env[k] }, io.Discard)
}

func TestParseConfig(t *testing.T) {
	t.Parallel()

	file := filepath.Join(t.TempDir(), "replicas.yaml")
	if err := os.WriteFile(file, []byte("replicas:\n- {name: c, url: 'http://h:3', block_size: 16}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := parse(map[string]string{
		"PREFIXROUTE_INDEXER_REPLICA":    "a=http://h:1,model=m",
		"PREFIXROUTE_INDEXER_DOWN_AFTER": "3s",
		"PREFIXROUTE_INDEXER_REDIS":      "redis://env:6379",
	}, "-replica", "b=http://h:2", "-replicas-file", file, "-redis", "")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(cfg.Replicas.Names(), ","); got != "a,b,c" {
		t.Errorf("replicas are %s, want a from the environment, b from the flag and c from the file", got)
	}
	if cfg.DownAfter != 3*time.Second || cfg.Redis != "" || cfg.ReplayConcurrency != 8 {
		t.Errorf("down-after %v, redis %q, replay-concurrency %d; want 3s, none and 8", cfg.DownAfter, cfg.Redis, cfg.ReplayConcurrency)
	}
}

func TestParseConfigReportsAllMistakes(t *testing.T) {
	t.Parallel()

	_, err := parse(map[string]string{"PREFIXROUTE_INDEXER_QUEUE_MIB": "many"},
		"-listen-grpc", "nope", "-listen-ops", "nope2", "-redis", "redis://user:hunter2@h:x", "-redis-prefix", "",
		"-replicas-file", "/does/not/exist", "-down-after", "-1s", "-heartbeat-interval", "2h", "-heartbeat-timeout", "0s", "-replay-attempts", "0", "-replay-concurrency", "1001")
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"PREFIXROUTE_INDEXER_QUEUE_MIB", "listen-grpc is \"nope\"", "listen-ops is \"nope2\"", "redis is", "redis-prefix is empty", "/does/not/exist",
		"no replicas", "down-after is -1s", "heartbeat-interval is 2h0m0s", "heartbeat-timeout is 0s", "replay-attempts is 0", "replay-concurrency is 1001",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error has the password:\n%v", err)
	}
}

func TestParseConfigHelp(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer
	_, err := ParseConfig([]string{"-h"}, func(string) string { return "" }, &out)
	if !errors.Is(err, flag.ErrHelp) || !strings.Contains(out.String(), "-replicas-file") {
		t.Errorf("-h gave %v and %q, want flag.ErrHelp and the flags", err, out.String())
	}
}

func TestDefaultConfigLacksReplicasAlone(t *testing.T) {
	t.Parallel()

	cfg := DefaultConfig()
	if err := cfg.Validate(); err == nil || err.Error() != "no replicas: give -replica or -replicas-file" {
		t.Errorf("Validate() = %v, want the missing replicas alone", err)
	}
	if err := cfg.Replicas.Set("a=http://h:1"); err != nil {
		t.Fatal(err)
	}
	for _, redis := range []string{cfg.Redis, "", "none"} {
		cfg.Redis = redis
		if err := cfg.Validate(); err != nil || cfg.durable() != strings.HasPrefix(redis, "redis") {
			t.Errorf("redis %q: durable is %v, error %v", redis, cfg.durable(), err)
		}
	}
}
