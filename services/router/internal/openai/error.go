// Package openai is what the router has to know of the API it stands in for,
// beside the prompt: the form of its errors, and where answers tell how many
// prompt tokens were cached.
package openai

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// The types of errors that clients tell apart.
const (
	InvalidRequest = "invalid_request_error"
	NotFound       = "not_found_error"
	ServerError    = "server_error"
)

// Error is an answer of the router's own that is not a success.
type Error struct {
	Status  int // HTTP status
	Type    string
	Message string // a sentence for the client
	Param   string // the request's field at fault; empty: none
	Code    string // what happened, for programs
	// RetryAfter, if positive, says when it may be worth trying again; it is
	// rounded up to seconds.
	RetryAfter time.Duration
}

// Write answers with e in the API's form.
func (e Error) Write(w http.ResponseWriter) {
	var body struct {
		Error struct {
			Message string  `json:"message"`
			Type    string  `json:"type"`
			Param   *string `json:"param"`
			Code    *string `json:"code"`
		} `json:"error"`
	}
	body.Error.Message, body.Error.Type = e.Message, e.Type
	if e.Param != "" {
		body.Error.Param = &e.Param
	}
	if e.Code != "" {
		body.Error.Code = &e.Code
	}
	text, err := json.Marshal(body)
	if err != nil { // strings always marshal
		text = []byte(`{"error":{"message":"internal error","type":"server_error","param":null,"code":null}}`)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int((e.RetryAfter+time.Second-1)/time.Second)))
	}
	w.WriteHeader(e.Status)
	_, _ = w.Write(text) // the client is gone if it fails
}
