package app

import (
	"errors"
	"flag"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func parse(env map[string]string, args ...string) (Config, error) {
	return ParseConfig(args, func(name string) string { return env[name] }, io.Discard)
}

func TestDefaultConfigIsWhatNoFlagsGive(t *testing.T) {
	t.Parallel()

	got, err := parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(DefaultConfig(), got); d != "" {
		t.Errorf("DefaultConfig (-) and ParseConfig without flags (+):\n%s", d)
	}
}

func TestParseConfig(t *testing.T) {
	t.Parallel()

	cfg, err := parse(map[string]string{"PREFIXROUTE_FAKEVLLM_LORA": "a b=/adapters/b", "PREFIXROUTE_FAKEVLLM_BLOCK_SIZE": "32"},
		"-hash-seed", "", "-hash-algo", "xxhash", "-max-model-len", "100", "-events", "")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Adapters{{"a", "a"}, {"b", "/adapters/b"}}, cfg.LoRAs); d != "" {
		t.Errorf("adapters (-want +got):\n%s", d)
	}
	if cfg.BlockSize != 32 || cfg.HashSeed == nil || *cfg.HashSeed != "" || cfg.Events != "" {
		t.Errorf("config is %+v, want block size 32, an empty seed that is set, and no events", cfg)
	}
}

func TestParseConfigReportsAllMistakes(t *testing.T) {
	t.Parallel()

	_, err := parse(nil, "-listen", "nope", "-model", "", "-block-size", "0", "-num-gpu-blocks", "1", "-max-num-seqs", "0",
		"-max-num-queued-reqs", "0", "-overhead", "-1s", "-jitter", "2", "-answer-tokens", "0", "-hash-algo", "md5",
		"-events", "5557", "-buffer-steps", "-1", "-event-form", "xml", "-lora", "a a")
	for _, want := range []string{
		"listen", "model", "block-size", "num-gpu-blocks", "max-num-seqs", "max-num-queued-reqs", "overhead", "jitter",
		"answer-tokens", "hash-algo", "events", "buffer-steps", "event-form", "lora",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error doesn't name %s: %v", want, err)
		}
	}
}

// vLLM refuses to start when its blocks can't hold one request of full length.
func TestMaxModelLenMustFitTheBlocks(t *testing.T) {
	t.Parallel()

	if _, err := parse(nil, "-num-gpu-blocks", "11", "-max-model-len", "160"); err != nil {
		t.Errorf("160 tokens in 10 usable blocks of 16: %v, want no error", err)
	}
	if _, err := parse(nil, "-num-gpu-blocks", "11", "-max-model-len", "161"); err == nil || !strings.Contains(err.Error(), "max-model-len is 161") {
		t.Errorf("161 tokens in 10 usable blocks of 16: %v, want an error that names max-model-len", err)
	}
}

func TestUsageNamesEveryFlag(t *testing.T) {
	t.Parallel()

	var out strings.Builder
	_, err := ParseConfig([]string{"-h"}, func(string) string { return "" }, &out)
	if !errors.Is(err, flag.ErrHelp) {
		t.Fatalf("-h = %v, want flag.ErrHelp", err)
	}
	var cfg Config
	newFlags(&cfg).VisitAll(func(f *flag.Flag) {
		if f.Usage == "" || !strings.Contains(out.String(), "-"+f.Name) {
			t.Errorf("flag %s is not in the usage, or says nothing", f.Name)
		}
	})
}
