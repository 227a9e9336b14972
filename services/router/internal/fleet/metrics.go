package fleet

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts what the polls of one router end in.
type Metrics struct {
	Scrapes *prometheus.CounterVec // by outcome
}

// NewMetrics registers the metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		Scrapes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prefixroute_router_scrapes_total",
			Help: "Looks at the engines' /metrics and /v1/models, by how they ended.",
		}, []string{"outcome"}),
	}
	for _, o := range []outcome{answered, refused, noAnswer, broken, wrongStatus, unreadable} {
		m.Scrapes.WithLabelValues(string(o))
	}
	reg.MustRegister(m.Scrapes)
	return m
}

// collector shows the live state of each replica, so that no series outlives its
// replica.
type collector struct {
	fleet                          *Fleet
	up, inFlight, waiting, kvUsage *prometheus.Desc
}

// Collector returns the replicas' gauges.
func (f *Fleet) Collector() prometheus.Collector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("prefixroute_router_replica_"+name, help, []string{"replica"}, nil)
	}
	return &collector{
		fleet:    f,
		up:       desc("up", "1 while the replica answers, 0 while it gets no requests."),
		inFlight: desc("in_flight", "Requests that this router has in flight to the replica."),
		waiting:  desc("waiting", "Waiting requests by the engine's own metrics; absent while unknown."),
		kvUsage:  desc("kv_usage", "Share of cache blocks in use by the engine's own metrics; absent while unknown."),
	}
}

// Describe implements [prometheus.Collector].
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.up, c.inFlight, c.waiting, c.kvUsage} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, replica string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, replica)
	}
	for _, s := range c.fleet.Status() {
		up := 0.0
		if s.Reachable {
			up = 1
		}
		gauge(c.up, up, s.Name)
		gauge(c.inFlight, float64(s.Load.InFlight), s.Name)
		if s.Load.Known {
			gauge(c.waiting, float64(s.Load.Waiting), s.Name)
			gauge(c.kvUsage, s.Load.KVUsage, s.Name)
		}
	}
}
