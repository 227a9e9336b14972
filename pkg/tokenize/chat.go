package tokenize

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
)

// templateArgs are the members of a chat request, beside its messages, that
// change what the template writes from the start, in the order of the preamble.
var templateArgs = []string{"tools", "chat_template", templateKwargs, "mm_processor_kwargs", "add_special_tokens"}

// templateKwargs is the member whose members the template sees by name. The chat
// endpoint adds those of kwargArgs to them by itself.
const templateKwargs = "chat_template_kwargs"

var kwargArgs = []string{"documents", "reasoning_effort"}

// tailArgs change only the end of what it writes, so they do not matter to a
// prefix.
var tailArgs = []string{"add_generation_prompt", "continue_final_message"}

// ParseChat reads the body of a /v1/chat/completions request. It never changes
// the body. The error is a *[RequestError] and says what the API itself refuses:
// a body that is not one JSON object, no model, no messages, a salt that is not
// text. Whatever else is odd is left to the engine.
func ParseChat(body []byte) (Request, error) {
	p, err := parse(body, (*parser).chatMember)
	if err != nil {
		return Request{}, err
	}
	if p.req.messages == nil && p.problems["messages"] == "" {
		p.problem("messages", "is missing, expected a list of messages")
	}
	if err := p.refused("model", "messages", "cache_salt"); err != nil {
		return Request{}, err
	}
	return p.req, nil
}

// chatMember reads a member that only chat requests have.
func (p *parser) chatMember(name string) (mine bool, err error) {
	switch {
	case name == "messages":
		return true, p.chatMessages()
	case slices.Contains(templateArgs, name), slices.Contains(kwargArgs, name), slices.Contains(tailArgs, name):
		return true, p.keep(name)
	default:
		return false, nil
	}
}

func (p *parser) chatMessages() error {
	p.req.Messages, p.req.messages, p.req.Multimodal = nil, nil, false
	delete(p.problems, "messages")
	if p.peek() != '[' {
		raw, err := p.skip()
		p.problem("messages", fmt.Sprintf("is %s, expected a list of messages", kind(raw)))
		return err
	}
	start := p.pos
	err := p.array(func() error {
		if p.peek() != '{' {
			raw, err := p.skip()
			p.problem("messages", fmt.Sprintf("holds %s, expected messages", kind(raw)))
			return err
		}
		m, err := p.message()
		m.end = p.pos - start
		p.req.Messages = append(p.req.Messages, m)
		p.req.Multimodal = p.req.Multimodal || m.Multimodal
		return err
	})
	p.req.messages = p.data[start:p.pos]
	if err == nil && len(p.req.Messages) == 0 && p.problems["messages"] == "" {
		p.problem("messages", "is empty, expected at least one message")
	}
	return err
}

// shown are the members of a message that templates write beside its content.
var shown = [...]string{"name", "reasoning", "reasoning_content", "tool_calls", "tool_call_id", "function_call"}

// message reads one message. Content may be a text, a list of parts, null or
// absent, whatever the role.
func (p *parser) message() (Message, error) {
	var m Message
	var content string
	var beside [len(shown)][]byte
	err := p.object(func(name []byte) error {
		switch string(name) {
		case "role":
			return p.optional(&m.Role)
		case "content":
			var err error
			content, m.Multimodal, err = p.content()
			return err
		}
		raw, err := p.skip()
		for i := range shown {
			if string(name) == shown[i] {
				beside[i] = raw
			}
		}
		return err
	})
	if err != nil {
		return m, err
	}
	m.Content = content
	for i, raw := range beside {
		if says(raw) {
			m.Content += "\n" + shown[i] + ": " + string(compact(raw))
		}
	}
	return m, nil
}

// says reports whether a member holds anything: clients send back the null and
// empty members of an answer, and templates pass over them.
func says(raw []byte) bool {
	switch string(compact(raw)) {
	case "", "null", `""`, "[]", "{}":
		return false
	default:
		return true
	}
}

// content reads a message's content.
func (p *parser) content() (text string, multimodal bool, err error) {
	switch p.peek() {
	case '"':
		text, err = p.str()
		return text, false, err
	case 'n':
		return "", false, p.discard()
	case '[':
	default:
		raw, err := p.skip()
		return string(compact(raw)), false, err
	}
	var b strings.Builder
	first := true
	err = p.array(func() error {
		text, isText, err := p.part()
		if !first {
			b.WriteByte('\n')
		}
		first = false
		b.WriteString(text)
		multimodal = multimodal || !isText
		return err
	})
	return b.String(), multimodal, err
}

// part reads one part of a content list. A part that is not text gives a digest
// of its bytes, so that requests share tokens up to an image and not beyond,
// unless it is the same one.
func (p *parser) part() (text string, isText bool, err error) {
	if p.peek() == '"' { // engines take a bare text as a part
		text, err = p.str()
		return text, true, err
	}
	var typ string
	texts := make(map[string]string, 1)
	if p.peek() != '{' {
		raw, err := p.skip()
		return digest(raw), false, err
	}
	start := p.pos
	err = p.object(func(name []byte) error {
		switch string(name) {
		case "type":
			return p.optional(&typ)
		case "text", "refusal", "thinking":
			if p.peek() != '"' {
				delete(texts, string(name))
				return p.discard()
			}
			s, err := p.str()
			texts[string(name)] = s
			return err
		default:
			return p.discard()
		}
	})
	if text, ok := texts[textMember(typ)]; ok {
		return text, true, err
	}
	return digest(p.data[start:p.pos]), false, err
}

// textMember names the member that holds the text of a part of a type, empty for
// types that are not text.
func textMember(typ string) string {
	switch typ {
	case "", "text", "input_text", "output_text":
		return "text"
	case "refusal", "thinking":
		return typ
	default:
		return ""
	}
}

// digest stands for a part that is not text. Its 128 bits are four words, since a
// word is 32 bits of token.
func digest(raw []byte) string {
	h := sha256.Sum256(raw)
	return fmt.Sprintf("<part %x %x %x %x>", h[0:4], h[4:8], h[8:12], h[12:16])
}

// preamble writes the template arguments, a line each. Four '#' tell it from a
// message, and a line cannot be left early because JSON has no bare newline once
// it is compact.
func preamble(r *Request) string {
	if len(r.args) == 0 {
		return ""
	}
	var b strings.Builder
	for _, name := range templateArgs {
		raw := r.arg(name)
		if name == templateKwargs {
			raw = r.templateKwargs()
		}
		if says(raw) {
			fmt.Fprintf(&b, "#### %s: %s\n", name, compact(raw))
		}
	}
	return b.String()
}

// templateKwargs returns all arguments that the template sees by name, as one
// object; nil for none.
func (r *Request) templateKwargs() []byte {
	kwargs := r.arg(templateKwargs)
	if kwargs != nil && kwargs[0] != '{' {
		return kwargs // the engine will refuse it
	}
	for _, name := range kwargArgs {
		v := r.arg(name)
		if v == nil {
			continue
		}
		b := newObject()
		if kwargs != nil {
			if inner := bytes.TrimSpace(kwargs[1 : len(kwargs)-1]); len(inner) > 0 {
				b.members(inner)
			}
		}
		kwargs = b.raw(name, v).end()
	}
	return kwargs
}
