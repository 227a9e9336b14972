package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/prefixroute/prefixroute/pkg/tokenize"
	"github.com/prefixroute/prefixroute/services/fakevllm/internal/engine"
)

// An apiError is an answer other than success, in vLLM's OpenAI shape.
type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

func (e *apiError) Error() string { return e.Message }

func badRequest(param, message string) *apiError {
	e := &apiError{Message: message, Type: "BadRequestError", Code: http.StatusBadRequest}
	if param != "" {
		e.Param = &param
	}
	return e
}

// valueError is vLLM's refusal of one parameter's value.
func valueError(param string, value any, message string) *apiError {
	return badRequest(param, fmt.Sprintf("%s (parameter=%s, value=%v)", message, param, value))
}

func (s *Server) unknownModel(model string) *apiError {
	names := []string{s.cfg.Model}
	for _, a := range s.cfg.Adapters {
		names = append(names, a.Name)
	}
	param := "model"
	return &apiError{
		Message: fmt.Sprintf("The model `%s` does not exist. Valid aliases: %s.", model, strings.Join(names, ", ")),
		Type:    "NotFoundError",
		Param:   &param,
		Code:    http.StatusNotFound,
	}
}

// fail answers err. The request's own faults are 4xx; an engine that can't take
// it is 503, which tells a router to look elsewhere.
func (s *Server) fail(w http.ResponseWriter, err error) {
	var api *apiError
	var request *tokenize.RequestError
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &api):
	case errors.As(err, &request):
		api = badRequest(request.Param, request.Message)
	case errors.As(err, &tooLarge):
		api = &apiError{
			Message: fmt.Sprintf("The body has more than %d bytes.", tooLarge.Limit),
			Type:    "BadRequestError",
			Code:    http.StatusRequestEntityTooLarge,
		}
	case errors.Is(err, engine.ErrQueueFull), errors.Is(err, engine.ErrStopped):
		api = &apiError{Message: err.Error(), Type: "ServiceUnavailableError", Code: http.StatusServiceUnavailable}
	default:
		api = &apiError{Message: err.Error(), Type: "InternalServerError", Code: http.StatusInternalServerError}
	}
	s.json(w, api.Code, struct {
		Error *apiError `json:"error"`
	}{api})
}
