package hashing_test

import (
	"slices"
	"testing"

	"github.com/prefixroute/prefixroute/pkg/hashing"
)

// The tests in this file are named after the bug bank's trials, each a defect
// that an existing router or engine had. They hold the part of the trial that
// hashing decides.

// A request's salt was not part of the key, so salted and unsalted prompts
// looked alike.
func TestBB052SaltIsPartOfTheKey(t *testing.T) {
	t.Parallel()

	var all []hashing.Key
	for _, salt := range []string{"tenant-a", "tenant-b", ""} {
		all = append(all, keysWith(func(int) hashing.Extra { return hashing.Extra{Salt: salt} })...)
	}
	distinct(t, all)

	first := keysWith(func(i int) hashing.Extra {
		if i > 0 {
			return hashing.Extra{}
		}
		return hashing.Extra{Salt: "tenant-a"}
	})
	if !slices.Equal(all[:len(first)], first) {
		t.Error("a salt given for every block does not equal one given for the first")
	}
}

// An adapter and a salt of equal text gave the same extra key.
func TestBB053AdapterIsNotASalt(t *testing.T) {
	t.Parallel()

	all := keysWith(func(int) hashing.Extra { return hashing.Extra{LoRA: "x"} })
	all = append(all, keysWith(func(int) hashing.Extra { return hashing.Extra{Salt: "x"} })...)
	all = append(all, keysWith(func(int) hashing.Extra { return hashing.Extra{LoRA: "x", Salt: "x"} })...)
	distinct(t, all)

	for _, scheme := range []hashing.ExtraScheme{hashing.Tagged, hashing.Bare} {
		e := newEngine(t, hashing.SHA256, nil, scheme)
		lora := e.Block(e.None(), ramp(0, 16), hashing.EngineExtra{LoRAName: "x"})
		salt := e.Block(e.None(), ramp(0, 16), hashing.EngineExtra{Salt: "x"})
		// The engines' own scheme had this defect until its keys were tagged.
		if got, want := string(lora) == string(salt), scheme == hashing.Bare; got != want {
			t.Errorf("%s: adapter and salt share a hash: %t, want %t", scheme, got, want)
		}
	}
}

// An engine published one hash for two salts. The keys tell them apart.
func TestBB055EqualEngineHashes(t *testing.T) {
	t.Parallel()

	s := hashing.Scheme{}
	root := s.Root("m", 16)
	a := s.Chain(root, s.Local(ramp(0, 16), hashing.Extra{Salt: "a"}))
	b := s.Chain(root, s.Local(ramp(0, 16), hashing.Extra{Salt: "b"}))
	distinct(t, []hashing.Key{a, b})
}

// Requests with one text and different images were taken for the same prefix.
func TestBB056ImageIsPartOfTheKey(t *testing.T) {
	t.Parallel()

	withImage := func(id string) []hashing.Key {
		return keysWith(func(i int) hashing.Extra {
			// The image covers tokens 20 to 39: blocks 1 and 2 of 16.
			if i != 1 && i != 2 {
				return hashing.Extra{}
			}
			return hashing.Extra{MM: []hashing.MMItem{{ID: id, Offset: int64(20 - 16*i)}}}
		})
	}
	a, b := withImage("image-a"), withImage("image-b")
	if a[0] != b[0] {
		t.Errorf("block before the image: keys %#x and %#x, want equal", a[0], b[0])
	}
	distinct(t, slices.Concat(a[1:], b[1:]))
}

// Engines hash one prompt differently, by process (random seeds) or by rank.
func TestBB058RandomSeeds(t *testing.T) {
	t.Parallel()

	tokens := ramp(0, 64)
	want := hashing.Scheme{}.Keys("m", 16, tokens, nil)
	seen := map[uint64]bool{}
	for range 3 {
		r := newReplica(newEngine(t, hashing.XXHash, nil, hashing.Tagged), 16)
		r.store("m", tokens, nil)
		for h := range r.keys {
			if seen[h] {
				t.Errorf("two engines with random seeds share hash %#x", h)
			}
			seen[h] = true
		}
		if got := r.match(want); got != len(want) {
			t.Errorf("matched %d of %d blocks", got, len(want))
		}
	}
}

// Two ranks publish one block under different hashes. Both mean one key.
func TestBB059RanksDisagree(t *testing.T) {
	t.Parallel()

	tokens, seeds := ramp(0, 16), []string{"0", "1"}
	var keys []hashing.Key
	var hashes []uint64
	for _, seed := range seeds {
		r := newReplica(newEngine(t, hashing.SHA256CBOR, &seed, hashing.Tagged), 16)
		r.store("m", tokens, nil)
		for h, k := range r.keys {
			hashes, keys = append(hashes, h), append(keys, k)
		}
	}
	if hashes[0] == hashes[1] || keys[0] != keys[1] {
		t.Errorf("hashes %#x want two, keys %#x want one", hashes, keys)
	}
}

