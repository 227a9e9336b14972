package tokenize

import "strings"

// RequestError says why a body cannot be a request, in the terms of the OpenAI
// API: the router answers it as a 400 of type invalid_request_error.
type RequestError struct {
	// Param names the field at fault, as in the API's error object; empty when it
	// is the body as a whole.
	Param string
	// Message says what is wrong with it and what was expected, for the client.
	Message string
}

func (e *RequestError) Error() string { return e.Message }

// Request is what routing needs to know of an OpenAI request body. It comes from
// [ParseChat] or [ParseCompletion]; it keeps references into the body, which
// must not change while the request is in use. Nothing of it is meant to be sent
// on: the router forwards the body as it came.
type Request struct {
	Model string
	// Stream as the engines read it: also the words and numbers that stand for
	// true.
	Stream bool
	// MaxTokens is max_completion_tokens, else max_tokens; 0 when neither is a
	// positive whole number.
	MaxTokens int
	// N is the number of answers asked for each prompt, at least 1.
	N int
	// Salt is cache_salt; empty for none. It belongs into the key of the first
	// block.
	Salt string
	User string

	// Messages of a chat request, at least one; nil for a completion.
	Messages []Message

	// Preamble is what a request tells the tokenizer beside its text (tools and
	// template arguments), one line each; usually empty. Two requests that differ
	// in it have no prefix in common.
	Preamble string

	// Prompts of a completion request; none for prompt [] and beside
	// prompt_embeds.
	Prompts []Prompt

	// Multimodal says that a message has parts that are not text. The tokens of
	// such a part are the engine's business; here a digest stands for it.
	Multimodal bool
	// Opaque says that the engine's tokens are not those of the prompt
	// (prompt_embeds, truncate_prompt_tokens), so no prefix can be claimed.
	Opaque bool

	messages []byte    // the array of messages as sent
	args     []argTerm // what a tokenizer has to know beside it, as sent
}

// argTerm is one top-level member that changes the engine's tokens.
type argTerm struct {
	name string
	raw  []byte
}

// Message is one message of a chat, flattened to text.
type Message struct {
	Role string
	// Content is the text of the message: the text parts joined by newlines, a
	// digest for each other part, and what an engine's template also shows (tool
	// calls, reasoning, names), each on a line.
	Content string
	// Multimodal says that a part is not text.
	Multimodal bool

	end int // where the message ends in Request.messages
}

// Prompt is one prompt of a completion: text, or token ids used as they are.
type Prompt struct {
	Text string
	// Tokens is not nil for a prompt that was sent as token ids.
	Tokens []uint32

	raw []byte // Text as the JSON string that was sent
}

// Flat returns the text of a chat request that [Lesson] tokenizes: the preamble,
// then the messages as [Flatten] has them.
func (r *Request) Flat() string { return r.Preamble + Flatten(r.Messages) }

// Flatten writes messages as llm-d-inference-sim does, in their order:
//
//	### role: content
//
// each with a newline at the end.
func Flatten(messages []Message) string {
	n := 0
	for i := range messages {
		n += len(messages[i].Role) + len(messages[i].Content) + len("### : \n")
	}
	var b strings.Builder
	b.Grow(n)
	for i := range messages {
		b.WriteString("### ")
		b.WriteString(messages[i].Role)
		b.WriteString(": ")
		b.WriteString(messages[i].Content)
		b.WriteByte('\n')
	}
	return b.String()
}

// arg returns a kept member, nil if absent.
func (r *Request) arg(name string) []byte {
	for i := range r.args {
		if r.args[i].name == name {
			return r.args[i].raw
		}
	}
	return nil
}
