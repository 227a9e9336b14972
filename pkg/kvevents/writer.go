package kvevents

import (
	"bytes"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"
)

// A writer builds MessagePack in its shortest form, as msgspec does. The zero
// value is ready; err holds the first thing that could not be written.
type writer struct {
	buf bytes.Buffer
	enc *msgpack.Encoder
	err error
}

// to returns the library's encoder, which writes into buf and can't fail there.
func (w *writer) to() *msgpack.Encoder {
	if w.enc == nil {
		w.enc = msgpack.NewEncoder(&w.buf)
	}
	return w.enc
}

func (w *writer) check(err error) {
	if w.err == nil {
		w.err = err
	}
}

func (w *writer) bytes() []byte { return w.buf.Bytes() }

func (w *writer) nil()            { w.check(w.to().EncodeNil()) }
func (w *writer) array(n int)     { w.check(w.to().EncodeArrayLen(n)) }
func (w *writer) mapping(n int)   { w.check(w.to().EncodeMapLen(n)) }
func (w *writer) uint(n uint64)   { w.check(w.to().EncodeUint(n)) }
func (w *writer) int(n int64)     { w.check(w.to().EncodeInt(n)) }
func (w *writer) float(f float64) { w.check(w.to().EncodeFloat64(f)) }
func (w *writer) text(s string)   { w.check(w.to().EncodeString(s)) }

// blob writes b as bytes, also if it is nil.
func (w *writer) blob(b []byte) {
	w.check(w.to().EncodeBytesLen(len(b)))
	w.buf.Write(b)
}

// optional writes s, or nil for "".
func (w *writer) optional(s string) {
	if s == "" {
		w.nil()
		return
	}
	w.text(s)
}

func (w *writer) optionalInt(n *int64) {
	if n == nil {
		w.nil()
		return
	}
	w.int(*n)
}

func (w *writer) extraKey(k ExtraKey) {
	switch k.Kind {
	case KindText:
		w.text(k.Text)
	case KindBytes:
		w.blob(k.Bytes)
	case KindInt:
		w.int(k.Int)
	case KindPair:
		w.array(2)
		w.text(k.Text)
		w.int(k.Int)
	case KindOther:
		w.raw(k.Bytes)
	default:
		w.check(fmt.Errorf("extra key has kind %d, must be one of the package's", k.Kind))
	}
}

// raw writes an encoded value, which must be exactly one.
func (w *writer) raw(value []byte) {
	r := newReader(value)
	defer r.close()
	if err := r.skip(); err != nil || r.left() > 0 {
		w.check(fmt.Errorf("extra key of another kind is %d bytes, must be one MessagePack value", len(value)))
		return
	}
	w.buf.Write(value)
}
