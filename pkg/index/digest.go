package index

import "github.com/prefixroute/prefixroute/pkg/kvevents"

// Digest is the block's share of [Belief.Digest]. It depends on hash, medium,
// group and copies, not on the key, so whoever knows the set can compute it.
func (b Block) Digest() uint64 {
	return mix(b.Hash, copies{tier: tierOf(b.Medium), group: b.Group, n: b.Copies})
}

// mix hashes one count by three rounds of the finalizer of splitmix64. A count
// of zero is no block and adds nothing.
func mix(h kvevents.Hash, c copies) uint64 {
	if c.n == 0 {
		return 0
	}
	x := finalize(uint64(h) + 0x9e3779b97f4a7c15)
	x = finalize(x ^ uint64(c.tier)<<32 ^ uint64(c.group))
	return finalize(x + uint64(c.n))
}

func finalize(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// The names under which tiers leave this package.
const (
	mediumGPU  = "GPU"
	mediumCPU  = "CPU"
	mediumDisk = "DISK"
)

func medium(t kvevents.Tier) string {
	switch t {
	case kvevents.TierGPU:
		return mediumGPU
	case kvevents.TierCPU:
		return mediumCPU
	case kvevents.TierDisk:
		return mediumDisk
	case kvevents.TierUnknown:
	}
	return ""
}

// tierOf is the inverse of medium: unlike kvevents it knows no aliases.
func tierOf(m string) kvevents.Tier {
	switch m {
	case mediumGPU:
		return kvevents.TierGPU
	case mediumCPU:
		return kvevents.TierCPU
	case mediumDisk:
		return kvevents.TierDisk
	default:
		return kvevents.TierUnknown
	}
}
