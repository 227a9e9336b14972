package ops

import (
	"bytes"
	"errors"
	"flag"
	"strings"
	"testing"
)

func TestParseFlagsPrecedence(t *testing.T) {
	t.Parallel()

	parse := func(env map[string]string, args ...string) (size int, addr string, out string, err error) {
		var buf bytes.Buffer
		fs := flag.NewFlagSet("indexer", flag.ContinueOnError)
		fs.SetOutput(&buf)
		fs.IntVar(&size, "block-size", 16, "tokens per block")
		fs.StringVar(&addr, "listen", "127.0.0.1:1", "address")
		err = ParseFlags(fs, "PREFIXROUTE_INDEXER", args, func(k string) string { return env[k] })
		return size, addr, buf.String(), err
	}

	size, addr, _, err := parse(map[string]string{"PREFIXROUTE_INDEXER_BLOCK_SIZE": "32", "PREFIXROUTE_INDEXER_LISTEN": "e:1"}, "-listen", "f:1")
	if err != nil || size != 32 || addr != "f:1" {
		t.Errorf("size %d, listen %q, err %v; want 32 from the environment and f:1 from the flag", size, addr, err)
	}

	_, _, _, err = parse(map[string]string{"PREFIXROUTE_INDEXER_BLOCK_SIZE": "many"}, "stray")
	for _, want := range []string{"PREFIXROUTE_INDEXER_BLOCK_SIZE", "many", "stray"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %q", err, want)
		}
	}

	_, _, out, err := parse(nil, "-h")
	if !errors.Is(err, flag.ErrHelp) || !strings.Contains(out, "PREFIXROUTE_INDEXER_BLOCK_SIZE") {
		t.Errorf("-h gave error %v and %q, want flag.ErrHelp and a usage that names the variables", err, out)
	}
}
