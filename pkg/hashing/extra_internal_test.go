package hashing

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// FuzzExtra holds the canonical form to its promise, that different extras never
// share one: what it encodes can be read back, whole and with nothing left.
func FuzzExtra(f *testing.F) {
	f.Add("", "", []byte(nil), int64(0), []byte(nil))
	f.Add("x", "", []byte("image\x00image\x00"), int64(-7), []byte("embeds"))
	f.Add("", "x", []byte("\x00\x00\x00"), int64(math.MinInt64), []byte(nil))
	f.Add("\x01\x00\x00\x00\x00\x00\x00\x00x", "é", []byte{8, 0, 0, 0, 0, 0, 0, 0}, int64(1), []byte{0})
	f.Fuzz(func(t *testing.T, lora, salt string, ids []byte, offset int64, embeds []byte) {
		x := Extra{LoRA: lora, Salt: salt, Embeds: embeds}
		for id := range slices.Chunk(ids, 5) {
			x.MM = append(x.MM, MMItem{ID: string(id[:len(id)/2]), Offset: offset + int64(len(id))})
			offset *= 31
		}
		if got := parseExtra(t, appendExtra(nil, &x)); !cmp.Equal(got, x, cmpopts.EquateEmpty()) {
			t.Errorf("%+v came back as %+v", x, got)
		}
	})
}

// parseExtra undoes appendExtra.
func parseExtra(t *testing.T, b []byte) Extra {
	t.Helper()
	number := func() uint64 {
		n := binary.LittleEndian.Uint64(b)
		b = b[8:]
		return n
	}
	text := func() []byte {
		n := number()
		s := b[:n]
		b = b[n:]
		return s
	}
	var x Extra
	x.LoRA = string(text())
	x.Salt = string(text())
	for range number() {
		x.MM = append(x.MM, MMItem{ID: string(text()), Offset: int64(number())})
	}
	x.Embeds = text()
	if len(b) > 0 {
		t.Errorf("%d bytes left", len(b))
	}
	return x
}
