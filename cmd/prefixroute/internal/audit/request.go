package audit

import (
	"encoding/json"
	"time"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/recording"
)

// A request is one recorded completion or chat, with its answer.
type request struct {
	line       int
	note       string
	sent, done time.Duration
	cached     int // tokens that the engine says it reused

	// prompts has the token ids of each prompt of a batch, usually one; nil if
	// the recording doesn't have them. answers has the generated ones of each
	// choice, where they are known.
	prompts [][]uint32
	answers [][]uint32

	extra   hashing.Extra // LoRA and salt
	choices int           // n
	reports bool          // asked for kv_cache_report_mode "full"
}

// Why requests are not compared.
const (
	skipNoTokens   = "token ids not recorded"
	skipNoUsage    = "no usage reported"
	skipNoLookup   = "skips the cache"
	skipMultimodal = "multimodal"
	skipOtherAPI   = "other API"
)

// body is what the audit reads of a request.
type body struct {
	Model    string          `json:"model"`
	Prompt   json.RawMessage `json:"prompt"`
	Messages []struct {
		Content json.RawMessage `json:"content"`
	} `json:"messages"`
	Salt           string          `json:"cache_salt"`
	N              int             `json:"n"`
	Echo           bool            `json:"echo"`
	Logprobs       json.RawMessage `json:"logprobs"`
	PromptLogprobs json.RawMessage `json:"prompt_logprobs"`
	Args           map[string]any  `json:"vllm_xargs"`
}

// answer is what the audit reads of a response.
type answer struct {
	PromptTokenIDs []uint32 `json:"prompt_token_ids"`
	Choices        []struct {
		PromptTokenIDs []uint32 `json:"prompt_token_ids"`
		TokenIDs       []uint32 `json:"token_ids"`
	} `json:"choices"`
	Usage *struct {
		Details *struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

// parseRequest reads a request that the engine served. skip says why it can't be
// compared; it then still counts as one that was in flight.
func parseRequest(rec *recording.Record, base string) (q *request, skip string) {
	h := rec.HTTP
	q = &request{line: rec.Line, note: h.Note, sent: rec.Time - h.Duration - clockMargin, done: rec.Time, choices: 1}
	if h.Path != "/v1/completions" && h.Path != "/v1/chat/completions" {
		return q, skipOtherAPI
	}
	var in body
	if json.Unmarshal(h.Request, &in) != nil {
		return q, skipNoTokens
	}
	q.choices = max(1, in.N)
	q.reports = in.Args["kv_cache_report_mode"] == "full"
	q.extra.Salt = in.Salt
	if in.Model != "" && in.Model != base {
		q.extra.LoRA = in.Model
	}
	var out answer
	if h.Response == nil || json.Unmarshal(h.Response, &out) != nil {
		return q, skipNoTokens // a stream
	}
	q.prompts, q.answers = tokens(&in, &out)
	switch {
	case len(q.prompts) == 0 || len(q.prompts[0]) == 0:
		return q, skipNoTokens
	case multimodal(&in):
		q.prompts = nil // the token ids are not all of the content
		return q, skipMultimodal
	case present(in.PromptLogprobs) || in.Echo && present(in.Logprobs):
		return q, skipNoLookup
	case out.Usage == nil:
		return q, skipNoUsage
	}
	if d := out.Usage.Details; d != nil { // older releases leave a zero out
		q.cached = d.Cached
	}
	return q, ""
}

// tokens finds the token ids of the prompts and the answers: those that the
// engine names, or else those that the client sent.
func tokens(in *body, out *answer) (prompts, answers [][]uint32) {
	for _, c := range out.Choices {
		if c.TokenIDs != nil {
			answers = append(answers, c.TokenIDs)
		}
	}
	var one []uint32
	var many [][]uint32
	switch {
	case json.Unmarshal(in.Prompt, &many) == nil && len(many) > 0:
		return many, answers
	case out.PromptTokenIDs != nil:
		return [][]uint32{out.PromptTokenIDs}, answers
	case len(out.Choices) > 0 && out.Choices[0].PromptTokenIDs != nil:
		return [][]uint32{out.Choices[0].PromptTokenIDs}, answers
	case json.Unmarshal(in.Prompt, &one) == nil && len(one) > 0:
		return [][]uint32{one}, answers
	default:
		return nil, answers
	}
}

// multimodal reports whether a message has parts that are not text.
func multimodal(in *body) bool {
	for _, m := range in.Messages {
		var parts []struct {
			Type string `json:"type"`
		}
		if json.Unmarshal(m.Content, &parts) != nil {
			continue
		}
		for _, p := range parts {
			if p.Type != "text" {
				return true
			}
		}
	}
	return false
}

// present reports whether an optional field was set to something: 0 is something,
// false and null are not.
func present(raw json.RawMessage) bool {
	s := string(raw)
	return s != "" && s != "null" && s != "false"
}
