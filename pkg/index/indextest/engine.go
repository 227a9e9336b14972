package indextest

import (
	"fmt"
	"hash/fnv"
	"slices"

	"pgregory.net/rapid"

	"github.com/prefixroute/prefixroute/pkg/index"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// Engine is a random engine as an indexer sees it that does not know the truth:
// prompts that share prefixes, several copies of one block, evictions in the
// middle, blocks whose parents nobody announced, groups, tiers, clears, and
// events that no sane engine sends.
type Engine struct {
	groups    []index.GroupSpec
	size      int  // of the smallest group, in tokens
	extraKeys bool // GPU events tell salts

	prompts []Prompt // at least one
	copies  []copied // announced and not removed, in order
}

// copied is one physical copy.
type copied struct {
	medium kvevents.Medium
	group  int
	hash   kvevents.Hash
}

// NewEngine draws an engine that holds nothing.
func NewEngine(t *rapid.T) *Engine {
	size := rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "block size")
	full := index.GroupSpec{Kind: "full_attention", BlockSize: size}
	window := index.GroupSpec{Kind: "sliding_window", BlockSize: size, Window: rapid.IntRange(1, 4*size).Draw(t, "window")}
	double := window
	double.BlockSize *= 2
	layouts := map[string][]index.GroupSpec{
		"full":               {full},
		"plain":              {{BlockSize: size}},
		"full, window":       {full, window},
		"window, full":       {window, full},
		"window":             {window},
		"full, full":         {full, full},
		"full, mamba":        {full, {Kind: "mamba", BlockSize: size}},
		"full, double":       {full, double},
		"double, full":       {double, full},
		"full, double full":  {full, {Kind: "full_attention", BlockSize: 2 * size}},
		"full, local chunks": {full, {Kind: "chunked_local_attention", BlockSize: size}},
	}
	names := make([]string, 0, len(layouts))
	for name := range layouts {
		names = append(names, name)
	}
	slices.Sort(names)
	return &Engine{
		groups:    layouts[rapid.SampledFrom(names).Draw(t, "layout")],
		size:      size,
		extraKeys: rapid.Bool().Draw(t, "extra keys"),
		prompts:   []Prompt{{Tokens: make([]uint32, 4*size)}},
	}
}

// Prompts returns every prompt that the engine has seen.
func (e *Engine) Prompts() []Prompt { return e.prompts }

// Prompt draws a prompt: one that was seen, or a continuation of the beginning
// of one, in whole blocks or not.
func (e *Engine) Prompt(t *rapid.T) Prompt {
	p := rapid.SampledFrom(e.prompts).Draw(t, "prompt").clone()
	if rapid.Bool().Draw(t, "seen before") {
		return p
	}
	p.Tokens = p.Tokens[:rapid.IntRange(0, len(p.Tokens)).Draw(t, "shared tokens")]
	for range rapid.IntRange(1, 3*e.size).Draw(t, "new tokens") {
		p.Tokens = append(p.Tokens, uint32(rapid.IntRange(0, 1).Draw(t, "token")))
	}
	if len(p.Tokens) < e.size {
		p.Tokens = append(p.Tokens, make([]uint32, e.size)...)
	}
	p.Salt = rapid.SampledFrom([]string{p.Salt, p.Salt, "a"}).Draw(t, "salt")
	e.prompts = append(e.prompts, p)
	return p
}

// Next draws the next event.
func (e *Engine) Next(t *rapid.T) kvevents.Event {
	switch n := rapid.IntRange(0, 99).Draw(t, "kind of event"); {
	case n < 50:
		return e.store(t)
	case n < 60:
		return e.offload(t)
	case n < 85:
		return e.remove(t)
	case n < 90:
		return &kvevents.BlockRemoved{
			BlockHashes: []kvevents.Hash{kvevents.Hash(rapid.IntRange(0, 3).Draw(t, "hash"))},
			Medium:      rapid.SampledFrom([]kvevents.Medium{"GPU", "CPU"}).Draw(t, "medium"),
		}
	case n < 98:
		return e.odd(t)
	default:
		e.copies = nil
		return &kvevents.AllBlocksCleared{}
	}
}

// store draws a GPU store of some consecutive blocks of a prompt, for one group.
// Window groups may list only some of them.
func (e *Engine) store(t *rapid.T) *kvevents.BlockStored {
	p := e.Prompt(t)
	g := rapid.IntRange(0, len(e.groups)-1).Draw(t, "group")
	if len(p.Tokens) < e.groups[g].BlockSize {
		p = e.prompts[0]
	}
	ev := e.event(t, p, g)
	if e.groups[g].Window > 0 && rapid.Bool().Draw(t, "masked") {
		e.mask(t, ev)
	}
	for _, h := range ev.BlockHashes {
		e.copies = append(e.copies, copied{medium: ev.Medium, group: g, hash: h})
	}
	return ev
}

