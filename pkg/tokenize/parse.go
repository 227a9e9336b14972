package tokenize

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// parser reads the members that both kinds of request have, and collects what is
// wrong with them. Of several members with one name the last counts, so a
// problem is dropped when a good one follows.
type parser struct {
	scanner
	req       Request
	problems  map[string]string // by param
	seenModel bool
	maxTokens [2]int // max_completion_tokens, max_tokens
}

// parse reads body, one object, giving each member to own first and then to the
// common ones. The error is a *RequestError.
func parse(body []byte, own func(p *parser, name string) (bool, error)) (*parser, error) {
	p := &parser{scanner: scanner{data: bytes.TrimPrefix(body, []byte("\ufeff"))}, problems: map[string]string{}}
	p.req.N = 1
	if len(bytes.TrimSpace(p.data)) == 0 {
		return nil, &RequestError{Message: "the body is empty, expected a JSON object"}
	}
	isObject := p.peek() == '{'
	if err := p.body(own); err != nil {
		return nil, &RequestError{Message: "the body is not valid JSON: " + err.Error()}
	}
	if !isObject {
		return nil, &RequestError{Message: "the body is not a JSON object"}
	}
	if !p.seenModel {
		p.problem("model", "is missing, expected the name of a model")
	}
	p.req.MaxTokens = cmp.Or(p.maxTokens[0], p.maxTokens[1])
	p.req.Opaque = p.req.arg("truncate_prompt_tokens") != nil
	p.req.Preamble = preamble(&p.req)
	return p, nil
}

// body reads everything, down to the last byte.
func (p *parser) body(own func(p *parser, name string) (bool, error)) error {
	if p.peek() != '{' {
		if err := p.discard(); err != nil {
			return err
		}
		return p.end()
	}
	err := p.object(func(name []byte) error {
		if mine, err := own(p, string(name)); mine || err != nil {
			return err
		}
		return p.common(string(name))
	})
	if err != nil {
		return err
	}
	return p.end()
}

// refused returns the first problem in the order of params.
func (p *parser) refused(params ...string) error {
	for _, param := range params {
		if msg, ok := p.problems[param]; ok {
			return &RequestError{Param: param, Message: param + " " + msg}
		}
	}
	return nil
}

func (p *parser) problem(param, message string) { p.problems[param] = message }

// common reads a member of either kind of request.
func (p *parser) common(name string) error {
	switch name {
	case "model":
		p.seenModel = true
		return p.required(name, &p.req.Model, "a model's name")
	case "cache_salt":
		return p.salt()
	case "user":
		return p.optional(&p.req.User)
	case "stream":
		return p.flag(&p.req.Stream)
	case "max_completion_tokens":
		return p.whole(&p.maxTokens[0])
	case "max_tokens":
		return p.whole(&p.maxTokens[1])
	case "n":
		err := p.whole(&p.req.N)
		p.req.N = max(1, p.req.N)
		return err
	case "add_special_tokens", "truncate_prompt_tokens":
		return p.keep(name)
	default:
		return p.discard()
	}
}

// required reads a string that must not be empty.
func (p *parser) required(param string, dst *string, what string) error {
	delete(p.problems, param)
	if p.peek() == '"' {
		var err error
		if *dst, err = p.str(); err == nil && *dst == "" {
			p.problem(param, "is empty, expected "+what)
		}
		return err
	}
	raw, err := p.skip()
	p.problem(param, fmt.Sprintf("is %s, expected %s", kind(raw), what))
	return err
}

// salt reads cache_salt. A salt that is no text is refused, as vLLM does: a
// tenant that asked for isolation must not be routed as if it had not.
func (p *parser) salt() error {
	p.req.Salt = ""
	if p.peek() == 'n' {
		delete(p.problems, "cache_salt")
		return p.discard()
	}
	return p.required("cache_salt", &p.req.Salt, "a text that is not empty")
}

// optional reads a string; anything else counts as absent.
func (p *parser) optional(dst *string) error {
	*dst = ""
	if p.peek() != '"' {
		return p.discard()
	}
	var err error
	*dst, err = p.str()
	return err
}

// flag reads a truth value in the spellings that the engines' validation takes.
func (p *parser) flag(dst *bool) error {
	raw, err := p.skip()
	word := strings.ToLower(string(bytes.Trim(raw, `"`)))
	switch word {
	case "true", "t", "yes", "y", "on", "1", "1.0":
		*dst = true
	default:
		*dst = false
	}
	return err
}

// whole reads a positive whole number in any spelling (100, 1E2, 1.0); anything
// else is 0.
func (p *parser) whole(dst *int) error {
	*dst = 0
	raw, err := p.skip()
	if err != nil {
		return err
	}
	// Digits that are no number, or too large for one, mean that there is none;
	// the engine will say so.
	if f, perr := strconv.ParseFloat(string(raw), 64); perr == nil && f > 0 && f == math.Trunc(f) {
		*dst = int(min(f, math.MaxInt32))
	}
	return nil
}

// keep stores a member as it was sent, for those who tokenize. Null is absent.
func (p *parser) keep(name string) error {
	p.req.args = slices.DeleteFunc(p.req.args, func(a argTerm) bool { return a.name == name })
	raw, err := p.skip()
	if err == nil && string(raw) != "null" {
		p.req.args = append(p.req.args, argTerm{name: name, raw: raw})
	}
	return err
}

// kind names what raw is, for an error.
func kind(raw []byte) string {
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a text"
	case 't', 'f':
		return "a truth value"
	case 'n':
		return "null"
	default:
		return "a number"
	}
}