// Entries were written under one scheme and looked up under another: what a
// decoder makes of events must be what a router makes of the prompt.
func TestBB061RoundTrip(t *testing.T) {
	t.Parallel()

	extras := map[string]func(int) hashing.Extra{
		"plain":   nil,
		"adapter": func(int) hashing.Extra { return hashing.Extra{LoRA: "adapter-1"} },
		"salt":    func(int) hashing.Extra { return hashing.Extra{Salt: "tenant-a"} },
		"image": func(i int) hashing.Extra {
			return hashing.Extra{MM: []hashing.MMItem{{ID: "image", Offset: int64(3 - 16*i)}}}
		},
	}
	for name, extra := range extras {
		for _, s := range schemes {
			for _, n := range []int{1, 15, 16, 17, 4096} {
				r := newReplica(newEngine(t, hashing.SHA256, nil, hashing.Tagged), 16)
				r.scheme = s
				r.store("m", ramp(5, n), extra)
				if got := r.match(s.Keys("m", 16, ramp(5, n), extra)); got != n/16 {
					t.Errorf("%s, %s, %d tokens: matched %d blocks, want %d", name, s.Name(), n, got, n/16)
				}
				if got := r.match(s.Keys("m", 16, ramp(6, n), extra)); got != 0 {
					t.Errorf("%s, %s, %d other tokens: matched %d blocks", name, s.Name(), n, got)
				}
			}
		}
	}
}

// Router and engine had different block sizes, and hits were silently zero. Keys
// of different sizes are all different, so that no part of one is ever taken for
// the other; the caller compares the sizes.
func TestBB065BlockSizes(t *testing.T) {
	t.Parallel()

	tokens := make([]uint32, 2112) // all alike, and a multiple of each size
	var all []hashing.Key
	for _, size := range []int{16, 64, 528} {
		all = append(all, hashing.Scheme{}.Keys("m", size, tokens, nil)...)
	}
	distinct(t, all)
}

// A child of another block size than its parent is no block of either prompt.
func TestBB067MixedChain(t *testing.T) {
	t.Parallel()

	tokens := make([]uint32, 128)
	for _, s := range schemes {
		small, large := s.Keys("m", 16, tokens, nil), s.Keys("m", 64, tokens, nil)
		mixed := s.Chain(small[3], s.Local(tokens[64:], hashing.Extra{}))
		distinct(t, slices.Concat(small, large, []hashing.Key{mixed}))
	}
}

// replica publishes blocks as an engine does, and learns their keys from what
// the events carry, as an index does.
type replica struct {
	engine    *hashing.Engine
	scheme    hashing.Scheme
	blockSize int
	keys      map[uint64]hashing.Key // by what an event calls the block
}

func newReplica(e *hashing.Engine, blockSize int) *replica {
	return &replica{engine: e, blockSize: blockSize, keys: map[uint64]hashing.Key{}}
}

// store publishes the full blocks of a prompt, one an event. An event refers to
// the block before it by the engine's hash alone.
func (r *replica) store(model string, tokens []uint32, extra func(int) hashing.Extra) {
	digest := r.engine.None()
	for i := range len(tokens) / r.blockSize {
		var x hashing.Extra
		if extra != nil {
			x = extra(i)
		}
		if i > 0 {
			x.Salt = ""
		}
		block := tokens[i*r.blockSize : (i+1)*r.blockSize]
		parent := r.scheme.Root(model, r.blockSize)
		if i > 0 {
			parent = r.keys[hashing.External(digest)]
		}
		digest = r.engine.Block(digest, block, hashing.EngineExtra{
			LoRAName: x.LoRA, LoRAPath: "/adapters/" + x.LoRA, Salt: x.Salt, MM: x.MM, Embeds: x.Embeds,
		})
		r.keys[hashing.External(digest)] = r.scheme.Chain(parent, r.scheme.Local(block, x))
	}
}

// match returns how many leading keys the replica holds.
func (r *replica) match(keys []hashing.Key) int {
	held := map[hashing.Key]bool{}
	for _, k := range r.keys {
		held[k] = true
	}
	n := slices.IndexFunc(keys, func(k hashing.Key) bool { return !held[k] })
	if n < 0 {
		return len(keys)
	}
	return n
}

// keysWith returns the keys of one prompt of 64 tokens with the given extras.
func keysWith(extra func(int) hashing.Extra) []hashing.Key {
	return hashing.Scheme{}.Keys("m", 16, ramp(0, 64), extra)
}

func distinct(t *testing.T, keys []hashing.Key) {
	t.Helper()
	seen := map[hashing.Key]int{}
	for i, k := range keys {
		if j, ok := seen[k]; ok {
			t.Errorf("keys %d and %d are both %#x", j, i, k)
		}
		seen[k] = i
	}
}