// event describes blocks [from, to) of p for group g.
func (e *Engine) event(t *rapid.T, p Prompt, g int) *kvevents.BlockStored {
	spec := e.groups[g]
	n := len(p.Tokens) / spec.BlockSize
	from := rapid.IntRange(0, n-1).Draw(t, "first block")
	to := rapid.IntRange(from+1, n).Draw(t, "end")
	ev := &kvevents.BlockStored{
		TokenIDs: p.Tokens[from*spec.BlockSize : to*spec.BlockSize], BlockSize: spec.BlockSize,
		Medium: rapid.SampledFrom([]kvevents.Medium{"GPU", "gpu", ""}).Draw(t, "medium"),
		Group:  g, SpecKind: spec.Kind, SlidingWindow: spec.Window,
	}
	if from > 0 {
		h := hashOf(p, from*spec.BlockSize)
		ev.Parent = &h
	}
	for i := from; i < to; i++ {
		ev.BlockHashes = append(ev.BlockHashes, hashOf(p, (i+1)*spec.BlockSize))
		if e.extraKeys {
			var keys []kvevents.ExtraKey
			if i == 0 && p.Salt != "" {
				keys = []kvevents.ExtraKey{{Kind: kvevents.KindText, Text: p.Salt}}
			}
			ev.ExtraKeys = append(ev.ExtraKeys, keys)
		}
	}
	return ev
}

// mask drops some of an event's hashes, perhaps all, and keeps its tokens.
func (e *Engine) mask(t *rapid.T, ev *kvevents.BlockStored) {
	all, keys := ev.BlockHashes, ev.ExtraKeys
	ev.BlockHashes, ev.ExtraKeys = nil, nil
	for i, h := range all {
		if rapid.Bool().Draw(t, "kept") {
			ev.BlockHashes = append(ev.BlockHashes, h)
			if keys != nil {
				ev.ExtraKeys = append(ev.ExtraKeys, keys[i])
			}
		}
	}
}

// offload draws a store on a lower tier: a placeholder for some hash, or blocks
// with their tokens, as some connectors send them, with or without extra keys.
func (e *Engine) offload(t *rapid.T) *kvevents.BlockStored {
	p := e.Prompt(t)
	g := rapid.IntRange(0, len(e.groups)-1).Draw(t, "group")
	if len(p.Tokens) < e.groups[g].BlockSize {
		p = e.prompts[0]
	}
	ev := e.event(t, p, g)
	ev.Medium = rapid.SampledFrom([]kvevents.Medium{"CPU", "cpu", "CPU_PINNED", "DISK", "STORAGE"}).Draw(t, "lower medium")
	if rapid.Bool().Draw(t, "placeholder") {
		ev = &kvevents.BlockStored{
			BlockHashes: ev.BlockHashes[len(ev.BlockHashes)-1:], Medium: ev.Medium, Group: g,
		}
	}
	if rapid.Bool().Draw(t, "extra keys left out") {
		ev.ExtraKeys = nil
	}
	for _, h := range ev.BlockHashes {
		e.copies = append(e.copies, copied{medium: ev.Medium, group: g, hash: h})
	}
	return ev
}

// remove draws the removal of some copies on one medium in one group.
func (e *Engine) remove(t *rapid.T) kvevents.Event {
	if len(e.copies) == 0 {
		return &kvevents.BlockRemoved{Medium: "GPU"}
	}
	i := rapid.IntRange(0, len(e.copies)-1).Draw(t, "copy")
	first := e.copies[i]
	ev := &kvevents.BlockRemoved{Medium: first.medium, Group: first.group}
	want := rapid.IntRange(1, 4).Draw(t, "copies")
	for ; i < len(e.copies) && len(ev.BlockHashes) < want; i++ {
		if c := e.copies[i]; c.medium == first.medium && c.group == first.group {
			ev.BlockHashes = append(ev.BlockHashes, c.hash)
			e.copies = slices.Delete(e.copies, i, i+1)
			i--
		}
	}
	return ev
}

// odd draws a store that is wrong in one way.
func (e *Engine) odd(t *rapid.T) *kvevents.BlockStored {
	ev := e.store(t)
	switch rapid.IntRange(0, 7).Draw(t, "oddity") {
	case 0:
		ev.Medium = "HOLOGRAM"
	case 1:
		ev.Locality = "REMOTE"
	case 2:
		ev.Ownership = "kvcr"
	case 3:
		ev.Group = rapid.SampledFrom([]int{-1, index.MaxGroups}).Draw(t, "odd group")
	case 4:
		ev.TokenIDs = nil
	case 5: // the same hashes for other tokens
		ev.TokenIDs = slices.Clone(ev.TokenIDs)
		for i := range ev.TokenIDs {
			ev.TokenIDs[i] += 2
		}
	case 6: // its own ancestor
		if len(ev.BlockHashes) > 0 {
			h := ev.BlockHashes[len(ev.BlockHashes)-1]
			ev.Parent = &h
		}
	case 7: // the same block twice in one event
		if len(ev.BlockHashes) > 1 {
			ev.BlockHashes[1] = ev.BlockHashes[0]
		}
	}
	return ev
}

// hashOf is the engine's hash of the prefix of n tokens.
func hashOf(p Prompt, n int) kvevents.Hash {
	h := fnv.New64a()
	fmt.Fprint(h, p.Salt, p.Tokens[:n])
	return kvevents.Hash(h.Sum64())
}
