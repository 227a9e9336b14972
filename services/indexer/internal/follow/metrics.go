package follow

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/prefixroute/prefixroute/pkg/index"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// Metrics counts what the followers of one process see. There is no replica
// label: what belongs to one replica is read from the live set.
type Metrics struct {
	Batches         *prometheus.CounterVec // by verdict
	Replayed        prometheus.Counter
	Rejected        *prometheus.CounterVec // messages, by reason
	EventsRejected  *prometheus.CounterVec // by reason
	EventsIgnored   *prometheus.CounterVec // by reason
	Dropped         prometheus.Counter
	BelowZero       prometheus.Counter
	Generations     *prometheus.CounterVec // by cause
	Gaps            *prometheus.CounterVec // by outcome
	Replays         *prometheus.CounterVec // by result
	Connections     prometheus.Counter
	Disconnects     prometheus.Counter
	ConnectFailures prometheus.Counter
}

// Reasons for which a whole message is left out.
const (
	rejectedFrame   = "frame"   // not three frames with an 8-byte number
	rejectedReply   = "reply"   // the same of a replay socket
	rejectedTopic   = "topic"   // not the configured topic
	rejectedPayload = "payload" // not a batch
)

// Causes of a new generation.
const (
	causeStart         = "start"         // nothing was known
	causeRestart       = "restart"       // the engine is another process
	causeForgotten     = "forgotten"     // the engine cannot prove that it is the same process
	causeUnanswered    = "unanswered"    // the replay socket is silent, so nothing is proved
	causeReconnect     = "reconnect"     // there is no replay socket to prove anything
	causeLoss          = "loss"          // batches are missing for good
	causeContradiction = "contradiction" // an event cannot be true of this set
	causeModel         = "model"         // the engine serves another model
	causeHistory       = "history"       // more of the past has become known
)

// Outcomes of a gap.
const (
	gapRepaired = "repaired"
	gapLost     = "lost"
)

// Results of a question to a replay socket.
const (
	replayComplete  = "complete"
	replayHoled     = "holed"
	replayChanged   = "changed"
	replayForgotten = "forgotten"
	replayFailed    = "failed"
	replayCanceled  = "canceled"
)

func replayResult(err error, holed bool) string {
	switch {
	case errors.Is(err, errChanged):
		return replayChanged
	case errors.Is(err, errForgotten):
		return replayForgotten
	case errors.Is(err, context.Canceled):
		return replayCanceled
	case err != nil:
		return replayFailed
	case holed:
		return replayHoled
	}
	return replayComplete
}

// NewMetrics registers the metrics with reg, with a series for each value of
// every label.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	vec := func(name, help, label string, values ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prefixroute_indexer_" + name, Help: help}, []string{label})
		for _, value := range values {
			v.WithLabelValues(value)
		}
		reg.MustRegister(v)
		return v
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "prefixroute_indexer_" + name, Help: help})
		reg.MustRegister(c)
		return c
	}
	return &Metrics{
		Batches:  vec("event_batches_total", "Live event batches, by what their sequence number said.", "verdict", labels(verdicts())...),
		Replayed: counter("replayed_batches_total", "Event batches applied from replay sockets."),
		Rejected: vec("messages_rejected_total", "Messages and replies left out because they could not be read or were not expected, by reason.",
			"reason", rejectedFrame, rejectedReply, rejectedTopic, rejectedPayload),
		EventsRejected: vec("events_rejected_total", "Events that could not be read, in batches that otherwise could, by reason.", "reason", labels(kvevents.Reasons())...),
		EventsIgnored:  vec("events_ignored_total", "Events left aside, whole or in part, because they do not concern the set, by reason.", "reason", labels(index.IgnoredReasons())...),
		Dropped:        counter("messages_dropped_total", "Live messages dropped because a replica's queue was full; replays bring them back."),
		BelowZero:      counter("removals_below_zero_total", "Removals of GPU copies that the set does not have, which prove that stores were missed."),
		Generations: vec("generations_total", "New generations of replicas' sets, by cause.", "cause",
			causeStart, causeRestart, causeForgotten, causeUnanswered, causeReconnect, causeLoss, causeContradiction, causeModel, causeHistory),
		Gaps: vec("gaps_total", "Holes in live sequences, by outcome.", "outcome", gapRepaired, gapLost),
		Replays: vec("replays_total", "Questions to replay sockets, by result.", "result",
			replayComplete, replayHoled, replayChanged, replayForgotten, replayFailed, replayCanceled),
		Connections:     counter("connections_total", "Connections made to event streams."),
		Disconnects:     counter("disconnects_total", "Connections to event streams that were lost."),
		ConnectFailures: counter("connect_failures_total", "Attempts to connect to event streams that came to nothing."),
	}
}

func labels[T interface{ String() string }](values []T) []string {
	names := make([]string, len(values))
	for i, v := range values {
		names[i] = v.String()
	}
	return names
}
