package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/prefixroute/prefixroute/pkg/scoring"
	"github.com/prefixroute/prefixroute/pkg/tokenize"
	"github.com/prefixroute/prefixroute/services/router/internal/pick"
	"github.com/prefixroute/prefixroute/services/router/internal/proxy"
)

// explainDoc is the answer of /prefixroute/explain: the decision that the
// request would get now.
type explainDoc struct {
	Tokens int    `json:"tokens"`
	Blocks int    `json:"blocks"` // of the chosen candidate's index
	Index  string `json:"index"`
	Reason string `json:"reason"` // why not precise
	Policy string `json:"policy"`

	Candidates []candidateDoc `json:"candidates"`
	Chosen     string         `json:"chosen"`
}

type candidateDoc struct {
	Replica   string                  `json:"replica"`
	Matched   int                     `json:"matched"`
	Total     int                     `json:"total"`
	BlockSize int                     `json:"block_size"`
	Index     string                  `json:"index"`
	Reason    string                  `json:"reason"`
	Terms     map[string]scoring.Term `json:"terms"`
	Sum       float64                 `json:"sum"`
}

// explain decides a request without sending it, by the code that decides.
func (a *App) explain(w http.ResponseWriter, r *http.Request) {
	body, err := proxy.ReadBody(w, r, a.cfg.MaxBodyBytes)
	if err != nil {
		proxy.BodyError(err).Write(w)
		return
	}
	req, err := parseEither(body)
	if err != nil {
		proxy.RequestError(err).Write(w)
		return
	}
	view, err := a.picker.Look(r.Context(), a.picker.Prepare(r.Context(), req))
	if err != nil {
		proxy.Unserved(err, req.Model).Write(w)
		return
	}
	writeJSON(w, document(a.picker.Explain(view)))
}

// parseEither reads the body of whichever endpoint it is for: one has messages,
// the other a prompt.
func parseEither(body []byte) (tokenize.Request, error) {
	var members struct {
		Messages json.RawMessage `json:"messages"`
	}
	err := json.Unmarshal(bytes.TrimPrefix(body, []byte("\ufeff")), &members)
	if err == nil && members.Messages != nil {
		return tokenize.ParseChat(body)
	}
	req, err := tokenize.ParseCompletion(body)
	var bad *tokenize.RequestError
	if errors.As(err, &bad) && bad.Param == "prompt" {
		err = &tokenize.RequestError{Message: "the body has neither messages nor a prompt: " + bad.Error()}
	}
	return req, err
}

func document(d *pick.Decision) explainDoc {
	chosen := d.Chosen()
	doc := explainDoc{
		Tokens: d.View.Prompt.Tokens(), Blocks: chosen.Total, Index: d.View.Index, Reason: string(d.View.Reason),
		Policy: d.Policy, Chosen: chosen.Name,
	}
	for i := range d.View.Candidates {
		c := &d.View.Candidates[i]
		index := pick.Approximate
		if c.Precise {
			index = pick.Precise
		}
		doc.Candidates = append(doc.Candidates, candidateDoc{
			Replica: c.Name, Matched: c.Matched, Total: c.Total, BlockSize: c.BlockSize, Index: index, Reason: string(c.Reason),
			Terms: d.Scores.Explain(i), Sum: d.Scores.Sums[i],
		})
	}
	return doc
}
