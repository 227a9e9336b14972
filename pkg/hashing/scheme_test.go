package hashing_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/prefixroute/prefixroute/pkg/hashing"
)

// schemes are the unkeyed one and two fleets' own.
var schemes = []hashing.Scheme{{}, hashing.NewScheme([]byte("secret one")), hashing.NewScheme([]byte("secret two"))}

// TestKeysPinned pins the scheme. These keys are in the indexes of running
// processes and in Redis: whoever changes one changes the scheme's name.
func TestKeysPinned(t *testing.T) {
	t.Parallel()

	extra := func(int) hashing.Extra {
		return hashing.Extra{
			LoRA: "adapter", Salt: "salt",
			MM:     []hashing.MMItem{{ID: "image", Offset: -3}},
			Embeds: []byte{1, 2, 3},
		}
	}
	tests := []struct {
		name   string
		secret string
		extra  func(int) hashing.Extra
		want   []hashing.Key
	}{
		{"prefixroute-v1", "", nil, []hashing.Key{0xd1d26dd574c9fce5, 0x7a99ffd1dbbd69de}},
		{"prefixroute-v1", "", extra, []hashing.Key{0x1a967cb685c4b4aa, 0x6a5eaf66a3686e02}},
		{"prefixroute-v1-97651e80", "secret", nil, []hashing.Key{0x68d93c2e0e33cb8e, 0xda6a2edc307da706}},
		{"prefixroute-v1-97651e80", "secret", extra, []hashing.Key{0x49e3a81241816b04, 0x6d598e281c6f3acd}},
	}
	for _, tt := range tests {
		s := hashing.NewScheme([]byte(tt.secret))
		if got := s.Name(); got != tt.name {
			t.Errorf("NewScheme(%q).Name() = %q, want %q", tt.secret, got, tt.name)
		}
		got := s.Keys("org/model", 16, ramp(1000, 40), tt.extra)
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s, with extras %t: keys %#x, want %#x", tt.name, tt.extra != nil, got, tt.want)
		}
	}
}

func TestKeysLength(t *testing.T) {
	t.Parallel()

	f := func(tokens, blockSize, want int) {
		t.Helper()
		if got := len(hashing.Scheme{}.Keys("m", blockSize, ramp(0, tokens), nil)); got != want {
			t.Errorf("%d tokens in blocks of %d: %d keys, want %d", tokens, blockSize, got, want)
		}
	}
	f(0, 16, 0)
	f(15, 16, 0)
	f(16, 16, 1)
	f(31, 16, 1)
	f(32, 16, 2)
	f(5, 1, 5)
	f(16, 0, 0)
	f(16, -16, 0)
}

func TestUsable(t *testing.T) {
	t.Parallel()

	f := func(tokens, blockSize, want int) {
		t.Helper()
		if got := hashing.Usable(tokens, blockSize); got != want {
			t.Errorf("Usable(%d, %d) = %d, want %d", tokens, blockSize, got, want)
		}
	}
	f(0, 16, 0)
	f(1, 16, 0)
	f(16, 16, 0)
	f(17, 16, 1)
	f(32, 16, 1)
	f(33, 16, 2)
	f(64, 32, 1)
	f(1, 1, 0)
	f(2, 1, 1)
	f(-5, 16, 0)
	f(16, 0, 0)
	f(16, -1, 0)
}

// TestSecret: the name tells fleets apart and shows nothing of the secret, and
// the secret reaches every step, not the root alone.
func TestSecret(t *testing.T) {
	t.Parallel()

	if got := hashing.NewScheme([]byte{}); got != (hashing.Scheme{}) {
		t.Errorf("NewScheme of an empty secret = %v, want the zero value", got)
	}
	if a, b := hashing.NewScheme([]byte("s")), hashing.NewScheme([]byte("s")); a != b {
		t.Errorf("two schemes with one secret differ: %s and %s", a.Name(), b.Name())
	}
	tokens := ramp(7, 16)
	seen := map[string]bool{}
	for _, s := range schemes {
		if name := s.Name(); !strings.HasPrefix(name, "prefixroute-v1") || strings.Contains(name, "secret") || seen[name] {
			t.Errorf("name %q: leaks or repeats", name)
		}
		seen[s.Name()] = true
		for _, other := range schemes {
			if s == other {
				continue
			}
			if s.Root("m", 16) == other.Root("m", 16) {
				t.Errorf("%s and %s share a root", s.Name(), other.Name())
			}
			if s.Local(tokens, hashing.Extra{}) == other.Local(tokens, hashing.Extra{}) {
				t.Errorf("%s and %s share a block's local hash", s.Name(), other.Name())
			}
			if s != (hashing.Scheme{}) && other != (hashing.Scheme{}) && s.Chain(1, 2) == other.Chain(1, 2) {
				t.Errorf("%s and %s share a link", s.Name(), other.Name())
			}
		}
	}
}

