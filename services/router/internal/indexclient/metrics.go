package indexclient

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts what one router asks of the indexers and tells them.
type Metrics struct {
	Connected    prometheus.Gauge
	Matches      *prometheus.CounterVec // by outcome
	MatchSeconds prometheus.Histogram
	Sent         *prometheus.CounterVec // by kind
	Dropped      *prometheus.CounterVec // by kind, reason
}

// NewMetrics registers the metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		Connected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "prefixroute_router_indexer_connected",
			Help: "1 while an indexer answers, 0 while the router goes by its own choices alone.",
		}),
		Matches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prefixroute_router_match_calls_total",
			Help: "Lookups asked of an indexer, by how they ended.",
		}, []string{"outcome"}),
		MatchSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "prefixroute_router_match_seconds",
			Help:    "Time until a lookup was answered or given up.",
			Buckets: prometheus.ExponentialBuckets(50e-6, 2, 11), // 50 us to 51 ms; the deadline is 20 ms
		}),
		Sent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prefixroute_router_report_sent_total",
			Help: "Reports sent to an indexer, by kind.",
		}, []string{"kind"}),
		Dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prefixroute_router_report_dropped_total",
			Help: "Reports that no indexer got, by kind and why.",
		}, []string{"kind", "reason"}),
	}
	for _, f := range []Failure{succeeded, Deadline, Unavailable, NoneFits, Canceled, Failed} {
		m.Matches.WithLabelValues(string(f))
	}
	for _, kind := range []string{kindCommit, kindCompletion, kindObservation} {
		m.Sent.WithLabelValues(kind)
		m.Dropped.WithLabelValues(kind, dropFull)
		m.Dropped.WithLabelValues(kind, dropNoStream)
	}
	reg.MustRegister(m.Connected, m.Matches, m.MatchSeconds, m.Sent, m.Dropped)
	return m
}
