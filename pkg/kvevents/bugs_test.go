package kvevents

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/prefixroute/prefixroute/pkg/hashing"
)

// The tests of this file are named after entries of the project's bug bank:
// reports against other consumers of these streams.

const (
	hashA = Hash(0xa1b2c3d4e5f60718)
	hashB = Hash(0x8f00000000000001)
)

// payload builds a batch around events that are already encoded.
func payload(events ...string) []byte {
	var w writer
	w.array(3)
	w.float(1700000000.25)
	w.array(len(events))
	for _, e := range events {
		w.buf.WriteString(e)
	}
	w.int(0)
	return w.bytes()
}

// array encodes an array of ints, strings, nils, byte slices and raw values.
func array(values ...any) string {
	var w writer
	w.array(len(values))
	for _, v := range values {
		w.value(v)
	}
	return string(w.bytes())
}

// object encodes a map of pairs of a key and a value.
func object(pairs ...any) string {
	var w writer
	w.mapping(len(pairs) / 2)
	for _, v := range pairs {
		w.value(v)
	}
	return string(w.bytes())
}

// raw is MessagePack to be written as it is.
type raw string

func (w *writer) value(v any) {
	switch v := v.(type) {
	case nil:
		w.nil()
	case int:
		w.int(int64(v))
	case string:
		w.text(v)
	case []byte:
		w.blob(v)
	case raw:
		w.buf.WriteString(string(v))
	default:
		panic("value of another type")
	}
}

// store is an array event with the given hash list and 16 tokens.
func store(hashes string) string {
	return array(tagStored, raw(hashes), nil, raw(sixteen), 16, nil, "GPU", nil)
}

var sixteen = array(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)

// refused checks that exactly the event at index was rejected, for reason.
func refused(t *testing.T, b Batch, index int, reason Reason) {
	t.Helper()
	if len(b.Rejected) != 1 || b.Rejected[0].Index != index || b.Rejected[0].Reason != reason {
		t.Errorf("Rejected = %+v, want event %d for %v", b.Rejected, index, reason)
	}
}

func TestBB001IntegerWidths(t *testing.T) {
	t.Parallel()

	// Each value in every width that holds it.
	widths := map[Hash][]string{
		100:                {"\x64", "\xcc\x64", "\xcd\x00\x64", "\xce\x00\x00\x00\x64", "\xcf\x00\x00\x00\x00\x00\x00\x00\x64", "\xd0\x64", "\xd1\x00\x64", "\xd2\x00\x00\x00\x64", "\xd3\x00\x00\x00\x00\x00\x00\x00\x64"},
		200:                {"\xcc\xc8", "\xcd\x00\xc8", "\xce\x00\x00\x00\xc8", "\xcf\x00\x00\x00\x00\x00\x00\x00\xc8", "\xd1\x00\xc8", "\xd2\x00\x00\x00\xc8", "\xd3\x00\x00\x00\x00\x00\x00\x00\xc8"},
		60000:              {"\xcd\xea\x60", "\xce\x00\x00\xea\x60", "\xcf\x00\x00\x00\x00\x00\x00\xea\x60", "\xd2\x00\x00\xea\x60", "\xd3\x00\x00\x00\x00\x00\x00\xea\x60"},
		4000000000:         {"\xce\xee\x6b\x28\x00", "\xcf\x00\x00\x00\x00\xee\x6b\x28\x00", "\xd3\x00\x00\x00\x00\xee\x6b\x28\x00"},
		0xa1b2c3d4e5f60718: {"\xcf\xa1\xb2\xc3\xd4\xe5\xf6\x07\x18", "\xd3\xa1\xb2\xc3\xd4\xe5\xf6\x07\x18", "\xc4\x08\xa1\xb2\xc3\xd4\xe5\xf6\x07\x18"},
	}
	for want, encodings := range widths {
		for _, enc := range encodings {
			list := "\x91" + enc
			b := mustDecode(t, payload(store(list), array(tagRemoved, raw(list), "GPU")))
			got, gone := stored(t, b.Events[0]), removed(t, b.Events[1])
			if got.BlockHashes[0] != want || gone.BlockHashes[0] != want {
				t.Errorf("% x: stored %d, removed %d, want %d", enc, got.BlockHashes[0], gone.BlockHashes[0], want)
			}
		}
	}
	if got := stored(t, sample(t, "int_hash_100_fixint").Events[0]).BlockHashes; !cmp.Equal(got, []Hash{100}) {
		t.Errorf("fixint: %v, want [100]", got)
	}
	want := []Hash{100, 200, 60000, 4000000000, hashA, 100, 30000, 2000000000, 1<<63 - 1}
	if diff := cmp.Diff(want, stored(t, sample(t, "int_hash_all_widths").Events[0]).BlockHashes); diff != "" {
		t.Errorf("all widths (-want +got):\n%s", diff)
	}
}

