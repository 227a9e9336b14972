package httpapi

import "github.com/prefixroute/prefixroute/services/fakevllm/internal/engine"

const assistant = "assistant"

// chatForm writes the answers of /v1/chat/completions.
type chatForm struct{ head }

func (f chatForm) whole(c *call, p *progress) any {
	answer := chatAnswer{
		ID: f.id, Object: f.object, Created: f.created, Model: f.model,
		answerTail: answerTail{SystemFingerprint: fingerprint, Usage: *p.detailed()},
	}
	answer.chatPrompt = &chatPrompt{PromptTokenIDs: c.ids(c.promptOf(0))}
	for i := range p.answers {
		a := &p.answers[i]
		answer.Choices = append(answer.Choices, chatChoice{
			Index:        i,
			Message:      chatMessage{Role: assistant, Content: a.text.String()},
			FinishReason: finishReason(a.finish),
			TokenIDs:     c.ids(a.ids),
		})
	}
	return answer
}

// opening is one chunk for each answer, with the role and no text.
func (f chatForm) opening(c *call, p *progress) []any {
	var chunks []any
	for i := range p.answers {
		chunk := f.newChunk(chatChunkChoice{Index: i, Delta: chatDelta{Role: assistant}}, nil)
		chunk.chatChunkPrompt = &chatChunkPrompt{PromptTokenIDs: c.ids(c.promptOf(i))}
		chunks = append(chunks, chunk)
	}
	return chunks
}

func (f chatForm) chunk(c *call, _ *progress, t engine.Token, u *usage) any {
	choice := chatChunkChoice{
		Index:           t.Index,
		Delta:           chatDelta{Content: t.Text},
		FinishReason:    finishReason(t.Finish),
		chatChunkTokens: &chatChunkTokens{TokenIDs: c.ids([]uint32{t.ID})},
	}
	if choice.FinishReason != nil {
		choice.StopReason = &null{}
	}
	return f.newChunk(choice, u)
}

func (f chatForm) newChunk(choice chatChunkChoice, u *usage) chatChunk {
	return chatChunk{
		ID: f.id, Object: f.object, Created: f.created, Model: f.model,
		Choices: []chatChunkChoice{choice},
		Usage:   u,
	}
}

func (f chatForm) closing(u *usage) any {
	return chatChunk{
		ID: f.id, Object: f.object, Created: f.created, Model: f.model,
		Choices:           []chatChunkChoice{},
		Usage:             u,
		SystemFingerprint: fingerprint,
	}
}
