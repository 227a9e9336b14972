package proxy

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// The routes: label values.
const (
	routeChat        = "chat"
	routeCompletions = "completions"
	routeModels      = "models"
	routeForwarded   = "forwarded"
	routeUnknown     = "unknown"
)

// How a request ended, beside the class of its status: label values.
const (
	outcomeCanceled = "canceled" // by the client
	outcomeAborted  = "aborted"  // the engine broke off its answer
)

// What went wrong with an engine: label values.
const (
	upstreamConnect  = "connect"  // no connection to any replica
	upstreamTimeout  = "timeout"  // no headers in time
	upstreamBroken   = "broken"   // the connection broke
	upstreamCanceled = "canceled" // the client left before the headers
)

// Metrics counts what one proxy does.
type Metrics struct {
	Requests     *prometheus.CounterVec // by route, code
	Retries      prometheus.Counter
	Upstream     *prometheus.CounterVec // by reason
	StreamErrors prometheus.Counter
	FirstByte    prometheus.Histogram
}

// NewMetrics registers the metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		Requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prefixroute_router_requests_total",
			Help: "Requests of clients, by route and by the class of the answer's status or how else they ended.",
		}, []string{"route", "code"}),
		Retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "prefixroute_router_retries_total",
			Help: "Requests that a replica did not take or broke off before its answer; each goes to another one if there is one.",
		}),
		Upstream: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prefixroute_router_upstream_errors_total",
			Help: "Requests that got no answer, or not all of it, by why.",
		}, []string{"reason"}),
		StreamErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "prefixroute_router_stream_errors_total",
			Help: "Streams with status 200 in which the engine sent an error.",
		}),
		FirstByte: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "prefixroute_router_first_byte_seconds",
			Help:    "Time from a request's arrival to the engine's headers.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 17), // 1 ms to 66 s
		}),
	}
	for _, r := range []string{upstreamConnect, upstreamTimeout, upstreamBroken, upstreamCanceled} {
		m.Upstream.WithLabelValues(r)
	}
	reg.MustRegister(m.Requests, m.Retries, m.Upstream, m.StreamErrors, m.FirstByte)
	return m
}

// class is the label value of a status.
func class(status int) string {
	return strconv.Itoa(status/100) + "xx"
}
