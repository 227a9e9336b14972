// Package hashing answers what a block of tokens is called: by us, by the
// approximate index, and by the engine that holds it.
//
// # Content keys
//
// The index cannot use an engine's own hashes, because they depend on the
// engine, its release, its hash algorithm and its process's seed. [Scheme]
// names a block by what every event tells and every request knows:
//
//	root     = H(scheme, model, block size)
//	local[i] = H(token ids of block i, extras of block i)
//	key[i]   = Chain(key[i-1], local[i])        key[-1] = root
//
// A key therefore names the whole prefix up to its block: equal keys mean equal
// prompts so far, under one model, block size and scheme. [Scheme.Local] does
// not need the parent, so that a decoder can hash an event's blocks before it
// knows where they hang. Keys that were computed under different scheme names
// or block sizes never match and must not be compared.
//
// # Approximate chain
//
// [Approximate] is the chain of an index that learns from its own routing
// decisions. It includes the final partial block.
//
// # Engine hashes
//
// [Engine] computes vLLM's block hashes byte for byte, for the algorithms
// sha256, sha256_cbor, xxhash and xxhash_cbor. The fake engine publishes them,
// and they can be checked against events where seed and algorithm are known.
//
// # Concurrency
//
// Everything here is a pure function of its arguments or immutable after its
// constructor, and safe for concurrent use.
package hashing
