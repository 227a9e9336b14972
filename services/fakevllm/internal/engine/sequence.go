package engine

import (
	"time"

	"github.com/prefixroute/prefixroute/pkg/blockpool"
)

// A sequence is one answer in the making. It is owned by Run.
type sequence struct {
	stream *Stream
	index  int // in the stream
	req    Request
	tokens *blockpool.Sequence
	answer answer

	generated int // tokens sampled so far
	admitted  bool
	cached    int // prompt tokens that the first admission found in the cache

	arrived time.Time
	last    time.Time // when the last token came; zero before the first

	// What is being computed is done at due. Not pending: the last token has to
	// be fed back first.
	pending bool
	due     time.Time
}

func newSequence(e *Engine, stream *Stream, index int, r Request) *sequence {
	s := &sequence{
		stream:  stream,
		index:   index,
		req:     r,
		tokens:  e.cfg.Hasher.Sequence(r.Prompt, r.Content),
		answer:  e.words.answer(e.cfg.Seed, r),
		arrived: time.Now(),
	}
	if r.SkipLookup {
		s.tokens.SkipLookup()
	}
	return s
}

// sample takes the next token of the answer and reports whether it was the last.
func (s *sequence) sample(now time.Time) (t Token, last bool) {
	id, text := s.answer.token(s.generated)
	s.generated++
	s.tokens.Append(id)
	s.last = now
	s.pending = false
	t = Token{Index: s.index, ID: id, Text: text, Cached: s.cached}
	if s.generated < s.req.MaxTokens {
		return t, false
	}
	t.Finish = FinishLength
	if s.req.Stops {
		t.Finish = FinishStop
	}
	return t, true
}
