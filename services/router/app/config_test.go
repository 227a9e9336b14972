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

	"github.com/google/go-cmp/cmp"
)

func parse(env map[string]string, args ...string) (Config, error) {
	return ParseConfig(args, func(k string) string { return env[k] }, io.Discard)
}

func TestParseConfig(t *testing.T) {
	t.Parallel()

	cfg, err := parse(map[string]string{
		"PREFIXROUTE_ROUTER_REPLICA": "a=http://h:1 b=http://h:2",
		"PREFIXROUTE_ROUTER_INDEXER": "h:9090,h:9091",
		"PREFIXROUTE_ROUTER_POLICY":  "random",
	}, "-policy", "prefix", "-weights", "prefix=1,queue=0.5")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"h:9090", "h:9091"}, cfg.Indexers); diff != "" {
		t.Errorf("indexers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]float64{"prefix": 1, "queue": 0.5}, cfg.Weights); diff != "" {
		t.Errorf("weights (-want +got):\n%s", diff)
	}
	if cfg.Policy != "prefix" || len(cfg.Replicas) != 2 || cfg.BlockSize != 16 {
		t.Errorf("policy %s, %d replicas, block size %d; want prefix, 2, 16", cfg.Policy, len(cfg.Replicas), cfg.BlockSize)
	}
	if err := cfg.validate(); err != nil {
		t.Errorf("validate: %v", err)
	}
}

func TestParseConfigReportsAllMistakes(t *testing.T) {
	t.Parallel()

	_, err := parse(map[string]string{"PREFIXROUTE_ROUTER_BLOCK_SIZE": "0"},
		"-listen", "nope", "-index", "exact", "-policy", "best", "-weights", "magic=1", "-tokenizer", "none", "-indexer", "h",
		"-never-used", "maybe", "-scrape-interval", "5s", "-metrics-stale-after", "1s", "-index-deadline", "0s", "-approx-capacity", "99999999",
		"-match-length-weight", "2")
	for _, want := range []string{
		"listen: ", "replica: none", `index is "exact"`, `policy is "best"`, `"magic"`, `tokenizer is "none"`, `indexer is "h"`, `never-used is "maybe"`,
		"metrics-stale-after is 1s", "index-deadline is 0s", "approx-capacity is 99999999", "block-size is 0",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error does not say %q:\n%v", want, err)
		}
	}
}

func TestParseConfigHelpNamesTheVariables(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer
	_, err := ParseConfig([]string{"-h"}, func(string) string { return "" }, &out)
	if !errors.Is(err, flag.ErrHelp) || !strings.Contains(out.String(), "PREFIXROUTE_ROUTER_") || !strings.Contains(out.String(), "-index-deadline") {
		t.Errorf("error %v, help %q; want ErrHelp, flags and variables", err, out.String())
	}
}

func TestKeySecret(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	name := func(path string) string {
		c := DefaultConfig()
		c.KeySecretFile = path
		s, err := c.scheme()
		if err != nil {
			return err.Error()
		}
		return s.Name()
	}
	plain, keyed, same := name(""), name(write("a", "0123456789abcdef")), name(write("b", "0123456789abcdef\n"))
	if plain == keyed || keyed != same || !strings.HasPrefix(keyed, plain+"-") {
		t.Errorf("schemes are %s, %s and %s; want another name with a secret, whatever ends its file", plain, keyed, same)
	}
	if got := name(write("c", "\n")); !strings.Contains(got, "is empty") {
		t.Errorf("empty secret gives %q, want an error", got)
	}
	if got := name(filepath.Join(dir, "none")); !strings.Contains(got, "key-secret-file") {
		t.Errorf("missing secret gives %q, want an error", got)
	}
}

func TestListenerInUse(t *testing.T) {
	t.Parallel()

	r := start(t, nil, newEngine(t, "m"))
	cfg := r.app.cfg
	cfg.ListenOps = strings.TrimPrefix(r.app.OpsURL(), "http://")
	if _, err := New(t.Context(), cfg, r.app.log); err == nil || !strings.Contains(err.Error(), cfg.ListenOps) {
		t.Errorf("New on a taken address: error %v, want one that names it", err)
	}
}
