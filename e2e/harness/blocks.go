package harness

import "fmt"

// Blocks is one atomic snapshot of what an engine holds (fakevllm's
// /admin/blocks), or is believed to hold (the indexer's /replicas/NAME/blocks).
type Blocks struct {
	// LastSeq is the number of the last batch that it covers; nil before the first.
	LastSeq *int64 `json:"last_seq"`
	// Pending counts events that the engine has not published yet.
	Pending int     `json:"pending_events"`
	Blocks  []Block `json:"blocks"`
}

// Block is one entry of a snapshot.
type Block struct {
	Hash   string `json:"hash"`
	Key    string `json:"key"`
	Group  int    `json:"group"`
	Medium string `json:"medium"`
	Copies int    `json:"copies"`
}

// At says which batch the snapshot covers; -1 before the first.
func (b Blocks) At() int64 {
	if b.LastSeq == nil {
		return -1
	}
	return *b.LastSeq
}

// settled says why held and believed cannot be compared yet: they are not of
// one and the same batch, or the engine has something left to say.
func settled(held, believed Blocks) error {
	switch {
	case held.At() != believed.At():
		return fmt.Errorf("the engine is at batch %d, the index at %d", held.At(), believed.At())
	case held.Pending > 0:
		return fmt.Errorf("the engine has %d events to publish", held.Pending)
	case len(held.Blocks) == 0:
		return fmt.Errorf("the engine holds nothing at batch %d", held.At())
	}
	return nil
}

// difference is empty if two snapshots hold the same blocks, in any order, with
// the same number of copies; else it shows one that differs.
func difference(held, believed Blocks) string {
	in := map[Block]int{}
	for _, b := range held.Blocks {
		in[b]++
	}
	for _, b := range believed.Blocks {
		in[b]--
	}
	for b, n := range in {
		if n != 0 {
			return fmt.Sprintf("%d blocks held, %d believed; for one they differ by %d: %+v", len(held.Blocks), len(believed.Blocks), n, b)
		}
	}
	return ""
}
