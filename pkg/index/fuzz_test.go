package index_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/index"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// FuzzApply holds three promises for whatever a peer sends: no panic, sizes that
// agree with what is listed, and records that can be restored.
func FuzzApply(f *testing.F) {
	files, err := filepath.Glob("testdata/bugs/*.msgpack")
	if err != nil || len(files) == 0 {
		f.Fatalf("no payloads in testdata/bugs: %v", err)
	}
	for _, file := range files {
		payload, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(payload, payload)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		b := index.NewBelief(hashing.Scheme{}, model)
		for _, payload := range [][]byte{first, second} {
			batch, err := kvevents.Decode(payload)
			if err != nil {
				return
			}
			for _, ev := range batch.Events {
				b.Apply(ev)
			}
		}
		copies, digest := 0, uint64(0)
		blocks := b.Blocks()
		for _, block := range blocks {
			copies += block.Copies
			digest += block.Digest()
		}
		if s := b.Stats(); s.Blocks != len(blocks) || s.Copies != copies || b.Digest() != digest {
			t.Fatalf("%d blocks, %d copies, digest %#x listed; stats %+v, digest %#x", len(blocks), copies, digest, s, b.Digest())
		}
		records, groups := b.Records()
		again, err := index.Restore(hashing.Scheme{}, model, records, groups)
		if err != nil {
			t.Fatalf("Restore of own records: %v", err)
		}
		if again.Digest() != digest {
			t.Fatalf("restored digest is %#x, want %#x", again.Digest(), digest)
		}
	})
}