func TestBB002SignedHashes(t *testing.T) {
	t.Parallel()

	s := stored(t, sample(t, "int_hash_negative").Events[0])
	if diff := cmp.Diff([]Hash{hashA, hashB}, s.BlockHashes); diff != "" {
		t.Errorf("negative hashes (-want +got):\n%s", diff)
	}
	if s.Parent == nil || *s.Parent != 1<<64-5 {
		t.Errorf("parent -5 = %v, want 2^64-5", s.Parent)
	}
	for _, name := range []string{"int_hash_signed_then_unsigned", "int_hash_same_value_two_encodings"} {
		b := sample(t, name)
		in, out := stored(t, b.Events[0]).BlockHashes, removed(t, b.Events[1]).BlockHashes
		if !cmp.Equal(in, out) {
			t.Errorf("%s: stored %v, removed %v", name, in, out)
		}
	}
}

func TestBB004SmallNegatives(t *testing.T) {
	t.Parallel()

	for _, n := range []int{-1, -5} {
		want := Hash(uint64(int64(n)))
		b := mustDecode(t, payload(array(tagStored, raw(array(n)), n, raw(array(1)), 1)))
		s := stored(t, b.Events[0])
		if s.BlockHashes[0] != want || *s.Parent != want {
			t.Errorf("%d: hash %d, parent %d, want %d", n, s.BlockHashes[0], *s.Parent, want)
		}
		b = mustDecode(t, payload(array(tagStored, raw(array(1)), nil, raw(array(n)), 1), store(array(2))))
		refused(t, b, 0, ReasonTokenRange)
		b = mustDecode(t, payload(array(tagStored, raw(array(1)), nil, raw(array(raw(array(n, 3)))), 1), store(array(2))))
		refused(t, b, 0, ReasonTokenRange)
		if _, err := Decode([]byte(array(1, raw(array()), n))); !errors.Is(err, ErrMalformed) {
			t.Errorf("rank %d: error is %v, want ErrMalformed", n, err)
		}
		for _, field := range []string{fieldBlockSize, fieldGroup, fieldSlidingWindow} {
			b = mustDecode(t, payload(object("type", tagStored, fieldHashes, raw(array(1)), field, n), store(array(2))))
			refused(t, b, 0, ReasonMalformed)
		}
	}
}

func TestBB005LengthBombs(t *testing.T) {
	t.Parallel()

	for _, path := range mustGlob(t, "testdata/bugs/*bomb*.msgpack") {
		if _, err := Decode(mustRead(t, path)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: error is %v, want ErrMalformed", path, err)
		}
	}
}

