// Package kvevents answers: what did an engine say about its cache? It reads
// and writes the batches of KV-cache events that vLLM publishes on ZeroMQ, in
// every form that a release has sent, and those of SGLang, which are close
// enough to share a reader.
//
// # Model
//
// A [Message] carries a sequence number and a payload. The payload is one
// [Batch] in MessagePack: the events of one engine step, in the order in which
// they have to be applied. Up to vLLM 0.23 an event is an array of fields by
// position, since 0.24 a map of fields by name; the form is recognised for each
// event, so a fleet in the middle of an upgrade needs no setting.
//
// # Tolerance
//
// Everything comes from the network. An event that this package doesn't know or
// can't read ends up in [Batch.Rejected] with a reason of a closed set, and its
// neighbours are unharmed. Only a payload whose structure is broken (cut short,
// followed by other bytes, not a batch) is an error, [ErrMalformed]. What a
// length claims is compared with the bytes that are there before anything is
// allocated, unknown values are skipped without recursion, and no integer is
// narrowed without a check.
//
// # Ownership
//
// What [Decode] returns shares no memory with the payload. A [Message] does
// share memory with the frames it was parsed from.
package kvevents

import (
	"errors"
	"fmt"
)

// ErrMalformed is in the chain of every error of [Decode], [ParseMessage],
// [ParseReply] and [ParseReplayRequest]. The sequence number of a malformed
// payload has still been used up: asking for it again brings the same bytes.
var ErrMalformed = errors.New("malformed")

// A Hash names a block as its engine does: the low 64 bits of the engine's own
// chained hash. Negative integers are read as two's complement and byte strings
// by their last 8 bytes, big-endian, so that a block keeps its name whatever
// form a release sends. 0 is a hash like any other.
//
// Hashes of two engines are comparable only if algorithm, seed and block size
// are known to be equal.
type Hash uint64

// A Batch is what one engine step did to the cache.
type Batch struct {
	// Time is the engine's wall clock in seconds since 1970.
	Time float64
	// Events are in the order in which they happened. One hash can be removed
	// and stored again within a batch.
	Events []Event
	// Rank is the engine's data-parallel rank, or nil if the batch has none.
	Rank *int64
	// Rejected lists the events that were left out of Events.
	Rejected []Rejected
}

// An Event is a [*BlockStored], a [*BlockRemoved] or an [*AllBlocksCleared].
type Event interface{ isEvent() }

// BlockStored says that the cache holds one more copy of each listed block.
type BlockStored struct {
	// BlockHashes can be shorter than the tokens suggest, even empty: groups of
	// a hybrid model list only blocks that a later request can use. It is never
	// nil after Decode.
	BlockHashes []Hash
	// Parent is the block before the first one of TokenIDs; nil says that
	// TokenIDs begins the prompt. It need not have been announced before.
	Parent *Hash
	// TokenIDs covers the whole range that was cached. Empty when the store
	// only tells membership, as offload tiers do.
	TokenIDs []uint32
	// BlockSize is in tokens; 0 where the publisher doesn't say.
	BlockSize int

	// LoRAID is the engine's order of registration and differs between
	// replicas; LoRAName identifies the adapter, "" is the base model.
	LoRAID   *int64
	LoRAName string

	Medium Medium

	// ExtraKeys holds what besides the tokens went into each block's hash. It
	// is nil if the event doesn't tell (releases before 0.17), else it has one
	// entry for each of BlockHashes, which is nil or not empty.
	ExtraKeys [][]ExtraKey

	// Group is the index of the KV-cache group, 0 when absent. SpecKind and
	// SlidingWindow (tokens) describe its attention, "" and 0 when absent.
	Group         int
	SpecKind      string
	SlidingWindow int

	// Locality ("LOCAL", "REMOTE") and Ownership come from offload tiers only.
	Locality, Ownership string
	// SessionID says who caused the event, never which block it is about.
	SessionID string

	// Digests are the full hashes, parallel to BlockHashes, where the engine
	// sent bytes: nil if it sent integers, with nil entries in a mixture.
	// ParentDigest likewise.
	Digests      [][]byte
	ParentDigest []byte
}

// Aligned reports whether TokenIDs are exactly the tokens of BlockHashes, so
// that the content of each block is known. Other events tell only that their
// hashes are held; cutting their tokens by list position gives wrong blocks.
func (s *BlockStored) Aligned() bool {
	n := len(s.BlockHashes)
	return n > 0 && s.BlockSize > 0 && len(s.TokenIDs)%s.BlockSize == 0 && len(s.TokenIDs)/s.BlockSize == n
}

// BlockRemoved says that the cache holds one copy less of each listed block.
// Its fields mean the same as those of [BlockStored].
type BlockRemoved struct {
	BlockHashes         []Hash
	Digests             [][]byte
	Medium              Medium
	Group               int
	Locality, Ownership string
}

// AllBlocksCleared says that a cache was reset. It doesn't say which one:
// resets of the GPU's cache and of some offload tiers look the same.
type AllBlocksCleared struct{}

func (*BlockStored) isEvent()      {}
func (*BlockRemoved) isEvent()     {}
func (*AllBlocksCleared) isEvent() {}

// Rejected is an event that was skipped.
type Rejected struct {
	Index  int    // position in the batch, from 0
	Reason Reason // why, from a closed set
	Tag    string // the event's tag as far as it was read, cut to 64 bytes
	Detail string // field, value and what was expected, for logs
}

// A Reason says why an event was skipped. Its String is a metric label.
type Reason uint8

const (
	// ReasonMalformed is a required field that is missing, of a wrong type or
	// out of range.
	ReasonMalformed Reason = iota
	// ReasonUnknownTag is a well-formed event of a type that isn't ours.
	ReasonUnknownTag
	// ReasonNoTag is an event that doesn't say what it is.
	ReasonNoTag
	// ReasonNilEvent is a nil in the place of an event.
	ReasonNilEvent
	// ReasonTokenRange is a token id below 0 or above 2^32-1.
	ReasonTokenRange
)

// Reasons returns all reasons, for metrics that want a series for each.
func Reasons() []Reason {
	return []Reason{ReasonMalformed, ReasonUnknownTag, ReasonNoTag, ReasonNilEvent, ReasonTokenRange}
}

func (r Reason) String() string {
	switch r {
	case ReasonMalformed:
		return "malformed"
	case ReasonUnknownTag:
		return "unknown_tag"
	case ReasonNoTag:
		return "no_tag"
	case ReasonNilEvent:
		return "nil_event"
	case ReasonTokenRange:
		return "token_range"
	}
	return fmt.Sprintf("reason(%d)", uint8(r))
}
