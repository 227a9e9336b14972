package audit

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// size is the block size of the recordings that are made up here.
const size = 4

// A writer makes up a recording.
type writer struct {
	t     *testing.T
	lines []string
	seq   uint64
}

func newWriter(t *testing.T) *writer {
	t.Helper()
	return &writer{t: t, lines: []string{`{"kind":"recording","engine":"made up"}`}}
}

func (w *writer) line(fields map[string]any) {
	w.t.Helper()
	text, err := json.Marshal(fields)
	if err != nil {
		w.t.Fatal(err)
	}
	w.lines = append(w.lines, string(text))
}

// batch records a message with events at the given second.
func (w *writer) batch(at float64, events ...kvevents.Event) {
	w.t.Helper()
	rank := int64(0)
	payload, err := kvevents.Encoding{Form: kvevents.FormMap}.Encode(kvevents.Batch{Events: events, Rank: &rank})
	if err != nil {
		w.t.Fatal(err)
	}
	frames := [][]byte{[]byte("kv@127.0.0.1:8000@tiny"), binary.BigEndian.AppendUint64(nil, w.seq), payload}
	w.seq++
	var encoded []string
	for _, f := range frames {
		encoded = append(encoded, base64.StdEncoding.EncodeToString(f))
	}
	w.line(map[string]any{"kind": "frames", "t": at, "frames": encoded})
}

// post records a call that took from sent to done.
func (w *writer) post(path string, sent, done float64, request, response any) {
	w.t.Helper()
	w.line(map[string]any{
		"kind": "http", "t": done, "ms": (done - sent) * 1000, "method": "POST", "path": path,
		"request": request, "response": response, "status": 200,
	})
}

// completion records a request for prompt of which the engine says that cached
// tokens were reused.
func (w *writer) completion(sent, done float64, prompt []uint32, cached int, more map[string]any) {
	w.t.Helper()
	request := map[string]any{"model": "tiny", "prompt": prompt}
	maps.Copy(request, more)
	w.post("/v1/completions", sent, done, request, map[string]any{
		"choices": []any{map[string]any{"prompt_token_ids": prompt}},
		"usage":   map[string]any{"prompt_tokens_details": map[string]any{"cached_tokens": cached}},
	})
}

func (w *writer) audit(opts Options) *Report {
	w.t.Helper()
	path := filepath.Join(w.t.TempDir(), "made-up.jsonl")
	if err := os.WriteFile(path, []byte(strings.Join(w.lines, "\n")), 0o600); err != nil {
		w.t.Fatal(err)
	}
	rep, err := File(w.t.Context(), path, opts)
	if err != nil {
		w.t.Fatal(err)
	}
	return rep
}

// tokensFrom returns n tokens, unlike those from another first one.
func tokensFrom(first uint32, n int) []uint32 {
	all := make([]uint32, n)
	for i := range all {
		all[i] = first + uint32(i)
	}
	return all
}

// storeOf announces all full blocks of prompt.
func storeOf(prompt []uint32) *kvevents.BlockStored {
	n := len(prompt) / size
	ev := &kvevents.BlockStored{
		TokenIDs: prompt[:n*size], BlockSize: size, Medium: "GPU", SpecKind: "full_attention",
		ExtraKeys: make([][]kvevents.ExtraKey, n),
	}
	for i := range n {
		ev.BlockHashes = append(ev.BlockHashes, kvevents.Hash(prompt[i*size]))
	}
	return ev
}

