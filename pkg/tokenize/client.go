package tokenize

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// DefaultTimeout bounds a call whose context has no deadline.
	DefaultTimeout = 5 * time.Second
	// DefaultMaxAnswer is room for the answer to a prompt of about two million
	// tokens, in bytes.
	DefaultMaxAnswer = 16 << 20
	// DefaultMaxPrompts is how many texts of a batch are sent to the engine.
	DefaultMaxPrompts = 8
)

// Client is the [Tokenizer] that asks an engine, by POST /tokenize as vLLM has
// it. Set URL; the other fields have defaults. The fields must not change once
// the client is in use.
type Client struct {
	// URL is the base of the engine's HTTP API, for example
	// http://10.0.0.1:8000.
	URL string
	// HTTP makes the calls; nil is http.DefaultClient.
	HTTP *http.Client
	// Header is added to each call, for an API key.
	Header http.Header
	// MaxAnswer is the size in bytes from which an answer is refused; 0 is
	// [DefaultMaxAnswer].
	MaxAnswer int64
	// MaxPrompts is how many texts of a batch are tokenized, one call each; the
	// others get a nil list, which claims nothing. 0 is [DefaultMaxPrompts].
	MaxPrompts int
}

// StatusError is an answer of the engine that is not 200. The request itself may
// still be good: it is for the engine to refuse it when it is forwarded.
type StatusError struct {
	Status int
	// Message is the engine's own, cut to a line or two.
	Message string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("tokenize: engine answered %d: %s", e.Status, e.Message)
}

// errTooLarge is an answer beyond MaxAnswer.
var errTooLarge = errors.New("answer is larger than allowed")

// Tokens implements [Tokenizer]. Prompts that were sent as token ids need no
// call.
//
// The engine's /tokenize does not know how many tokens an image takes, so a chat
// with parts that are not text is cut before the first message that has one: the
// engine tokenizes what comes before, and the tokens of [Lesson] stand for the
// rest. They are the engine's tokens for as long as a prefix can be claimed, and
// after that they still tell requests apart.
func (c *Client) Tokens(ctx context.Context, r Request) ([][]uint32, error) {
	if r.Opaque {
		return nil, nil
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultTimeout)
		defer cancel()
	}
	if len(r.Messages) > 0 {
		tokens, err := c.chat(ctx, &r)
		if err != nil {
			return nil, err
		}
		return [][]uint32{tokens}, nil
	}
	return c.prompts(ctx, &r)
}

func (c *Client) prompts(ctx context.Context, r *Request) ([][]uint32, error) {
	left := c.MaxPrompts
	if left <= 0 {
		left = DefaultMaxPrompts
	}
	lists := make([][]uint32, len(r.Prompts))
	for i := range r.Prompts {
		p := &r.Prompts[i]
		if p.Tokens != nil {
			lists[i] = p.Tokens
			continue
		}
		if left == 0 {
			continue
		}
		left--
		body := newObject().text("model", r.Model)
		if p.raw != nil {
			body.raw("prompt", p.raw)
		} else {
			body.text("prompt", p.Text)
		}
		if v := r.arg("add_special_tokens"); v != nil {
			body.raw("add_special_tokens", v)
		}
		var err error
		if lists[i], err = c.call(ctx, body.end()); err != nil {
			return nil, err
		}
	}
	return lists, nil
}

func (c *Client) chat(ctx context.Context, r *Request) ([]uint32, error) {
	if !r.Multimodal {
		return c.call(ctx, chatBody(r, r.messages, nil))
	}
	first := 0
	for !r.Messages[first].Multimodal {
		first++
	}
	if first == 0 {
		return Text(r.Flat()), nil
	}
	// The cut is inside the conversation: nothing is generated here.
	end := r.Messages[first-1].end
	head := append(bytes.Clone(r.messages[:end]), ']')
	tokens, err := c.call(ctx, chatBody(r, head, map[string]string{
		"add_generation_prompt": "false", "continue_final_message": "false",
	}))
	if err != nil {
		return nil, err
	}
	return AppendText(tokens, Flatten(r.Messages[first:])), nil
}

