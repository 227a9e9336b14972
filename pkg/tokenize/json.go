package tokenize

import (
	"bytes"
	"fmt"
	"strconv"
)

// maxDepth is how deep arrays and objects may nest: the default of Python, in
// which the engines read the same body. It bounds the stack that a small body
// can make us use.
const maxDepth = 1000

// scanner reads one JSON value front to back, each byte once, without building
// a tree. Up to [maxDepth] it accepts what encoding/json's Valid accepts, and it
// differs from that package's decoder in three ways that matter to a router: of several members with one
// name the last counts, as in Python; names are compared exactly; and unpaired
// surrogates stay apart instead of all turning into U+FFFD.
//
// The caller peeks at the kind of the next value and calls the method for it.
type scanner struct {
	data  []byte
	pos   int
	depth int
}

// syntaxError says where the input stops being JSON.
type syntaxError struct {
	pos  int
	what string
}

func (e *syntaxError) Error() string {
	return fmt.Sprintf("%s at byte %d", e.what, e.pos)
}

func (s *scanner) fail(what string) error {
	if s.pos >= len(s.data) {
		what = "unexpected end of input"
	}
	return &syntaxError{pos: s.pos, what: what}
}

// peek skips whitespace and returns the next byte without consuming it; 0 at the
// end.
func (s *scanner) peek() byte {
	for ; s.pos < len(s.data); s.pos++ {
		switch c := s.data[s.pos]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// take consumes c, the next byte after whitespace, or fails.
func (s *scanner) take(c byte) error {
	if s.peek() != c {
		return s.fail("expected " + strconv.QuoteRune(rune(c)))
	}
	s.pos++
	return nil
}

// end fails unless only whitespace is left.
func (s *scanner) end() error {
	if s.peek(); s.pos < len(s.data) {
		return &syntaxError{pos: s.pos, what: "data after the value"}
	}
	return nil
}

// object reads an object. member is called at each value, with its name, and has
// to consume it. The name is valid until member returns.
func (s *scanner) object(member func(name []byte) error) error {
	return s.list('{', '}', func() error {
		if s.peek() != '"' {
			return s.fail("expected a member name")
		}
		raw, err := s.rawString()
		if err != nil {
			return err
		}
		name := raw[1 : len(raw)-1]
		if bytes.IndexByte(name, '\\') >= 0 {
			name = []byte(unquote(raw))
		}
		if err := s.take(':'); err != nil {
			return err
		}
		return member(name)
	})
}

// array reads an array. element is called at each value and has to consume it.
func (s *scanner) array(element func() error) error {
	return s.list('[', ']', element)
}

// list reads what objects and arrays have in common.
func (s *scanner) list(open, closing byte, item func() error) error {
	if err := s.take(open); err != nil {
		return err
	}
	if s.depth++; s.depth > maxDepth {
		return &syntaxError{pos: s.pos, what: "nested deeper than " + strconv.Itoa(maxDepth)}
	}
	defer func() { s.depth-- }()
	if s.peek() == closing {
		s.pos++
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		switch s.peek() {
		case ',':
			s.pos++
		case closing:
			s.pos++
			return nil
		default:
			return s.fail("expected ',' or " + strconv.QuoteRune(rune(closing)))
		}
	}
}

// skip consumes any value and returns its bytes, which alias the input.
func (s *scanner) skip() ([]byte, error) {
	c := s.peek()
	start := s.pos
	var err error
	switch {
	case c == '{':
		err = s.object(func([]byte) error { return s.discard() })
	case c == '[':
		err = s.array(s.discard)
	case c == '"':
		_, err = s.rawString()
	case c == '-', c >= '0' && c <= '9':
		_, err = s.number()
	case c == 't':
		err = s.literal("true")
	case c == 'f':
		err = s.literal("false")
	case c == 'n':
		err = s.literal("null")
	default:
		err = s.fail("expected a value")
	}
	return s.data[start:s.pos], err
}

func (s *scanner) discard() error {
	_, err := s.skip()
	return err
}

func (s *scanner) literal(word string) error {
	if !bytes.HasPrefix(s.data[s.pos:], []byte(word)) {
		return s.fail("expected " + word)
	}
	s.pos += len(word)
	return nil
}

// number consumes a number and returns its digits as they were sent.
func (s *scanner) number() ([]byte, error) {
	start := s.pos
	if s.pos < len(s.data) && s.data[s.pos] == '-' {
		s.pos++
	}
	switch lead := s.pos; {
	case s.digits() == 0:
		return nil, s.fail("expected a digit")
	case s.data[lead] == '0' && s.pos > lead+1:
		s.pos = lead + 1
		return nil, s.fail("digit after a leading 0")
	}
	if s.pos < len(s.data) && s.data[s.pos] == '.' {
		s.pos++
		if s.digits() == 0 {
			return nil, s.fail("expected a digit after '.'")
		}
	}
	if s.pos < len(s.data) && (s.data[s.pos] == 'e' || s.data[s.pos] == 'E') {
		s.pos++
		if s.pos < len(s.data) && (s.data[s.pos] == '+' || s.data[s.pos] == '-') {
			s.pos++
		}
		if s.digits() == 0 {
			return nil, s.fail("expected a digit in the exponent")
		}
	}
	return s.data[start:s.pos], nil
}

// digits consumes digits and returns how many.
func (s *scanner) digits() int {
	start := s.pos
	for s.pos < len(s.data) && s.data[s.pos] >= '0' && s.data[s.pos] <= '9' {
		s.pos++
	}
	return s.pos - start
}

// str consumes a string and returns what it says, as [unquote] does.
func (s *scanner) str() (string, error) {
	raw, err := s.rawString()
	if err != nil {
		return "", err
	}
	return unquote(raw), nil
}

// rawString consumes a string and returns it with its quotes, unchanged.
func (s *scanner) rawString() ([]byte, error) {
	start := s.pos
	s.pos++ // the opening quote
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; {
		case c == '"':
			s.pos++
			return s.data[start:s.pos], nil
		case c == '\\':
			if err := s.escape(); err != nil {
				return nil, err
			}
		case c < ' ':
			return nil, s.fail("control character in a string")
		default:
			s.pos++
		}
	}
	return nil, s.fail("")
}

// escape consumes one escape sequence.
func (s *scanner) escape() error {
	s.pos++ // the backslash
	if s.pos >= len(s.data) {
		return s.fail("")
	}
	switch s.data[s.pos] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.pos++
		return nil
	case 'u':
		s.pos++
		for range 4 {
			if s.pos >= len(s.data) || !isHex(s.data[s.pos]) {
				return s.fail("expected four hex digits after \\u")
			}
			s.pos++
		}
		return nil
	default:
		return s.fail("unknown escape")
	}
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}
