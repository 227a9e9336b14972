package follow

import "github.com/prefixroute/prefixroute/services/indexer/internal/belief"

// A verdict says what one batch's number means for our copy of a replica.
type verdict uint8

const (
	inOrder   verdict = iota // the next batch: apply it
	duplicate                // applied already: drop it
	gap                      // batches before it are missing
	restart                  // the publisher seems to count anew
)

// String is the verdict as a metric label.
func (v verdict) String() string {
	return [...]string{inOrder: "in_order", duplicate: "duplicate", gap: "gap", restart: "restart"}[v]
}

func verdicts() []verdict { return []verdict{inOrder, duplicate, gap, restart} }

// A cursor judges the sequence numbers of one publisher, which start at 0 and
// grow by 1 per batch. Engines send no epoch, so all that tells a restart from
// ordinary traffic is a number that falls back on one connection, or another
// payload under a number that is known. Between two connections a cursor cannot
// tell: whoever connects has to ask the replay socket (see history).
//
// The zero value expects batch 0. A cursor does no I/O and holds no lock; it
// belongs to the goroutine that follows the replica.
type cursor struct {
	pos belief.Position // last batch that was applied or skipped
	// open: history before the next batch is given up, so take whatever comes
	// first.
	open bool
	// seen and newest: the newest live batch of this connection. Below it and
	// up to pos lies what replays have brought before the live stream did.
	seen   bool
	newest belief.Position
}

// connected starts a new connection: live numbers are compared with no older ones.
func (c *cursor) connected() { c.seen, c.newest = false, belief.Position{} }

// renewed starts a new history, expecting batch 0.
func (c *cursor) renewed() { c.pos, c.open = belief.Position{}, false }

// next is the number of the batch that is expected.
func (c *cursor) next() uint64 {
	if !c.pos.Known {
		return 0
	}
	return c.pos.Seq + 1
}

// live judges a batch of the live stream. Its caller applies the batch and
// calls advance where the verdict is inOrder.
func (c *cursor) live(b belief.Position) verdict {
	if c.seen && b.Seq <= c.newest.Seq {
		// Published before, on this connection: TCP keeps order.
		if b == c.newest {
			return duplicate
		}
		c.newest = b
		return restart
	}
	c.seen, c.newest = true, b
	return c.judge(b)
}

// replayed judges a batch that the replay socket sent.
func (c *cursor) replayed(b belief.Position) verdict { return c.judge(b) }

func (c *cursor) judge(b belief.Position) verdict {
	switch {
	case c.open:
		return inOrder
	case c.pos.Known && b.Seq == c.pos.Seq && b != c.pos:
		return restart
	case b.Seq < c.next():
		return duplicate
	case b.Seq == c.next():
		return inOrder
	default:
		return gap
	}
}

// advance says that b was applied, or skipped for good.
func (c *cursor) advance(b belief.Position) { c.pos, c.open = b, false }
