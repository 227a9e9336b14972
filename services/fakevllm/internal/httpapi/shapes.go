package httpapi

import "encoding/json"

// The answers of /v1/completions and /v1/chat/completions, with vLLM's fields in
// vLLM's order. A field of type null exists only to be null.
type null struct{}

// MarshalJSON implements [json.Marshaler].
func (null) MarshalJSON() ([]byte, error) { return []byte("null"), nil }

type (
	completionAnswer struct {
		ID      string             `json:"id"`
		Object  string             `json:"object"`
		Created int64              `json:"created"`
		Model   string             `json:"model"`
		Choices []completionChoice `json:"choices"`
		answerTail
	}
	completionChoice struct {
		Index          int      `json:"index"`
		Text           string   `json:"text"`
		Logprobs       null     `json:"logprobs"`
		FinishReason   *string  `json:"finish_reason"`
		StopReason     null     `json:"stop_reason"`
		TokenIDs       []uint32 `json:"token_ids"`
		PromptLogprobs null     `json:"prompt_logprobs"`
		PromptTokenIDs []uint32 `json:"prompt_token_ids"`
		RoutedExperts  null     `json:"routed_experts"`
	}
	answerTail struct {
		ServiceTier       null   `json:"service_tier"`
		SystemFingerprint string `json:"system_fingerprint"`
		Usage             usage  `json:"usage"`
		chatTail
		KVTransferParams null `json:"kv_transfer_params"`
		ECTransferParams null `json:"ec_transfer_params"`
		Metrics          null `json:"metrics"`
	}
	// chatTail is what only chat answers have; a nil pointer leaves it out.
	chatTail struct {
		*chatPrompt
	}
	chatPrompt struct {
		PromptLogprobs null     `json:"prompt_logprobs"`
		PromptTokenIDs []uint32 `json:"prompt_token_ids"`
		PromptText     null     `json:"prompt_text"`
	}

	chatAnswer struct {
		ID      string       `json:"id"`
		Object  string       `json:"object"`
		Created int64        `json:"created"`
		Model   string       `json:"model"`
		Choices []chatChoice `json:"choices"`
		answerTail
	}
	chatChoice struct {
		Index         int         `json:"index"`
		Message       chatMessage `json:"message"`
		Logprobs      null        `json:"logprobs"`
		FinishReason  *string     `json:"finish_reason"`
		StopReason    null        `json:"stop_reason"`
		TokenIDs      []uint32    `json:"token_ids"`
		RoutedExperts null        `json:"routed_experts"`
	}
	chatMessage struct {
		Role         string `json:"role"`
		Content      string `json:"content"`
		Refusal      null   `json:"refusal"`
		Annotations  null   `json:"annotations"`
		Audio        null   `json:"audio"`
		FunctionCall null   `json:"function_call"`
		Reasoning    null   `json:"reasoning"`
	}
)

// usage counts tokens. Details are left out where vLLM leaves them out, which is
// in every chunk of a stream but the last.
type usage struct {
	PromptTokens     int            `json:"prompt_tokens"`
	TotalTokens      int            `json:"total_tokens"`
	CompletionTokens int            `json:"completion_tokens"`
	PromptDetails    *promptDetails `json:"prompt_tokens_details,omitempty"`
	CompletionDetail *null          `json:"completion_tokens_details,omitempty"`
}

// promptDetails of a complete answer; streams leave out what is null.
type promptDetails struct {
	CachedTokens     int  `json:"cached_tokens"`
	CreatedTokens    *int `json:"created_cache_tokens"` // chats only
	MultimodalTokens null `json:"multimodal_tokens"`

	inStream bool
}

// MarshalJSON implements [json.Marshaler].
func (d *promptDetails) MarshalJSON() ([]byte, error) {
	if d.inStream {
		return json.Marshal(struct {
			CachedTokens  int  `json:"cached_tokens"`
			CreatedTokens *int `json:"created_cache_tokens,omitempty"`
		}{d.CachedTokens, d.CreatedTokens})
	}
	type plain promptDetails
	return json.Marshal((*plain)(d))
}

type (
	completionChunk struct {
		ID                string                  `json:"id"`
		Object            string                  `json:"object"`
		Created           int64                   `json:"created"`
		Model             string                  `json:"model"`
		Choices           []completionChunkChoice `json:"choices"`
		Usage             *usage                  `json:"usage,omitempty"`
		SystemFingerprint string                  `json:"system_fingerprint,omitempty"`
	}
	completionChunkChoice struct {
		Index          int      `json:"index"`
		Text           string   `json:"text"`
		Logprobs       null     `json:"logprobs"`
		FinishReason   *string  `json:"finish_reason"`
		StopReason     null     `json:"stop_reason"`
		PromptTokenIDs []uint32 `json:"prompt_token_ids"`
		TokenIDs       []uint32 `json:"token_ids"`
	}

	chatChunk struct {
		ID      string            `json:"id"`
		Object  string            `json:"object"`
		Created int64             `json:"created"`
		Model   string            `json:"model"`
		Choices []chatChunkChoice `json:"choices"`
		Usage   *usage            `json:"usage,omitempty"`
		*chatChunkPrompt
		SystemFingerprint string `json:"system_fingerprint,omitempty"`
	}
	// chatChunkPrompt is in the first chunks only, which carry the role.
	chatChunkPrompt struct {
		PromptTokenIDs []uint32 `json:"prompt_token_ids"`
		PromptText     null     `json:"prompt_text"`
	}
	chatChunkChoice struct {
		Index        int       `json:"index"`
		Delta        chatDelta `json:"delta"`
		Logprobs     null      `json:"logprobs"`
		FinishReason *string   `json:"finish_reason"`
		StopReason   *null     `json:"stop_reason,omitempty"` // with a finish reason
		*chatChunkTokens
	}
	chatChunkTokens struct {
		TokenIDs []uint32 `json:"token_ids"`
	}
	chatDelta struct {
		Role    string `json:"role,omitempty"`
		Content string `json:"content"`
	}
)
