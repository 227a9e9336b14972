package kvevents

import (
	"errors"
	"runtime"
	"strings"
	"testing"
)

// allocated returns the bytes that f allocates. It counts the whole process, so
// callers don't run in parallel.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

const (
	// allocFloor and allocPerByte bound what Decode may allocate. The worst
	// byte is a one-byte key in extra_keys, which becomes an ExtraKey of 64.
	allocFloor   = 32 << 10
	allocPerByte = 100
)

// TestBombsAreCheap is the memory half of BB-005. Not parallel: it measures the
// allocations of the process.
func TestBombsAreCheap(t *testing.T) {
	const n = 1 << 20
	nest := func(head string, core string) string { return strings.Repeat(head, n) + core }
	arrays32, maps32 := "\xdd\xff\xff\xff\xff", "\xdf\xff\xff\xff\xff"
	bombs := map[string]string{
		"array":                     arrays32,
		"map":                       maps32,
		"bytes":                     "\xc6\xff\xff\xff\xff",
		"string":                    "\xdb\xff\xff\xff\xff",
		"extension":                 "\xc9\xff\xff\xff\xff\x01",
		"batch of 2^32":             "\xdd\xff\xff\xff\xff\x01\x90",
		"events":                    array(1, raw(arrays32)),
		"hashes":                    string(payload(store(arrays32))),
		"tokens":                    string(payload(array(tagStored, raw(array(1)), nil, raw(arrays32), 16))),
		"extra keys":                string(payload(object("type", tagStored, fieldHashes, raw(array(1)), fieldExtraKeys, raw(arrays32)))),
		"keys of a block":           string(payload(object("type", tagStored, fieldHashes, raw(array(1)), fieldExtraKeys, raw(array(raw(arrays32)))))),
		"unknown key":               string(payload(object("type", tagStored, "x", raw(maps32)))),
		"unknown tag":               string(payload(array("x", raw(maps32)))),
		"tag":                       string(payload("\x91\xdb\xff\xff\xff\xff")),
		"digest":                    string(payload(store("\x91\xc6\xff\xff\xff\xff"))),
		"wrapped hashes":            string(payload(array([]byte(store(arrays32)))[1:])),
		"deep unknown key":          string(payload(object("type", tagRemoved, fieldHashes, raw(array(1)), "x", raw(nest("\x91", "\xc0"))))),
		"deep maps":                 string(payload(object("type", tagRemoved, fieldHashes, raw(array(1)), "x", raw(nest("\x81\x01", "\xc0"))))),
		"deep event":                string(payload(nest("\x91", "\xc0"))),
		"deep batch":                nest("\x91", "\xc0"),
		"deep and cut":              nest("\x91", ""),
		"deep arrays of 2^32":       nest(arrays32, ""),
		"deep extra key":            string(payload(object("type", tagStored, fieldHashes, raw(array(1)), fieldExtraKeys, raw(array(raw(nest("\x91", "\xc0"))))))),
		"a million nil events":      array(1, raw("\xdd\x00\x10\x00\x00"+strings.Repeat("\xc0", n))),
		"a million hashes":          string(payload(store("\xdd\x00\x10\x00\x00" + strings.Repeat("\x01", n)))),
		"a million keys":            string(payload(object("type", tagStored, fieldHashes, raw(array(1)), fieldExtraKeys, raw(array(raw("\xdd\x00\x10\x00\x00"+strings.Repeat("\x01", n))))))),
		"a million hashes, 1 wrong": string(payload(store("\xdd\x00\x10\x00\x00" + strings.Repeat("\x01", n-1) + "\xc0"))),
	}
	for name, bomb := range bombs {
		var err error
		limit := uint64(allocFloor + allocPerByte*len(bomb))
		if got := allocated(func() { _, err = Decode([]byte(bomb)) }); got > limit {
			t.Errorf("%s: %d bytes allocated for a payload of %d, want at most %d", name, got, len(bomb), limit)
		}
		if err != nil && !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: error is %v, want ErrMalformed", name, err)
		}
	}
}

// TestClaimsDontAddUp repeats a claim of everything that is left in each of
// many events, so that bounding each claim alone would allocate the square of
// the payload. Not parallel: it measures the allocations of the process.
func TestClaimsDontAddUp(t *testing.T) {
	const n = 5000
	claim := "\xdd\x00\x00\x10\x00" // 4,096 elements, which the bytes after it could hold
	for name, event := range map[string]string{
		"plain":   store(claim),
		"wrapped": array([]byte(store(claim)))[1:],
		"tokens":  array(tagStored, raw(array(1)), nil, raw(claim), 16),
		"keys":    object("type", tagStored, fieldExtraKeys, raw(claim)),
	} {
		var w writer
		w.array(n)
		bomb := []byte(array(1, raw(string(w.bytes())+strings.Repeat(event, n))))
		limit := uint64(allocFloor + allocPerByte*len(bomb))
		if got := allocated(func() { _, _ = Decode(bomb) }); got > limit {
			t.Errorf("%s: %d bytes allocated for a payload of %d, want at most %d", name, got, len(bomb), limit)
		}
	}
}

func TestManyRejected(t *testing.T) {
	t.Parallel()

	events := func(n int) []byte {
		var w writer
		w.array(n)
		return []byte(array(1, raw(string(w.bytes())+strings.Repeat("\xc0", n))))
	}
	if b := mustDecode(t, events(maxRejected)); len(b.Rejected) != maxRejected {
		t.Errorf("%d events rejected, want %d", len(b.Rejected), maxRejected)
	}
	if _, err := Decode(events(maxRejected + 1)); !errors.Is(err, ErrMalformed) {
		t.Errorf("one more: error is %v, want ErrMalformed", err)
	}
}

// TestLargeEvent reads one event of 4,096 blocks, about what a prompt of 65,536
// tokens makes at once.
func TestLargeEvent(t *testing.T) {
	t.Parallel()

	in := blocks(4096, 16)
	out, err := Encoding{Fields: 7}.Encode(in)
	if err != nil {
		t.Fatal(err)
	}
	s := stored(t, mustDecode(t, out).Events[0])
	if !s.Aligned() || len(s.BlockHashes) != 4096 || s.TokenIDs[65535] != 65536 {
		t.Errorf("aligned %v, %d hashes, last token %d", s.Aligned(), len(s.BlockHashes), s.TokenIDs[len(s.TokenIDs)-1])
	}
}

// blocks returns a batch of one store of n blocks.
func blocks(n, size int) Batch {
	s := &BlockStored{BlockSize: size, Medium: "GPU", SpecKind: "full_attention"}
	for i := range n {
		s.BlockHashes = append(s.BlockHashes, Hash(uint64(i+1)*0x9e3779b97f4a7c15))
	}
	for i := range n * size {
		s.TokenIDs = append(s.TokenIDs, uint32(i+1))
	}
	rank := int64(0)
	return Batch{Time: 1700000000.25, Events: []Event{s}, Rank: &rank}
}
