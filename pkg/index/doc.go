// Package index answers one question about one replica: how many leading blocks
// of this prompt could it reuse, by what its own events have said?
//
// This is the naive belief: maps, counts and a walk from the front. It is exact
// and simple, and it stays as the oracle of the faster ones; package indextest
// holds the contract that each of them has to pass.
//
// # Model
//
// An engine stores blocks, names them with its own hashes and may hold several
// physical copies under one hash: a prompt of whole blocks recomputes its last
// one, a hybrid model keeps one for each attention group, lower tiers keep
// theirs. Each copy is announced once when it is stored and once when it is
// removed. A [Belief] therefore counts copies per (tier, group, hash), and a
// block is held while its count is positive.
//
// Prompts are compared by content, not by hash. From every stored event whose
// lengths agree the belief learns which content key ([hashing.Key]) each hash
// stands for; a key names the whole prefix up to its block. A block whose parent
// is not known yet is an orphan: it is held, but no prompt can reach it until
// the parent's key is known. Events whose token ids cover more than their hashes
// (masked events of window groups) say that hashes are held and nothing else.
//
// # Which block size
//
// All keys of a belief have one block size, that of the model's full-attention
// groups ([Shape.BlockSize]; the smallest, should they differ; where no group
// has full attention, the smallest of all). Content is learned from events of
// that size. Groups of a larger size that is a multiple of it take part at their
// own grain: the engine names their blocks with the hash of their last boundary.
// Groups whose size is no multiple of it hold blocks that the keys cannot name;
// with one in the model nothing is promised and [Shape.Ambiguous] says why.
//
// # Invariants
//
//   - A hash is in the belief if and only if at least one copy of it is held.
//   - Copies change through that replica's own events and [Belief.Clear] alone.
//     Nothing is inferred, and looking up changes nothing.
//   - A missed block costs one prefill, a false one sends a request to a replica
//     that has to compute it. When in doubt, nothing is promised.
//   - What is dropped is counted in [Stats], by a closed set of reasons.
//   - The same events in the same order give the same belief, and so do the
//     records of it: [Restore] of [Belief.Records] answers like the original.
//
// # What the owner does
//
// A belief cannot know what it was not told. The owner, who follows the stream,
// starts a new one when the engine restarted or batches are lost; it should do so
// too when [Effect.BelowZero] shows that stores were missed, and when
// [Stats.GPUCopies] exceeds the engine's block count less one, since then
// removals were missed or reports were counted as copies. Repeating a batch, or
// applying two in the wrong order, is not noticed.
//
// # Concurrency
//
// A Belief has no locks and starts nothing. One goroutine owns it, or the owner
// guards it with a lock; [Belief.Match] and the other methods that only read may
// run beside each other, but not beside [Belief.Apply], [Belief.Clear] and
// [Belief.TakeChanges].
package index
