package hashing

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"

	"github.com/zeebo/xxh3"
)

// schemeName is the version of the key scheme. A change to anything that alters
// a key, be it one constant, needs another name: two processes that disagree
// would otherwise find nothing in each other's index and not know why.
const schemeName = "prefixroute-v1"

// Key names a block by content, and with it the whole prefix that ends there.
// Every value is valid, 0 too.
type Key uint64

// Scheme computes content keys. Its zero value is the unkeyed scheme, whose keys
// anybody can compute; [NewScheme] makes one that is keyed with a secret. Two
// schemes are equal (==) if and only if their keys are.
//
// The unkeyed scheme hashes with XXH3-64, at about 5 ns for a block of 16
// tokens. It is no cryptographic hash: who wants two prompts to share a key can
// construct them. The keyed scheme hashes every step with SipHash-2-4, so that
// without the secret no such pair can be prepared; it costs about ten times as
// much. A secret in the root alone would not help, since two blocks with one
// local hash collide under every root.
type Scheme struct {
	k0, k1      uint64 // SipHash key, derived from the secret
	fingerprint uint32 // what Name tells about the secret
	keyed       bool
}

// NewScheme returns the scheme that is keyed with secret. All processes of a
// fleet need the same one. An empty secret gives the unkeyed scheme. The secret
// should be random and have 16 bytes or more, because the name's fingerprint
// lets a guess be tested.
func NewScheme(secret []byte) Scheme {
	if len(secret) == 0 {
		return Scheme{}
	}
	key, mark := derive(secret, "key"), derive(secret, "fingerprint")
	return Scheme{
		k0:          binary.LittleEndian.Uint64(key),
		k1:          binary.LittleEndian.Uint64(key[8:]),
		fingerprint: binary.BigEndian.Uint32(mark),
		keyed:       true,
	}
}

// derive returns 32 bytes that are bound to one purpose: the fingerprint is
// published, and must say nothing about the key.
func derive(secret []byte, purpose string) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(schemeName + " " + purpose))
	return mac.Sum(nil)
}

// Name returns "prefixroute-v1", or with a secret "prefixroute-v1-" and eight
// hex digits that tell one secret from another without revealing it. Keys of
// schemes with different names have nothing to do with each other.
func (s Scheme) Name() string {
	return string(s.appendName(nil))
}

func (s Scheme) appendName(b []byte) []byte {
	b = append(b, schemeName...)
	if !s.keyed {
		return b
	}
	var mark [4]byte
	binary.BigEndian.PutUint32(mark[:], s.fingerprint)
	return hex.AppendEncode(append(b, '-'), mark[:])
}

// Root returns the parent of the first block of every prompt to model in blocks
// of blockSize tokens. The parts are length-prefixed, so that no model's name
// can be continued by something else.
func (s Scheme) Root(model string, blockSize int) Key {
	var name [32]byte
	var stack [128]byte
	b := appendText(stack[:0], s.appendName(name[:0]))
	b = appendText(b, model)
	b = binary.LittleEndian.AppendUint64(b, uint64(blockSize))
	if s.keyed {
		return sipRooted(s.k0, s.k1, b)
	}
	return Key(xxh3.Hash(b))
}

// Local returns the hash of one block's own content, whatever comes before it.
// The zero [Extra] adds nothing. The tokens of a block of another size, or those
// of an incomplete block, hash to something unrelated.
func (s Scheme) Local(tokens []uint32, extra Extra) uint64 {
	switch {
	case s.keyed:
		return sipBlock(s.k0, s.k1, tokens, &extra)
	case extra.IsZero():
		return hashTokens(tokens)
	default:
		var stack [256]byte
		return xxh3.HashSeed(appendExtra(stack[:0], &extra), hashTokens(tokens))
	}
}

// Chain returns the key of the block with the given local hash that follows
// parent, which is [Scheme.Root] for the first block.
//
// Unkeyed, it is a bijection in each argument: two blocks after one parent
// collide only if their local hashes do, and one block after two parents never.
func (s Scheme) Chain(parent Key, local uint64) Key {
	if s.keyed {
		return sipLinked(s.k0, s.k1, parent, local)
	}
	return link(parent, local)
}

// link is the unkeyed Chain: a product and a sum, then a mix that spreads them.
// One mix is enough since local is a hash already, and is what the latency of a
// long prompt's chain consists of.
func link(parent Key, local uint64) Key {
	x := uint64(parent)*0x9e3779b185ebca87 + local
	x ^= x >> 32
	x *= 0xc2b2ae3d27d4eb4f
	return Key(x ^ x>>29)
}

// Keys returns the keys of all full blocks of a prompt, first block first, and
// nil if blockSize is not positive. What is left over after the last full block
// has no key: engines do not cache it.
//
// extra, which may be nil, returns the extras of a block, counted from 0. A salt
// counts in block 0 only, as engines have it, and is ignored in later ones.
func (s Scheme) Keys(model string, blockSize int, tokens []uint32, extra func(block int) Extra) []Key {
	if blockSize <= 0 {
		return nil
	}
	keys := make([]Key, len(tokens)/blockSize)
	key := s.Root(model, blockSize)
	if extra == nil && !s.keyed { // the common case, worth a loop without branches
		for i := range keys {
			key = link(key, hashTokens(tokens[i*blockSize:(i+1)*blockSize]))
			keys[i] = key
		}
		return keys
	}
	for i := range keys {
		var x Extra
		if extra != nil {
			x = extra(i)
		}
		if i > 0 {
			x.Salt = ""
		}
		key = s.Chain(key, s.Local(tokens[i*blockSize:(i+1)*blockSize], x))
		keys[i] = key
	}
	return keys
}

// Usable returns how many leading blocks of a prompt an engine can reuse at
// most: it recomputes the last token in any case, so a prompt of exactly n
// blocks can hit n-1. It is 0 for an empty prompt or a block size that is not
// positive.
func Usable(tokens, blockSize int) int {
	if tokens <= 0 || blockSize <= 0 {
		return 0
	}
	return (tokens - 1) / blockSize
}
