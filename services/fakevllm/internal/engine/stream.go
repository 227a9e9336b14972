package engine

import (
	"context"
	"sync"
)

// A Finish says why an answer ended, in the API's words.
type Finish string

// The ways in which an answer ends. An aborted one is only counted: nobody is
// left to be told.
const (
	FinishStop   Finish = "stop"
	FinishLength Finish = "length"
	finishAbort  Finish = "abort"
)

// A Token is one token of one answer.
type Token struct {
	Index  int // which request of the call
	ID     uint32
	Text   string
	Finish Finish // not empty for the last token
	Cached int    // prompt tokens that were found in the cache
}

// A Stream is what one API call gets back. Only one goroutine may read it. The
// engine never waits for a reader: what isn't read yet is kept, and is bounded
// by the lengths of the answers.
type Stream struct {
	engine *Engine
	wake   chan struct{} // holds one signal: something below changed

	mu     sync.Mutex
	tokens []Token // guarded by mu: not read yet
	open   int     // guarded by mu: answers that aren't complete
	err    error   // guarded by mu
}

func newStream(e *Engine, answers int) *Stream {
	return &Stream{engine: e, wake: make(chan struct{}, 1), open: answers}
}

// Next waits for tokens and returns those that have come, in order. It returns
// none when all answers are complete. The error is [ErrStopped] or that of ctx.
func (s *Stream) Next(ctx context.Context) ([]Token, error) {
	for {
		s.mu.Lock()
		tokens, open, err := s.tokens, s.open, s.err
		s.tokens = nil
		s.mu.Unlock()
		if len(tokens) > 0 || open == 0 || err != nil {
			return tokens, err
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Close ends what is still being generated and frees its blocks.
func (s *Stream) Close() {
	s.mu.Lock()
	over := s.open == 0 || s.err != nil
	s.mu.Unlock()
	if !over {
		s.engine.abort(s)
	}
}

func (s *Stream) push(t Token, last bool) {
	s.mu.Lock()
	s.tokens = append(s.tokens, t)
	if last {
		s.open--
	}
	s.mu.Unlock()
	s.signal()
}

func (s *Stream) fail(err error) {
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
	s.signal()
}

func (s *Stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
