package hashing_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/prefixroute/prefixroute/pkg/hashing"
)

// vector is a case of hash_vectors.json: a prompt and its digests.
type vector struct {
	ID        string              `json:"id"`
	Algorithm hashing.Algorithm   `json:"algo"`
	Seed      *string             `json:"none_hash_seed"`
	None      string              `json:"none_hash_hex"`
	Scheme    hashing.ExtraScheme `json:"key_scheme"`
	BlockSize int                 `json:"block_size"`
	Tokens    []uint32            `json:"token_ids"`
	Extra     struct {
		LoRA *struct{ Name, Path string } `json:"lora"`
		Salt string                       `json:"salt"`
		MM   []struct {
			Identifier     string
			Offset, Length int64
		} `json:"mm"`
		Embeds []*string `json:"prompt_embeds_digest_hex"` // one for each block
	} `json:"extra_keys"`
	Hashes   []string `json:"expected_block_hashes_hex"`
	External []uint64 `json:"expected_external_uint64"`
}

// hybridVector is a prompt hashed in units that are smaller than its blocks.
type hybridVector struct {
	Algorithm    hashing.Algorithm `json:"algo"`
	Seed         *string           `json:"none_hash_seed"`
	Unit         int               `json:"hash_block_size"`
	BlockSize    int               `json:"group_block_size"`
	Tokens       []uint32          `json:"token_ids"`
	Fine         []string          `json:"fine_hashes_hex"`
	Concatenated []string          `json:"group_hashes_concatenated_hex"`
	Tail         []string          `json:"group_hashes_tail_hex"`
	External     []uint64          `json:"expected_external_uint64"`
}

func readVectors(t *testing.T) (cases []vector, hybrid []hybridVector) {
	t.Helper()
	var file struct {
		Cases  []vector       `json:"cases"`
		Hybrid []hybridVector `json:"hybrid_cases"`
	}
	parseJSON(t, readTestdata(t, "hash_vectors.json.gz"), &file)
	return file.Cases, file.Hybrid
}

// extra returns what goes into the hash of the block with the given number.
func (v *vector) extra(t *testing.T, block int) hashing.EngineExtra {
	t.Helper()
	var x hashing.EngineExtra
	if v.Extra.LoRA != nil {
		x.LoRAName, x.LoRAPath = v.Extra.LoRA.Name, v.Extra.LoRA.Path
	}
	if block == 0 {
		x.Salt = v.Extra.Salt
	}
	start := int64(block * v.BlockSize)
	for _, item := range v.Extra.MM {
		if item.Offset+item.Length > start && item.Offset < start+int64(v.BlockSize) {
			x.MM = append(x.MM, hashing.MMItem{ID: item.Identifier, Offset: item.Offset - start})
		}
	}
	if block < len(v.Extra.Embeds) && v.Extra.Embeds[block] != nil {
		x.Embeds = unhex(t, *v.Extra.Embeds[block])
	}
	return x
}

func TestEngineVectors(t *testing.T) {
	t.Parallel()

	cases, _ := readVectors(t)
	if len(cases) != 125 {
		t.Fatalf("%d cases, want 125", len(cases))
	}
	blocks := 0
	for _, v := range cases {
		e := newEngine(t, v.Algorithm, v.Seed, v.Scheme)
		if got := hex.EncodeToString(e.None()); got != v.None {
			t.Errorf("%s: None() = %s, want %s", v.ID, got, v.None)
		}
		digests := chain(e, v.Tokens, v.BlockSize, func(i int) hashing.EngineExtra { return v.extra(t, i) })
		if diff := cmp.Diff(v.Hashes, hexes(digests)); diff != "" {
			t.Errorf("%s: digests (-want +got)\n%s", v.ID, diff)
		}
		var external []uint64
		for _, d := range digests {
			external = append(external, hashing.External(d))
		}
		if !slices.Equal(external, v.External) {
			t.Errorf("%s: External = %d, want %d", v.ID, external, v.External)
		}
		blocks += len(digests)
	}
	if blocks != 649 {
		t.Errorf("checked %d blocks, want 649", blocks)
	}
}

func TestEngineHybridVectors(t *testing.T) {
	t.Parallel()

	_, cases := readVectors(t)
	if len(cases) != 2 {
		t.Fatalf("%d cases, want 2", len(cases))
	}
	for _, v := range cases {
		e := newEngine(t, v.Algorithm, v.Seed, hashing.Tagged)
		fine := chain(e, v.Tokens, v.Unit, nil)
		if diff := cmp.Diff(v.Fine, hexes(fine)); diff != "" {
			t.Errorf("units of %d: digests (-want +got)\n%s", v.Unit, diff)
		}
		var whole, tail [][]byte
		for group := range slices.Chunk(fine, v.BlockSize/v.Unit) {
			whole = append(whole, bytes.Join(group, nil))
			tail = append(tail, group[len(group)-1])
		}
		if diff := cmp.Diff(v.Concatenated, hexes(whole)); diff != "" {
			t.Errorf("concatenated (-want +got)\n%s", diff)
		}
		if diff := cmp.Diff(v.Tail, hexes(tail)); diff != "" {
			t.Errorf("at the boundary (-want +got)\n%s", diff)
		}
		for i, want := range v.External {
			if a, b := hashing.External(whole[i]), hashing.External(tail[i]); a != want || b != want {
				t.Errorf("External = %d concatenated, %d at the boundary, want %d", a, b, want)
			}
		}
	}
}

