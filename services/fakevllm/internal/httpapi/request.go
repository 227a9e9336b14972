package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"

	"github.com/prefixroute/prefixroute/pkg/blockpool"
	"github.com/prefixroute/prefixroute/pkg/tokenize"
	"github.com/prefixroute/prefixroute/services/fakevllm/internal/engine"
)

// params are the members of a body that the engine needs and a router doesn't.
type params struct {
	MaxTokens           *float64       `json:"max_tokens"`
	MaxCompletionTokens *float64       `json:"max_completion_tokens"`
	N                   *float64       `json:"n"`
	Temperature         *float64       `json:"temperature"`
	PromptLogprobs      *float64       `json:"prompt_logprobs"`
	Logprobs            any            `json:"logprobs"` // a number, or a truth value in chats
	Echo                bool           `json:"echo"`
	ReturnTokenIDs      *bool          `json:"return_token_ids"`
	StreamOptions       *streamOptions `json:"stream_options"`
}

type streamOptions struct {
	IncludeUsage    bool `json:"include_usage"`
	ContinuousUsage bool `json:"continuous_usage_stats"`
}

// completionTokens is the length of a completion whose request doesn't limit it,
// as OpenAI's API has it.
const completionTokens = 16

// A call is one API request, ready for the engine.
type call struct {
	tokenize.Request
	params
	content blockpool.Content
	prompts [][]uint32
	// Sequences are numbered prompt by prompt: sequence i answers prompt
	// i / samples.
	samples   int
	maxTokens int
	stops     bool // the answers end by themselves
}

// promptOf is the prompt that sequence i answers.
func (c *call) promptOf(i int) []uint32 { return c.prompts[i/c.samples] }

func (c *call) withTokenIDs() bool { return c.ReturnTokenIDs != nil && *c.ReturnTokenIDs }

// skipsLookup says whether the whole prompt is computed, because its log
// probabilities are asked for.
func (c *call) skipsLookup() bool {
	return c.PromptLogprobs != nil || c.Echo && c.Logprobs != nil && c.Logprobs != false
}

// parse reads and checks the body of a completion or chat request.
func (s *Server) parse(r *http.Request, read func([]byte) (tokenize.Request, error)) (*call, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, fmt.Errorf("read body: %w", err)
	}
	c := &call{}
	if c.Request, err = read(body); err != nil {
		return nil, err
	}
	var ok bool
	if c.content, ok = s.content(c.Model, c.Salt); !ok {
		return nil, s.unknownModel(c.Model)
	}
	if err := json.Unmarshal(bytes.TrimPrefix(body, []byte("\ufeff")), &c.params); err != nil {
		return nil, invalid(err)
	}
	if c.Opaque {
		return nil, badRequest("", "prompt_embeds and truncate_prompt_tokens are not supported by fakevllm.")
	}
	if c.prompts, err = (tokenize.Lesson{}).Tokens(r.Context(), c.Request); err != nil {
		return nil, err
	}
	if len(c.prompts) == 0 || len(c.prompts[0]) == 0 {
		return nil, badRequest("", "You must pass at least one prompt")
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	return c, s.limit(c)
}

// invalid is vLLM's answer to a member of the wrong type.
func invalid(err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		e := badRequest("body."+wrong.Field, fmt.Sprintf("1 validation error: %s is a %s, expected %s", wrong.Field, wrong.Value, wrong.Type))
		e.Type = "Bad Request"
		return e
	}
	return badRequest("", err.Error())
}

// check refuses values that no engine takes.
func (c *call) check() error {
	for _, v := range []struct {
		name  string
		value *float64
	}{{"max_tokens", c.params.MaxTokens}, {"max_completion_tokens", c.MaxCompletionTokens}, {"n", c.params.N}} {
		switch {
		case v.value == nil:
		case *v.value < 1:
			return valueError(v.name, *v.value, fmt.Sprintf("%s must be at least 1, got %v.", v.name, *v.value))
		case *v.value != math.Trunc(*v.value):
			return valueError(v.name, *v.value, fmt.Sprintf("%s must be a whole number, got %v.", v.name, *v.value))
		}
	}
	if t := c.Temperature; t != nil && *t < 0 {
		return valueError("temperature", *t, fmt.Sprintf("temperature must be non-negative, got %v.", *t))
	}
	if c.StreamOptions != nil && !c.Stream {
		return badRequest("stream_options", "Stream options can only be defined when `stream=True`.")
	}
	c.samples = c.Request.N
	return nil
}

// limit settles the length of the answers and refuses what doesn't fit.
func (s *Server) limit(c *call) error {
	if n := len(c.prompts) * c.samples; n > s.cfg.MaxRequests {
		return valueError("n", c.samples, fmt.Sprintf("The request asks for %d answers, more than the %d that the engine takes at once.",
			n, s.cfg.MaxRequests))
	}
	longest := 0
	for _, p := range c.prompts {
		if len(p) == 0 {
			return badRequest("", "You must pass at least one prompt")
		}
		longest = max(longest, len(p))
	}
	room := s.cfg.MaxModelLen - longest
	if room < 0 {
		return valueError("input_tokens", longest, fmt.Sprintf("This model's maximum context length is %d tokens. However, your prompt "+
			"contains %d input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt.",
			s.cfg.MaxModelLen, longest))
	}
	if c.maxTokens = c.Request.MaxTokens; c.maxTokens == 0 {
		c.maxTokens, c.stops = max(1, min(completionTokens, room)), false
		if len(c.Messages) > 0 {
			c.maxTokens, c.stops = max(1, min(s.cfg.AnswerTokens, room)), true
		}
	}
	if c.maxTokens > room {
		return valueError("input_tokens", longest, fmt.Sprintf("This model's maximum context length is %d tokens. However, you requested "+
			"%d output tokens and your prompt contains %d input tokens, for a total of %d tokens. Please reduce the length of the input "+
			"prompt or the number of requested output tokens.",
			s.cfg.MaxModelLen, c.maxTokens, longest, c.maxTokens+longest))
	}
	return nil
}

// generate starts the sequences of a call. lead is what its answers begin with.
func (s *Server) generate(ctx context.Context, c *call, lead []uint32) (*engine.Stream, error) {
	requests := make([]engine.Request, len(c.prompts)*c.samples)
	for i := range requests {
		requests[i] = engine.Request{
			Prompt:     c.promptOf(i),
			Content:    c.content,
			MaxTokens:  c.maxTokens,
			Stops:      c.stops,
			SkipLookup: c.skipsLookup(),
			Lead:       lead,
			Sample:     i % c.samples,
		}
	}
	return s.cfg.Engine.Generate(ctx, requests)
}
