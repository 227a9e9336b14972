package hashing_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/prefixroute/prefixroute/pkg/hashing"
)

// TestApproximateOracle compares with chains recorded from llm-d-router. Its
// oracle drops an empty prompt, where Approximate returns an empty chain.
func TestApproximateOracle(t *testing.T) {
	t.Parallel()

	var oracle struct {
		Cases []struct {
			Name      string     `json:"name"`
			Model     string     `json:"target_model"`
			Salt      string     `json:"cache_salt"`
			BlockSize int        `json:"block_size_tokens"`
			MaxBlocks int        `json:"max_blocks"`
			Prompts   [][]uint32 `json:"prompts"`
			Want      [][]string `json:"expected_hashes_hex"`
		} `json:"cases"`
	}
	parseJSON(t, readTestdata(t, "prefix_hash.json"), &oracle)
	if len(oracle.Cases) != 10 {
		t.Fatalf("%d cases, want 10", len(oracle.Cases))
	}
	for _, c := range oracle.Cases {
		var got [][]string
		for _, prompt := range c.Prompts {
			var chain []string
			for _, h := range hashing.Approximate(c.Model, c.Salt, prompt, c.BlockSize, c.MaxBlocks) {
				chain = append(chain, fmt.Sprintf("%016x", h))
			}
			if chain != nil {
				got = append(got, chain)
			}
		}
		if diff := cmp.Diff(c.Want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", c.Name, diff)
		}
	}
}

func TestApproximateLength(t *testing.T) {
	t.Parallel()

	f := func(tokens, blockSize, maxBlocks, want int) {
		t.Helper()
		if got := len(hashing.Approximate("m", "", ramp(0, tokens), blockSize, maxBlocks)); got != want {
			t.Errorf("%d tokens, blocks of %d, at most %d: %d hashes, want %d", tokens, blockSize, maxBlocks, got, want)
		}
	}
	f(0, 16, 10, 0)
	f(1, 16, 10, 1)
	f(16, 16, 10, 1)
	f(17, 16, 10, 2)
	f(1000, 16, 10, 10)
	f(17, 16, 0, 0)
	f(17, 16, -1, 0)
	f(17, 0, 10, 0)
	f(17, -16, 10, 0)
}