// TestKeysPrefix: the keys of a prefix are a prefix of the keys, and the parts
// that a decoder puts together give the same keys as the whole.
func TestKeysPrefix(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		p := drawPrompt(t)
		keys := p.keys()
		if bare := (hashing.Scheme{}); p.scheme == bare {
			plain := p
			plain.extras = make([]hashing.Extra, len(p.extras))
			if diff := cmp.Diff(plain.keys(), bare.Keys(p.model, p.blockSize, p.tokens, nil)); diff != "" {
				t.Fatalf("keys without extras (-zero extras +nil)\n%s", diff)
			}
		}
		cut := rapid.IntRange(0, len(p.tokens)).Draw(t, "cut")
		q := p
		q.tokens = p.tokens[:cut]
		if diff := cmp.Diff(keys[:cut/p.blockSize], q.keys()); diff != "" {
			t.Fatalf("keys of the first %d tokens (-want +got)\n%s", cut, diff)
		}
		parent := p.scheme.Root(p.model, p.blockSize)
		for i, key := range keys {
			parent = p.scheme.Chain(parent, p.scheme.Local(p.tokens[i*p.blockSize:(i+1)*p.blockSize], p.extra(i)))
			if parent != key {
				t.Fatalf("block %d: chained key %#x, want %#x", i, parent, key)
			}
		}
	})
}

// TestKeysChange: one change anywhere changes every key from its block on, and
// none before.
func TestKeysChange(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		p := drawPrompt(t)
		blocks := len(p.tokens) / p.blockSize
		if blocks == 0 {
			t.Skip("no full block")
		}
		q := p
		first := rapid.IntRange(0, blocks-1).Draw(t, "block")
		switch what := rapid.SampledFrom([]string{"token", "extra", "model", "scheme"}).Draw(t, "what"); what {
		case "token":
			at := first*p.blockSize + rapid.IntRange(0, p.blockSize-1).Draw(t, "at")
			q.tokens = slices.Clone(p.tokens)
			q.tokens[at] ^= 1 << rapid.IntRange(0, 31).Draw(t, "bit")
		case "extra":
			q.extras = slices.Clone(p.extras)
			q.extras[first] = drawExtra(t)
			if first > 0 {
				q.extras[first].Salt = ""
			}
			if cmp.Equal(p.extras[first], q.extras[first]) {
				t.Skip("same extras")
			}
		case "model":
			first = 0
			q.model = drawText(t, "other model")
			if q.model == p.model {
				t.Skip("same model")
			}
		case "scheme":
			first = 0
			q.scheme = rapid.SampledFrom(schemes).Draw(t, "other scheme")
			if q.scheme == p.scheme {
				t.Skip("same scheme")
			}
		}
		a, b := p.keys(), q.keys()
		for i := range a {
			if same := a[i] == b[i]; same != (i < first) {
				t.Fatalf("change in block %d: key %d equal is %t", first, i, same)
			}
		}
	})
}

// TestKeysBlockSize: no key of one block size is a key of another, even where
// the blocks end at one place.
func TestKeysBlockSize(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		p := drawPrompt(t)
		q := p
		q.blockSize = rapid.IntRange(1, 40).Draw(t, "other block size")
		if q.blockSize == p.blockSize {
			t.Skip("same block size")
		}
		q.extras = make([]hashing.Extra, len(q.tokens)/q.blockSize)
		keys := p.keys()
		for i, k := range q.keys() {
			if slices.Contains(keys, k) {
				t.Fatalf("key %d of block size %d is one of block size %d", i, q.blockSize, p.blockSize)
			}
		}
	})
}

