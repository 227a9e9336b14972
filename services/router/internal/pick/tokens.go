package pick

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/prefixroute/prefixroute/pkg/tokenize"
	"github.com/prefixroute/prefixroute/services/router/internal/fleet"
)

// EngineTokenizer asks the engines themselves for the tokens of a prompt: the
// only tokens that make a precise match right for an engine with a tokenizer of
// its own.
type EngineTokenizer struct {
	HTTP     *http.Client
	Deadline time.Duration // for the tokens of one request
}

// errNobody is a fleet without a replica to ask.
var errNobody = errors.New("no replica to ask")

// tokens asks the replica of the model that has the fewest requests in flight.
func (t *EngineTokenizer) tokens(ctx context.Context, members Fleet, r tokenize.Request) ([][]uint32, error) {
	able, err := members.Serving(r.Model)
	if err != nil {
		return nil, errors.Join(errNobody, err)
	}
	ask := able[0]
	for _, m := range able[1:] {
		if less(m, ask) {
			ask = m
		}
	}
	ctx, cancel := context.WithTimeout(ctx, t.Deadline)
	defer cancel()
	client := tokenize.Client{URL: ask.URL.String(), HTTP: t.HTTP, MaxPrompts: maxPrompts}
	return client.Tokens(ctx, r)
}

func less(a, b fleet.Member) bool { return a.Load.InFlight < b.Load.InFlight }

// The label values of tokenizer fallbacks.
const (
	fallbackNobody   = "no_replica"
	fallbackDeadline = "deadline"
	fallbackStatus   = "status"
	fallbackError    = "error"
)

func fallbackOf(err error) string {
	var status *tokenize.StatusError
	switch {
	case errors.Is(err, errNobody):
		return fallbackNobody
	case errors.Is(err, context.DeadlineExceeded):
		return fallbackDeadline
	case errors.As(err, &status):
		return fallbackStatus
	default:
		return fallbackError
	}
}
