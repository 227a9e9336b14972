package hashing_test

import (
	"fmt"
	"testing"

	"github.com/prefixroute/prefixroute/pkg/hashing"
)

// TestAllocations is not parallel: AllocsPerRun counts what others allocate.
func TestAllocations(t *testing.T) {
	tokens := ramp(0, 8000*16)
	x := hashing.Extra{LoRA: "adapter", Salt: "salt", MM: []hashing.MMItem{{ID: "image", Offset: 4}}}
	lora := func(int) hashing.Extra { return hashing.Extra{LoRA: "adapter"} }
	f := func(what string, want float64, run func()) {
		t.Helper()
		if got := testing.AllocsPerRun(10, run); got != want {
			t.Errorf("%s: %v allocations, want %v", what, got, want)
		}
	}
	for _, s := range schemes[:2] {
		f(s.Name()+": Root", 0, func() { s.Root("org/model", 16) })
		f(s.Name()+": Keys", 1, func() { s.Keys("org/model", 16, tokens, nil) })
		f(s.Name()+": Keys with an adapter", 1, func() { s.Keys("org/model", 16, tokens, lora) })
		f(s.Name()+": Local", 0, func() { s.Local(tokens[:16], hashing.Extra{}) })
		f(s.Name()+": Local of a block of 528", 0, func() { s.Local(tokens[:528], hashing.Extra{}) })
		f(s.Name()+": Local with extras", 0, func() { s.Local(tokens[:16], x) })
		f(s.Name()+": Chain", 0, func() { s.Chain(1, 2) })
	}
	f("Approximate", 1, func() { hashing.Approximate("m", "", tokens, 16, 8000) })
}

func BenchmarkKeys(b *testing.B) {
	lora := func(int) hashing.Extra { return hashing.Extra{LoRA: "adapter"} }
	for _, blocks := range []int{198, 8000} {
		tokens := ramp(0, blocks*16)
		run := func(name string, s hashing.Scheme, extra func(int) hashing.Extra) {
			b.Run(fmt.Sprintf("%s/blocks=%d", name, blocks), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					s.Keys("org/model", 16, tokens, extra)
				}
				perBlock(b, blocks)
			})
		}
		run("plain", hashing.Scheme{}, nil)
		run("lora", hashing.Scheme{}, lora)
		run("keyed", hashing.NewScheme([]byte("secret")), nil)
	}
}

func BenchmarkApproximate(b *testing.B) {
	const blocks = 8000
	tokens := ramp(0, blocks*16)
	b.ReportAllocs()
	for b.Loop() {
		hashing.Approximate("org/model", "", tokens, 16, blocks)
	}
	perBlock(b, blocks)
}

func BenchmarkEngine(b *testing.B) {
	tokens := ramp(1000, 16)
	for _, algo := range []hashing.Algorithm{hashing.SHA256, hashing.SHA256CBOR, hashing.XXHash, hashing.XXHashCBOR} {
		b.Run(string(algo), func(b *testing.B) {
			e := newEngine(b, algo, nil, hashing.Tagged)
			parent := e.None()
			b.ReportAllocs()
			for b.Loop() {
				parent = e.Block(parent, tokens, hashing.EngineExtra{})
			}
			perBlock(b, 1)
		})
	}
}

func perBlock(b *testing.B, blocks int) {
	b.Helper()
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(blocks), "ns/block")
}
