package httpapi

import "github.com/prefixroute/prefixroute/services/fakevllm/internal/engine"

// completionForm writes the answers of /v1/completions.
type completionForm struct{ head }

func (f completionForm) whole(c *call, p *progress) any {
	answer := completionAnswer{
		ID: f.id, Object: f.object, Created: f.created, Model: f.model,
		answerTail: answerTail{SystemFingerprint: fingerprint, Usage: *p.detailed()},
	}
	for i := range p.answers {
		a := &p.answers[i]
		answer.Choices = append(answer.Choices, completionChoice{
			Index:          i,
			Text:           f.echo(c, i) + a.text.String(),
			FinishReason:   finishReason(a.finish),
			TokenIDs:       c.ids(a.ids),
			PromptTokenIDs: c.ids(c.promptOf(i)),
		})
	}
	return answer
}

// echo is the prompt's text in front of the answer's. Token ids have none.
func (f completionForm) echo(c *call, i int) string {
	if !c.Echo {
		return ""
	}
	return c.Prompts[i/c.samples].Text
}

func (completionForm) opening(*call, *progress) []any { return nil }

func (f completionForm) chunk(c *call, p *progress, t engine.Token, u *usage) any {
	choice := completionChunkChoice{
		Index:        t.Index,
		Text:         t.Text,
		FinishReason: finishReason(t.Finish),
		TokenIDs:     c.ids([]uint32{t.ID}),
	}
	if len(p.answers[t.Index].ids) == 1 {
		choice.Text = f.echo(c, t.Index) + t.Text
		choice.PromptTokenIDs = c.ids(c.promptOf(t.Index))
	}
	return completionChunk{
		ID: f.id, Object: f.object, Created: f.created, Model: f.model,
		Choices: []completionChunkChoice{choice},
		Usage:   u,
	}
}

func (f completionForm) closing(u *usage) any {
	return completionChunk{
		ID: f.id, Object: f.object, Created: f.created, Model: f.model,
		Choices:           []completionChunkChoice{},
		Usage:             u,
		SystemFingerprint: fingerprint,
	}
}
