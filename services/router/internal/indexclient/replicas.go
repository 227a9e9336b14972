package indexclient

import (
	"context"
	"fmt"
	"time"

	indexv1 "github.com/prefixroute/prefixroute/proto/prefixroute/index/v1"
)

// State says where an indexer stands with a replica's event stream.
type State string

// The states, as they are shown. A state that this version does not know reads
// as Connecting: nothing can be promised of it.
const (
	Connecting State = "connecting"
	Replaying  State = "replaying"
	Live       State = "live"
	Gap        State = "gap"
	Down       State = "down"
)

func stateOf(s indexv1.StreamState) State {
	switch s {
	case indexv1.StreamState_STREAM_STATE_REPLAYING:
		return Replaying
	case indexv1.StreamState_STREAM_STATE_LIVE:
		return Live
	case indexv1.StreamState_STREAM_STATE_GAP:
		return Gap
	case indexv1.StreamState_STREAM_STATE_DOWN:
		return Down
	default:
		return Connecting
	}
}

// Generation names one unbroken history of a replica's blocks.
type Generation struct {
	Epoch   uint64 // 0: no history yet
	Counter uint64
	Local   bool // known to one indexer alone
}

func generationOf(g *indexv1.Generation) Generation {
	return Generation{Epoch: g.GetEpoch(), Counter: g.GetCounter(), Local: g.GetLocal()}
}

// Replica is what an indexer says of one replica.
type Replica struct {
	Name   string
	Model  string // base model that keys for it start from
	Scheme string // name of its key scheme
	// BlockSizes are tokens per block; keys for it must have the first. Empty: no
	// event was seen and none is configured.
	BlockSizes []int
	State      State
	Reason     string // why it is not live
	Generation Generation
}

// Replicas returns the replicas that the indexers follow, by name, which the
// caller must not change. ok is false while no indexer can be asked; reason says
// why.
func (c *Client) Replicas() (all map[string]Replica, ok bool, reason string) {
	if o := c.lost.Load(); o != nil && time.Since(o.since) > watchGrace {
		return nil, false, o.reason
	}
	w := c.fleet.Load()
	if w == nil {
		return nil, false, "nothing received yet"
	}
	return w.replicas, true, ""
}

// watch reads one watch until it breaks.
func (c *Client) watch(ctx context.Context) error {
	stream, err := c.api.WatchReplicas(ctx, &indexv1.WatchReplicasRequest{})
	for err == nil {
		var resp *indexv1.WatchReplicasResponse
		if resp, err = stream.Recv(); err == nil {
			c.learn(ctx, resp)
		}
	}
	c.lose(ctx, err)
	return fmt.Errorf("watch replicas: %w", err)
}

func (c *Client) learn(ctx context.Context, resp *indexv1.WatchReplicasResponse) {
	w := &watched{replicas: make(map[string]Replica, len(resp.GetReplicas()))}
	for _, r := range resp.GetReplicas() {
		w.replicas[r.GetName()] = Replica{
			Name: r.GetName(), Model: r.GetModel(), Scheme: r.GetKeyScheme(), BlockSizes: sizes(r.GetBlockSizes()),
			State: stateOf(r.GetState()), Reason: r.GetReason(), Generation: generationOf(r.GetGeneration()),
		}
	}
	old := c.fleet.Swap(w)
	if c.lost.Swap(nil) != nil {
		c.metrics.Connected.Set(1)
		c.log.InfoContext(ctx, "indexer answers", "replicas", len(w.replicas))
	}
	if old == nil {
		return
	}
	for name, now := range w.replicas {
		if was, ok := old.replicas[name]; ok && was.State != now.State {
			c.log.InfoContext(ctx, "event stream changed", "replica", name, "from", string(was.State), "to", string(now.State), "reason", now.Reason)
		}
	}
}

func (c *Client) lose(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	o := &outage{since: time.Now(), reason: reasonText(err)}
	if c.lost.CompareAndSwap(nil, o) {
		c.metrics.Connected.Set(0)
		c.log.WarnContext(ctx, "indexer lost, routing by own choices", "err", err)
		return
	}
	// Still lost: the newest reason, the first time.
	if old := c.lost.Load(); old != nil {
		c.lost.Store(&outage{since: old.since, reason: o.reason})
	}
}

func sizes(in []uint32) []int {
	out := make([]int, len(in))
	for i, n := range in {
		out[i] = int(n)
	}
	return out
}