// TestCauses makes up a recording for each cause, and for each a near miss that
// must not be called explained.
func TestCauses(t *testing.T) {
	t.Parallel()
	a, b := tokensFrom(100, 9), tokensFrom(500, 9) // two blocks and a token each
	full := map[string]any{"vllm_xargs": map[string]any{"kv_cache_report_mode": "full"}}
	reset := func(w *writer, sent, done float64) {
		w.post("/reset_prefix_cache", sent, done, nil, map[string]any{"success": true})
	}
	tests := []struct {
		name   string
		record func(w *writer)
		over   int
		under  int
		want   Cause // of the only difference; "" if there is none
	}{
		{name: "predicted", record: func(w *writer) {
			w.batch(1, storeOf(a))
			w.completion(2, 3, a, 8, nil)
		}},
		{name: "no cause", under: 1, want: Unexplained, record: func(w *writer) {
			w.completion(2, 3, a, 8, nil)
			w.batch(2.5, storeOf(a))
		}},
		{name: "in flight: an overlapping request of the same tokens", under: 1, want: InFlight, record: func(w *writer) {
			w.batch(1, storeOf(b))
			w.completion(2, 4, a, 0, nil)
			w.completion(3, 5, a, 8, nil)
		}},
		{name: "not in flight: an overlapping request of other tokens", under: 1, want: Unexplained, record: func(w *writer) {
			w.batch(1, storeOf(b))
			w.completion(2, 4, tokensFrom(900, 9), 0, nil)
			w.completion(3, 5, a, 8, nil)
		}},
		{name: "not in flight: the same tokens under another salt", under: 1, want: Unexplained, record: func(w *writer) {
			w.batch(1, storeOf(b))
			w.completion(2, 4, a, 0, map[string]any{"cache_salt": "s"})
			w.completion(3, 5, a, 8, nil)
		}},
		{name: "not in flight: the other one had ended", under: 1, want: Unexplained, record: func(w *writer) {
			w.batch(1, storeOf(b))
			w.completion(2, 3, a, 0, nil)
			w.completion(3.1, 5, a, 8, nil)
		}},
		{name: "not in flight: promised too much", over: 1, want: Unexplained, record: func(w *writer) {
			w.batch(1, storeOf(a))
			w.completion(2, 4, b, 0, nil)
			w.completion(3, 5, a, 0, nil)
		}},
		{name: "in flight: several answers to one prompt", under: 1, want: InFlight, record: func(w *writer) {
			w.batch(1, storeOf(b))
			w.completion(2, 3, a, 8, map[string]any{"n": 2})
		}},
		{name: "cleared", over: 1, want: Cleared, record: func(w *writer) {
			w.batch(1, storeOf(a))
			reset(w, 2, 2.1)
			w.completion(3, 4, a, 0, nil)
			w.batch(3.5, &kvevents.AllBlocksCleared{}, storeOf(a))
		}},
		{name: "not cleared: a batch came since", over: 1, want: Unexplained, record: func(w *writer) {
			w.batch(1, storeOf(a))
			reset(w, 2, 2.1)
			w.batch(2.5, storeOf(b))
			w.completion(3, 4, a, 0, nil)
		}},
		{name: "not cleared: the engine still had some of it", over: 1, want: Unexplained, record: func(w *writer) {
			w.batch(1, storeOf(a))
			reset(w, 2, 2.1)
			w.completion(3, 4, a, 4, nil)
		}},
		{name: "not cleared: the reset came later", over: 1, want: Unexplained, record: func(w *writer) {
			w.batch(1, storeOf(a))
			w.completion(3, 4, a, 0, nil)
			reset(w, 5, 5.1)
		}},
		{name: "not cleared: asleep at level 0", over: 1, want: Unexplained, record: func(w *writer) {
			w.batch(1, storeOf(a))
			w.post("/sleep?level=0", 2, 2.1, nil, nil)
			w.completion(3, 4, a, 0, nil)
		}},
		{name: "not cleared: paused with the cache kept", over: 1, want: Unexplained, record: func(w *writer) {
			w.batch(1, storeOf(a))
			w.post("/pause?clear_cache=false", 2, 2.1, nil, nil)
			w.completion(3, 4, a, 0, nil)
		}},
		{name: "report: counted, then evicted", over: 1, want: Reported, record: func(w *writer) {
			w.batch(1, storeOf(a))
			w.completion(2, 3, a, 8, full)
			w.batch(2.5, storeOf(a))
			w.batch(4, &kvevents.BlockRemoved{BlockHashes: storeOf(a).BlockHashes, Medium: "GPU"})
			w.completion(5, 6, a, 0, nil)
		}},
		{name: "no report: it was about other blocks", over: 1, want: Unexplained, record: func(w *writer) {
			w.batch(1, storeOf(a), storeOf(b))
			w.completion(2, 3, b, 8, full)
			w.completion(5, 6, a, 0, nil)
		}},
		{name: "no report: the request came before it", over: 1, want: Unexplained, record: func(w *writer) {
			w.batch(1, storeOf(a))
			w.completion(2, 3, a, 0, nil)
			w.completion(5, 6, a, 8, full)
		}},
		{name: "skips the cache: not compared", record: func(w *writer) {
			w.batch(1, storeOf(a))
			w.completion(2, 3, a, 0, map[string]any{"prompt_logprobs": 0})
			w.completion(4, 5, a, 0, map[string]any{"echo": true, "logprobs": 1})
		}},
		{name: "echo alone does not skip it", over: 1, want: Unexplained, record: func(w *writer) {
			w.batch(1, storeOf(a))
			w.completion(4, 5, a, 0, map[string]any{"echo": true})
		}},
		{name: "an adapter's blocks are not the base model's", record: func(w *writer) {
			w.batch(1, storeOf(a))
			w.completion(2, 3, a, 0, map[string]any{"model": "adapter"})
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWriter(t)
			tt.record(w)
			rep := w.audit(Options{})
			if rep.Over != tt.over || rep.Under != tt.under {
				t.Errorf("over %d, under %d; want %d, %d", rep.Over, rep.Under, tt.over, tt.under)
			}
			var cause Cause
			for _, d := range rep.Differences {
				cause = d.Cause
			}
			if cause != tt.want {
				t.Errorf("cause is %q, want %q (%+v)", cause, tt.want, rep.Differences)
			}
			explained := 0
			if tt.want != "" && tt.want != Unexplained {
				explained = 1
			}
			if rep.Explained != explained || rep.OK() != (tt.want != Unexplained) {
				t.Errorf("explained %d, ok %v for cause %q", rep.Explained, rep.OK(), tt.want)
			}
		})
	}
}

