package proxy

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/prefixroute/prefixroute/services/router/internal/fleet"
	"github.com/prefixroute/prefixroute/services/router/internal/openai"
)

// models answers with every model that some replica serves, each entry as its
// engine sent it.
func (p *Proxy) models(w http.ResponseWriter, r *http.Request) {
	x := &exchange{route: routeModels, started: time.Now()}
	defer p.end(r, x)
	all := p.fleet.Models()
	if len(all) == 0 {
		p.refuse(w, x, Unserved(fleet.ErrUnavailable, ""))
		return
	}
	list := struct {
		Object string            `json:"object"`
		Data   []json.RawMessage `json:"data"`
	}{Object: "list"}
	for _, m := range all {
		if m.Raw == nil { // named by the operator, not by the engine yet
			m.Raw, _ = json.Marshal(map[string]any{"id": m.ID, "object": "model", "owned_by": "prefixroute"})
		}
		list.Data = append(list.Data, m.Raw)
	}
	text, err := json.Marshal(list)
	if err != nil {
		p.refuse(w, x, openai.Error{Status: http.StatusInternalServerError, Type: openai.ServerError, Message: "The list of models cannot be written."})
		return
	}
	x.outcome, x.complete = class(http.StatusOK), true
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text) // the client is gone if it fails
}
