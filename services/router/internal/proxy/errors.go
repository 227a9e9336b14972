package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/prefixroute/prefixroute/pkg/tokenize"
	"github.com/prefixroute/prefixroute/services/router/internal/fleet"
	"github.com/prefixroute/prefixroute/services/router/internal/openai"
)

// retryAfter is what a client is told while no replica answers: they are asked
// again within a second.
const retryAfter = time.Second

// RequestError is the answer to a body that cannot be a request.
func RequestError(err error) openai.Error {
	e := openai.Error{Status: http.StatusBadRequest, Type: openai.InvalidRequest, Message: err.Error()}
	if bad, ok := errors.AsType[*tokenize.RequestError](err); ok {
		e.Param = bad.Param
	}
	return e
}

// Unserved is the answer where the fleet has nobody for the model.
func Unserved(err error, model string) openai.Error {
	if errors.Is(err, fleet.ErrUnknownModel) {
		return openai.Error{
			Status: http.StatusNotFound, Type: openai.NotFound, Param: "model", Code: "model_not_found",
			Message: fmt.Sprintf("The model %q does not exist.", model),
		}
	}
	return openai.Error{
		Status: http.StatusServiceUnavailable, Type: openai.ServerError, Code: "no_replica", RetryAfter: retryAfter,
		Message: "No replica can take the request at the moment.",
	}
}

// BodyError is the answer to a body that could not be read.
func BodyError(err error) openai.Error {
	e := openai.Error{Type: openai.InvalidRequest}
	var limit *http.MaxBytesError
	switch {
	case errors.As(err, &limit):
		e.Status, e.Code = http.StatusRequestEntityTooLarge, "request_too_large"
		e.Message = fmt.Sprintf("The request's body has more than the %d bytes that this router takes.", limit.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		e.Status, e.Code = http.StatusRequestTimeout, "request_timeout"
		e.Message = "The request's body did not arrive in time."
	default:
		e.Status, e.Code = http.StatusBadRequest, "incomplete_body"
		e.Message = "The request's body could not be read."
	}
	return e
}

// failed answers where no engine did.
func (p *Proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r.Context())
	var nobody *unservedError
	var connect *connectError
	var timed interface{ Timeout() bool }
	switch {
	case r.Context().Err() != nil:
		x.outcome = outcomeCanceled
		p.metrics.Upstream.WithLabelValues(upstreamCanceled).Inc()
	case errors.As(err, &nobody):
		p.refuse(w, x, Unserved(nobody.err, nobody.model))
	case errors.Is(err, fleet.ErrUnavailable), exhausted(err):
		p.refuse(w, x, Unserved(fleet.ErrUnavailable, ""))
	case errors.As(err, &connect):
		p.metrics.Upstream.WithLabelValues(upstreamConnect).Inc()
		p.refuse(w, x, openai.Error{
			Status: http.StatusBadGateway, Type: openai.ServerError, Code: "replica_unreachable",
			Message: "No replica of the model could be reached.",
		})
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timed) && timed.Timeout():
		p.metrics.Upstream.WithLabelValues(upstreamTimeout).Inc()
		p.refuse(w, x, openai.Error{
			Status: http.StatusGatewayTimeout, Type: openai.ServerError, Code: "replica_timeout",
			Message: "The replica did not answer in time.",
		})
	default:
		p.metrics.Upstream.WithLabelValues(upstreamBroken).Inc()
		p.log.InfoContext(r.Context(), "replica broke off before its answer", "err", err)
		p.refuse(w, x, openai.Error{
			Status: http.StatusBadGateway, Type: openai.ServerError, Code: "replica_failed",
			Message: "The replica broke off before it answered.",
		})
	}
}
