package web

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/prefixroute/prefixroute/services/indexer/internal/belief"
	"github.com/prefixroute/prefixroute/services/indexer/internal/reports"
)

// collector reads the live fleet at each scrape, so that a replica that is gone
// leaves no series behind.
type collector struct {
	fleet  *belief.Fleet
	ledger *reports.Ledger
	descs  []*prometheus.Desc // of metrics, in order
	state  *prometheus.Desc
}

// metric is one number of a replica.
type metric struct {
	name, help string
	kind       prometheus.ValueType
	// value reports false where there is nothing to say.
	value func(st belief.Status, sum reports.Summary, now time.Time) (float64, bool)
}

// metrics are those that have no label but the replica.
var metrics = []metric{
	gauge("blocks", "Distinct blocks that the replica is believed to hold, by tier and group.", func(st belief.Status, _ reports.Summary) float64 {
		return float64(st.Stats.Blocks)
	}),
	gauge("copies", "Physical copies of blocks that the replica is believed to hold.", func(st belief.Status, _ reports.Summary) float64 {
		return float64(st.Stats.Copies)
	}),
	gauge("gpu_copies", "Physical copies in GPU memory; an engine never has more than its block count less one.", func(st belief.Status, _ reports.Summary) float64 {
		return float64(st.Stats.GPUCopies)
	}),
	gauge("orphans", "Blocks kept aside because their parent was never seen.", func(st belief.Status, _ reports.Summary) float64 {
		return float64(st.Stats.Orphans)
	}),
	gauge("generation", "Counter of the generation of the replica's set; it grows when the set starts anew.", func(st belief.Status, _ reports.Summary) float64 {
		return float64(st.Generation.Counter)
	}),
	gauge("generation_local", "1 if the generation is not in the durable copy, else 0.", func(st belief.Status, _ reports.Summary) float64 {
		return boolValue(st.Local)
	}),
	gauge("suspect", "1 if the set may differ from the engine's although the stream is live, else 0.", func(st belief.Status, _ reports.Summary) float64 {
		return boolValue(st.Doubts.Suspect != "")
	}),
	gauge("history_incomplete", "1 if blocks stored before some point are not known, else 0.", func(st belief.Status, _ reports.Summary) float64 {
		return boolValue(st.Doubts.Incomplete != "")
	}),
	{"last_sequence", "Number of the last applied event batch.", prometheus.GaugeValue, func(st belief.Status, _ reports.Summary, _ time.Time) (float64, bool) {
		return float64(st.Position.Seq), st.Position.Known
	}},
	{"event_age_seconds", "Time since the last applied event batch.", prometheus.GaugeValue, func(st belief.Status, _ reports.Summary, now time.Time) (float64, bool) {
		return max(0, now.Sub(st.LastEvent).Seconds()), !st.LastEvent.IsZero()
	}},
	gauge("in_flight_requests", "Requests in flight, summed over the routers that report.", func(_ belief.Status, sum reports.Summary) float64 {
		return float64(sum.InFlight)
	}),
	counter("observed_requests_total", "Requests of which routers reported prediction and outcome.", func(p reports.Precision) uint64 { return p.Requests }),
	counter("exact_requests_total", "Requests whose cached tokens were predicted exactly.", func(p reports.Precision) uint64 { return p.ExactRequests }),
	counter("predicted_tokens_total", "Tokens predicted to be cached.", func(p reports.Precision) uint64 { return p.PredictedTokens }),
	counter("actual_tokens_total", "Tokens that engines reported as cached.", func(p reports.Precision) uint64 { return p.ActualTokens }),
	counter("over_predicted_tokens_total", "Tokens predicted to be cached that were not.", func(p reports.Precision) uint64 { return p.OverTokens }),
	counter("under_predicted_tokens_total", "Tokens cached that were not predicted.", func(p reports.Precision) uint64 { return p.UnderTokens }),
}

func gauge(name, help string, f func(belief.Status, reports.Summary) float64) metric {
	return metric{name, help, prometheus.GaugeValue, func(st belief.Status, sum reports.Summary, _ time.Time) (float64, bool) {
		return f(st, sum), true
	}}
}

func counter(name, help string, f func(reports.Precision) uint64) metric {
	return metric{name, help, prometheus.CounterValue, func(_ belief.Status, sum reports.Summary, _ time.Time) (float64, bool) {
		return float64(f(sum.Precision)), true
	}}
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// RegisterCollector registers the per-replica metrics of fleet with reg.
func RegisterCollector(reg prometheus.Registerer, fleet *belief.Fleet, ledger *reports.Ledger) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("prefixroute_indexer_replica_"+name, help, append([]string{"replica"}, labels...), nil)
	}
	c := &collector{
		fleet: fleet, ledger: ledger,
		state: desc("state", "1 for the state that the replica's event stream is in, 0 for the others.", "state"),
	}
	for _, m := range metrics {
		c.descs = append(c.descs, desc(m.name, m.help))
	}
	reg.MustRegister(c)
}

// Describe implements [prometheus.Collector].
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.state
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	for _, r := range c.fleet.Replicas() {
		st, sum := r.Status(), c.ledger.Of(r.Name())
		for i, m := range metrics {
			if v, ok := m.value(st, sum, now); ok {
				ch <- prometheus.MustNewConstMetric(c.descs[i], m.kind, v, st.Name)
			}
		}
		for _, s := range belief.States() {
			ch <- prometheus.MustNewConstMetric(c.state, prometheus.GaugeValue, boolValue(s == st.State), st.Name, s.String())
		}
	}
}
