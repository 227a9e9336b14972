package tokenize

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// unquote returns the text of raw, a valid string with its quotes. Bytes that
// are not UTF-8 stay as they are. An unpaired surrogate becomes the three bytes
// that UTF-8 would give it if it were a character (the encoding called WTF-8),
// so two texts that differ only there stay different.
func unquote(raw []byte) string {
	raw = raw[1 : len(raw)-1]
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw)
	}
	out := make([]byte, 0, len(raw))
	for len(raw) > 0 {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			out = append(out, raw...)
			break
		}
		out = append(out, raw[:i]...)
		c := raw[i+1]
		raw = raw[i+2:]
		if c != 'u' {
			out = append(out, unescape(c))
			continue
		}
		r := hex4(raw)
		raw = raw[4:]
		if utf16.IsSurrogate(r) && len(raw) >= 6 && raw[0] == '\\' && raw[1] == 'u' {
			if pair := utf16.DecodeRune(r, hex4(raw[2:])); pair != utf8.RuneError {
				r = pair
				raw = raw[6:]
			}
		}
		out = appendRune(out, r)
	}
	return string(out)
}

// appendRune is utf8.AppendRune that also encodes surrogates.
func appendRune(out []byte, r rune) []byte {
	if utf16.IsSurrogate(r) {
		return append(out, 0xe0|byte(r>>12), 0x80|byte(r>>6)&0x3f, 0x80|byte(r)&0x3f)
	}
	return utf8.AppendRune(out, r)
}

func unescape(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	default: // '"', '\\' and '/' stand for themselves
		return c
	}
}

// hex4 reads the four hex digits that b begins with; the scanner has seen them.
func hex4(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		r <<= 4
		switch {
		case c <= '9':
			r |= rune(c - '0')
		default:
			r |= rune(c|0x20-'a') + 10
		}
	}
	return r
}

// compact returns raw, a valid value, without the whitespace between its tokens.
func compact(raw []byte) []byte {
	out := make([]byte, 0, len(raw))
	inString := false
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		switch {
		case inString && c == '\\':
			out = append(out, c)
			i++
			c = raw[i]
		case c == '"':
			inString = !inString
		case !inString && (c == ' ' || c == '\t' || c == '\n' || c == '\r'):
			continue
		}
		out = append(out, c)
	}
	return out
}

// object writes a JSON object from members that are JSON already.
type object struct{ b bytes.Buffer }

func newObject() *object {
	o := &object{}
	o.b.WriteByte('{')
	return o
}

// members adds members as they are, with the commas between them.
func (o *object) members(raw []byte) {
	if o.b.Len() > 1 {
		o.b.WriteByte(',')
	}
	o.b.Write(raw)
}

// raw adds one member.
func (o *object) raw(name string, value []byte) *object {
	o.members(strconv.AppendQuote(nil, name))
	o.b.WriteByte(':')
	o.b.Write(value)
	return o
}

// text adds a member that is a string.
func (o *object) text(name, value string) *object {
	quoted, err := json.Marshal(value)
	if err != nil { // a string always marshals
		quoted = []byte(`""`)
	}
	return o.raw(name, quoted)
}

func (o *object) end() []byte {
	o.b.WriteByte('}')
	return o.b.Bytes()
}
