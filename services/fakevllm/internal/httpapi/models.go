package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/prefixroute/prefixroute/pkg/tokenize"
)

type (
	modelList struct {
		Object string      `json:"object"`
		Data   []modelCard `json:"data"`
	}
	modelCard struct {
		ID          string            `json:"id"`
		Object      string            `json:"object"`
		Created     int64             `json:"created"`
		OwnedBy     string            `json:"owned_by"`
		Root        string            `json:"root"`
		Parent      *string           `json:"parent"`
		MaxModelLen *int              `json:"max_model_len"`
		Permission  []modelPermission `json:"permission"`
	}
	modelPermission struct {
		ID                 string `json:"id"`
		Object             string `json:"object"`
		Created            int64  `json:"created"`
		AllowCreateEngine  bool   `json:"allow_create_engine"`
		AllowSampling      bool   `json:"allow_sampling"`
		AllowLogprobs      bool   `json:"allow_logprobs"`
		AllowSearchIndices bool   `json:"allow_search_indices"`
		AllowView          bool   `json:"allow_view"`
		AllowFineTuning    bool   `json:"allow_fine_tuning"`
		Organization       string `json:"organization"`
		Group              null   `json:"group"`
		IsBlocking         bool   `json:"is_blocking"`
	}
)

// models lists the model, and the adapters as its children.
func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	list := modelList{Object: "list"}
	base := s.card(s.cfg.Model, s.cfg.Model)
	base.MaxModelLen = &s.cfg.MaxModelLen
	list.Data = append(list.Data, base)
	for _, a := range s.cfg.Adapters {
		card := s.card(a.Name, a.Path)
		card.Parent = &s.cfg.Model
		list.Data = append(list.Data, card)
	}
	s.json(w, http.StatusOK, list)
}

func (s *Server) card(id, root string) modelCard {
	return modelCard{
		ID: id, Object: "model", Created: s.started, OwnedBy: "vllm", Root: root,
		Permission: []modelPermission{{
			ID: "modelperm-" + id, Object: "model_permission", Created: s.started,
			AllowSampling: true, AllowLogprobs: true, AllowView: true, Organization: "*",
		}},
	}
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request) {
	s.json(w, http.StatusOK, struct {
		Version string `json:"version"`
	}{Release})
}

// health is an empty 200 while the process lives.
func (s *Server) health(http.ResponseWriter, *http.Request) {}

// load tells how many completions and chats are being answered.
func (s *Server) load(w http.ResponseWriter, _ *http.Request) {
	s.json(w, http.StatusOK, struct {
		ServerLoad int64 `json:"server_load"`
	}{s.open.Load()})
}

type tokenizeAnswer struct {
	Count        int      `json:"count"`
	MaxModelLen  int      `json:"max_model_len"`
	Tokens       []uint32 `json:"tokens"`
	TokenStrings null     `json:"token_strs"`
}

// tokenize answers POST /tokenize, whose body is that of a completion or a chat.
func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.fail(w, fmt.Errorf("read body: %w", err))
		return
	}
	req, err := s.prompt(body)
	if err != nil {
		s.fail(w, err)
		return
	}
	if _, ok := s.content(req.Model, ""); !ok {
		s.fail(w, s.unknownModel(req.Model))
		return
	}
	lists, err := tokenize.Lesson{}.Tokens(r.Context(), req)
	if err != nil {
		s.fail(w, err)
		return
	}
	if len(lists) != 1 {
		s.fail(w, badRequest("prompt", fmt.Sprintf("prompt holds %d prompts, expected one text", len(lists))))
		return
	}
	s.json(w, http.StatusOK, tokenizeAnswer{Count: len(lists[0]), MaxModelLen: s.cfg.MaxModelLen, Tokens: append([]uint32{}, lists[0]...)})
}

// prompt reads a body that has a prompt or messages and need not name a model.
func (s *Server) prompt(body []byte) (tokenize.Request, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(bytes.TrimPrefix(body, []byte("\ufeff")), &members); err != nil {
		return tokenize.Request{}, invalid(err)
	}
	if _, ok := members["model"]; !ok && members != nil {
		name, err := json.Marshal(s.cfg.Model)
		if err != nil {
			return tokenize.Request{}, err
		}
		members["model"] = name
		if body, err = json.Marshal(members); err != nil {
			return tokenize.Request{}, err
		}
	}
	if _, ok := members["messages"]; ok {
		return tokenize.ParseChat(body)
	}
	return tokenize.ParseCompletion(body)
}
