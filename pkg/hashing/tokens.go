package hashing

import (
	"encoding/binary"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// littleEndian reports whether a []uint32 lies in memory as its hash wants it.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// hashTokens returns the XXH3-64 of the tokens as little-endian 32-bit words.
// Where memory already has that form the words are hashed in place: copying them
// first takes three times as long as the hash.
func hashTokens(tokens []uint32) uint64 {
	if littleEndian {
		return xxh3.Hash(viewTokens(tokens))
	}
	return xxh3.Hash(appendTokens(nil, tokens))
}

// viewTokens returns the memory of tokens, valid as long as they are.
func viewTokens(tokens []uint32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(tokens))), 4*len(tokens))
}

// appendTokens appends the tokens as little-endian 32-bit words.
func appendTokens(b []byte, tokens []uint32) []byte {
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	return b
}
