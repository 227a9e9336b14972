package kvevents

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestVLLMRecordings decodes everything that real engines published and writes
// it again: equal bytes say that nothing was lost or invented on the way.
func TestVLLMRecordings(t *testing.T) {
	t.Parallel()

	for _, path := range mustGlob(t, "testdata/vllm/*.jsonl.gz") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			enc := Encoding{Form: FormMap, Bytes: true}
			if strings.Contains(path, "v0.16.0") {
				enc = Encoding{Form: FormArray, Fields: 7}
			}
			for i, line := range lines(t, path) {
				var frames []string
				fromJSON(t, line, &frames)
				m, err := ParseMessage(hexFrames(t, frames))
				if err != nil {
					t.Fatalf("message %d: %v", i, err)
				}
				if _, ok := ParseTopic(m.Topic); !ok {
					t.Errorf("message %d: topic %q isn't read", i, m.Topic)
				}
				checkIdentity(t, i, enc, m.Payload)
			}
		})
	}
}

func checkIdentity(t *testing.T, i int, enc Encoding, payload []byte) {
	t.Helper()
	b := mustDecode(t, payload)
	if len(b.Rejected) > 0 || len(b.Events) == 0 {
		t.Errorf("payload %d: %d events, rejected %+v", i, len(b.Events), b.Rejected)
	}
	got, err := enc.Encode(b)
	if err != nil {
		t.Fatalf("payload %d: %v", i, err)
	}
	if !bytes.Equal(got, payload) {
		t.Errorf("payload %d\ngot  %x\nwant %x", i, got, payload)
	}
}

// TestVLLMRecordingsCensus pins what the recordings hold, so that a decoder
// that quietly skipped some of it would be noticed.
func TestVLLMRecordingsCensus(t *testing.T) {
	t.Parallel()

	type census struct{ Stored, Masked, Hashes, Removed, Cleared, Salted, LoRA, Digests int }
	count := func(name string) (c census) {
		for _, line := range lines(t, "testdata/vllm/"+name+".jsonl.gz") {
			var frames []string
			fromJSON(t, line, &frames)
			for _, ev := range mustDecode(t, mustHex(t, frames[2])).Events {
				switch ev := ev.(type) {
				case *BlockStored:
					c.Stored++
					c.Hashes += len(ev.BlockHashes)
					c.Digests += len(ev.Digests)
					if !ev.Aligned() {
						c.Masked++
					}
					if ev.LoRAName != "" {
						c.LoRA++
					}
					if len(ev.ExtraKeys) > 0 && Extra(ev.LoRAName, ev.ExtraKeys[0]).Salt != "" {
						c.Salted++
					}
				case *BlockRemoved:
					c.Removed++
				case *AllBlocksCleared:
					c.Cleared++
				}
			}
		}
		return c
	}
	want := map[string]census{
		"v0.16.0-all":                      {Stored: 633, Hashes: 1331, Removed: 1268, Cleared: 3},
		"v0.32.0-bytes-hashes":             {Stored: 80, Hashes: 338, Removed: 275, Salted: 3, Digests: 338},
		"v0.32.0-hybrid-churn":             {Stored: 968, Masked: 381, Hashes: 1221, Removed: 1064, Salted: 84},
		"v0.32.0-lora":                     {Stored: 8, Hashes: 24, Salted: 4, LoRA: 3},
		"v0.32.0-sha256_cbor-copies-sleep": {Stored: 79, Hashes: 190, Removed: 111, Cleared: 5, Salted: 3},
	}
	for name, w := range want {
		if diff := cmp.Diff(w, count(name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestSimRecordings compares the streams of llm-d-inference-sim with what
// another decoder read in them.
func TestSimRecordings(t *testing.T) {
	t.Parallel()

	for _, path := range mustGlob(t, "testdata/sim/*.jsonl.gz") {
		if strings.Contains(path, "replayed") {
			continue
		}
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			for i, line := range lines(t, path) {
				var rec struct {
					Payload string
					Decoded []any
				}
				fromJSON(t, line, &rec)
				got := mustDecode(t, mustHex(t, rec.Payload))
				if diff := cmp.Diff(simBatch(t, rec.Decoded), got, cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("message %d (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

// simBatch builds a batch from a generic decoding of it.
func simBatch(t *testing.T, in []any) Batch {
	t.Helper()
	ts, _ := in[0].(json.Number)
	events, _ := in[1].([]any)
	var b Batch
	b.Time, _ = ts.Float64()
	if in[2] != nil {
		rank := int64(jsonUint(t, in[2]))
		b.Rank = &rank
	}
	for _, raw := range events {
		e, ok := raw.(map[string]any)
		if !ok {
			e = byName(raw)
		}
		e["block_hashes_u64"], e["parent_u64"] = e[fieldHashes], e[fieldParent]
		b.Events = append(b.Events, vectorEvent(t, e))
	}
	return b
}

// byName gives the fields of an array event their names.
func byName(raw any) map[string]any {
	array, _ := raw.([]any)
	names := storedPositions
	if array[0] == tagRemoved {
		names = removedPositions
	}
	e := map[string]any{fieldType: array[0]}
	for i, v := range array[1:] {
		e[names[i]] = v
	}
	return e
}

func TestSimReplies(t *testing.T) {
	t.Parallel()

	for i, line := range lines(t, "testdata/sim/sim-replay.replayed.jsonl.gz") {
		var rec struct {
			Frames  []string
			Decoded []any
		}
		fromJSON(t, line, &rec)
		m, end, err := ParseReply(hexFrames(t, rec.Frames))
		if err != nil {
			t.Fatalf("reply %d: %v", i, err)
		}
		if end != (rec.Decoded == nil) {
			t.Fatalf("reply %d: end = %v, decoded as %v", i, end, rec.Decoded)
		}
		if end {
			continue
		}
		if diff := cmp.Diff(simBatch(t, rec.Decoded), mustDecode(t, m.Payload), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("reply %d (-want +got):\n%s", i, diff)
		}
	}
}