func TestBB007Nil(t *testing.T) {
	t.Parallel()

	refused(t, sample(t, "bad_hashes_nil"), 0, ReasonMalformed)
	b := sample(t, "bad_event_is_nil")
	refused(t, b, 0, ReasonNilEvent)
	if len(b.Events) != 1 {
		t.Errorf("%d events beside the nil one, want 1", len(b.Events))
	}
	b = mustDecode(t, payload(array(tagStored, raw(array(1)), nil, raw(array(1)), nil), store(array(2))))
	refused(t, b, 0, ReasonMalformed)

	got := mustDecode(t, []byte(array(1, raw(array(raw(array(
		tagStored, raw(array(1)), nil, raw(array(1)), 1, nil, nil, nil, nil, nil, nil, nil)))), nil)))
	want := Batch{Time: 1, Events: []Event{&BlockStored{BlockHashes: []Hash{1}, TokenIDs: []uint32{1}, BlockSize: 1}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("nil where the schema allows it (-want +got):\n%s", diff)
	}
}

// TestBB008BatchForms covers BB-011 and BB-050 too: the same events in each of
// the forms.
func TestBB008BatchForms(t *testing.T) {
	t.Parallel()

	a, b, c := sample(t, "enc_a_array_batch_array_events"), sample(t, "enc_b_array_batch_map_events"), sample(t, "enc_c_map_batch_map_events")
	if diff := cmp.Diff(b, c); diff != "" {
		t.Errorf("map batch differs from array batch (-array +map):\n%s", diff)
	}
	for _, batch := range []Batch{a, b, c} {
		if len(batch.Events) != 2 || len(batch.Rejected) != 0 {
			t.Fatalf("batch %+v, want 2 events", batch)
		}
		s, r := stored(t, batch.Events[0]), removed(t, batch.Events[1])
		if diff := cmp.Diff([]Hash{hashA, hashB}, s.BlockHashes); diff != "" || !s.Aligned() {
			t.Errorf("stored, aligned %v (-want +got):\n%s", s.Aligned(), diff)
		}
		if diff := cmp.Diff(&BlockRemoved{BlockHashes: []Hash{hashB}, Medium: "GPU"}, r); diff != "" {
			t.Errorf("removed (-want +got):\n%s", diff)
		}
	}
}

func TestBB010MixedForms(t *testing.T) {
	t.Parallel()

	b := sample(t, "enc_mixed_in_one_batch")
	if len(b.Events) != 2 || len(b.Rejected) != 0 {
		t.Fatalf("%d events, rejected %+v, want 2 and none", len(b.Events), b.Rejected)
	}
	stored(t, b.Events[0])
	removed(t, b.Events[1])
}

// TestBB011OwnOutput writes the samples again, in each form.
func TestBB011OwnOutput(t *testing.T) {
	t.Parallel()

	for name, enc := range map[string]Encoding{
		"enc_a_array_batch_array_events": {Fields: 7},
		"enc_b_array_batch_map_events":   {Form: FormMap},
		"enc_c_map_batch_map_events":     {Form: FormMapBatch},
		"enc_array_cleared":              {},
		"enc_map_cleared":                {Form: FormMap},
		"len_05_block_stored":            {Fields: 4},
		"len_12_block_stored":            {},
	} {
		want := mustRead(t, "testdata/bugs/"+name+".msgpack")
		got, err := enc.Encode(mustDecode(t, want))
		if err != nil || string(got) != string(want) {
			t.Errorf("%s: %v\ngot  %x\nwant %x", name, err, got, want)
		}
	}
}

func TestBB013ArrayLengths(t *testing.T) {
	t.Parallel()

	full := BlockStored{
		BlockHashes: []Hash{hashA}, BlockSize: 16, Medium: "GPU", ExtraKeys: [][]ExtraKey{nil},
		SpecKind: "full_attention",
	}
	for i := range uint32(16) {
		full.TokenIDs = append(full.TokenIDs, 1000+i)
	}
	for _, tt := range []struct {
		name   string
		length int
	}{
		{"len_05_block_stored", 5},
		{"len_06_block_stored", 6},
		{"len_07_block_stored", 7},
		{"len_08_block_stored", 8},
		{"len_09_block_stored", 9},
		{"len_10_block_stored", 10},
		{"len_11_block_stored", 11},
		{"len_12_block_stored", 12},
		{"len_15_block_stored_future", 15},
	} {
		want := full
		if tt.length < 7 {
			want.Medium = ""
		}
		if tt.length < 9 {
			want.ExtraKeys = nil
		}
		if tt.length < 11 {
			want.SpecKind = ""
		}
		if diff := cmp.Diff(&want, stored(t, sample(t, tt.name).Events[0])); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	for name, medium := range map[string]Medium{"len_02_block_removed": "", "len_04_block_removed": "GPU"} {
		want := &BlockRemoved{BlockHashes: []Hash{hashA}, Medium: medium}
		if diff := cmp.Diff(want, removed(t, sample(t, name).Events[0])); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestBB014UnknownFields(t *testing.T) {
	t.Parallel()

	s := stored(t, sample(t, "len_map_future_field").Events[0])
	if s.Locality != "LOCAL" || len(s.TokenIDs) != 32 {
		t.Errorf("event with unknown fields: %+v", s)
	}
	// One unknown field of each type of the format, extensions of every size.
	values := []string{
		"\x07", "\xff", "\xc0", "\xc2", "\xc3", "\xca\x00\x00\x00\x00", "\xcb\x00\x00\x00\x00\x00\x00\x00\x00",
		"\xcc\x00", "\xcd\x00\x00", "\xce\x00\x00\x00\x00", "\xcf\x00\x00\x00\x00\x00\x00\x00\x00",
		"\xd0\x00", "\xd1\x00\x00", "\xd2\x00\x00\x00\x00", "\xd3\x00\x00\x00\x00\x00\x00\x00\x00",
		"\xa1x", "\xd9\x01x", "\xda\x00\x01x", "\xdb\x00\x00\x00\x01x",
		"\xc4\x01x", "\xc5\x00\x01x", "\xc6\x00\x00\x00\x01x",
		"\x91\x01", "\xdc\x00\x01\x01", "\xdd\x00\x00\x00\x01\x01",
		"\x81\x01\x02", "\xde\x00\x01\x01\x02", "\xdf\x00\x00\x00\x01\x01\x02",
		"\xd4\x01x", "\xd5\x01xx", "\xd6\x01xxxx", "\xd7\x01xxxxxxxx", "\xd8\x01xxxxxxxxxxxxxxxx",
		"\xc7\x03\x01xxx", "\xc8\x00\x03\x01xxx", "\xc9\x00\x00\x00\x03\x01xxx", "\xc7\x00\x01",
	}
	for _, v := range values {
		b := mustDecode(t, payload(
			object("new", raw(v), "type", tagRemoved, raw(v), raw(v), fieldHashes, raw(array(5)), raw(array(1)), raw(v)),
			array(tagRemoved, raw(array(6)), "GPU", 0, raw(v), raw(v), raw(v)),
			array(tagCleared, raw(v)),
		))
		want := []Event{
			&BlockRemoved{BlockHashes: []Hash{5}},
			&BlockRemoved{BlockHashes: []Hash{6}, Medium: "GPU"},
			&AllBlocksCleared{},
		}
		if diff := cmp.Diff(want, b.Events); diff != "" {
			t.Errorf("unknown value % x (-want +got):\n%s\n%+v", v, diff, b.Rejected)
		}
	}
}

// TestBB016Pairs covers BB-070: the token after the block's last one is in the
// last pair and belongs to no block of the event.
func TestBB016Pairs(t *testing.T) {
	t.Parallel()

	s := stored(t, sample(t, "tok_bigram_pairs").Events[0])
	want := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	if diff := cmp.Diff(want, s.TokenIDs); diff != "" || !s.Aligned() {
		t.Errorf("pairs, aligned %v (-want +got):\n%s", s.Aligned(), diff)
	}
	b := mustDecode(t, payload(array(tagStored, raw(array(1)), nil, raw(array(raw(array(1, 2, 3)))), 1), store(array(2))))
	refused(t, b, 0, ReasonMalformed)
}

func TestBB017EventsInBytes(t *testing.T) {
	t.Parallel()

	if diff := cmp.Diff(sample(t, "enc_a_array_batch_array_events"), sample(t, "enc_events_as_bin")); diff != "" {
		t.Errorf("wrapped events (-plain +wrapped):\n%s", diff)
	}
	once := array([]byte(store(array(1))))[1:]
	twice := array([]byte(once))[1:]
	b := mustDecode(t, payload(once, twice, once))
	refused(t, b, 1, ReasonMalformed)
	if len(b.Events) != 2 {
		t.Errorf("%d events wrapped once, want 2", len(b.Events))
	}
	for _, inner := range []string{"", store(array(1)) + "\x00", "\xdd\xff\xff\xff\xff", "\x92\xabBlockStored"} {
		b := mustDecode(t, payload(array([]byte(inner))[1:], store(array(2))))
		refused(t, b, 0, ReasonMalformed)
	}
}

func TestBB029Rank(t *testing.T) {
	t.Parallel()

	if b := sample(t, "enc_no_dp_rank"); b.Rank != nil || len(b.Events) != 1 {
		t.Errorf("without a rank: rank %v, %d events", b.Rank, len(b.Events))
	}
	if b := sample(t, "enc_a_array_batch_array_events"); b.Rank == nil || *b.Rank != 0 {
		t.Errorf("rank = %v, want 0", b.Rank)
	}
	if _, err := Decode([]byte(array(1, raw(array()), "0"))); !errors.Is(err, ErrMalformed) {
		t.Errorf("rank as text: error is %v, want ErrMalformed", err)
	}
}

func TestBB046TokenRange(t *testing.T) {
	t.Parallel()

	b := sample(t, "int_token_out_of_range")
	refused(t, b, 0, ReasonTokenRange)
	if len(b.Events) != 1 {
		t.Errorf("%d events beside the bad one, want 1", len(b.Events))
	}
	for _, id := range []string{"\xcf\x00\x00\x00\x01\x00\x00\x00\x00", "\xd3\x00\x00\x00\x01\x00\x00\x00\x02", "\xff"} {
		b := mustDecode(t, payload(array(tagStored, raw(array(1)), nil, raw(array(raw(id))), 1), store(array(2)), store(array(3))))
		refused(t, b, 0, ReasonTokenRange)
		if len(b.Events) != 2 {
			t.Errorf("token % x: %d events after it, want 2", id, len(b.Events))
		}
	}
	b = mustDecode(t, payload(array(tagStored, raw(array(1)), nil, raw(array(raw("\xce\xff\xff\xff\xff"))), 1)))
	if got := stored(t, b.Events[0]).TokenIDs[0]; got != 1<<32-1 {
		t.Errorf("largest token = %d", got)
	}
}

func TestBB049BrokenPayloads(t *testing.T) {
	t.Parallel()

	for name, want := range map[string]string{
		"bad_empty_payload":    "empty",
		"bad_truncated":        "cut short",
		"bad_trailing":         "8 bytes after the batch",
		"bad_not_msgpack_json": "batch is an integer",
	} {
		_, err := Decode(mustRead(t, "testdata/bugs/"+name+".msgpack"))
		if !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v, want ErrMalformed with %q", name, err, want)
		}
	}
	for _, name := range []string{"bad_map_no_type", "bad_tag_not_string"} {
		b := sample(t, name)
		refused(t, b, 0, ReasonNoTag)
		if len(b.Events) != 1 {
			t.Errorf("%s: %d good events, want 1", name, len(b.Events))
		}
	}
	if b := sample(t, "enc_empty_events"); len(b.Events) != 0 || len(b.Rejected) != 0 {
		t.Errorf("no events: %+v", b)
	}
}

func TestBB050PageSizeOne(t *testing.T) {
	t.Parallel()

	s := stored(t, sample(t, "tok_page_size_1").Events[0])
	if !s.Aligned() || s.BlockSize != 1 || len(s.BlockHashes) != 16 {
		t.Errorf("page size 1: aligned %v, block size %d, %d hashes", s.Aligned(), s.BlockSize, len(s.BlockHashes))
	}
}

func extras(t *testing.T, name string) []hashing.Extra {
	t.Helper()
	var out []hashing.Extra
	for _, ev := range sample(t, name).Events {
		s := stored(t, ev)
		for _, keys := range s.ExtraKeys {
			out = append(out, Extra(s.LoRAName, keys))
		}
	}
	return out
}

func TestBB052Salt(t *testing.T) {
	t.Parallel()

	want := []hashing.Extra{{Salt: "tenant-a-salt"}, {}}
	if diff := cmp.Diff(want, extras(t, "xk_salt")); diff != "" {
		t.Errorf("salted (-want +got):\n%s", diff)
	}
}

func TestBB053SaltLikeAdapter(t *testing.T) {
	t.Parallel()

	want := []hashing.Extra{{LoRA: "COLLIDE"}, {LoRA: "COLLIDE"}, {Salt: "COLLIDE"}, {}}
	if diff := cmp.Diff(want, extras(t, "xk_salt_equals_lora_name")); diff != "" {
		t.Errorf("adapter and salt of one name (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]hashing.Extra{{LoRA: "adapter-116"}}, extras(t, "xk_lora")); diff != "" {
		t.Errorf("adapter (-want +got):\n%s", diff)
	}
}

func TestBB056Images(t *testing.T) {
	t.Parallel()

	id := strings.Repeat("9f", 32)
	want := []hashing.Extra{
		{MM: []hashing.MMItem{{ID: id, Offset: 3}}},
		{MM: []hashing.MMItem{{ID: id, Offset: -13}}},
	}
	if diff := cmp.Diff(want, extras(t, "xk_mm_pair")); diff != "" {
		t.Errorf("image over two blocks (-want +got):\n%s", diff)
	}
}

func TestBB068MaskedGroups(t *testing.T) {
	t.Parallel()

	groups := map[int]bool{}
	for _, ev := range sample(t, "grp_hybrid_five_groups").Events {
		s := stored(t, ev)
		groups[s.Group] = s.Aligned()
	}
	if len(groups) != 5 || !groups[0] {
		t.Errorf("groups and whether they are aligned: %v, want five, the dense one aligned", groups)
	}
}
