package blockpool

import (
	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// A digest is an engine's full block hash, padded with zeros to the longest of
// vLLM's. Blocks are looked up by all of it, as the engine does; the 64 bits
// that are published could collide.
type digest struct {
	bytes [32]byte
	len   uint8 // 32, or 16 for the xxhash algorithms
}

func newDigest(b []byte) digest {
	d := digest{len: uint8(len(b))}
	copy(d.bytes[:], b)
	return d
}

func (d *digest) slice() []byte { return d.bytes[:d.len:d.len] }

// external is the form that events carry.
func (d *digest) external() kvevents.Hash {
	return kvevents.Hash(hashing.External(d.bytes[:d.len]))
}

// removed is the event for the loss of one block with this digest.
func (d digest) removed() *kvevents.BlockRemoved {
	return &kvevents.BlockRemoved{
		BlockHashes: []kvevents.Hash{d.external()},
		Digests:     [][]byte{d.slice()},
		Medium:      medium,
		Group:       group,
	}
}
