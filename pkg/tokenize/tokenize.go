// Package tokenize answers two questions about the body of an OpenAI request:
// what does a router have to know of it, and which tokens does its prompt have?
//
// # Reading a body
//
// [ParseChat] and [ParseCompletion] read a body once, as the engine will read it
// (the last of several equal names counts, numbers and texts are taken in all
// spellings, unpaired surrogates are told apart), and refuse only what the API
// itself refuses, with the name of the field. They never change the body: a
// router forwards the bytes that came.
//
// # Tokens
//
// A router needs the tokens that the engine will compute, or at least tokens on
// which it agrees with itself. [Client] asks the engine. [Lesson] works without
// a tokenizer, by a split into words and a hash of each, which is what
// llm-d-inference-sim and fakevllm do too. In both, whatever changes the engine's
// tokens changes ours: tools and template arguments, and parts that are not
// text, for which a digest stands in the place where they are, so that requests
// share what comes before an image and nothing after it unless the image is the
// same.
//
// # Concurrency
//
// All of it is safe for concurrent use.
package tokenize

import "context"

// Tokenizer turns a request into tokens: one list for each prompt of a
// completion, in order, or one for a chat. The result is empty for a request
// whose tokens cannot be known ([Request.Opaque]): it must not be routed by
// prefix. Implementations are safe for concurrent use.
type Tokenizer interface {
	Tokens(ctx context.Context, r Request) ([][]uint32, error)
}

// Lesson is the [Tokenizer] that needs no model: [Text] over the flattened
// request. It never fails.
type Lesson struct{}

// Tokens implements [Tokenizer].
func (Lesson) Tokens(_ context.Context, r Request) ([][]uint32, error) {
	switch {
	case r.Opaque:
		return nil, nil
	case len(r.Messages) > 0:
		return [][]uint32{Text(r.Flat())}, nil
	}
	lists := make([][]uint32, len(r.Prompts))
	for i := range r.Prompts {
		lists[i] = r.Prompts[i].Tokens
		if lists[i] == nil {
			lists[i] = Text(r.Preamble + r.Prompts[i].Text)
		}
	}
	return lists, nil
}
