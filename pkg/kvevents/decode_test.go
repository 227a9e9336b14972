package kvevents

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestOptionalOfWrongType reads optional fields whose value has another type:
// they are absent, and the event is still good.
func TestOptionalOfWrongType(t *testing.T) {
	t.Parallel()

	want := &BlockStored{BlockHashes: []Hash{1}, TokenIDs: []uint32{2}, BlockSize: 1}
	for _, wrong := range []string{array(), object("a", 1), "\xc3", "\xcb\x00\x00\x00\x00\x00\x00\x00\x00"} {
		pairs := []any{"type", tagStored, fieldHashes, raw(array(1)), fieldTokens, raw(array(2)), fieldBlockSize, 1}
		for _, field := range []string{
			fieldLoRAID, fieldMedium, fieldLoRAName, fieldGroup, fieldSpecKind, fieldSlidingWindow,
			fieldLocality, fieldOwnership, fieldSessionID, fieldCacheSalt,
		} {
			pairs = append(pairs, field, raw(wrong))
		}
		b := mustDecode(t, payload(object(pairs...)))
		if diff := cmp.Diff([]Event{want}, b.Events); diff != "" {
			t.Errorf("optional fields of value % x (-want +got):\n%s\n%+v", wrong, diff, b.Rejected)
		}
	}
	b := mustDecode(t, payload(object("type", tagStored, fieldHashes, raw(array(1)), fieldExtraKeys, 5)))
	if diff := cmp.Diff([]Event{&BlockStored{BlockHashes: []Hash{1}}}, b.Events); diff != "" {
		t.Errorf("extra_keys of another type (-want +got):\n%s", diff)
	}
}

// TestRequiredOfWrongType reads events that can't be used, each between two
// that can.
func TestRequiredOfWrongType(t *testing.T) {
	t.Parallel()

	f := func(event string, reason Reason, detail string) {
		t.Helper()
		b := mustDecode(t, payload(store(array(1)), event, store(array(2))))
		if len(b.Events) != 2 {
			t.Errorf("%d events, want the 2 good ones", len(b.Events))
		}
		refused(t, b, 1, reason)
		if len(b.Rejected) > 0 && !strings.Contains(b.Rejected[0].Detail, detail) {
			t.Errorf("detail is %q, want %q in it", b.Rejected[0].Detail, detail)
		}
	}
	f(array(tagStored), ReasonMalformed, "block_hashes is missing")
	f(array(tagRemoved), ReasonMalformed, "block_hashes is missing")
	f(object("type", tagRemoved, fieldMedium, "GPU"), ReasonMalformed, "block_hashes is missing")
	f(store("\xa4nope"), ReasonMalformed, "block_hashes is a string, must be an array")
	f(store(array("nope")), ReasonMalformed, "block_hashes holds a string")
	f(store(array(nil)), ReasonMalformed, "block_hashes holds nil")
	f(store("\x91\xc3"), ReasonMalformed, "block_hashes holds a boolean")
	f(store("\x91\xca\x00\x00\x00\x00"), ReasonMalformed, "block_hashes holds a float")
	f(store(array([]byte{})), ReasonMalformed, "hash of 0 bytes")
	f(array(tagStored, raw(array(1)), "p", raw(sixteen), 16), ReasonMalformed, "parent_block_hash holds a string")
	f(array(tagStored, raw(array(1)), nil, "t", 16), ReasonMalformed, "token_ids is a string")
	f(array(tagStored, raw(array(1)), nil, raw(array("t")), 16), ReasonMalformed, "token_ids holds a string")
	f(array(tagStored, raw(array(1)), nil, raw(array(raw(array()))), 16), ReasonMalformed, "array of 0, must be a pair")
	f(array(tagStored, raw(array(1)), nil, raw(sixteen), "16"), ReasonMalformed, "block_size is a string")
	f(array(tagStored, raw(array(1)), nil, raw(sixteen), math.MaxInt32+1), ReasonMalformed, "block_size is 2147483648")
	f(object("type", tagStored, fieldHashes, raw(array(1)), fieldExtraKeys, raw(array(nil, nil))), ReasonMalformed, "extra_keys has 2 entries for 1 hashes")
	f("\xa1x", ReasonMalformed, "event is a string")
	f("\x2a", ReasonMalformed, "event is an integer")
	f(array(), ReasonNoTag, "empty array")
	f(object(), ReasonNoTag, `without "type"`)
	f(object("type", nil), ReasonNoTag, "tag is nil")
	f(array("BlockMigrated", raw(array(1))), ReasonUnknownTag, `"BlockMigrated" is unknown`)
	f(object("type", "BlockMigrated", fieldHashes, "no list"), ReasonUnknownTag, `"BlockMigrated" is unknown`)
}

