package store

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts what the writer does. There is no replica label.
type Metrics struct {
	Writes     *prometheus.CounterVec // by result
	Whole      prometheus.Counter
	Records    prometheus.Counter
	Seconds    prometheus.Histogram
	Pending    prometheus.Gauge
	Up         prometheus.Gauge
	WarmStarts *prometheus.CounterVec // by result
}

const resultFailed = "failed"

// Results of a warm start.
const (
	warmRestored = "restored" // set and position taken over
	warmEmpty    = "empty"    // there is no copy
	warmForeign  = "foreign"  // a copy of another model or key scheme
	warmBroken   = "broken"   // a copy that cannot be read or contradicts itself
	warmFailed   = "failed"   // Redis did not answer
)

// NewMetrics registers the metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		Writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prefixroute_indexer_store_writes_total",
			Help: "Writes of replicas' durable copies, by result; a mismatch is followed by a whole write.",
		}, []string{"result"}),
		Whole: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "prefixroute_indexer_store_whole_writes_total",
			Help: "Writes that replaced a replica's whole durable copy.",
		}),
		Records: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "prefixroute_indexer_store_records_total",
			Help: "Records of blocks set or deleted in durable copies.",
		}),
		Seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "prefixroute_indexer_store_write_seconds",
			Help:    "Time that one write of a durable copy took.",
			Buckets: []float64{.0002, .0005, .001, .002, .005, .01, .02, .05, .1, .25, .5, 1, 2},
		}),
		Pending: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "prefixroute_indexer_store_pending_replicas",
			Help: "Replicas whose durable copy is behind the memory.",
		}),
		Up: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "prefixroute_indexer_store_up",
			Help: "1 if the last write to the durable store was answered, else 0.",
		}),
		WarmStarts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prefixroute_indexer_warm_starts_total",
			Help: "Replicas at the start, by what the durable copy gave.",
		}, []string{"result"}),
	}
	for _, v := range []verdict{written, repeated, mismatch, fenced} {
		m.Writes.WithLabelValues(v.String())
	}
	m.Writes.WithLabelValues(resultFailed)
	for _, r := range []string{warmRestored, warmEmpty, warmForeign, warmBroken, warmFailed} {
		m.WarmStarts.WithLabelValues(r)
	}
	reg.MustRegister(m.Writes, m.Whole, m.Records, m.Seconds, m.Pending, m.Up, m.WarmStarts)
	return m
}
