package tokenize

import (
	"fmt"
	"math"
)

// ParseCompletion reads the body of a /v1/completions request. The prompt may be
// a text, token ids, or a list of either. It never changes the body. The error is
// a *[RequestError] and says what the API itself refuses: a body that is not one
// JSON object, no model, no prompt, a prompt of another form, a salt that is not
// text.
func ParseCompletion(body []byte) (Request, error) {
	var in completion
	p, err := parse(body, in.member)
	if err != nil {
		return Request{}, err
	}
	switch {
	case in.embeds:
		// The prompt is vectors; a text beside it says nothing about blocks.
		p.req.Opaque, p.req.Prompts = true, nil
		delete(p.problems, "prompt")
	case !in.prompt:
		p.problem("prompt", "is missing, expected a text, token ids, or a list of them")
	}
	if err := p.refused("model", "prompt", "cache_salt"); err != nil {
		return Request{}, err
	}
	return p.req, nil
}

// completion is what was seen of the two members that can hold the prompt.
type completion struct {
	prompt, embeds bool
}

func (c *completion) member(p *parser, name string) (mine bool, err error) {
	switch name {
	case "prompt":
		c.prompt = p.peek() != 'n'
		return true, p.prompt()
	case "prompt_embeds":
		raw, err := p.skip()
		c.embeds = says(raw)
		return true, err
	default:
		return false, nil
	}
}

func (p *parser) prompt() error {
	p.req.Prompts = nil
	delete(p.problems, "prompt")
	switch p.peek() {
	case '"':
		return p.textPrompt()
	case 'n':
		return p.discard()
	case '[':
		return p.promptList()
	default:
		raw, err := p.skip()
		p.problem("prompt", fmt.Sprintf("is %s, expected a text, token ids, or a list of them", kind(raw)))
		return err
	}
}

func (p *parser) textPrompt() error {
	raw, err := p.rawString()
	if err == nil {
		p.req.Prompts = append(p.req.Prompts, Prompt{Text: unquote(raw), raw: raw})
	}
	return err
}

// promptList reads a list, whose first element says what it is a list of.
func (p *parser) promptList() error {
	var first byte
	ids := []uint32{}
	err := p.array(func() error {
		c := p.peek()
		if c == '-' || c >= '0' && c <= '9' {
			c = '0'
		}
		if first == 0 {
			first = c
		}
		switch {
		case c != first:
			p.problem("prompt", "mixes texts, token ids and lists, expected one of them")
			return p.discard()
		case c == '"':
			return p.textPrompt()
		case c == '[':
			list := []uint32{}
			err := p.array(func() error { return p.tokenID(&list) })
			p.req.Prompts = append(p.req.Prompts, Prompt{Tokens: list})
			return err
		default:
			return p.tokenID(&ids)
		}
	})
	if first == '0' {
		p.req.Prompts = []Prompt{{Tokens: ids}}
	}
	return err
}

// tokenID reads one token id of a prompt.
func (p *parser) tokenID(dst *[]uint32) error {
	if id, ok := p.smallNumber(); ok {
		*dst = append(*dst, id)
		return nil
	}
	raw, err := p.skip()
	p.problem("prompt", fmt.Sprintf("holds %.20s, expected token ids in 0..%d", raw, uint32(math.MaxUint32)))
	return err
}

// smallNumber consumes a whole number in 0..2^32−1 without sign, fraction or
// exponent; at anything else it stays where it is.
func (s *scanner) smallNumber() (uint32, bool) {
	s.peek()
	start := s.pos
	n := uint64(0)
	for s.pos < len(s.data) && s.pos-start < 10 && s.data[s.pos] >= '0' && s.data[s.pos] <= '9' {
		n = n*10 + uint64(s.data[s.pos]-'0')
		s.pos++
	}
	ok := s.pos > start && n <= math.MaxUint32 && (s.data[start] != '0' || s.pos == start+1)
	if ok && s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ',', ']', ' ', '\t', '\n', '\r':
		default:
			ok = false
		}
	}
	if !ok {
		s.pos = start
	}
	return uint32(n), ok //nolint:gosec // n is checked against MaxUint32
}