func TestUnknownTagIsKeptShort(t *testing.T) {
	t.Parallel()

	b := mustDecode(t, payload(array(strings.Repeat("x", 1000))))
	if got := b.Rejected[0].Tag; got != strings.Repeat("x", maxTagBytes) {
		t.Errorf("Tag = %q", got)
	}
	b = mustDecode(t, payload(array(tagStored, 1)))
	if got := b.Rejected[0].Tag; got != tagStored {
		t.Errorf("Tag = %q, want %s", got, tagStored)
	}
}

func TestMinimalEvents(t *testing.T) {
	t.Parallel()

	b := mustDecode(t, payload(
		array(tagStored, raw(array())),
		object("type", []byte(tagRemoved), []byte(fieldHashes), raw(array(1))),
		array(tagStored, raw(array(1)), nil, nil, 16),
		object("type", tagCleared, "medium", "GPU"),
	))
	want := []Event{
		&BlockStored{BlockHashes: []Hash{}},
		&BlockRemoved{BlockHashes: []Hash{1}},
		&BlockStored{BlockHashes: []Hash{1}, BlockSize: 16},
		&AllBlocksCleared{},
	}
	if diff := cmp.Diff(want, b.Events); diff != "" {
		t.Errorf("(-want +got):\n%s\n%+v", diff, b.Rejected)
	}
}

func TestBatchForms(t *testing.T) {
	t.Parallel()

	f := func(payload string, ok bool) {
		t.Helper()
		if _, err := Decode([]byte(payload)); (err == nil) != ok || err != nil && !errors.Is(err, ErrMalformed) {
			t.Errorf("% x: error is %v, want success %v", payload, err, ok)
		}
	}
	events := raw(array())
	f(array(1, events), true)
	f(array(1, events, nil, "future", raw(object("a", 1))), true)
	f(array(-1, events), true)
	f(array(raw("\xca\x00\x00\x00\x00"), events), true)
	f(object(fieldTime, 1, fieldEvents, events), true)
	f(object("new", 1, []byte(fieldEvents), events, 7, 8, fieldTime, 1), true)
	f(array(), false)
	f(array(1), false)
	f(array(nil, events), false)
	f(array("1", events), false)
	f(array(1, nil), false)
	f(array(1, raw(object())), false)
	f(array(1, events, raw("\xcf\xff\xff\xff\xff\xff\xff\xff\xff")), false)
	f(object(fieldTime, 1), false)
	f(object(fieldEvents, events), false)
	f(object(fieldTime, 1, fieldEvents, events, fieldRank, "0"), false)
	f("\xc1", false)
	f("\xc0", false)
	f(array(1, events)+"\xc0", false)
	f(array(1, raw("\x91\xc1")), false) // a reserved code can't be stepped over
}

func TestTruncations(t *testing.T) {
	t.Parallel()

	for _, v := range vectors(t) {
		if v.Expect.Error != "" {
			continue
		}
		whole := mustHex(t, v.Payload)
		for n := range whole {
			if _, err := Decode(whole[:n]); !errors.Is(err, ErrMalformed) {
				t.Errorf("%s cut to %d of %d bytes: error is %v, want ErrMalformed", v.Name, n, len(whole), err)
			}
		}
	}
}