// TestBatchOfPrompts: the engine reports the last prompt's cached tokens, and
// the prompts of one request share blocks before any event is out.
func TestBatchOfPrompts(t *testing.T) {
	t.Parallel()
	a := tokensFrom(100, 9)
	w := newWriter(t)
	w.batch(1, storeOf(tokensFrom(500, 9)))
	w.post("/v1/completions", 2, 3, map[string]any{"model": "tiny", "prompt": [][]uint32{a, a}}, map[string]any{
		"usage": map[string]any{"prompt_tokens_details": map[string]any{"cached_tokens": 8}},
	})
	rep := w.audit(Options{})
	want := []Difference{{Line: 3, Tokens: 9, Reported: 8, Cause: InFlight, Proof: "a batch of 2 prompts"}}
	if diff := cmp.Diff(want, rep.Differences); diff != "" {
		t.Errorf("differences (-want +got):\n%s", diff)
	}
}

// TestNotes: a reader must know where the figures rest on missing events.
func TestNotes(t *testing.T) {
	t.Parallel()
	a := tokensFrom(100, 9)
	w := newWriter(t)
	w.batch(1, storeOf(a))
	w.seq++ // lost
	w.batch(2, &kvevents.BlockRemoved{BlockHashes: []kvevents.Hash{7}, Medium: "GPU"})
	w.completion(3, 4, a, 8, nil)
	rep := w.audit(Options{})
	want := []string{
		"line 3: batch 2 does not follow the one before, so what was predicted after it rests on lost events",
		"1 removals of blocks that were never stored: the recording lacks events",
	}
	if diff := cmp.Diff(want, rep.Notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}
