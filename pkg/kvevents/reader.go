package kvevents

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// errTruncated says that a length claims more than the payload holds. Nothing
// behind such a length can be found again.
var errTruncated = errors.New("cut short")

// A kind is the family of a MessagePack value. Width doesn't matter here: all
// integers are one kind, minimal or not.
type kind uint8

const (
	kindReserved kind = iota // 0xc1, which no encoder may write
	kindNil
	kindBool
	kindInt
	kindFloat
	kindText
	kindBytes
	kindArray
	kindMap
	kindExt
)

func (k kind) String() string {
	return [...]string{
		"a reserved code", "nil", "a boolean", "an integer", "a float",
		"a string", "bytes", "an array", "a map", "an extension",
	}[k]
}

// kindOf sorts the first byte of a value.
func kindOf(c byte) kind {
	switch {
	case msgpcode.IsFixedNum(c), c >= msgpcode.Uint8 && c <= msgpcode.Int64:
		return kindInt
	case msgpcode.IsString(c):
		return kindText
	case msgpcode.IsFixedArray(c), c == msgpcode.Array16, c == msgpcode.Array32:
		return kindArray
	case msgpcode.IsFixedMap(c), c == msgpcode.Map16, c == msgpcode.Map32:
		return kindMap
	case c == msgpcode.Nil:
		return kindNil
	case c == msgpcode.False, c == msgpcode.True:
		return kindBool
	case c == msgpcode.Float, c == msgpcode.Double:
		return kindFloat
	case msgpcode.IsBin(c):
		return kindBytes
	case msgpcode.IsExt(c):
		return kindExt
	}
	return kindReserved
}

// A reader walks the MessagePack values of one payload. The library's decoder
// does the reading; the reader adds the bounds that it lacks: a length is
// checked against the bytes left before anyone allocates for it, skipping needs
// no stack, and integers keep their sign.
//
// The typed methods (integer, arrayLen, ...) are called only after peek has
// returned their kind.
type reader struct {
	data []byte
	src  bytes.Reader
	dec  *msgpack.Decoder

	// salt is the cache_salt of the event being read; see BlockStored.finish.
	salt string
}

func newReader(data []byte) *reader {
	r := &reader{data: data, dec: msgpack.GetDecoder()}
	r.src.Reset(data)
	r.dec.Reset(&r.src)
	return r
}

func (r *reader) close() { msgpack.PutDecoder(r.dec) }

func (r *reader) left() int { return r.src.Len() }

func (r *reader) pos() int { return len(r.data) - r.src.Len() }

func (r *reader) seek(pos int) {
	_, _ = r.src.Seek(int64(pos), io.SeekStart) // fails only for a negative pos
}

// peek returns the kind of the next value without consuming it.
func (r *reader) peek() (kind, error) {
	if r.left() == 0 {
		return kindReserved, errTruncated
	}
	return kindOf(r.data[r.pos()]), nil
}

// advance consumes n bytes.
func (r *reader) advance(n int) error {
	if n < 0 || n > r.left() {
		return errTruncated
	}
	r.seek(r.pos() + n)
	return nil
}

// An integer is a MessagePack integer of any width: its 64 bits in two's
// complement, and whether they stand for a number below zero.
type integer struct {
	bits     uint64
	negative bool
}

func (i integer) String() string {
	if i.negative {
		return strconv.FormatInt(int64(i.bits), 10)
	}
	return strconv.FormatUint(i.bits, 10)
}

// signed returns the value if it fits into an int64.
func (i integer) signed() (int64, bool) {
	return int64(i.bits), i.negative || i.bits <= math.MaxInt64
}

func (r *reader) integer() (integer, error) {
	c := r.data[r.pos()]
	bits, err := r.dec.DecodeUint64() // sign-extends, so the bits are right either way
	if err != nil {
		return integer{}, errTruncated
	}
	signed := c >= msgpcode.NegFixedNumLow || c >= msgpcode.Int8 && c <= msgpcode.Int64
	return integer{bits: bits, negative: signed && int64(bits) < 0}, nil
}

// arrayLen returns the number of elements, each of which is at least a byte.
func (r *reader) arrayLen() (int, error) {
	n, err := r.dec.DecodeArrayLen()
	if err != nil || n < 0 || n > r.left() {
		return 0, errTruncated
	}
	return n, nil
}

// mapLen returns the number of pairs, each of which is at least two bytes.
func (r *reader) mapLen() (int, error) {
	n, err := r.dec.DecodeMapLen()
	if err != nil || n < 0 || n > r.left()/2 {
		return 0, errTruncated
	}
	return n, nil
}

// body returns the content of a string or of bytes. It is part of the payload:
// callers copy what they keep.
func (r *reader) body() ([]byte, error) {
	n, err := r.dec.DecodeBytesLen()
	if err != nil {
		return nil, errTruncated
	}
	start := r.pos()
	if err := r.advance(n); err != nil {
		return nil, err
	}
	return r.data[start : start+n], nil
}

// skip consumes one value with everything in it. It counts the values that are
// still to come instead of recursing, so nesting costs nothing: the deepest
// payload is skipped in one pass over its bytes.
func (r *reader) skip() error {
	for todo := 1; todo > 0; todo-- {
		inside, err := r.skipHead()
		if err != nil {
			return err
		}
		todo += inside
		if todo-1 > r.left() {
			return errTruncated
		}
	}
	return nil
}

// skipHead consumes a scalar, or the header of a container, of which it returns
// the number of values inside.
func (r *reader) skipHead() (inside int, err error) {
	k, err := r.peek()
	if err != nil {
		return 0, err
	}
	switch k {
	case kindNil, kindBool:
		return 0, r.advance(1)
	case kindInt:
		_, err = r.integer()
		return 0, err
	case kindFloat:
		if _, err = r.dec.DecodeFloat64(); err != nil {
			return 0, errTruncated
		}
		return 0, nil
	case kindText, kindBytes:
		_, err = r.body()
		return 0, err
	case kindExt:
		_, n, err := r.dec.DecodeExtHeader()
		if err != nil {
			return 0, errTruncated
		}
		return 0, r.advance(n)
	case kindArray:
		return r.arrayLen()
	case kindMap:
		n, err := r.mapLen()
		return 2 * n, err
	default:
		return 0, fmt.Errorf("byte %d is 0x%02x, which is no MessagePack value", r.pos(), r.data[r.pos()])
	}
}
