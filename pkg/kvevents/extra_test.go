package kvevents

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/prefixroute/prefixroute/pkg/hashing"
)

func TestExtra(t *testing.T) {
	t.Parallel()

	text := func(s string) ExtraKey { return ExtraKey{Kind: KindText, Text: s} }
	pair := ExtraKey{Kind: KindPair, Text: "img", Int: -4}
	embeds := ExtraKey{Kind: KindBytes, Bytes: []byte{1, 2}}
	for _, tt := range []struct {
		name string
		lora string
		keys []ExtraKey
		want hashing.Extra
	}{
		{"nothing", "", nil, hashing.Extra{}},
		{"adapter of a release without keys", "la", nil, hashing.Extra{LoRA: "la"}},
		{"adapter", "la", []ExtraKey{text("la")}, hashing.Extra{LoRA: "la"}},
		{"salt", "", []ExtraKey{text("s")}, hashing.Extra{Salt: "s"}},
		{"adapter and salt", "la", []ExtraKey{text("la"), text("s")}, hashing.Extra{LoRA: "la", Salt: "s"}},
		{"salt like the adapter", "la", []ExtraKey{text("la"), text("la")}, hashing.Extra{LoRA: "la", Salt: "la"}},
		{"salt without the adapter's key", "la", []ExtraKey{text("s")}, hashing.Extra{LoRA: "la", Salt: "s"}},
		{
			"all", "la",
			[]ExtraKey{text("la"), pair, text("s"), embeds},
			hashing.Extra{LoRA: "la", Salt: "s", MM: []hashing.MMItem{{ID: "img", Offset: -4}}, Embeds: []byte{1, 2}},
		},
		{"bare identifiers of old releases", "", []ExtraKey{text("img"), text("s")}, hashing.Extra{MM: []hashing.MMItem{{ID: "img"}}, Salt: "s"}},
		{"number", "", []ExtraKey{{Kind: KindInt, Int: 7}}, hashing.Extra{Embeds: []byte{0x91, 7}}},
		{"unknown", "", []ExtraKey{{Kind: KindOther, Bytes: []byte{0xc3}}, embeds}, hashing.Extra{Embeds: []byte{0x92, 0xc3, 0xc4, 2, 1, 2}}},
	} {
		if diff := cmp.Diff(tt.want, Extra(tt.lora, tt.keys)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// TestExtraKeyShapes reads keys of every shape and writes them again.
func TestExtraKeyShapes(t *testing.T) {
	t.Parallel()

	other := func(s string) ExtraKey { return ExtraKey{Kind: KindOther, Bytes: []byte(s)} }
	shapes := []struct {
		wire string
		want ExtraKey
	}{
		{"\xa1s", ExtraKey{Kind: KindText, Text: "s"}},
		{"\xc4\x01b", ExtraKey{Kind: KindBytes, Bytes: []byte("b")}},
		{"\xc4\x00", ExtraKey{Kind: KindBytes, Bytes: []byte{}}},
		{"\xfb", ExtraKey{Kind: KindInt, Int: -5}},
		{array("id", 3), ExtraKey{Kind: KindPair, Text: "id", Int: 3}},
		{array("id", -3), ExtraKey{Kind: KindPair, Text: "id", Int: -3}},
		{"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", other("\xcf\xff\xff\xff\xff\xff\xff\xff\xff")},
		{array("lora", "a", "/path"), other(array("lora", "a", "/path"))},
		{array("cache_salt", "s"), other(array("cache_salt", "s"))},
		{array([]byte("id"), 3), other(array([]byte("id"), 3))},
		{"\x92\xa2id\xcf\xff\xff\xff\xff\xff\xff\xff\xff", other("\x92\xa2id\xcf\xff\xff\xff\xff\xff\xff\xff\xff")},
		{array(), other(array())},
		{object("a", 1), other(object("a", 1))},
		{"\xc0", other("\xc0")},
		{"\xc3", other("\xc3")},
		{"\xd4\x01x", other("\xd4\x01x")},
	}
	var w writer
	var want []ExtraKey
	w.array(len(shapes))
	for _, s := range shapes {
		w.buf.WriteString(s.wire)
		want = append(want, s.want)
	}
	keys := string(w.bytes())
	in := payload(object("type", tagStored, fieldHashes, raw(array(1, 2, 3, 4)),
		fieldExtraKeys, raw(array(raw(keys), nil, raw(array()), "bare"))))
	b := mustDecode(t, in)
	got := stored(t, b.Events[0]).ExtraKeys
	if diff := cmp.Diff([][]ExtraKey{want, nil, nil, {{Kind: KindText, Text: "bare"}}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	out, err := Encoding{Form: FormMap}.Encode(b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b, mustDecode(t, out), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("written and read again (-want +got):\n%s", diff)
	}
}
