package tokenize

import (
	"unicode"
	"unicode/utf8"
)

// FNV-1a, 32 bits.
const (
	fnvOffset = 2166136261
	fnvPrime  = 16777619
)

// Text splits s into words and single characters, each with the whitespace that
// follows it, and returns the 32-bit FNV-1a hash of each piece's bytes.
//
// It is the scheme that llm-d-inference-sim uses for models it has no tokenizer
// for, with Python's reading of its expression
//
//	([{}:,\-.?!;@#$%^&*()+_~/\\><\[\]="']|\w+)(\s*)
//
// in which \w is every letter and digit of Unicode and \s every Unicode space.
// (The simulator's own \w is ASCII: it drops other scripts, so all its Chinese
// prompts of one length look alike.)
//
// Where the expression skips text, Text does not: any other character, a byte
// that is not UTF-8 and whitespace at the very start are pieces as well. So the
// pieces of s always make up s, and different texts give different tokens, but
// for collisions of the hash. A text of printable ASCII, tabs and line ends that
// has no '|' and no '`' and does not begin with whitespace gets exactly the
// simulator's ids.
//
// It costs one pass over s and one allocation or a few.
func Text(s string) []uint32 {
	if s == "" {
		return nil
	}
	return AppendText(make([]uint32, 0, len(s)/4+1), s)
}

// AppendText appends the tokens of s, as [Text] has them, to dst.
func AppendText(dst []uint32, s string) []uint32 {
	for s != "" {
		n := piece(s)
		dst = append(dst, fnv1a(s[:n]))
		s = s[n:]
	}
	return dst
}

func fnv1a(s string) uint32 {
	h := uint32(fnvOffset)
	for i := range len(s) {
		h = (h ^ uint32(s[i])) * fnvPrime
	}
	return h
}

// A class is what the expression makes of a character: a set, since an
// underscore is a piece of its own but also goes on a word. The empty set is a
// character that the expression skips.
type class uint8

const (
	punct  class = 1 << iota // a piece of its own
	word                     // begins a word
	inWord                   // goes on a word
	space                    // belongs to the piece before it
)

// ascii holds the classes of the characters below 0x80.
var ascii = func() (t [utf8.RuneSelf]class) {
	for _, c := range `{}:,-.?!;@#$%^&*()+_~/\><[]="'` {
		t[c] = punct
	}
	t['_'] |= inWord
	for c := range t {
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
			t[c] = word | inWord
		case c == ' ', c >= '\t' && c <= '\r', c >= 0x1c && c <= 0x1f:
			t[c] = space
		}
	}
	return t
}()

// classify returns the class of the first character of s and its length in
// bytes; s is not empty.
func classify(s string) (class, int) {
	if s[0] < utf8.RuneSelf {
		return ascii[s[0]], 1
	}
	r, n := utf8.DecodeRuneInString(s)
	switch {
	case r == utf8.RuneError && n == 1: // not UTF-8: each byte stands for itself
		return 0, 1
	case unicode.IsLetter(r), unicode.IsNumber(r):
		return word | inWord, n
	case unicode.IsSpace(r):
		return space, n
	default:
		return 0, n
	}
}

// piece returns the length of the first piece of s; s is not empty.
func piece(s string) int {
	c, n := classify(s)
	if c&word != 0 {
		n += run(s[n:], inWord)
	}
	return n + run(s[n:], space)
}

// run returns the length of the characters with class c that s begins with.
func run(s string, c class) int {
	n := 0
	for {
		for n < len(s) && s[n] < utf8.RuneSelf && ascii[s[n]]&c != 0 {
			n++
		}
		if n == len(s) || s[n] < utf8.RuneSelf {
			return n
		}
		k, size := classify(s[n:])
		if k&c == 0 {
			return n
		}
		n += size
	}
}
