package httpapi

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"strings"
	"time"

	"github.com/prefixroute/prefixroute/pkg/tokenize"
	"github.com/prefixroute/prefixroute/services/fakevllm/internal/engine"
)

// leadFrom is from which length on a chat's answer begins with the tokens of the
// turn's header. The header has no text, so that the answer as the next turn's
// message has the tokens that were generated, and hits their blocks. A shorter
// answer would be all header.
const leadFrom = 16

var turnHeader = tokenize.Text("### assistant: ")

func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	c, err := s.parse(r, tokenize.ParseCompletion)
	if err != nil {
		s.fail(w, err)
		return
	}
	s.serve(w, r, c, nil, completionForm{newHead("cmpl-", "text_completion", c)})
}

func (s *Server) chat(w http.ResponseWriter, r *http.Request) {
	c, err := s.parse(r, tokenize.ParseChat)
	if err != nil {
		s.fail(w, err)
		return
	}
	var lead []uint32
	if c.maxTokens >= leadFrom {
		lead = turnHeader
	}
	object := "chat.completion"
	if c.Stream {
		object = "chat.completion.chunk"
	}
	s.serve(w, r, c, lead, chatForm{newHead("chatcmpl-", object, c)})
}

// A form writes the answers of one endpoint.
type form interface {
	// whole is the complete answer.
	whole(c *call, p *progress) any
	// opening are the chunks that a stream starts with.
	opening(c *call, p *progress) []any
	// chunk is one token of a stream; u is nil unless usage is wanted with it.
	chunk(c *call, p *progress, t engine.Token, u *usage) any
	// closing is the chunk that carries the usage.
	closing(u *usage) any
}

// head is what all answers to a call begin with.
type head struct {
	id, object, model string
	created           int64
}

func newHead(prefix, object string, c *call) head {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	return head{id: prefix + hex.EncodeToString(random[:]), object: object, model: c.Model, created: time.Now().Unix()}
}

// serve answers a call in either manner.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, c *call, lead []uint32, f form) {
	stream, err := s.generate(r.Context(), c, lead)
	if err != nil {
		s.fail(w, err)
		return
	}
	defer stream.Close()
	s.open.Add(1)
	defer s.open.Add(-1)
	p := newProgress(c, s.cfg.BlockSize)
	if c.Stream {
		s.stream(w, r, c, p, stream, f)
		return
	}
	if err := p.finish(r.Context(), stream); err != nil {
		s.fail(w, err)
		return
	}
	s.json(w, http.StatusOK, f.whole(c, p))
}

// progress is what has come of a call's answers so far.
type progress struct {
	call      *call
	blockSize int
	answers   []progressed // one per sequence
}

type progressed struct {
	text   strings.Builder
	ids    []uint32
	finish engine.Finish
	cached int
}

func newProgress(c *call, blockSize int) *progress {
	return &progress{call: c, blockSize: blockSize, answers: make([]progressed, len(c.prompts)*c.samples)}
}

// finish reads the stream to its end.
func (p *progress) finish(ctx context.Context, stream *engine.Stream) error {
	for {
		tokens, err := stream.Next(ctx)
		if err != nil {
			return err
		}
		if len(tokens) == 0 {
			return nil
		}
		for _, t := range tokens {
			p.add(t)
		}
	}
}

func (p *progress) add(t engine.Token) {
	a := &p.answers[t.Index]
	a.text.WriteString(t.Text)
	a.ids = append(a.ids, t.ID)
	a.finish, a.cached = t.Finish, t.Cached
}

// usage counts a prompt once, however many answers it has. The cached tokens are
// those of the last answer, as vLLM has them.
func (p *progress) usage() *usage {
	u := &usage{}
	for _, prompt := range p.call.prompts {
		u.PromptTokens += len(prompt)
	}
	for i := range p.answers {
		u.CompletionTokens += len(p.answers[i].ids)
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

// detailed is usage with what the cache did.
func (p *progress) detailed() *usage {
	u := p.usage()
	cached := p.answers[len(p.answers)-1].cached
	u.PromptDetails = &promptDetails{CachedTokens: cached, inStream: p.call.Stream}
	if len(p.call.Messages) > 0 {
		created := u.PromptTokens/p.blockSize*p.blockSize - cached
		u.PromptDetails.CreatedTokens = &created
	}
	if !p.call.Stream {
		u.CompletionDetail = &null{}
	}
	return u
}

// ids returns ids if the caller asked for token ids, else nil, which is null.
func (c *call) ids(ids []uint32) []uint32 {
	if !c.withTokenIDs() {
		return nil
	}
	return ids
}

func finishReason(f engine.Finish) *string {
	if f == "" {
		return nil
	}
	s := string(f)
	return &s
}
