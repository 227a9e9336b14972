package grpcapi

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts what the API serves.
type Metrics struct {
	Matches           *prometheus.CounterVec // by result
	MatchSeconds      prometheus.Histogram
	IgnoredCandidates prometheus.Counter
	Reports           *prometheus.CounterVec // by kind and result
	Reporters         prometheus.Gauge
	Watchers          prometheus.Gauge
}

// Results of a look-up.
const (
	matchOK           = "ok"
	matchInvalid      = "invalid"
	matchIncompatible = "incompatible"
	matchNotReady     = "not_ready"
)

// Kinds and results of a report.
const (
	kindCommit      = "commit"
	kindCompletion  = "completion"
	kindObservation = "observation"
	kindNone        = "none"

	resultAccepted = "accepted"
	resultRejected = "rejected"
)

func matchResult(err error) string {
	if err == nil {
		return matchOK
	}
	if _, ok := errors.AsType[*argumentError](err); ok {
		return matchInvalid
	}
	if _, ok := errors.AsType[*incompatibleError](err); ok {
		return matchIncompatible
	}
	return matchNotReady
}

// NewMetrics registers the metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		Matches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prefixroute_indexer_matches_total",
			Help: "Look-ups, by result.",
		}, []string{"result"}),
		MatchSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "prefixroute_indexer_match_seconds",
			Help:    "Time that one look-up took, without the wire.",
			Buckets: []float64{.00001, .00002, .00005, .0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1},
		}),
		IgnoredCandidates: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "prefixroute_indexer_match_ignored_candidates_total",
			Help: "Candidates of look-ups that the indexer does not follow, or that serve another model.",
		}),
		Reports: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prefixroute_indexer_reports_total",
			Help: "Reports of routers, by kind and result.",
		}, []string{"kind", "result"}),
		Reporters: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "prefixroute_indexer_report_streams",
			Help: "Routers that report now.",
		}),
		Watchers: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "prefixroute_indexer_watch_streams",
			Help: "Clients that watch the replicas now.",
		}),
	}
	for _, r := range []string{matchOK, matchInvalid, matchIncompatible, matchNotReady} {
		m.Matches.WithLabelValues(r)
	}
	for _, k := range []string{kindCommit, kindCompletion, kindObservation, kindNone} {
		m.Reports.WithLabelValues(k, resultAccepted)
		m.Reports.WithLabelValues(k, resultRejected)
	}
	reg.MustRegister(m.Matches, m.MatchSeconds, m.IgnoredCandidates, m.Reports, m.Reporters, m.Watchers)
	return m
}