// tokenizeArgs are the arguments that /tokenize takes for a chat under the same
// names as the chat endpoint.
var tokenizeArgs = []string{
	"tools", "chat_template", "mm_processor_kwargs", "add_special_tokens", "add_generation_prompt", "continue_final_message",
}

// chatBody writes the body of the call for messages. fixed overrides arguments
// of the request.
func chatBody(r *Request, messages []byte, fixed map[string]string) []byte {
	b := newObject().text("model", r.Model).raw("messages", messages)
	for _, name := range tokenizeArgs {
		v := r.arg(name)
		if f, ok := fixed[name]; ok {
			v = []byte(f)
		}
		if v != nil {
			b.raw(name, v)
		}
	}
	if kwargs := r.templateKwargs(); kwargs != nil {
		b.raw(templateKwargs, kwargs)
	}
	return b.end()
}

// call posts body and reads the tokens of the answer.
func (c *Client) call(ctx context.Context, body []byte) ([]uint32, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(c.URL, "/")+"/tokenize", bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("tokenize: %w", err)
	}
	maps.Copy(req.Header, c.Header)
	req.Header.Set("Content-Type", "application/json")
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("tokenize: %w", err)
	}
	defer resp.Body.Close()
	answer, err := c.read(resp.Body)
	if resp.StatusCode != http.StatusOK {
		return nil, &StatusError{Status: resp.StatusCode, Message: complaint(answer)}
	}
	if err != nil {
		return nil, fmt.Errorf("tokenize: read answer: %w", err)
	}
	tokens, err := readAnswer(answer)
	if err != nil {
		return nil, fmt.Errorf("tokenize: engine's answer: %w", err)
	}
	return tokens, nil
}

// read reads a body up to MaxAnswer bytes.
func (c *Client) read(body io.Reader) ([]byte, error) {
	limit := c.MaxAnswer
	if limit <= 0 {
		limit = DefaultMaxAnswer
	}
	answer, err := io.ReadAll(io.LimitReader(body, limit+1))
	if err == nil && int64(len(answer)) > limit {
		return answer[:limit], fmt.Errorf("%w: more than %d bytes", errTooLarge, limit)
	}
	return answer, err
}

// readAnswer reads {"count":…,"tokens":[…]}; a count that disagrees with the
// tokens is an error, because part of the prompt would be missing.
func readAnswer(answer []byte) ([]uint32, error) {
	s := scanner{data: answer}
	var tokens []uint32
	count := -1
	if s.peek() != '{' {
		return nil, errors.New("not a JSON object")
	}
	err := s.object(func(name []byte) error {
		switch string(name) {
		case "tokens":
			if s.peek() != '[' {
				return s.fail("tokens is not a list")
			}
			tokens = []uint32{}
			return s.array(func() error {
				id, ok := s.smallNumber()
				if !ok {
					return s.fail("token id is not in 0.." + strconv.Itoa(math.MaxUint32))
				}
				tokens = append(tokens, id)
				return nil
			})
		case "count":
			raw, err := s.skip()
			if n, nerr := strconv.Atoi(string(raw)); nerr == nil {
				count = n
			}
			return err
		default:
			return s.discard()
		}
	})
	switch {
	case err != nil:
		return nil, err
	case tokens == nil:
		return nil, errors.New("has no tokens")
	case count >= 0 && count != len(tokens):
		return nil, fmt.Errorf("count is %d, but there are %d tokens", count, len(tokens))
	}
	return tokens, s.end()
}

// complaint takes the message out of an engine's error, or the start of whatever
// it sent.
func complaint(answer []byte) string {
	const most = 300
	var e struct {
		Error struct{ Message string }
	}
	text := string(answer)
	if json.Unmarshal(answer, &e) == nil && e.Error.Message != "" {
		text = e.Error.Message
	}
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}
