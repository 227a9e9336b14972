package hashing

import (
	"encoding/binary"
	"math"
	"unicode/utf8"
)

// Opcodes of pickle protocol 5, named as in CPython's pickle.py.
const (
	pickleProto           = 0x80
	pickleFrame           = 0x95
	pickleStop            = '.'
	pickleMark            = '('
	pickleNone            = 'N'
	pickleBinInt          = 'J'  // int32
	pickleBinInt1         = 'K'  // uint8
	pickleBinInt2         = 'M'  // uint16
	pickleLong1           = 0x8a // length, two's complement
	pickleShortBinBytes   = 'C'
	pickleBinBytes        = 'B'
	pickleShortBinUnicode = 0x8c
	pickleBinUnicode      = 'X'
	pickleEmptyTuple      = ')'
	pickleTuple1          = 0x85 // followed by those of 2 and 3 values
	pickleTuple           = 't'  // back to the mark
	pickleMemoize         = 0x94
	pickleBinGet          = 'h'
	pickleLongBinGet      = 'j'
)

// Sizes in bytes that CPython's C pickler goes by when it cuts its output into
// frames.
const (
	frameHeader = 9
	frameMin    = 4       // a shorter body is written without a frame
	frameTarget = 1 << 16 // a frame ends before the next value from here on; a longer string gets none
)

// pickle is the [serializer] that equals CPython's pickle.dumps(x, protocol=5).
// The bytes depend on which strings are one object in memory: the second mention
// of an object is written as a reference to the first by its number in the memo.
type pickle struct {
	buf    []byte
	frame  int // where the open frame begins, or -1
	memo   int // objects in the memo so far
	shared []sharedText
}

// sharedText is a string in the memo that a later equal one would refer to.
type sharedText struct {
	text  string
	index int
}

func newPickle() *pickle {
	return &pickle{buf: append(make([]byte, 0, 256), pickleProto, 5), frame: -1}
}

func (p *pickle) open(n int) {
	p.value()
	if n > 3 {
		p.put(pickleMark)
	}
}

func (p *pickle) close(n int) {
	switch {
	case n == 0:
		p.put(pickleEmptyTuple)
		return
	case n <= 3:
		p.put(pickleTuple1 + byte(n-1))
	default:
		p.put(pickleTuple)
	}
	p.memoize()
}

func (p *pickle) none() {
	p.value()
	p.put(pickleNone)
}

func (p *pickle) integer(v int64) {
	p.value()
	switch {
	case v >= 0 && v <= math.MaxUint8:
		p.put(pickleBinInt1, byte(v))
	case v >= 0 && v <= math.MaxUint16:
		p.put(pickleBinInt2, byte(v), byte(v>>8))
	case v >= math.MinInt32 && v <= math.MaxInt32:
		p.put(pickleBinInt)
		p.buf = binary.LittleEndian.AppendUint32(p.buf, uint32(v))
	default:
		n := 5
		for v>>(8*n-1) != 0 && v>>(8*n-1) != -1 {
			n++
		}
		p.put(pickleLong1, byte(n))
		p.buf = append(p.buf, binary.LittleEndian.AppendUint64(nil, uint64(v))[:n]...)
	}
}

func (p *pickle) bytes(b []byte) {
	p.value()
	if len(b) < 256 {
		p.put(pickleShortBinBytes, byte(len(b)))
		p.buf = append(p.buf, b...)
	} else {
		p.long(pickleBinBytes, string(b))
	}
	p.memoize()
}

// text writes a string that vLLM has decoded from a request or an argument.
// CPython has one object for each string of at most one Latin-1 character; of
// longer ones each is an object of its own, even if they are equal.
func (p *pickle) text(s string) {
	r, size := utf8.DecodeRuneInString(s)
	p.str(s, s == "" || (size == len(s) && r <= 0xff))
}

// tag writes a string that is one object wherever it is mentioned.
func (p *pickle) tag(s string) {
	p.str(s, true)
}

func (p *pickle) str(s string, shared bool) {
	p.value()
	if shared {
		for _, known := range p.shared {
			if known.text == s {
				p.get(known.index)
				return
			}
		}
		p.shared = append(p.shared, sharedText{s, p.memo})
	}
	if len(s) < 256 {
		p.put(pickleShortBinUnicode, byte(len(s)))
		p.buf = append(p.buf, s...)
	} else {
		p.long(pickleBinUnicode, s)
	}
	p.memoize()
}

// long writes a string with a length of four bytes. The longest stand between
// frames.
func (p *pickle) long(op byte, s string) {
	if len(s) >= frameTarget {
		p.endFrame()
		p.buf = append(p.buf, op)
	} else {
		p.put(op)
	}
	p.buf = binary.LittleEndian.AppendUint32(p.buf, uint32(len(s)))
	p.buf = append(p.buf, s...)
}

func (p *pickle) get(index int) {
	if index < 256 {
		p.put(pickleBinGet, byte(index))
		return
	}
	p.put(pickleLongBinGet)
	p.buf = binary.LittleEndian.AppendUint32(p.buf, uint32(index))
}

func (p *pickle) memoize() {
	p.put(pickleMemoize)
	p.memo++
}

func (p *pickle) done() []byte {
	p.put(pickleStop)
	p.endFrame()
	return p.buf
}

// value is called before each value, the only place where a full frame ends.
func (p *pickle) value() {
	if p.frame >= 0 && len(p.buf)-p.frame-frameHeader >= frameTarget {
		p.endFrame()
	}
}

// put appends to the open frame, or to a new one.
func (p *pickle) put(b ...byte) {
	if p.frame < 0 {
		p.frame = len(p.buf)
		p.buf = append(p.buf, pickleFrame, 0, 0, 0, 0, 0, 0, 0, 0)
	}
	p.buf = append(p.buf, b...)
}

// endFrame fills in the open frame's length, or takes its header out again if
// there is too little in it.
func (p *pickle) endFrame() {
	if p.frame < 0 {
		return
	}
	body := p.frame + frameHeader
	if n := len(p.buf) - body; n >= frameMin {
		binary.LittleEndian.PutUint64(p.buf[p.frame+1:], uint64(n))
	} else {
		p.buf = append(p.buf[:p.frame], p.buf[body:]...)
	}
	p.frame = -1
}
