package hashing

import (
	"encoding/binary"
	"math/bits"
)

// The keyed scheme is SipHash-2-4 (Aumasson and Bernstein, 2012), a
// pseudo-random function made for hash tables that strangers fill. Messages here
// are whole 64-bit words. The first word says what is hashed and how long it is,
// so that a root, a block and a link of the chain are never the same message.
const (
	sipRoot  = 1 << 56
	sipLocal = 2 << 56
	sipLink  = 3 << 56
)

// sip is the state of one computation and the number of words it has taken.
type sip struct {
	v0, v1, v2, v3 uint64
	words          uint64
}

func newSip(k0, k1 uint64) sip {
	return sip{
		v0: k0 ^ 0x736f6d6570736575,
		v1: k1 ^ 0x646f72616e646f6d,
		v2: k0 ^ 0x6c7967656e657261,
		v3: k1 ^ 0x7465646279746573,
	}
}

// word takes one word of the message.
func (h *sip) word(m uint64) {
	v0, v1, v2, v3 := h.v0, h.v1, h.v2, h.v3^m
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	h.v0, h.v1, h.v2, h.v3 = v0^m, v1, v2, v3
	h.words++
}

// tokens takes the tokens two to a word, the state in registers all the way.
func (h *sip) tokens(tokens []uint32) {
	v0, v1, v2, v3 := h.v0, h.v1, h.v2, h.v3
	h.words += uint64(len(tokens) / 2)
	for len(tokens) >= 2 {
		m := uint64(tokens[0]) | uint64(tokens[1])<<32
		tokens = tokens[2:]
		v3 ^= m
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
		v0 ^= m
	}
	h.v0, h.v1, h.v2, h.v3 = v0, v1, v2, v3
	if len(tokens) == 1 {
		h.word(uint64(tokens[0]))
	}
}

// bytes takes the length of b and b, the last word padded with zeros.
func (h *sip) bytes(b []byte) {
	h.word(uint64(len(b)))
	for len(b) >= 8 {
		h.word(binary.LittleEndian.Uint64(b))
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		h.word(binary.LittleEndian.Uint64(last[:]))
	}
}

// sum ends the message with its length in bytes, as SipHash has it.
func (h *sip) sum() uint64 {
	h.word(h.words * 8 << 56)
	v0, v1, v2, v3 := h.v0, h.v1, h.v2^0xff, h.v3
	for range 4 {
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	}
	return v0 ^ v1 ^ v2 ^ v3
}

func sipRound(v0, v1, v2, v3 uint64) (_, _, _, _ uint64) {
	v0 += v1
	v2 += v3
	v1 = bits.RotateLeft64(v1, 13) ^ v0
	v3 = bits.RotateLeft64(v3, 16) ^ v2
	v0 = bits.RotateLeft64(v0, 32)
	v2 += v1
	v0 += v3
	v1 = bits.RotateLeft64(v1, 17) ^ v2
	v3 = bits.RotateLeft64(v3, 21) ^ v0
	v2 = bits.RotateLeft64(v2, 32)
	return v0, v1, v2, v3
}

// sipRooted is the keyed root.
func sipRooted(k0, k1 uint64, b []byte) Key {
	h := newSip(k0, k1)
	h.word(sipRoot)
	h.bytes(b)
	return Key(h.sum())
}

// sipBlock is the keyed hash of a block's tokens, and of its extras if it has any.
func sipBlock(k0, k1 uint64, tokens []uint32, extra *Extra) uint64 {
	h := newSip(k0, k1)
	h.word(sipLocal | uint64(len(tokens)))
	h.tokens(tokens)
	if !extra.IsZero() {
		var stack [256]byte
		h.bytes(appendExtra(stack[:0], extra))
	}
	return h.sum()
}

// sipLinked is the keyed Chain.
func sipLinked(k0, k1 uint64, parent Key, local uint64) Key {
	h := newSip(k0, k1)
	h.word(sipLink)
	h.word(uint64(parent))
	h.word(local)
	return Key(h.sum())
}