// TestExtraFields: each field counts on its own, and an empty one is an absent
// one.
func TestExtraFields(t *testing.T) {
	t.Parallel()

	extras := []hashing.Extra{
		{},
		{LoRA: "x"},
		{Salt: "x"},
		{Embeds: []byte("x")},
		{MM: []hashing.MMItem{{}}},
		{MM: []hashing.MMItem{{ID: "x"}}},
		{MM: []hashing.MMItem{{Offset: 1}}},
		{MM: []hashing.MMItem{{Offset: -1}}},
		{MM: []hashing.MMItem{{ID: "x"}, {ID: "y"}}},
		{MM: []hashing.MMItem{{ID: "y"}, {ID: "x"}}},
	}
	tokens := ramp(0, 16)
	for _, s := range schemes {
		seen := map[uint64]hashing.Extra{}
		for _, x := range extras {
			h := s.Local(tokens, x)
			if y, ok := seen[h]; ok {
				t.Errorf("%s: %+v and %+v share local hash %#x", s.Name(), x, y, h)
			}
			seen[h] = x
			if got := x.IsZero(); got != cmp.Equal(x, hashing.Extra{}) {
				t.Errorf("%+v.IsZero() = %t", x, got)
			}
		}
		empty := hashing.Extra{MM: []hashing.MMItem{}, Embeds: []byte{}}
		if got, want := s.Local(tokens, empty), s.Local(tokens, hashing.Extra{}); got != want {
			t.Errorf("%s: local hash with empty extras %#x, want %#x", s.Name(), got, want)
		}
	}
}

// TestTextBoundaries moves text from one field to the next: the joined bytes
// stay the same, the hash must not.
func TestTextBoundaries(t *testing.T) {
	t.Parallel()

	tokens := ramp(0, 16)
	for _, s := range schemes {
		rapid.Check(t, func(t *rapid.T) {
			text := drawText(t, "text")
			cuts := make([]int, 4)
			seen := map[uint64]hashing.Extra{}
			for range 8 {
				for i := range cuts {
					cuts[i] = rapid.IntRange(0, len(text)).Draw(t, "cut")
				}
				slices.Sort(cuts)
				x := hashing.Extra{
					LoRA: text[:cuts[0]], Salt: text[cuts[0]:cuts[1]],
					Embeds: []byte(text[cuts[3]:]),
				}
				for _, id := range []string{text[cuts[1]:cuts[2]], text[cuts[2]:cuts[3]]} {
					if id != "" {
						x.MM = append(x.MM, hashing.MMItem{ID: id})
					}
				}
				h := s.Local(tokens, x)
				if y, ok := seen[h]; ok && !cmp.Equal(x, y) {
					t.Fatalf("%+v and %+v share local hash %#x", x, y, h)
				}
				seen[h] = x
			}
		})
	}
}

// prompt is what Keys hashes.
type prompt struct {
	scheme    hashing.Scheme
	model     string
	blockSize int
	tokens    []uint32
	extras    []hashing.Extra // one for each full block, salt in the first alone
}

func (p *prompt) extra(block int) hashing.Extra { return p.extras[block] }

func (p *prompt) keys() []hashing.Key {
	return p.scheme.Keys(p.model, p.blockSize, p.tokens, p.extra)
}

func drawPrompt(t *rapid.T) prompt {
	p := prompt{
		scheme:    rapid.SampledFrom(schemes).Draw(t, "scheme"),
		model:     drawText(t, "model"),
		blockSize: rapid.IntRange(1, 40).Draw(t, "block size"),
		// Few different tokens, so that equal blocks recur in one prompt.
		tokens: rapid.SliceOfN(rapid.Uint32Range(0, 3), 0, 200).Draw(t, "tokens"),
	}
	p.extras = make([]hashing.Extra, len(p.tokens)/p.blockSize)
	for i := range p.extras {
		if rapid.Bool().Draw(t, "has extras") {
			p.extras[i] = drawExtra(t)
		}
		if i > 0 {
			p.extras[i].Salt = ""
		}
	}
	return p
}

func drawExtra(t *rapid.T) hashing.Extra {
	x := hashing.Extra{LoRA: drawText(t, "lora"), Salt: drawText(t, "salt")}
	for range rapid.IntRange(0, 3).Draw(t, "items") {
		x.MM = append(x.MM, hashing.MMItem{
			ID:     drawText(t, "id"),
			Offset: rapid.Int64().Draw(t, "offset"),
		})
	}
	if embeds := drawText(t, "embeds"); embeds != "" {
		x.Embeds = []byte(embeds)
	}
	return x
}

func drawText(t *rapid.T, label string) string {
	return rapid.StringOfN(rapid.RuneFrom([]rune{'a', 'b', 0, 1, 'é'}), 0, 12, -1).Draw(t, label)
}
