package publish

import "github.com/prometheus/client_golang/prometheus"

// The ways of a batch and of a replay request, as metric labels.
const (
	outcomeSent        = "sent"
	outcomeDropped     = "dropped"
	outcomeUnencodable = "unencodable"

	replayComplete  = "complete"
	replayAbandoned = "abandoned"
	replayMalformed = "malformed"
	replayRefused   = "refused"
)

// Metrics are what the publisher counts. vLLM has no such metrics.
type Metrics struct {
	batches map[string]prometheus.Counter // by outcome
	replays map[string]prometheus.Counter // by outcome
}

// NewMetrics registers the metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	batches := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "prefixroute_fakevllm_event_batches_total",
		Help: "Event batches, by what became of them.",
	}, []string{"outcome"})
	replays := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "prefixroute_fakevllm_replays_total",
		Help: "Requests to the replay socket, by how they ended.",
	}, []string{"outcome"})
	reg.MustRegister(batches, replays)
	m := &Metrics{batches: map[string]prometheus.Counter{}, replays: map[string]prometheus.Counter{}}
	for _, o := range []string{outcomeSent, outcomeDropped, outcomeUnencodable} {
		m.batches[o] = batches.WithLabelValues(o)
	}
	for _, o := range []string{replayComplete, replayAbandoned, replayMalformed, replayRefused} {
		m.replays[o] = replays.WithLabelValues(o)
	}
	return m
}
