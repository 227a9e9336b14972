package kvevents

import (
	"fmt"
	"testing"
)

func BenchmarkDecode(b *testing.B) {
	for _, n := range []int{1, 16, 1024} {
		for name, enc := range map[string]Encoding{"map": {Form: FormMap}, "array": {}} {
			b.Run(fmt.Sprintf("form=%s/blocks=%d", name, n), func(b *testing.B) {
				in := blocks(n, 16)
				s, _ := in.Events[0].(*BlockStored)
				s.ExtraKeys = make([][]ExtraKey, n)
				payload, err := enc.Encode(in)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				b.SetBytes(int64(len(payload)))
				for b.Loop() {
					if _, err := Decode(payload); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/block")
			})
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	in := blocks(16, 16)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := (Encoding{Form: FormMap}).Encode(in); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*16), "ns/block")
}
