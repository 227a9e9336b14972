package blockpool

import (
	"fmt"
	"testing"
)

// BenchmarkChurn serves unique prompts of 188 blocks of 16 tokens from a full
// pool, so that every block of each replaces another: cost must not grow with
// the size of the pool.
func BenchmarkChurn(b *testing.B) {
	const size, perPrompt = 16, 188
	for _, blocks := range []int{1024, 8192, 65536} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			h := testHasher(b)
			h.blockSize = size
			p, err := New(blocks, size)
			if err != nil {
				b.Fatal(err)
			}
			next := uint32(0)
			serve := func() {
				seq := h.Sequence(tokens(next, perPrompt*size), Content{})
				next += perPrompt * size
				if _, ok := p.Admit(seq); !ok {
					b.Fatal("no room")
				}
				p.Free(seq)
				p.TakeEvents()
			}
			for range blocks/perPrompt + 1 {
				serve()
			}
			b.ReportAllocs()
			for b.Loop() {
				serve()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*perPrompt), "ns/block")
		})
	}
}
