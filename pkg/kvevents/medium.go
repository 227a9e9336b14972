package kvevents

import "strings"

// A Medium is where a block lives, in the publisher's own word. "" stands for
// a field that is absent or nil, which every engine means as its GPU cache.
type Medium string

// A Tier is the kind of storage behind a [Medium].
type Tier uint8

const (
	// TierUnknown is a medium that no known release sends, or one that isn't
	// the replica's own. It must not be taken for GPU.
	TierUnknown Tier = iota
	// TierGPU is the engine's prefix cache proper.
	TierGPU
	// TierCPU is host memory.
	TierCPU
	// TierDisk is a file, a block device or an object store.
	TierDisk
)

// Tier sorts the names that vLLM, its connectors and SGLang use, whatever their
// case: Mooncake's connector writes "cpu" where vLLM's own writes "CPU".
func (m Medium) Tier() Tier {
	switch strings.ToUpper(string(m)) {
	case "", "GPU":
		return TierGPU
	case "CPU", "CPU_PINNED", "CPU_TIER1", "CPU_TIER2":
		return TierCPU
	case "DISK", "STORAGE", "FS", "OBJ":
		return TierDisk
	default:
		return TierUnknown
	}
}

func (t Tier) String() string {
	switch t {
	case TierGPU:
		return "gpu"
	case TierCPU:
		return "cpu"
	case TierDisk:
		return "disk"
	default:
		return "unknown"
	}
}
