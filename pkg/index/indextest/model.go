package indextest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/index"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// A model believes what the events say in the plainest way there is: a list of
// physical copies, the content of each hash spelled out from the first token of
// its prompt, and every question answered by trying all answers.
type model struct {
	copies  []held
	told    map[kvevents.Hash]told  // content of held hashes, as first announced
	chains  map[kvevents.Hash]chain // whole content of held hashes, where it could be put together
	clashed map[kvevents.Hash]bool  // held hashes announced with two contents
	groups  map[int]index.GroupSpec
	tells   bool // GPU events carry extra keys
}

type held struct {
	tier  kvevents.Tier
	group int
	hash  kvevents.Hash
}

type told struct {
	first  bool
	parent kvevents.Hash
	tokens string // printed
	salt   string // of any block, as printed extra keys
	ids    []uint32
}

// A chain is a prompt's beginning up to a block: what the block's key stands for.
type chain struct {
	text   string // unambiguous
	tokens []uint32
	extras []hashing.Extra // of each block
}

func newModel() *model {
	m := &model{groups: make(map[int]index.GroupSpec)}
	m.clear()
	return m
}

func (m *model) clear() {
	m.copies = nil
	m.told = make(map[kvevents.Hash]told)
	m.chains = make(map[kvevents.Hash]chain)
	m.clashed = make(map[kvevents.Hash]bool)
}

func (m *model) apply(ev kvevents.Event) index.Effect {
	switch ev := ev.(type) {
	case *kvevents.BlockStored:
		return m.stored(ev)
	case *kvevents.BlockRemoved:
		return m.removed(ev)
	default:
		m.clear()
		return index.Effect{Cleared: true}
	}
}

func ignored(medium kvevents.Medium, locality, owner string, group int) index.Ignored {
	switch {
	case medium.Tier() == kvevents.TierUnknown:
		return index.IgnoredUnknownMedium
	case locality == "REMOTE":
		return index.IgnoredRemote
	case owner != "":
		return index.IgnoredOwner
	case group < 0 || group >= index.MaxGroups:
		return index.IgnoredGroup
	default:
		return index.IgnoredNone
	}
}

func (m *model) stored(ev *kvevents.BlockStored) (eff index.Effect) {
	if eff.Ignored = ignored(ev.Medium, ev.Locality, ev.Ownership, ev.Group); eff.Ignored != index.IgnoredNone {
		return eff
	}
	gpu := ev.Medium.Tier() == kvevents.TierGPU
	if gpu && ev.BlockSize > 0 {
		m.see(ev)
	}
	if gpu && len(ev.TokenIDs) < ev.BlockSize*len(ev.BlockHashes) {
		eff.Ignored = index.IgnoredTokens
	}
	readable := ev.Aligned() && ev.BlockSize == m.size() && (gpu || ev.ExtraKeys != nil || !m.tells) &&
		(ev.Parent == nil || !slices.Contains(ev.BlockHashes, *ev.Parent))
	for i, h := range ev.BlockHashes {
		if !gpu && !readable && !m.holds(h) {
			eff.Ignored = index.IgnoredPlaceholder
			continue
		}
		m.copies = append(m.copies, held{tier: ev.Medium.Tier(), group: ev.Group, hash: h})
		eff.Stored++
		if readable && !m.tell(ev, i) {
			eff.Conflicts++
		}
		m.connect()
	}
	return eff
}

// tell takes down what ev says about its block i, and reports whether that
// agrees with what was said before.
func (m *model) tell(ev *kvevents.BlockStored, i int) bool {
	h := ev.BlockHashes[i]
	now := told{ids: ev.TokenIDs[i*ev.BlockSize : (i+1)*ev.BlockSize]}
	now.tokens = fmt.Sprint(now.ids)
	if ev.ExtraKeys != nil && ev.ExtraKeys[i] != nil {
		now.salt = ev.ExtraKeys[i][0].Text
	}
	switch {
	case i > 0:
		now.parent = ev.BlockHashes[i-1]
	case ev.Parent != nil && (*ev.Parent != 0 || m.holds(0)):
		now.parent = *ev.Parent
	default:
		now.first = true
	}
	if !now.first && now.parent == h {
		return true // a block can't be its own ancestor: not believed, nothing to contradict
	}
	before, known := m.told[h]
	if !known {
		m.told[h] = now
		return true
	}
	if before.first == now.first && before.parent == now.parent && before.tokens == now.tokens && before.salt == now.salt {
		return true
	}
	m.clashed[h] = true
	delete(m.chains, h)
	return false
}

// connect puts together every chain that can be, until nothing is added.
func (m *model) connect() {
	for again := true; again; {
		again = false
		for h, c := range m.told {
			if _, done := m.chains[h]; done || m.clashed[h] {
				continue
			}
			parent, known := m.chains[c.parent]
			if !c.first && !known {
				continue
			}
			m.chains[h] = chain{
				text:   fmt.Sprintf("%s/%s%q", parent.text, c.tokens, c.salt),
				tokens: slices.Concat(parent.tokens, c.ids),
				extras: append(slices.Clone(parent.extras), hashing.Extra{Salt: c.salt}),
			}
			again = true
		}
	}
}

