package index

import (
	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// Match answers for the leading blocks of a prompt, given by their keys in
// order: how many could the engine reuse? It is the longest prefix, not past
// keys, that every attention group can serve. Full attention holds each of its
// blocks; a window group holds the last ones before the end, or all of them if
// there are fewer. A hole ends what full attention can serve, whatever lies
// behind it.
//
// The caller sends at most [hashing.Usable] keys, since the engine always
// computes a prompt's last token. Keys of another block size than
// [Shape.BlockSize], and a belief that is [Shape.Ambiguous], match nothing:
// callers ask Shape first, so that this is not mistaken for a cold cache.
func (b *Belief) Match(blockSize int, keys []hashing.Key) Depths {
	if blockSize != b.blockSize || b.ambiguous != "" {
		return Depths{}
	}
	gpu := b.depth(keys, kvevents.TierGPU)
	d := Depths{GPU: gpu, GPUCPU: gpu, GPUCPUDisk: gpu}
	if b.stats.Copies > b.stats.GPUCopies {
		d.GPUCPU = b.depth(keys, kvevents.TierCPU)
		d.GPUCPUDisk = b.depth(keys, kvevents.TierDisk)
	}
	return d
}

// depth is Match for blocks held on tier last or a faster one. In one walk from
// the front it keeps, for each rule, the length of the unbroken run that ends
// here, and remembers the last place where every rule is content.
func (b *Belief) depth(keys []hashing.Key, last kvevents.Tier) int {
	best := 0
	tails := make([]int, len(b.rules))
	for i, key := range keys {
		end, ok := i+1, true
		for r, rule := range b.rules {
			if end%rule.factor != 0 {
				ok = false
				continue
			}
			if b.holds(key, last, rule.group) {
				tails[r]++
			} else {
				tails[r] = 0
			}
			whole := tails[r] == end/rule.factor
			if rule.need == all && !whole {
				return best
			}
			ok = ok && (whole || tails[r] >= rule.need)
		}
		if ok && len(b.rules) > 0 {
			best = end
		}
	}
	return best
}

// holds reports whether a block of that key has a copy in group on tier last or
// a faster one.
func (b *Belief) holds(key hashing.Key, last kvevents.Tier, group int) bool {
	for e := b.byKey[key]; e != nil; e = e.next {
		for _, c := range e.copies {
			if c.group == group && c.tier <= last {
				return true
			}
		}
	}
	return false
}
