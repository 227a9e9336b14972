package blockpool

import (
	"cmp"
	"slices"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// A Block is one hash that the pool holds.
type Block struct {
	Hash   kvevents.Hash   // as published
	Key    hashing.Key     // the product's own name of the same block
	Group  int             // KV-cache group
	Medium kvevents.Medium // where it is
	Copies int             // physical blocks that hold it, at least 1
}

// Blocks lists what is held, by hash. With nothing pending it is exactly what
// the stores and removals published so far add up to.
func (p *Pool) Blocks() []Block {
	list := make([]Block, 0, len(p.held))
	for _, c := range p.held {
		b := &p.blocks[c.first]
		n := 0
		for id := c.first; id != 0; id = p.blocks[id].copies.next {
			n++
		}
		list = append(list, Block{Hash: b.digest.external(), Key: b.key, Group: group, Medium: medium, Copies: n})
	}
	slices.SortFunc(list, func(a, b Block) int {
		return cmp.Or(cmp.Compare(a.Hash, b.Hash), cmp.Compare(a.Key, b.Key))
	})
	return list
}
