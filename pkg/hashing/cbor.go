package hashing

import "encoding/binary"

// CBOR's major types (RFC 8949, section 3.1), in the upper three bits of a head.
const (
	cborUnsigned = 0 << 5
	cborNegative = 1 << 5
	cborBytes    = 2 << 5
	cborText     = 3 << 5
	cborArray    = 4 << 5
	cborNull     = 0xf6
)

// cbor is the [serializer] that equals cbor2.dumps(x, canonical=True): shortest
// heads, definite lengths, tuples as arrays.
type cbor struct {
	buf []byte
}

func newCBOR() *cbor {
	return &cbor{buf: make([]byte, 0, 256)}
}

func (c *cbor) open(n int) { c.head(cborArray, uint64(n)) }
func (c *cbor) close(int)  {}
func (c *cbor) none()      { c.buf = append(c.buf, cborNull) }

func (c *cbor) integer(v int64) {
	if v < 0 {
		c.head(cborNegative, uint64(-1-v))
		return
	}
	c.head(cborUnsigned, uint64(v))
}

func (c *cbor) bytes(b []byte) {
	c.head(cborBytes, uint64(len(b)))
	c.buf = append(c.buf, b...)
}

func (c *cbor) text(s string) {
	c.head(cborText, uint64(len(s)))
	c.buf = append(c.buf, s...)
}

func (c *cbor) tag(s string) { c.text(s) }

func (c *cbor) done() []byte { return c.buf }

// head appends a major type with its argument in the shortest form.
func (c *cbor) head(major byte, n uint64) {
	switch {
	case n < 24:
		c.buf = append(c.buf, major|byte(n))
	case n < 1<<8:
		c.buf = append(c.buf, major|24, byte(n))
	case n < 1<<16:
		c.buf = binary.BigEndian.AppendUint16(append(c.buf, major|25), uint16(n))
	case n < 1<<32:
		c.buf = binary.BigEndian.AppendUint32(append(c.buf, major|26), uint32(n))
	default:
		c.buf = binary.BigEndian.AppendUint64(append(c.buf, major|27), n)
	}
}
