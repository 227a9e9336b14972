package hashing

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/zeebo/xxh3"
)

// Algorithm is a value of vLLM's --prefix-caching-hash-algo.
type Algorithm string

// The algorithms of vLLM 0.13.0 and later. The first two have digests of 32
// bytes, the others of 16; the names with cbor serialise a block as canonical
// CBOR, the others as a Python pickle of protocol 5.
const (
	SHA256     Algorithm = "sha256" // vLLM's default
	SHA256CBOR Algorithm = "sha256_cbor"
	XXHash     Algorithm = "xxhash"
	XXHashCBOR Algorithm = "xxhash_cbor"
)

// ExtraScheme is how a release of vLLM puts extras into a block's hash. Blocks
// without extras hash alike under all of them.
type ExtraScheme string

// The schemes of vLLM's releases. Between IDOnly and Bare lies 0.19, which was
// not looked at.
const (
	Tagged ExtraScheme = "tagged"     // since 0.31.0: ("mm", id, offset)
	Bare   ExtraScheme = "bare"       // 0.20.2 to 0.30.0: (id, offset)
	IDOnly ExtraScheme = "mm-id-only" // up to 0.18.1: id
)

// unsetSeed is what vLLM takes for an unset PYTHONHASHSEED since 0.29.0, with the
// cryptographic algorithms only.
const unsetSeed = "vllm-none-hash"

// Engine computes block hashes as one vLLM process does. Make one with
// [NewEngine].
type Engine struct {
	algorithm Algorithm
	extras    ExtraScheme
	none      []byte
}

// NewEngine returns the hasher of a vLLM process with the given
// --prefix-caching-hash-algo and PYTHONHASHSEED, taken verbatim. A nil seed is an
// unset variable: the same hashes on every engine for sha256 and sha256_cbor (as
// of vLLM 0.29.0), others for every Engine with the xxhash algorithms. It fails
// only for an unknown algorithm or scheme.
func NewEngine(algo Algorithm, seed *string, extras ExtraScheme) (*Engine, error) {
	if all := []Algorithm{SHA256, SHA256CBOR, XXHash, XXHashCBOR}; !slices.Contains(all, algo) {
		return nil, fmt.Errorf("hash algorithm is %q, must be one of %q", algo, all)
	}
	if all := []ExtraScheme{Tagged, Bare, IDOnly}; !slices.Contains(all, extras) {
		return nil, fmt.Errorf("extra key scheme is %q, must be one of %q", extras, all)
	}
	e := &Engine{algorithm: algo, extras: extras}
	text := unsetSeed
	switch {
	case seed != nil:
		text = *seed
	case algo == XXHash || algo == XXHashCBOR:
		var random [32]byte
		_, _ = rand.Read(random[:]) // never fails
		text = hex.EncodeToString(random[:])
	}
	w := e.serializer()
	w.text(text)
	e.none = e.digest(w.done())
	return e, nil
}

// EngineExtra is what besides its tokens goes into one block's hash. The zero
// value adds nothing; an empty field and an absent one are the same.
type EngineExtra struct {
	LoRAName string
	LoRAPath string   // as given when the adapter was loaded; hashed by Tagged only
	Salt     string   // cache_salt; the first block of a request only
	MM       []MMItem // items that overlap the block, by ascending offset
	Embeds   []byte   // SHA-256 of the block's slice of the embeddings
}

// None returns what stands for the parent of a prompt's first block, vLLM's
// NONE_HASH. The caller owns the slice.
func (e *Engine) None() []byte {
	return slices.Clone(e.none)
}

// Block returns the full digest of a block, 32 or 16 bytes, which the caller
// owns. parent is the full digest of the block before it, or [Engine.None]; what
// an event carries as an integer is not enough. tokens are those of a full block;
// vLLM hashes no others.
func (e *Engine) Block(parent []byte, tokens []uint32, x EngineExtra) []byte {
	w := e.serializer()
	w.open(3)
	w.bytes(parent)
	w.open(len(tokens))
	for _, t := range tokens {
		w.integer(int64(t))
	}
	w.close(len(tokens))
	e.writeExtra(w, &x)
	w.close(3)
	return e.digest(w.done())
}

// External returns the 64 bits of a digest that events carry as an integer: its
// last 8 bytes, big-endian. A shorter digest is padded with zeros on the left.
// The digests that older releases concatenate for a group of larger blocks give
// the same value as the last of them.
func External(digest []byte) uint64 {
	var last [8]byte
	n := min(len(digest), len(last))
	copy(last[len(last)-n:], digest[len(digest)-n:])
	return binary.BigEndian.Uint64(last[:])
}

// serializer writes Python values one after the other in one of the two forms
// that vLLM hashes.
type serializer interface {
	open(n int) // begins a tuple of n values
	close(n int)
	none()
	integer(v int64)
	bytes(b []byte)
	text(s string) // a string that came from outside
	tag(s string)  // a string that is a constant of vLLM's source
	done() []byte
}

func (e *Engine) serializer() serializer {
	if e.algorithm == SHA256CBOR || e.algorithm == XXHashCBOR {
		return newCBOR()
	}
	return newPickle()
}

func (e *Engine) digest(b []byte) []byte {
	if e.algorithm == XXHash || e.algorithm == XXHashCBOR {
		d := xxh3.Hash128(b).Bytes()
		return d[:]
	}
	d := sha256.Sum256(b)
	return d[:]
}

// writeExtra writes the tuple of extra keys in vLLM's order, or None.
func (e *Engine) writeExtra(w serializer, x *EngineExtra) {
	n := len(x.MM)
	for _, present := range []bool{x.LoRAName != "", x.Salt != "", len(x.Embeds) > 0} {
		if present {
			n++
		}
	}
	if n == 0 {
		w.none()
		return
	}
	w.open(n)
	if x.LoRAName != "" {
		e.writeLoRA(w, x)
	}
	for _, item := range x.MM {
		e.writeMM(w, item)
	}
	if x.Salt != "" {
		e.writeTagged(w, "cache_salt", func() { w.text(x.Salt) })
	}
	if len(x.Embeds) > 0 {
		e.writeTagged(w, "prompt_embeds", func() { w.bytes(x.Embeds) })
	}
	w.close(n)
}

func (e *Engine) writeLoRA(w serializer, x *EngineExtra) {
	if e.extras != Tagged {
		w.text(x.LoRAName)
		return
	}
	w.open(3)
	w.tag("lora")
	w.text(x.LoRAName)
	w.text(x.LoRAPath)
	w.close(3)
}

func (e *Engine) writeMM(w serializer, item MMItem) {
	switch e.extras {
	case IDOnly:
		w.text(item.ID)
	case Bare:
		w.open(2)
		w.text(item.ID)
		w.integer(item.Offset)
		w.close(2)
	case Tagged:
		w.open(3)
		w.tag("mm")
		w.text(item.ID)
		w.integer(item.Offset)
		w.close(3)
	}
}

// writeTagged writes a value alone or, in the tagged scheme, as (tag, value).
func (e *Engine) writeTagged(w serializer, tag string, value func()) {
	if e.extras != Tagged {
		value()
		return
	}
	w.open(2)
	w.tag(tag)
	value()
	w.close(2)
}
