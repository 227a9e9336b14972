package follow

import (
	"slices"
	"testing"

	"github.com/prefixroute/prefixroute/services/indexer/internal/belief"
)

// at is the position of a batch whose payload follows from its number.
func at(seq uint64) belief.Position {
	return belief.Position{Known: true, Seq: seq, Digest: seq * 7}
}

// other is a batch with the same number and another payload.
func other(seq uint64) belief.Position {
	return belief.Position{Known: true, Seq: seq, Digest: seq*7 + 1}
}

func TestCursor(t *testing.T) {
	t.Parallel()

	type step struct {
		kind string // live, replayed, connected, open, renewed
		pos  belief.Position
		want verdict
	}
	live := func(p belief.Position, v verdict) step { return step{"live", p, v} }
	replayed := func(p belief.Position, v verdict) step { return step{"replayed", p, v} }
	tests := []struct {
		name  string
		steps []step // batches that are in order are applied
	}{
		{"from the start", []step{live(at(0), inOrder), live(at(1), inOrder), live(at(2), inOrder)}},
		{"joined late", []step{live(at(41), gap)}},
		{"joined late, history given up", []step{{kind: "open"}, live(at(41), inOrder), live(at(42), inOrder), live(at(44), gap)}},
		{"one lost and replayed", []step{
			live(at(0), inOrder), live(at(2), gap),
			replayed(at(1), inOrder), replayed(at(2), inOrder), live(at(3), inOrder),
		}},
		{"repeated at once", []step{live(at(0), inOrder), live(at(0), duplicate), live(at(1), inOrder)}},
		{"the same number, another payload", []step{live(at(0), inOrder), live(other(0), restart)}},
		{"counts anew", []step{
			{kind: "open"},
			live(at(900), inOrder), live(at(0), restart),
			{kind: "renewed"},
			replayed(at(0), inOrder), live(at(1), inOrder),
		}},
		{"counts anew, first frames missed", []step{{kind: "open"}, live(at(900), inOrder), live(at(3), restart)}},
		{"the live stream repeats what a replay brought", []step{
			replayed(at(0), inOrder), replayed(at(1), inOrder), replayed(at(2), inOrder),
			live(at(1), duplicate), live(at(2), duplicate), live(at(3), inOrder), live(at(3), duplicate),
		}},
		{"the overlap ends with another payload", []step{
			replayed(at(0), inOrder), replayed(at(1), inOrder), live(at(0), duplicate), live(other(1), restart),
		}},
		{"falls back inside the overlap", []step{
			replayed(at(0), inOrder), replayed(at(1), inOrder), replayed(at(2), inOrder),
			live(at(1), duplicate), live(at(0), restart),
		}},
		{"a new connection may repeat", []step{
			live(at(0), inOrder), live(at(1), inOrder), {kind: "connected"}, live(at(1), duplicate), live(at(2), inOrder),
		}},
		{"an old message is not applied", []step{
			live(at(0), inOrder), live(at(1), inOrder), live(at(2), inOrder), live(at(1), restart),
			live(at(3), inOrder), // the stream goes on where it was
		}},
		{"a replay that comes late", []step{
			live(at(0), inOrder), live(at(1), inOrder), live(at(2), inOrder), replayed(at(1), duplicate), replayed(at(2), duplicate),
		}},
		{"at the top", []step{
			{kind: "open"}, live(at(1<<64-3), inOrder), live(at(1<<64-2), inOrder),
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var c cursor
			var got, want []verdict
			for _, s := range tt.steps {
				var v verdict
				switch s.kind {
				case "open":
					c.open = true
					continue
				case "connected":
					c.connected()
					continue
				case "renewed":
					c.renewed()
					continue
				case "live":
					v = c.live(s.pos)
				case "replayed":
					v = c.replayed(s.pos)
				}
				if v == inOrder {
					c.advance(s.pos)
				}
				got, want = append(got, v), append(want, s.want)
			}
			if !slices.Equal(got, want) {
				t.Errorf("verdicts are %v, want %v", got, want)
			}
		})
	}
}
