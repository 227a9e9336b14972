package index_test

import (
	"fmt"
	"testing"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/index"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

const benchBlock = 16

// promptEvent stores all blocks of a prompt of n blocks, unlike any other seed's.
func promptEvent(seed uint32, n int) *kvevents.BlockStored {
	ev := &kvevents.BlockStored{BlockSize: benchBlock, TokenIDs: make([]uint32, n*benchBlock)}
	for i := range ev.TokenIDs {
		ev.TokenIDs[i] = seed + uint32(i)
	}
	for i := range n {
		ev.BlockHashes = append(ev.BlockHashes, kvevents.Hash(seed)<<32|kvevents.Hash(i))
	}
	return ev
}

func BenchmarkMatch(b *testing.B) {
	for _, blocks := range []int{12, 1000, 8000} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			belief := index.NewBelief(hashing.Scheme{}, model)
			ev := promptEvent(1, blocks)
			belief.Apply(ev)
			keys := hashing.Scheme{}.Keys(model, benchBlock, ev.TokenIDs, nil)
			b.ReportAllocs()
			for b.Loop() {
				if belief.Match(benchBlock, keys).GPU != blocks {
					b.Fatal("not all found")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(blocks), "ns/block")
		})
	}
}

// BenchmarkApply stores and removes prompts of 12 blocks, with 1,000 of them held.
func BenchmarkApply(b *testing.B) {
	const held, blocks = 1000, 12
	belief := index.NewBelief(hashing.Scheme{}, model)
	var events []*kvevents.BlockStored
	for i := range 2 * held {
		events = append(events, promptEvent(uint32(i+1)<<8, blocks))
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		belief.Apply(events[n%len(events)])
		if n >= held {
			belief.Apply(&kvevents.BlockRemoved{BlockHashes: events[(n-held)%len(events)].BlockHashes})
		}
		n++
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(2*blocks), "ns/block")
}
