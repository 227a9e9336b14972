package kvevents

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEncodeErrors(t *testing.T) {
	t.Parallel()

	hashes := []Hash{1, 2}
	f := func(e Encoding, ev Event, want string) {
		t.Helper()
		out, err := e.Encode(Batch{Events: []Event{&AllBlocksCleared{}, ev}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Encode(%+v) = %x, %v, want an error with %q", ev, out, err, want)
		}
	}
	f(Encoding{Form: 3}, &AllBlocksCleared{}, "form is 3")
	f(Encoding{Fields: 3}, &AllBlocksCleared{}, "fields is 3, must be 0 or 4 to 11")
	f(Encoding{Fields: 12}, &AllBlocksCleared{}, "fields is 12")
	f(Encoding{}, nil, "event 1: event is <nil>")
	f(Encoding{}, &BlockStored{BlockHashes: hashes, ExtraKeys: [][]ExtraKey{nil}}, "event 1: extra_keys has 1 entries")
	f(Encoding{}, &BlockStored{BlockHashes: hashes, Digests: [][]byte{nil}}, "digests has 1 entries")
	f(Encoding{}, &BlockRemoved{BlockHashes: hashes, Digests: [][]byte{nil}}, "digests has 1 entries")
	f(Encoding{}, &BlockStored{BlockSize: -1}, "block_size is -1")
	f(Encoding{}, &BlockStored{SlidingWindow: -1}, "kv_cache_spec_sliding_window is -1")
	f(Encoding{}, &BlockStored{Group: -1}, "group_idx is -1")
	f(Encoding{Form: FormMap}, &BlockRemoved{Group: -1}, "group_idx is -1")
	f(Encoding{}, &BlockStored{BlockHashes: hashes, ExtraKeys: [][]ExtraKey{{{Kind: 9}}, nil}}, "extra key has kind 9")
	for _, bad := range []string{"", "\x91", "\x01\x02", "\xc1"} {
		f(Encoding{}, &BlockStored{BlockHashes: hashes, ExtraKeys: [][]ExtraKey{{{Kind: KindOther, Bytes: []byte(bad)}}, nil}}, "must be one MessagePack value")
	}
}

// TestEncodeForms writes one batch in every form and reads it back: what
// differs is what the form has no room for.
func TestEncodeForms(t *testing.T) {
	t.Parallel()

	rank, lora, parent := int64(3), int64(1), Hash(9)
	in := Batch{Time: 1.5, Rank: &rank, Events: []Event{
		&BlockStored{
			BlockHashes: []Hash{1, 1 << 63}, Parent: &parent, TokenIDs: []uint32{1, 2, 3, 1 << 31}, BlockSize: 2,
			LoRAID: &lora, LoRAName: "la", Medium: "GPU", ExtraKeys: [][]ExtraKey{{{Kind: KindText, Text: "la"}}, nil},
			Group: 1, SpecKind: "sliding_window", SlidingWindow: 64,
			Locality: "LOCAL", Ownership: "o", SessionID: "s",
			Digests: [][]byte{{1}, {0x80, 0, 0, 0, 0, 0, 0, 0}}, ParentDigest: []byte{9},
		},
		&BlockRemoved{BlockHashes: []Hash{1}, Digests: [][]byte{{1}}, Medium: "CPU", Group: 2, Locality: "REMOTE", Ownership: "p"},
		&AllBlocksCleared{},
	}}
	for _, form := range []Form{FormArray, FormMap, FormMapBatch} {
		for _, asBytes := range []bool{false, true} {
			for fields := minFields; fields <= maxFields; fields++ {
				name := fmt.Sprintf("form %d, bytes %v, fields %d", form, asBytes, fields)
				out, err := Encoding{Form: form, Fields: fields, Bytes: asBytes}.Encode(in)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				want := without(t, in, form, fields, asBytes)
				if diff := cmp.Diff(want, mustDecode(t, out)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
		}
	}
}

// without returns a copy of b that lacks what the form has no room for.
func without(t *testing.T, b Batch, form Form, fields int, asBytes bool) Batch {
	t.Helper()
	s, r := *stored(t, b.Events[0]), *removed(t, b.Events[1])
	if !asBytes {
		s.Digests, s.ParentDigest, r.Digests = nil, nil, nil
	}
	if form == FormArray {
		s.Locality, s.Ownership, s.SessionID, r.Locality, r.Ownership = "", "", "", "", ""
		for field, drop := range map[int]func(){
			5:  func() { s.LoRAID = nil },
			6:  func() { s.Medium, r.Medium = "", "" },
			7:  func() { s.LoRAName = "" },
			8:  func() { s.ExtraKeys = nil },
			9:  func() { s.Group, r.Group = 0, 0 },
			10: func() { s.SpecKind = "" },
			11: func() { s.SlidingWindow = 0 },
		} {
			if fields < field {
				drop()
			}
		}
	}
	b.Events = []Event{&s, &r, &AllBlocksCleared{}}
	return b
}

func TestEncodeRank(t *testing.T) {
	t.Parallel()

	rank := int64(0)
	f := func(e Encoding, rank *int64, want int) {
		t.Helper()
		out, err := e.Encode(Batch{Rank: rank})
		if err != nil || int(out[0]&0x0f) != want {
			t.Errorf("%+v, rank %v: % x, %v, want %d elements", e, rank, out, err, want)
		}
	}
	f(Encoding{Fields: 5}, nil, 2) // vLLM 0.9.0 and SGLang of 2025 have no rank
	f(Encoding{Fields: 5}, &rank, 3)
	f(Encoding{Fields: 6}, nil, 3)
	f(Encoding{}, nil, 3)
	f(Encoding{Form: FormMap, Fields: 5}, nil, 3)
	f(Encoding{Form: FormMapBatch}, nil, 2)
	f(Encoding{Form: FormMapBatch}, &rank, 3)
}
