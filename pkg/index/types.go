package index

import (
	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// Bounds on what one replica's events can make a belief keep beside its copies.
const (
	// MaxOrphans bounds the blocks whose content waits for a parent's. Past it
	// membership is still counted, but the content of further orphans is dropped
	// (see [Stats]), so they match only after being stored again.
	MaxOrphans = 1 << 17
	// MaxGroups bounds the attention groups, and so the copies kept apart under
	// one hash. Group indexes run from 0 to MaxGroups-1; events of others are
	// ignored and counted.
	MaxGroups = 64
)

// Depths says how many leading blocks of a prompt a replica could reuse, in
// blocks of the request's size, counting blocks on the tiers named.
// GPU <= GPUCPU <= GPUCPUDisk always holds.
type Depths struct {
	GPU        int // every block in GPU memory
	GPUCPU     int // each block in GPU or CPU memory
	GPUCPUDisk int // each block on any tier of the replica
}

// Effect says what one event did to the belief.
type Effect struct {
	Stored  int // copies that became held
	Removed int // copies that went
	// BelowZero counts removals of GPU copies that the belief does not hold.
	// Engines remove each copy once, so such a removal proves that a store was
	// missed: what else was missed is unknown and the owner should resync. The
	// count itself stays at zero.
	BelowZero int
	// Conflicts counts hashes announced with two different contents. They match
	// nothing until all their copies are gone.
	Conflicts int
	// Cleared is set by AllBlocksCleared.
	Cleared bool
	// Ignored is the reason why the event, or a part of it, was left aside;
	// IgnoredNone if it was not.
	Ignored Ignored
}

// Ignored is the closed set of reasons for which an event is not counted.
type Ignored uint8

// The reasons. Their String forms are metric labels.
const (
	IgnoredNone          Ignored = iota
	IgnoredUnknownMedium         // a medium this release does not know
	IgnoredRemote                // locality REMOTE: another endpoint's copy
	IgnoredOwner                 // owned by a secondary tier, not by the endpoint
	IgnoredGroup                 // group index outside [0, MaxGroups)
	IgnoredTokens                // the content of a GPU store with fewer tokens than its hashes need; its copies count
	IgnoredPlaceholder           // a lower-tier store without tokens for a hash that is not known
	ignoredCount
)

// Shape is what the events have shown about how the replica caches.
type Shape struct {
	// BlockSize is the size, in tokens, that a request's keys must have; 0 while
	// no stored event has told it.
	BlockSize int
	// BlockSizes lists, ascending and without repetition, the sizes of all groups.
	BlockSizes []int
	// Groups in order of their index.
	Groups []GroupSpec
	// Ambiguous is empty, or says in words why nothing can be promised exactly
	// for this replica although it holds blocks.
	Ambiguous string
	// ExtraKeys: stored events carry the extra_keys field. Without it salted,
	// multimodal and plain blocks of equal tokens look the same.
	ExtraKeys bool
	// FullDigests: hashes come as the engine's whole digests, not as integers.
	FullDigests bool
}

// GroupSpec describes one attention group, as its GPU store events do. It is
// part of the durable copy.
type GroupSpec struct {
	Index int
	// Kind is kv_cache_spec_kind; "" where the release sends none, which is
	// taken as full attention.
	Kind string
	// Window is the sliding window in tokens; 0 if absent.
	Window int
	// BlockSize in tokens, the largest announced: events of a smaller size in
	// the same group are partial blocks.
	BlockSize int
	// ExtraKeys and FullDigests are the facts of [Shape], as seen in this group.
	ExtraKeys, FullDigests bool
}

// Stats are the belief's sizes and, since it was made, its counts. All of them
// are kept up to date, so reading them costs nothing.
type Stats struct {
	Hashes    int // distinct engine hashes held
	Blocks    int // distinct (tier, group, hash) entries held
	Copies    int // physical copies, all tiers
	GPUCopies int // of these in GPU memory; an engine never has more than its block count less one
	Keyed     int // hashes whose content key is known
	Orphans   int // hashes whose content waits for a parent's key
	Conflicts int // hashes held under two contents now

	BelowZero      uint64               // GPU removals of copies not held
	UnknownRemoved uint64               // the same on lower tiers, where placeholders are dropped: harmless
	OrphansDropped uint64               // orphans beyond MaxOrphans
	SelfParents    uint64               // blocks announced as their own ancestor
	Conflicted     uint64               // announcements that contradicted a hash's content
	Masked         uint64               // stores whose tokens cover more than their hashes
	Clears         uint64               // AllBlocksCleared events
	Ignored        [ignoredCount]uint64 // by reason
}

// Block is one entry of a belief: copies of one hash, in one group, on one tier.
type Block struct {
	Hash   kvevents.Hash
	Key    hashing.Key // valid if HasKey
	HasKey bool        // false: content unknown, or its parent's
	Group  int
	Medium string // "GPU", "CPU" or "DISK", whatever alias the event used
	Copies int    // at least 1
}

// Copies counts one hash's copies in one group on one tier.
type Copies struct {
	Medium string // "GPU", "CPU" or "DISK"
	Group  int
	N      int // at least 1
}

// Record is the durable form of one hash: all that [Restore] needs of it.
type Record struct {
	Hash   kvevents.Hash
	Key    hashing.Key // valid if HasKey
	HasKey bool
	// BlockSize in tokens of the content; 0 if the content is unknown, and then
	// Key, HasKey, Local, Parent and Conflict are zero too.
	BlockSize int
	Local     uint64         // hashing.Local of the block
	Parent    *kvevents.Hash // nil = first block of a prompt
	// Conflict: the hash was announced with two contents; Local and Parent are
	// those of the first, and HasKey is false.
	Conflict bool
	Copies   []Copies // ordered by medium, then group; never empty
}

// Changes is what turns an older durable copy into the present one: if Cleared,
// drop all its records; then replace or add Set, delete Deleted, and take Groups
// unless nil. Set and Deleted have no hash in common and are ordered by hash.
type Changes struct {
	Cleared bool
	Set     []Record
	Deleted []kvevents.Hash
	Groups  []GroupSpec // all groups, if any changed; else nil
}

// Empty reports that there is nothing to write.
func (c Changes) Empty() bool {
	return !c.Cleared && len(c.Set) == 0 && len(c.Deleted) == 0 && c.Groups == nil
}

var ignoredNames = [ignoredCount]string{
	IgnoredNone:          "none",
	IgnoredUnknownMedium: "unknown_medium",
	IgnoredRemote:        "remote",
	IgnoredOwner:         "owner",
	IgnoredGroup:         "group",
	IgnoredTokens:        "tokens",
	IgnoredPlaceholder:   "placeholder",
}

// String is the reason as a metric label.
func (i Ignored) String() string {
	if i >= ignoredCount {
		return "invalid"
	}
	return ignoredNames[i]
}

// IgnoredReasons lists every reason but IgnoredNone, for those who label metrics with them.
func IgnoredReasons() []Ignored {
	all := make([]Ignored, 0, ignoredCount-1)
	for r := IgnoredNone + 1; r < ignoredCount; r++ {
		all = append(all, r)
	}
	return all
}
