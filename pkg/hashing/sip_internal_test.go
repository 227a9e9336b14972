package hashing

import (
	"encoding/binary"
	"slices"
	"testing"
)

// TestSip compares with SipHash-2-4 of the bytes 00, 01, 02 ... under the key 00
// ... 0f, as the authors publish it and OpenSSL computes it.
func TestSip(t *testing.T) {
	t.Parallel()

	input := make([]byte, 64)
	for i := range input {
		input[i] = byte(i)
	}
	want := map[int]uint64{
		0:  0x726fdb47dd0e0e31,
		8:  0x93f5f5799a932462,
		16: 0x3f2acc7f57c29bdb,
		24: 0xb8ad50c6f649af94,
		64: 0xacd2c40b8502cad8,
	}
	for n, want := range want {
		words := newSip(binary.LittleEndian.Uint64(input), binary.LittleEndian.Uint64(input[8:]))
		tokens := words
		for word := range slices.Chunk(input[:n], 8) {
			words.word(binary.LittleEndian.Uint64(word))
			tokens.tokens([]uint32{binary.LittleEndian.Uint32(word), binary.LittleEndian.Uint32(word[4:])})
		}
		if got := words.sum(); got != want {
			t.Errorf("%d bytes as words: %#x, want %#x", n, got, want)
		}
		if got := tokens.sum(); got != want {
			t.Errorf("%d bytes as tokens: %#x, want %#x", n, got, want)
		}
	}
}

// TestTokenBytes: the way that copies, taken on big-endian machines, gives what
// the memory of a little-endian one holds.
func TestTokenBytes(t *testing.T) {
	t.Parallel()

	tokens := []uint32{0, 1, 0x01020304, 1<<32 - 1}
	want := []byte{0, 0, 0, 0, 1, 0, 0, 0, 4, 3, 2, 1, 255, 255, 255, 255}
	if got := appendTokens(nil, tokens); !slices.Equal(got, want) {
		t.Errorf("appendTokens(%x) = %x, want %x", tokens, got, want)
	}
	if got := viewTokens(tokens); littleEndian && !slices.Equal(got, want) {
		t.Errorf("viewTokens(%x) = %x, want %x", tokens, got, want)
	}
}
