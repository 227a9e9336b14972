package index

import (
	"fmt"
	"slices"

	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// all is the need of a rule that wants every block from the first one.
const all = -1

// A rule says what one attention group must hold for a prompt's first L blocks
// to be reusable: blocks of factor request blocks each, every one of them or the
// last need of them. L must be a multiple of factor.
type rule struct {
	group  int
	factor int
	need   int
}

// Shape returns what the events have shown so far. The slices are the caller's.
func (b *Belief) Shape() Shape {
	s := Shape{BlockSize: b.blockSize, Groups: slices.Clone(b.groups), Ambiguous: b.ambiguous}
	for _, g := range b.groups {
		s.BlockSizes = append(s.BlockSizes, g.BlockSize)
		s.ExtraKeys = s.ExtraKeys || g.ExtraKeys
		s.FullDigests = s.FullDigests || g.FullDigests
	}
	slices.Sort(s.BlockSizes)
	s.BlockSizes = slices.Compact(s.BlockSizes)
	return s
}

func (b *Belief) extraKeys() bool {
	return slices.ContainsFunc(b.groups, func(g GroupSpec) bool { return g.ExtraKeys })
}

// observe learns from a GPU store what its group is like.
func (b *Belief) observe(ev *kvevents.BlockStored) {
	if ev.BlockSize <= 0 {
		return
	}
	i, ok := slices.BinarySearchFunc(b.groups, ev.Group, func(g GroupSpec, index int) int { return g.Index - index })
	if !ok {
		b.groups = slices.Insert(b.groups, i, GroupSpec{Index: ev.Group})
	}
	was := b.groups[i]
	g := was
	if g.Kind == "" {
		g.Kind = ev.SpecKind
	}
	if g.Window == 0 {
		g.Window = max(0, ev.SlidingWindow)
	}
	g.BlockSize = max(g.BlockSize, ev.BlockSize)
	g.ExtraKeys = g.ExtraKeys || ev.ExtraKeys != nil
	g.FullDigests = g.FullDigests || ev.Digests != nil
	if g == was {
		return
	}
	b.groups[i] = g
	b.log.groups = true
	b.reshape()
}

// reshape derives from the groups the size of the keys and the rules.
func (b *Belief) reshape() {
	if size := requestSize(b.groups); size != b.blockSize {
		b.forgetAll()
		b.blockSize = size
	}
	b.rules, b.ambiguous = b.rules[:0], ""
	for _, g := range b.groups {
		if g.BlockSize%b.blockSize != 0 {
			b.ambiguous = fmt.Sprintf("group %d has blocks of %d tokens, which keys of %d-token blocks cannot name",
				g.Index, g.BlockSize, b.blockSize)
		}
		b.rules = append(b.rules, rule{group: g.Index, factor: g.BlockSize / b.blockSize, need: g.need()})
	}
}

// requestSize is the smallest block size among the groups with full attention,
// or among all of them if there is none.
func requestSize(groups []GroupSpec) int {
	full, least := 0, 0
	for _, g := range groups {
		if least == 0 || g.BlockSize < least {
			least = g.BlockSize
		}
		if !g.sparse() && (full == 0 || g.BlockSize < full) {
			full = g.BlockSize
		}
	}
	if full > 0 {
		return full
	}
	return least
}

// sparse reports whether the group can reuse a prefix without holding all of it.
// Kinds that this release does not know are taken as full attention: that never
// promises too much.
func (g GroupSpec) sparse() bool {
	switch g.Kind {
	case "sliding_window", "sliding_window_mla", "mamba", "chunked_local_attention":
		return true
	default:
		return false
	}
}

// need is the number of the group's blocks that must be held at the end of a
// reused prefix: all, for full attention and where the events do not tell the
// window; one state, for Mamba; the blocks that the next token can see, and at
// least one, for a window.
func (g GroupSpec) need() int {
	switch {
	case g.Kind == "mamba":
		return 1
	case !g.sparse() || g.Window <= 0:
		return all
	default:
		return max(1, (g.Window-1+g.BlockSize-1)/g.BlockSize)
	}
}
