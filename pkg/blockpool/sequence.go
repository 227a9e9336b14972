package blockpool

import (
	"fmt"
	"slices"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// An Adapter is a LoRA adapter as an engine knows it.
type Adapter struct {
	ID   int64  // order of registration, from 1
	Name string // what requests call it
	Path string // where it was loaded from; part of the engine's hash, not of events
}

// Content is what distinguishes two requests with equal tokens.
type Content struct {
	LoRA *Adapter // nil is the base model
	Salt string   // cache_salt; "" is none
}

// A Hasher names blocks, in the engine's way and in the product's. It is
// immutable and safe for concurrent use.
type Hasher struct {
	engine    *hashing.Engine
	none      []byte // parent of the first block, the engine's way
	scheme    hashing.Scheme
	root      hashing.Key // parent of the first block, the product's way
	blockSize int
}

// NewHasher returns a hasher for an engine that serves model in blocks of
// blockSize tokens and hashes them with engine. scheme is that of the product's
// own keys.
func NewHasher(engine *hashing.Engine, scheme hashing.Scheme, model string, blockSize int) (*Hasher, error) {
	if blockSize < 1 {
		return nil, fmt.Errorf("block size is %d, expected 1 token or more", blockSize)
	}
	return &Hasher{
		engine:    engine,
		none:      engine.None(),
		scheme:    scheme,
		root:      scheme.Root(model, blockSize),
		blockSize: blockSize,
	}, nil
}

// A Sequence is one request: n answers to one prompt are n sequences. It
// belongs to one goroutine at a time.
type Sequence struct {
	hasher     *Hasher
	content    Content
	skipLookup bool

	tokens  []uint32 // append-only
	digests []digest // of each full block
	keys    []hashing.Key

	// owned by the pool that admitted the sequence
	blocks  []int32 // in prompt order; nil while not admitted
	entered int     // leading blocks that are under their hash in the cache
}

// Sequence returns a sequence that starts with prompt, which it takes over.
func (h *Hasher) Sequence(prompt []uint32, c Content) *Sequence {
	full := len(prompt) / h.blockSize
	s := &Sequence{
		hasher:  h,
		content: c,
		tokens:  slices.Clip(prompt),
		digests: make([]digest, 0, full+1),
		keys:    make([]hashing.Key, 0, full+1),
	}
	s.extend()
	return s
}

// SkipLookup makes the sequence reuse nothing, as requests for the prompt's log
// probabilities do. Its blocks are entered all the same.
func (s *Sequence) SkipLookup() { s.skipLookup = true }

// Append adds a generated token. It gets its place in the cache with the next
// [Pool.Grow] or [Pool.Admit].
func (s *Sequence) Append(token uint32) {
	s.tokens = append(s.tokens, token)
	s.extend()
}

// Len is the number of tokens so far, the prompt's and generated ones.
func (s *Sequence) Len() int { return len(s.tokens) }

// Tokens returns all tokens so far. They must not be changed.
func (s *Sequence) Tokens() []uint32 { return s.tokens }

// extend names the blocks that have become full.
func (s *Sequence) extend() {
	h := s.hasher
	for i := len(s.digests); i < len(s.tokens)/h.blockSize; i++ {
		tokens := s.tokens[i*h.blockSize : (i+1)*h.blockSize]
		parent, key := h.none, h.root
		if i > 0 {
			parent, key = s.digests[i-1].slice(), s.keys[i-1]
		}
		s.digests = append(s.digests, newDigest(h.engine.Block(parent, tokens, s.engineExtra(i))))
		s.keys = append(s.keys, h.scheme.Chain(key, h.scheme.Local(tokens, s.extra(i))))
	}
}

func (s *Sequence) engineExtra(i int) hashing.EngineExtra {
	var x hashing.EngineExtra
	if a := s.content.LoRA; a != nil {
		x.LoRAName, x.LoRAPath = a.Name, a.Path
	}
	if i == 0 {
		x.Salt = s.content.Salt
	}
	return x
}

func (s *Sequence) extra(i int) hashing.Extra {
	var x hashing.Extra
	if a := s.content.LoRA; a != nil {
		x.LoRA = a.Name
	}
	if i == 0 {
		x.Salt = s.content.Salt
	}
	return x
}

// extraKeys are what events publish of engineExtra: never the adapter's path.
func (s *Sequence) extraKeys(i int) []kvevents.ExtraKey {
	var keys []kvevents.ExtraKey
	if a := s.content.LoRA; a != nil {
		keys = append(keys, kvevents.ExtraKey{Kind: kvevents.KindText, Text: a.Name})
	}
	if i == 0 && s.content.Salt != "" {
		keys = append(keys, kvevents.ExtraKey{Kind: kvevents.KindText, Text: s.content.Salt})
	}
	return keys
}

// stored is the event for blocks from up to, not including, to.
func (s *Sequence) stored(from, to int) *kvevents.BlockStored {
	bs := s.hasher.blockSize
	ev := &kvevents.BlockStored{
		BlockHashes: make([]kvevents.Hash, 0, to-from),
		Digests:     make([][]byte, 0, to-from),
		TokenIDs:    s.tokens[from*bs : to*bs : to*bs],
		BlockSize:   bs,
		Medium:      medium,
		ExtraKeys:   make([][]kvevents.ExtraKey, 0, to-from),
		Group:       group,
		SpecKind:    specKind,
	}
	for i := from; i < to; i++ {
		ev.BlockHashes = append(ev.BlockHashes, s.digests[i].external())
		ev.Digests = append(ev.Digests, s.digests[i].slice())
		ev.ExtraKeys = append(ev.ExtraKeys, s.extraKeys(i))
	}
	if from > 0 {
		parent := s.digests[from-1].external()
		ev.Parent, ev.ParentDigest = &parent, s.digests[from-1].slice()
	}
	if a := s.content.LoRA; a != nil {
		id := a.ID
		ev.LoRAID, ev.LoRAName = &id, a.Name
	}
	return ev
}
