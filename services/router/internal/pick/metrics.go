package pick

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The stages of a decision that are timed: label values.
const (
	stageTokenize = "tokenize"
	stageLook     = "look" // hashing and lookups
	stageScore    = "score"
)

// The verdicts on an expectation: label values.
const (
	verdictExact = "exact"
	verdictOver  = "over"  // more was promised than was cached
	verdictUnder = "under" // more was cached than was promised
)

// Metrics counts the decisions of one router and how true they were.
type Metrics struct {
	Decisions *prometheus.CounterVec   // by policy, index, reason
	Stages    *prometheus.HistogramVec // by stage
	Fallbacks *prometheus.CounterVec   // by reason

	Observations *prometheus.CounterVec // by index, verdict
	Predicted    *prometheus.CounterVec // tokens by index, as the following
	Cached       *prometheus.CounterVec
	Over         *prometheus.CounterVec
	Under        *prometheus.CounterVec
}

// NewMetrics registers the metrics with reg; policy is the name of the one in
// use.
func NewMetrics(reg prometheus.Registerer, policy string) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prefixroute_router_" + name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	m := &Metrics{
		Decisions: counter("decisions_total",
			"Requests routed by prefix, by policy, by how many candidates were precise, and why not all.", "policy", "index", "reason"),
		Fallbacks: counter("tokenizer_fallbacks_total",
			"Requests whose tokens an engine did not give, so that no candidate was precise, by why.", "reason"),
		Observations: counter("observations_total",
			"Answers that told their cached tokens, by the chosen candidate's index and whether that was expected.", "index", "verdict"),
		Predicted: counter("predicted_tokens_total", "Cached tokens that were expected of observed answers.", "index"),
		Cached:    counter("cached_tokens_total", "Cached tokens that observed answers told.", "index"),
		Over:      counter("over_tokens_total", "Tokens that were expected to be cached and were not.", "index"),
		Under:     counter("under_tokens_total", "Tokens that were cached and not expected to be.", "index"),
		Stages: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "prefixroute_router_decision_stage_seconds",
			Help:    "Time that a stage of a decision took.",
			Buckets: prometheus.ExponentialBuckets(5e-6, 2, 15), // 5 us to 82 ms
		}, []string{"stage"}),
	}
	reg.MustRegister(m.Stages)
	m.start(policy)
	return m
}

// start makes the series exist before their first count, so that a rate over
// them is right from the first event on.
func (m *Metrics) start(policy string) {
	for _, reason := range reasons() {
		switch reason {
		case ReasonNone:
			m.Decisions.WithLabelValues(policy, Precise, string(reason))
		default:
			m.Decisions.WithLabelValues(policy, Approximate, string(reason))
			m.Decisions.WithLabelValues(policy, Mixed, string(reason))
		}
	}
	for _, s := range []string{stageTokenize, stageLook, stageScore} {
		m.Stages.WithLabelValues(s)
	}
	for _, r := range []string{fallbackNobody, fallbackDeadline, fallbackStatus, fallbackError} {
		m.Fallbacks.WithLabelValues(r)
	}
	for _, index := range []string{Precise, Approximate} {
		for _, v := range []string{verdictExact, verdictOver, verdictUnder} {
			m.Observations.WithLabelValues(index, v)
		}
		for _, c := range []*prometheus.CounterVec{m.Predicted, m.Cached, m.Over, m.Under} {
			c.WithLabelValues(index)
		}
	}
}

// stage starts a clock; the returned function stops it.
func (m *Metrics) stage(name string) func() {
	started := time.Now()
	return func() { m.Stages.WithLabelValues(name).Observe(time.Since(started).Seconds()) }
}

// observe counts one answer, in tokens.
func (m *Metrics) observe(precise bool, expected, cached int) {
	index := Approximate
	if precise {
		index = Precise
	}
	verdict := verdictExact
	switch {
	case expected > cached:
		verdict = verdictOver
		m.Over.WithLabelValues(index).Add(float64(expected - cached))
	case expected < cached:
		verdict = verdictUnder
		m.Under.WithLabelValues(index).Add(float64(cached - expected))
	}
	m.Observations.WithLabelValues(index, verdict).Inc()
	m.Predicted.WithLabelValues(index).Add(float64(expected))
	m.Cached.WithLabelValues(index).Add(float64(cached))
}
