package hashing

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// Approximate returns the chain of llm-d's approximate prefix index, value for
// value: one hash a block, the final partial block included, and at most
// maxBlocks of them, so none if maxBlocks or blockSize is not positive.
//
//	seed = XXH64(model || salt)
//	h[i] = XXH64(LE64(XXH64(tokens of block i)) || LE64(h[i-1]))    h[-1] = seed
//
// Nothing separates model from salt, so model "m" with salt "2" gives the hashes
// of model "m2" without one. An index that serves several models, or tenants who
// choose their salts, keeps them apart by other means; here a collision costs a
// wrong guess, never a wrong answer.
func Approximate(model, salt string, tokens []uint32, blockSize, maxBlocks int) []uint64 {
	if blockSize <= 0 || maxBlocks <= 0 || len(tokens) == 0 {
		return nil
	}
	hashes := make([]uint64, min((len(tokens)-1)/blockSize+1, maxBlocks))
	h := xxhash.Sum64String(model + salt)
	for i := range hashes {
		start := i * blockSize
		end := min(start+blockSize, len(tokens))
		var pair [16]byte
		binary.LittleEndian.PutUint64(pair[:], sum64Tokens(tokens[start:end]))
		binary.LittleEndian.PutUint64(pair[8:], h)
		h = xxhash.Sum64(pair[:])
		hashes[i] = h
	}
	return hashes
}

// sum64Tokens returns the XXH64 of the tokens as little-endian 32-bit words.
func sum64Tokens(tokens []uint32) uint64 {
	if littleEndian {
		return xxhash.Sum64(viewTokens(tokens))
	}
	return xxhash.Sum64(appendTokens(nil, tokens))
}