// TestEnginePickle compares with CPython's own pickler where the format has
// edges: widths of integers, frames, references, long strings.
func TestEnginePickle(t *testing.T) {
	t.Parallel()

	var cases []struct {
		Name       string
		FirstToken uint32 `json:"first_token"`
		Tokens     int
		LoRA       []string
		MM         []hashing.MMItem
		Salt       *struct {
			Text  string
			Times int
		}
		SHA256 string
	}
	parseJSON(t, readTestdata(t, "pickle_cpython.json"), &cases)
	if len(cases) == 0 {
		t.Fatal("no cases")
	}
	e := newEngine(t, hashing.SHA256, nil, hashing.Tagged)
	parent := make([]byte, sha256.Size)
	for i := range parent {
		parent[i] = byte(i)
	}
	for _, c := range cases {
		x := hashing.EngineExtra{MM: c.MM}
		if len(c.LoRA) == 2 {
			x.LoRAName, x.LoRAPath = c.LoRA[0], c.LoRA[1]
		}
		if c.Salt != nil {
			x.Salt = string(bytes.Repeat([]byte(c.Salt.Text), c.Salt.Times))
		}
		got := hex.EncodeToString(e.Block(parent, ramp(c.FirstToken, c.Tokens), x))
		if got != c.SHA256 {
			t.Errorf("%s: digest %s, want %s", c.Name, got, c.SHA256)
		}
	}
}

// TestEngineUnsetSeed: the cryptographic algorithms fall back to one seed on
// every engine, the others to one of their own.
func TestEngineUnsetSeed(t *testing.T) {
	t.Parallel()

	fixed := map[hashing.Algorithm]bool{
		hashing.SHA256: true, hashing.SHA256CBOR: true, hashing.XXHash: false, hashing.XXHashCBOR: false,
	}
	for algo, want := range fixed {
		a := newEngine(t, algo, nil, hashing.Tagged)
		b := newEngine(t, algo, nil, hashing.Tagged)
		if got := bytes.Equal(a.None(), b.None()); got != want {
			t.Errorf("%s: two engines without a seed agree: %t, want %t", algo, got, want)
		}
	}
	e := newEngine(t, hashing.SHA256CBOR, nil, hashing.Tagged)
	const none = "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0"
	if got := hex.EncodeToString(e.None()); got != none {
		t.Errorf("sha256_cbor without a seed: None() = %s, want %s", got, none)
	}
}

func TestEngineNoneIsACopy(t *testing.T) {
	t.Parallel()

	e := newEngine(t, hashing.SHA256, nil, hashing.Tagged)
	want := e.None()
	clear(e.None())
	if got := e.None(); !bytes.Equal(got, want) {
		t.Errorf("None() = %x after a caller wrote to it, want %x", got, want)
	}
}

func TestNewEngineRefuses(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name   string
		algo   hashing.Algorithm
		scheme hashing.ExtraScheme
		want   string
	}{
		{
			"algorithm", "builtin", hashing.Tagged,
			`hash algorithm is "builtin", must be one of ["sha256" "sha256_cbor" "xxhash" "xxhash_cbor"]`,
		},
		{
			"scheme", hashing.SHA256, "",
			`extra key scheme is "", must be one of ["tagged" "bare" "mm-id-only"]`,
		},
	}
	for _, tt := range tests {
		_, err := hashing.NewEngine(tt.algo, nil, tt.scheme)
		if got := fmt.Sprint(err); got != tt.want {
			t.Errorf("%s: error %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestExternal(t *testing.T) {
	t.Parallel()

	f := func(digest string, want uint64) {
		t.Helper()
		if got := hashing.External(unhex(t, digest)); got != want {
			t.Errorf("External(%s) = %#x, want %#x", digest, got, want)
		}
	}
	f("", 0)
	f("ff", 0xff)
	f("01020304", 0x01020304)
	f("0102030405060708", 0x0102030405060708)
	f("aa0102030405060708", 0x0102030405060708)
}

func newEngine(t testing.TB, algo hashing.Algorithm, seed *string, scheme hashing.ExtraScheme) *hashing.Engine {
	t.Helper()
	e, err := hashing.NewEngine(algo, seed, scheme)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// chain returns the digests of the full blocks of a prompt.
func chain(e *hashing.Engine, tokens []uint32, blockSize int, extra func(block int) hashing.EngineExtra) [][]byte {
	return chainFrom(e, e.None(), tokens, blockSize, extra)
}

// chainFrom returns the digests of the full blocks that follow parent.
func chainFrom(e *hashing.Engine, parent []byte, tokens []uint32, blockSize int, extra func(block int) hashing.EngineExtra) [][]byte {
	var digests [][]byte
	for i := range len(tokens) / blockSize {
		var x hashing.EngineExtra
		if extra != nil {
			x = extra(i)
		}
		parent = e.Block(parent, tokens[i*blockSize:(i+1)*blockSize], x)
		digests = append(digests, parent)
	}
	return digests
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func hexes(digests [][]byte) []string {
	s := make([]string, 0, len(digests))
	for _, d := range digests {
		s = append(s, hex.EncodeToString(d))
	}
	return s
}