func (m *model) removed(ev *kvevents.BlockRemoved) (eff index.Effect) {
	if eff.Ignored = ignored(ev.Medium, ev.Locality, ev.Ownership, ev.Group); eff.Ignored != index.IgnoredNone {
		return eff
	}
	for _, h := range ev.BlockHashes {
		c := held{tier: ev.Medium.Tier(), group: ev.Group, hash: h}
		switch i := slices.Index(m.copies, c); {
		case i >= 0:
			m.copies = slices.Delete(m.copies, i, i+1)
			eff.Removed++
		case c.tier == kvevents.TierGPU:
			eff.BelowZero++
		}
		if !m.holds(h) {
			delete(m.told, h)
			delete(m.chains, h)
			delete(m.clashed, h)
		}
	}
	return eff
}

func (m *model) holds(h kvevents.Hash) bool {
	return slices.ContainsFunc(m.copies, func(c held) bool { return c.hash == h })
}

// see learns the group of a GPU store, and starts content anew if that changes
// the size of the keys.
func (m *model) see(ev *kvevents.BlockStored) {
	before := m.size()
	m.groups[ev.Group] = index.GroupSpec{Kind: ev.SpecKind, Window: ev.SlidingWindow, BlockSize: ev.BlockSize}
	m.tells = m.tells || ev.ExtraKeys != nil
	if m.size() != before {
		copies := m.copies
		m.clear()
		m.copies = copies
	}
}

// size is the block size of the keys: the least of the full-attention groups, or
// the least of all.
func (m *model) size() int {
	var full, every []int
	for _, g := range m.groups {
		every = append(every, g.BlockSize)
		if g.Kind == "" || g.Kind == "full_attention" {
			full = append(full, g.BlockSize)
		}
	}
	switch {
	case len(full) > 0:
		return slices.Min(full)
	case len(every) > 0:
		return slices.Min(every)
	default:
		return 0
	}
}

// match tries every number of blocks from the largest down.
func (m *model) match(p Prompt) index.Depths {
	return index.Depths{
		GPU:        m.longest(p, kvevents.TierGPU),
		GPUCPU:     m.longest(p, kvevents.TierCPU),
		GPUCPUDisk: m.longest(p, kvevents.TierDisk),
	}
}

func (m *model) longest(p Prompt, last kvevents.Tier) int {
	size := m.size()
	var texts []string // of the chain up to each block
	text := ""
	for i := range len(p.Tokens) / size {
		salt := ""
		if i == 0 {
			salt = p.Salt
		}
		text = fmt.Sprintf("%s/%s%q", text, fmt.Sprint(p.Tokens[i*size:(i+1)*size]), salt)
		texts = append(texts, text)
	}
	for n := len(texts); n > 0; n-- {
		if m.serves(texts[:n], last) {
			return n
		}
	}
	return 0
}

// serves reports whether every group can reuse all of the prompt's blocks.
func (m *model) serves(texts []string, last kvevents.Tier) bool {
	for index, g := range m.groups {
		factor := g.BlockSize / m.size()
		if len(texts)%factor != 0 {
			return false
		}
		blocks := len(texts) / factor
		need := blocks
		switch {
		case g.Kind == "mamba":
			need = 1
		case g.Window > 0:
			need = min(need, max(1, (g.Window-1+g.BlockSize-1)/g.BlockSize))
		}
		for b := blocks - need; b < blocks; b++ {
			if !m.has(texts[(b+1)*factor-1], index, last) {
				return false
			}
		}
	}
	return true
}

func (m *model) has(text string, group int, last kvevents.Tier) bool {
	return slices.ContainsFunc(m.copies, func(c held) bool {
		return c.group == group && c.tier <= last && m.chains[c.hash].text == text
	})
}

func (m *model) orphans() int {
	n := 0
	for h := range m.told {
		if _, known := m.chains[h]; !known && !m.clashed[h] {
			n++
		}
	}
	return n
}

// blocks lists what is held, as [index.Belief.Blocks] does.
func (m *model) blocks(scheme hashing.Scheme) []index.Block {
	counts := make(map[held]int)
	for _, c := range m.copies {
		counts[c]++
	}
	names := map[kvevents.Tier]string{kvevents.TierGPU: "GPU", kvevents.TierCPU: "CPU", kvevents.TierDisk: "DISK"}
	out := []index.Block{}
	for c, n := range counts {
		b := index.Block{Hash: c.hash, Group: c.group, Medium: names[c.tier], Copies: n}
		if ch, known := m.chains[c.hash]; known {
			keys := scheme.Keys(ModelName, m.size(), ch.tokens, func(i int) hashing.Extra { return ch.extras[i] })
			b.Key, b.HasKey = keys[len(keys)-1], true
		}
		out = append(out, b)
	}
	slices.SortFunc(out, func(a, b index.Block) int {
		return cmp.Or(cmp.Compare(a.Hash, b.Hash), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Medium, b.Medium))
	})
	return out
}
