package store

import (
	"bytes"
	"errors"
	"fmt"
	"math"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/index"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// A record is the MessagePack array
//
//	[key or nil, block size, local hash, parent hash or nil, conflict, [[medium, group, copies], …]]
//
// under the block's hash, and the groups are
//
//	[[index, kind, window, block size, extra keys, full digests], …]
//
// They are read by hand: the library's reflection allocates what a length
// claims, and four bytes can claim 2^32 elements.

// Bounds on what is read.
const (
	maxValue = 16 << 10            // bytes of a record, or of the groups
	maxText  = 128                 // bytes of a medium or a kind
	maxList  = 3 * index.MaxGroups // places of one hash's copies
)

func encodeRecord(r *index.Record) ([]byte, error) {
	var buf bytes.Buffer
	w := encoder{enc: msgpack.NewEncoder(&buf)}
	w.array(6)
	w.optional(uint64(r.Key), r.HasKey)
	w.int(r.BlockSize)
	w.uint(r.Local)
	if r.Parent != nil {
		w.optional(uint64(*r.Parent), true)
	} else {
		w.optional(0, false)
	}
	w.bool(r.Conflict)
	w.array(len(r.Copies))
	for _, c := range r.Copies {
		w.array(3)
		w.text(c.Medium)
		w.int(c.Group)
		w.int(c.N)
	}
	if w.err != nil {
		return nil, fmt.Errorf("encode record: %w", w.err)
	}
	return buf.Bytes(), nil
}

func decodeRecord(hash kvevents.Hash, value string) (index.Record, error) {
	d, err := newDecoder(value)
	if err != nil {
		return index.Record{}, fmt.Errorf("record: %w", err)
	}
	rec := index.Record{Hash: hash}
	d.tuple(6)
	key, ok := d.optional()
	rec.Key, rec.HasKey = hashing.Key(key), ok
	rec.BlockSize = d.int()
	rec.Local = d.uint()
	if p, ok := d.optional(); ok {
		parent := kvevents.Hash(p)
		rec.Parent = &parent
	}
	rec.Conflict = d.bool()
	for range d.list() {
		d.tuple(3)
		rec.Copies = append(rec.Copies, index.Copies{Medium: d.text(), Group: d.int(), N: d.int()})
	}
	if d.err != nil {
		return index.Record{}, fmt.Errorf("record: %w", d.err)
	}
	return rec, nil
}

func encodeGroups(groups []index.GroupSpec) ([]byte, error) {
	var buf bytes.Buffer
	w := encoder{enc: msgpack.NewEncoder(&buf)}
	w.array(len(groups))
	for _, g := range groups {
		w.array(6)
		w.int(g.Index)
		w.text(g.Kind)
		w.int(g.Window)
		w.int(g.BlockSize)
		w.bool(g.ExtraKeys)
		w.bool(g.FullDigests)
	}
	if w.err != nil {
		return nil, fmt.Errorf("encode groups: %w", w.err)
	}
	return buf.Bytes(), nil
}

func decodeGroups(value string) ([]index.GroupSpec, error) {
	d, err := newDecoder(value)
	if err != nil {
		return nil, fmt.Errorf("groups: %w", err)
	}
	var groups []index.GroupSpec
	for range d.list() {
		d.tuple(6)
		groups = append(groups, index.GroupSpec{
			Index: d.int(), Kind: d.text(), Window: d.int(), BlockSize: d.int(), ExtraKeys: d.bool(), FullDigests: d.bool(),
		})
	}
	if d.err != nil {
		return nil, fmt.Errorf("groups: %w", d.err)
	}
	return groups, nil
}

// encoder writes values until one fails.
type encoder struct {
	enc *msgpack.Encoder
	err error
}

func (w *encoder) keep(err error) { w.err = errors.Join(w.err, err) }

func (w *encoder) array(n int)   { w.keep(w.enc.EncodeArrayLen(n)) }
func (w *encoder) uint(n uint64) { w.keep(w.enc.EncodeUint(n)) }
func (w *encoder) int(n int)     { w.keep(w.enc.EncodeInt(int64(n))) }
func (w *encoder) bool(b bool)   { w.keep(w.enc.EncodeBool(b)) }

// text cuts what no engine sends, so that what is written can be read.
func (w *encoder) text(s string) { w.keep(w.enc.EncodeString(s[:min(len(s), maxText)])) }

func (w *encoder) optional(n uint64, ok bool) {
	if !ok {
		w.keep(w.enc.EncodeNil())
		return
	}
	w.uint(n)
}

// decoder reads values until one fails, and zeros from then on.
type decoder struct {
	dec *msgpack.Decoder
	err error
}

func newDecoder(value string) (*decoder, error) {
	if len(value) > maxValue {
		return nil, fmt.Errorf("%d bytes, must be at most %d", len(value), maxValue)
	}
	return &decoder{dec: msgpack.NewDecoder(bytes.NewReader([]byte(value)))}, nil
}

// next looks at the next value's first byte.
func (d *decoder) next(ok func(byte) bool, want string) bool {
	if d.err != nil {
		return false
	}
	code, err := d.dec.PeekCode()
	switch {
	case err != nil:
		d.err = err
	case !ok(code):
		d.err = fmt.Errorf("value begins with 0x%02x, expected %s", code, want)
	}
	return d.err == nil
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

func (d *decoder) length() int {
	if !d.next(func(c byte) bool {
		return msgpcode.IsFixedArray(c) || c == msgpcode.Array16 || c == msgpcode.Array32
	}, "an array") {
		return 0
	}
	n, err := d.dec.DecodeArrayLen()
	d.fail(err)
	return n
}

func (d *decoder) tuple(want int) {
	if n := d.length(); d.err == nil && n != want {
		d.err = fmt.Errorf("array has %d elements, must have %d", n, want)
	}
}

func (d *decoder) list() int {
	n := d.length()
	if n > maxList {
		d.fail(fmt.Errorf("list has %d elements, must have at most %d", n, maxList))
		return 0
	}
	return n
}

func isUint(c byte) bool {
	return c <= msgpcode.PosFixedNumHigh || c >= msgpcode.Uint8 && c <= msgpcode.Uint64
}

func (d *decoder) uint() uint64 {
	if !d.next(isUint, "an unsigned integer") {
		return 0
	}
	n, err := d.dec.DecodeUint64()
	d.fail(err)
	return n
}

func (d *decoder) optional() (uint64, bool) {
	if d.err == nil {
		if code, err := d.dec.PeekCode(); err == nil && code == msgpcode.Nil {
			d.fail(d.dec.DecodeNil())
			return 0, false
		}
	}
	n := d.uint()
	return n, d.err == nil
}

func (d *decoder) int() int {
	n := d.uint()
	if n > math.MaxInt32 {
		d.fail(fmt.Errorf("number is %d, must be at most 2^31-1", n))
		return 0
	}
	return int(n)
}

func (d *decoder) bool() bool {
	if !d.next(func(c byte) bool { return c == msgpcode.True || c == msgpcode.False }, "true or false") {
		return false
	}
	b, err := d.dec.DecodeBool()
	d.fail(err)
	return b
}

func (d *decoder) text() string {
	if !d.next(msgpcode.IsString, "a string") {
		return ""
	}
	n, err := d.dec.DecodeBytesLen()
	if err == nil && (n < 0 || n > maxText) {
		err = fmt.Errorf("string has %d bytes, must have at most %d", n, maxText)
	}
	if err != nil {
		d.fail(err)
		return ""
	}
	b := make([]byte, n)
	d.fail(d.dec.ReadFull(b))
	return string(b)
}
