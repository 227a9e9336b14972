package index_test

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/index"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

// Recordings live beside their reader, for all who replay them.
const recordings = "../recording/testdata"

// A simMessage is one line of a stream recorded from llm-d-inference-sim.
type simMessage struct {
	Topic   string          `json:"topic"`
	Payload []byte          `json:"payload_b64"`
	Decoded json.RawMessage `json:"decoded"` // [time, events, rank], by another decoder
}

func readSim(t *testing.T, name string) []simMessage {
	t.Helper()
	f, err := os.Open(filepath.Join(recordings, "llm-d-inference-sim", name+".jsonl.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<20)
	var all []simMessage
	for lines.Scan() {
		var m simMessage
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// A plainSet is the resident set by the recorder's reading, in the simplest way:
// this engine keeps one copy of each block at most.
type plainSet struct {
	resident       map[kvevents.Hash]bool
	unknownRemoves uint64
}

func (s *plainSet) apply(t *testing.T, decoded json.RawMessage) {
	t.Helper()
	var batch []json.RawMessage
	var events []json.RawMessage
	if err := json.Unmarshal(decoded, &batch); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(batch[1], &events); err != nil {
		t.Fatal(err)
	}
	for _, raw := range events {
		kind, hashes := plainEvent(t, raw)
		switch kind {
		case "BlockStored":
			for _, h := range hashes {
				s.resident[h] = true
			}
		case "BlockRemoved":
			for _, h := range hashes {
				if !s.resident[h] {
					s.unknownRemoves++
				}
				delete(s.resident, h)
			}
		case "AllBlocksCleared":
			clear(s.resident)
		default:
			t.Fatalf("unknown event %q", kind)
		}
	}
}

// plainEvent reads the tag and the hashes of an event in either form.
func plainEvent(t *testing.T, raw json.RawMessage) (kind string, hashes []kvevents.Hash) {
	t.Helper()
	var named struct {
		Type   string          `json:"type"`
		Hashes []kvevents.Hash `json:"block_hashes"`
	}
	if json.Unmarshal(raw, &named) == nil {
		return named.Type, named.Hashes
	}
	var fields []json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(fields[0], &kind); err != nil {
		t.Fatal(err)
	}
	if len(fields) > 1 {
		if err := json.Unmarshal(fields[1], &hashes); err != nil {
			t.Fatal(err)
		}
	}
	return kind, hashes
}

// TestSimStreams ends each recorded stream in exactly the resident set that its
// recorder states: the number was published with the stream, the set itself is
// computed from the recorder's decoding. Each topic is a replica of its own.
func TestSimStreams(t *testing.T) {
	t.Parallel()
	const first, second = "kv@127.0.0.1:8000@sim-model", "kv@127.0.0.1:8001@sim-model"
	tests := []struct {
		file     string
		resident map[string]int
		// Removals of blocks stored before the recording began.
		unknownRemoves uint64
	}{
		{"sim-small64", map[string]int{first: 64}, 0},
		{"sim-small64-map", map[string]int{first: 64}, 0},
		{"sim-small64-seed42", map[string]int{first: 64}, 0},
		{"sim-evict64", map[string]int{first: 64}, 0},
		{"sim-sleep", map[string]int{first: 13}, 0},
		{"sim-concurrent64", map[string]int{first: 64}, 0},
		{"sim-capacity64", map[string]int{first: 64}, 0},
		{"sim-replay", map[string]int{first: 64}, 0},
		{"sim-large1024", map[string]int{first: 152}, 0},
		{"sim-large1024-evict", map[string]int{first: 1024}, 0},
		{"sim-latency", map[string]int{first: 112}, 0},
		{"sim-dp2", map[string]int{first: 82, second: 82}, 0},
		{"sim-dprank3", map[string]int{first: 96}, 0},
		{"sim-lora", map[string]int{first: 64}, 0},
		{"sim-lora-map", map[string]int{first: 64}, 0},
		{"sim-latejoin", map[string]int{first: 39}, 39},
		{"sim-latejoin-after-restart", map[string]int{first: 31}, 31},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			t.Parallel()
			beliefs, plain := replaySim(t, readSim(t, tt.file))
			resident := make(map[string]int)
			for topic, b := range beliefs {
				resident[topic] = b.Stats().Blocks
				if got := b.Stats().BelowZero; got != tt.unknownRemoves || got != plain[topic].unknownRemoves {
					t.Errorf("%s: %d removals of blocks not held, want %d, by the plain set %d", topic, got, tt.unknownRemoves, plain[topic].unknownRemoves)
				}
				var held []kvevents.Hash
				for _, block := range b.Blocks() {
					held = append(held, block.Hash)
					if block.Copies != 1 || block.Medium != "GPU" {
						t.Errorf("%s: %+v, want one copy in GPU memory", topic, block)
					}
				}
				want := slices.Sorted(maps.Keys(plain[topic].resident))
				if diff := cmp.Diff(want, held); diff != "" {
					t.Errorf("%s: resident set (-plain +belief):\n%s", topic, diff)
				}
			}
			if diff := cmp.Diff(tt.resident, resident); diff != "" {
				t.Errorf("resident at the end (-want +got):\n%s", diff)
			}
		})
	}
}

func replaySim(t *testing.T, messages []simMessage) (map[string]*index.Belief, map[string]*plainSet) {
	t.Helper()
	beliefs := make(map[string]*index.Belief)
	plain := make(map[string]*plainSet)
	for _, m := range messages {
		if beliefs[m.Topic] == nil {
			topic, ok := kvevents.ParseTopic(m.Topic)
			if !ok {
				t.Fatalf("topic %q", m.Topic)
			}
			beliefs[m.Topic] = index.NewBelief(hashing.Scheme{}, topic.Model)
			plain[m.Topic] = &plainSet{resident: make(map[kvevents.Hash]bool)}
		}
		for _, ev := range decodePayload(t, m.Payload).Events {
			beliefs[m.Topic].Apply(ev)
		}
		plain[m.Topic].apply(t, m.Decoded)
	}
	return beliefs, plain
}