func TestDecodeCopies(t *testing.T) {
	t.Parallel()

	p := payload(array(tagStored, raw(array([]byte("digest-1"), []byte("digest-22"))), []byte("parent"), raw(array(1)), 1, nil,
		"medium", "lora", raw(array(raw(array("salt", []byte("embeds"), raw(object("a", "b")))), nil)), 0, "kind"))
	want := mustDecode(t, p)
	again := mustDecode(t, p)
	for i := range p {
		p[i] = 0xc1
	}
	if diff := cmp.Diff(want, again); diff != "" {
		t.Fatalf("two decodings differ:\n%s", diff)
	}
	s := stored(t, want.Events[0])
	if string(s.Digests[0]) != "digest-1" || string(s.Digests[1]) != "digest-22" || string(s.ParentDigest) != "parent" ||
		s.LoRAName != "lora" || string(s.ExtraKeys[0][1].Bytes) != "embeds" || string(s.ExtraKeys[0][2].Bytes) != object("a", "b") {
		t.Errorf("overwriting the payload changed the event: %+v", s)
	}
}

func TestDigests(t *testing.T) {
	t.Parallel()

	long := []byte("0123456789abcdefghij")
	b := mustDecode(t, payload(array(tagStored, raw(array(7, long, []byte{1, 2})), []byte{0}, raw(array()), 0)))
	parent := Hash(0)
	want := &BlockStored{
		BlockHashes: []Hash{7, 0x636465666768696a, 0x0102}, Digests: [][]byte{nil, long, {1, 2}},
		Parent: &parent, ParentDigest: []byte{0}, TokenIDs: []uint32{},
	}
	if diff := cmp.Diff([]Event{want}, b.Events); diff != "" {
		t.Errorf("integers and digests in one list (-want +got):\n%s", diff)
	}
}

func TestCacheSalt(t *testing.T) {
	t.Parallel()

	f := func(event string, want [][]ExtraKey) {
		t.Helper()
		got := stored(t, mustDecode(t, payload(event)).Events[0])
		if diff := cmp.Diff(want, got.ExtraKeys); diff != "" {
			t.Errorf("ExtraKeys (-want +got):\n%s", diff)
		}
	}
	salted := [][]ExtraKey{{{Kind: KindText, Text: "s"}}, nil}
	hashes := raw(array(1, 2))
	f(object("type", tagStored, fieldHashes, hashes, fieldCacheSalt, "s"), salted)
	f(object(fieldCacheSalt, "s", fieldParent, nil, fieldHashes, hashes, "type", tagStored), salted)
	f(array(tagStored, hashes, nil, raw(sixteen), 8, nil, "GPU", raw(object("x", 1, fieldCacheSalt, "s"))), salted)
	// A child inherits the salt through its parent, as in vLLM.
	f(object("type", tagStored, fieldHashes, hashes, fieldParent, 9, fieldCacheSalt, "s"), nil)
	f(object("type", tagStored, fieldHashes, raw(array()), fieldCacheSalt, "s"), nil)
	f(object("type", tagStored, fieldHashes, hashes, fieldCacheSalt, nil), nil)

	b := mustDecode(t, payload(
		object("type", tagStored, fieldHashes, hashes, fieldCacheSalt, "s"),
		object("type", tagStored, fieldHashes, hashes),
	))
	if got := stored(t, b.Events[1]).ExtraKeys; got != nil {
		t.Errorf("salt of the event before: %v", got)
	}
}

func TestAligned(t *testing.T) {
	t.Parallel()

	f := func(hashes, tokens, size int, want bool) {
		t.Helper()
		s := BlockStored{BlockHashes: make([]Hash, hashes), TokenIDs: make([]uint32, tokens), BlockSize: size}
		if got := s.Aligned(); got != want {
			t.Errorf("%d hashes, %d tokens, block size %d: %v, want %v", hashes, tokens, size, got, want)
		}
	}
	f(2, 32, 16, true)
	f(1, 32, 16, false)
	f(3, 32, 16, false)
	f(2, 33, 16, false)
	f(0, 0, 16, false)
	f(1, 0, 0, false) // a placeholder of an offload tier
	f(1, 0, 16, false)
	f(1, 16, -16, false)
	f(2, 0, math.MaxInt, false)
}

func TestReasons(t *testing.T) {
	t.Parallel()

	seen := map[string]bool{}
	for _, r := range Reasons() {
		if name := r.String(); seen[name] || strings.Contains(name, "(") {
			t.Errorf("reason %d is called %q", r, name)
		} else {
			seen[name] = true
		}
	}
	if got := Reason(len(seen)).String(); got != "reason(5)" {
		t.Errorf("first reason that isn't listed: %q", got)
	}
}
