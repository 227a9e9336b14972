//go:build cgo

package follow_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/index"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
	"github.com/prefixroute/prefixroute/pkg/replicas"
	"github.com/prefixroute/prefixroute/services/indexer/internal/belief"
	"github.com/prefixroute/prefixroute/services/indexer/internal/enginetest"
	"github.com/prefixroute/prefixroute/services/indexer/internal/follow"
	"github.com/prefixroute/prefixroute/services/indexer/internal/inbox"
	"github.com/prefixroute/prefixroute/services/indexer/internal/sources"
	"github.com/prefixroute/prefixroute/services/indexer/internal/zmqsock"
)

const (
	topic     = "kv@10.0.0.1:8000@m"
	blockSize = 4
)

// store is one block, the child of parent; hash 0 is no parent.
func store(hash, parent kvevents.Hash) kvevents.Event {
	ev := &kvevents.BlockStored{BlockHashes: []kvevents.Hash{hash}, TokenIDs: make([]uint32, blockSize), BlockSize: blockSize, Medium: "GPU"}
	for i := range ev.TokenIDs {
		ev.TokenIDs[i] = uint32(hash)*10 + uint32(i)
	}
	if parent != 0 {
		ev.Parent = &parent
	}
	return ev
}

func remove(hash kvevents.Hash) kvevents.Event {
	return &kvevents.BlockRemoved{BlockHashes: []kvevents.Hash{hash}, Medium: "GPU"}
}

// rig follows one engine, for real.
type rig struct {
	t       *testing.T
	r       *belief.Replica
	metrics *follow.Metrics
	client  *zmqsock.Client
	stop    func()
}

func config() follow.Config {
	return follow.Config{
		DownAfter: time.Minute, ProbeInterval: time.Minute,
		ReplayAttempts: 3, ReplayConcurrency: 8, ReplayMaxBytes: 1 << 20,
		Queue: inbox.Limits{Messages: 1000, Bytes: 1 << 24},
	}
}

// fixed resolves every replica to the same source.
type fixed sources.Source

func (f fixed) Resolve(context.Context, replicas.Replica) (sources.Source, error) {
	return sources.Source(f), nil
}

// newRig follows the engine with a fresh belief.
func newRig(t *testing.T, e *enginetest.Engine, cfg follow.Config) *rig {
	t.Helper()
	r := belief.NewReplica(replicas.Replica{Name: "a", URL: "http://a"}, hashing.Scheme{}, func() {}, func() {})
	return follows(t, e, r, cfg)
}

func follows(t *testing.T, e *enginetest.Engine, r *belief.Replica, cfg follow.Config) *rig {
	t.Helper()
	client, err := zmqsock.New(zmqsock.Config{
		HeartbeatInterval: time.Second, HeartbeatTimeout: 5 * time.Second, ConnectTimeout: 5 * time.Second,
		ReplayIdleTimeout: 500 * time.Millisecond, MaxMessageBytes: 1 << 20, MaxSockets: 100,
	})
	if err != nil {
		t.Fatal(err)
	}
	g := &rig{t: t, r: r, client: client, metrics: follow.NewMetrics(prometheus.NewRegistry())}
	f := follow.New(cfg, client, client, fixed{Events: e.Events, Replay: e.Replay}, g.metrics, slog.New(slog.NewTextHandler(t.Output(), nil)))

	// The client outlives the follower, as in the program.
	ctx, cancel := context.WithCancel(context.Background())
	clientCtx, cancelClient := context.WithCancel(context.Background())
	var wg, clientWG sync.WaitGroup
	clientWG.Go(func() {
		if err := client.Run(clientCtx); err != nil {
			t.Errorf("client: %v", err)
		}
	})
	wg.Go(func() { f.Run(ctx, []*belief.Replica{r}) })
	g.stop = sync.OnceFunc(func() { cancel(); wg.Wait(); cancelClient(); clientWG.Wait() })
	t.Cleanup(g.stop)
	return g
}

// eventually waits until the check returns "", and fails with what it said last.
func eventually(t *testing.T, check func() string) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		got := check()
		if got == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(got)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// awaitSeq waits until batch seq is applied and the stream is live.
func (g *rig) awaitSeq(seq uint64) belief.Status {
	g.t.Helper()
	var s belief.Status
	eventually(g.t, func() string {
		if s = g.r.Status(); s.Position.Known && s.Position.Seq == seq && s.State == belief.Live {
			return ""
		}
		return fmt.Sprintf("replica is %v at %+v, want live at %d", s.State, s.Position, seq)
	})
	return s
}

func (g *rig) awaitLive() {
	g.t.Helper()
	eventually(g.t, func() string {
		if s := g.r.Status(); s.State != belief.Live {
			return fmt.Sprintf("replica is %v (%s), want live", s.State, s.Reason)
		}
		return ""
	})
}

// wantHashes compares the set with hashes, in order.
func (g *rig) wantHashes(want ...kvevents.Hash) {
	g.t.Helper()
	if diff := cmp.Diff(want, hashesOf(g.r.Contents().Blocks)); diff != "" {
		g.t.Errorf("held hashes (-want +got):\n%s", diff)
	}
}

func hashesOf(blocks []index.Block) []kvevents.Hash {
	var got []kvevents.Hash
	for _, b := range blocks {
		for range b.Copies {
			got = append(got, b.Hash)
		}
	}
	return got
}

// wantGenerations compares the causes of the generations since the rig began;
// each of want is "cause" or "cause=n".
func (g *rig) wantGenerations(want ...string) {
	g.t.Helper()
	causes := map[string]float64{}
	for _, w := range want {
		cause, _, _ := strings.Cut(w, "=")
		n := 1.0
		_, _ = fmt.Sscanf(w, cause+"=%f", &n)
		causes[cause] = n
	}
	for _, cause := range []string{"start", "restart", "forgotten", "unanswered", "reconnect", "loss", "contradiction", "model", "history"} {
		if got := testutil.ToFloat64(g.metrics.Generations.WithLabelValues(cause)); got != causes[cause] {
			g.t.Errorf("%v generations were caused by %s, want %v", got, cause, causes[cause])
		}
	}
}

// sum adds up the live batches with these verdicts.
func (g *rig) sum(verdicts ...string) int {
	n := 0.0
	for _, v := range verdicts {
		n += testutil.ToFloat64(g.metrics.Batches.WithLabelValues(v))
	}
	return int(n)
}

func (g *rig) wantCount(c prometheus.Collector, want float64, what string) {
	g.t.Helper()
	if got := testutil.ToFloat64(c); got != want {
		g.t.Errorf("%s: counted %v, want %v", what, got, want)
	}
}
