package hashing_test

import (
	"bytes"
	"encoding/json"
	"math"
	"regexp"
	"slices"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/prefixroute/prefixroute/pkg/hashing"
)

// recording is a file of testdata/stored: what an engine said about itself and
// the BlockStored events that it published.
type recording struct {
	Flags  string
	Salts  []string // those of the requests
	events []stored
}

// stored is a BlockStored event, as far as hashes go.
type stored struct {
	external  []uint64
	digests   [][]byte // parallel to external where the engine published bytes
	parent    *uint64
	tokens    []uint32
	blockSize int
	lora      string
	salts     []string // one for each hash; nil if the release publishes no extras
}

// TestRecordedHashes recomputes what real engines published, from tokens, flags
// and extras. It wants every single hash, and the exact number of them, so that
// nothing is passed over in silence.
func TestRecordedHashes(t *testing.T) {
	t.Parallel()

	tests := []struct {
		file    string
		scheme  hashing.ExtraScheme
		want    int // hashes listed by the events
		adapter int // of these, blocks of an adapter: its path is hashed and not published
	}{
		{"v0.16.0-all", hashing.IDOnly, 1331, 0},
		{"v0.32.0-bytes-hashes", hashing.Tagged, 338, 0},
		{"v0.32.0-churn", hashing.Tagged, 932, 0},
		{"v0.32.0-dp2", hashing.Tagged, 79, 0},
		{"v0.32.0-hybrid-churn", hashing.Tagged, 1221, 0},
		{"v0.32.0-hybrid-window", hashing.Tagged, 272, 0},
		{"v0.32.0-lora", hashing.Tagged, 24, 9},
		{"v0.32.0-report-mode-full", hashing.Tagged, 113, 0},
		{"v0.32.0-sha256-everything", hashing.Tagged, 380, 0},
		{"v0.32.0-sha256_cbor-copies-sleep", hashing.Tagged, 190, 0},
		{"v0.32.0-storm", hashing.Tagged, 378, 0},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			t.Parallel()
			rec := readRecording(t, tt.file)
			w := walker{rec: rec, engine: rec.engine(t, tt.scheme), known: map[uint64][]byte{}}
			total, adapter := 0, 0
			var pending []stored
			for _, ev := range rec.events {
				total += len(ev.external)
				if ev.lora != "" {
					adapter += len(ev.external)
				} else {
					pending = append(pending, ev)
				}
			}
			if total != tt.want || adapter != tt.adapter {
				t.Errorf("%d hashes, %d of adapters, want %d and %d", total, adapter, tt.want, tt.adapter)
			}
			// A masked group can hang below a block that another group of the
			// same step announces later.
			for len(pending) > 0 {
				orphans := slices.DeleteFunc(slices.Clone(pending), func(ev stored) bool { return w.check(t, ev) })
				if len(orphans) == len(pending) {
					t.Fatalf("%d events have a parent that was never announced", len(orphans))
				}
				pending = orphans
			}
		})
	}
}

// walker recomputes the events of a recording.
type walker struct {
	rec    *recording
	engine *hashing.Engine
	known  map[uint64][]byte // full digest by what events say of it
}

// check recomputes the blocks of an event. It returns false, and has done
// nothing, if the parent is not known yet.
func (w *walker) check(t *testing.T, ev stored) bool {
	t.Helper()
	parent := w.engine.None()
	if ev.parent != nil {
		var ok bool
		if parent, ok = w.known[*ev.parent]; !ok {
			return false
		}
	}
	for _, salt := range w.salts(ev) {
		digests := chainFrom(w.engine, parent, ev.tokens, ev.blockSize, func(i int) (x hashing.EngineExtra) {
			if i == 0 {
				x.Salt = salt
			}
			return x
		})
		if !ev.listedIn(digests) {
			continue
		}
		for _, d := range digests {
			w.known[hashing.External(d)] = d
		}
		return true
	}
	t.Errorf("event with hashes %d: not reproduced", ev.external)
	return true
}

// salts returns what the salt of an event's first block can be. Releases before
// 0.17 do not publish it, nor do events that leave the first block out.
func (w *walker) salts(ev stored) []string {
	switch {
	case ev.parent != nil:
		return []string{""}
	case ev.salts != nil && len(ev.external)*ev.blockSize == len(ev.tokens):
		return ev.salts[:1]
	default:
		return append([]string{""}, w.rec.Salts...)
	}
}

// listedIn reports whether the event's hashes are those of digests, in order.
// Events of a sliding-window group leave some out; the others may not.
func (ev *stored) listedIn(digests [][]byte) bool {
	next := 0
	for _, d := range digests {
		if next == len(ev.external) || hashing.External(d) != ev.external[next] {
			continue
		}
		if ev.digests != nil && !bytes.Equal(ev.digests[next], d) {
			return false
		}
		next++
	}
	return next == len(ev.external)
}

// TestRecordedKeys: a content key stands for a block exactly where the engine's
// own hash does. Releases that publish no extras are left out, since there two
// blocks that differ by salt look alike.
func TestRecordedKeys(t *testing.T) {
	t.Parallel()

	for _, file := range []string{
		"v0.32.0-bytes-hashes", "v0.32.0-churn", "v0.32.0-lora", "v0.32.0-report-mode-full",
		"v0.32.0-sha256-everything", "v0.32.0-sha256_cbor-copies-sleep", "v0.32.0-storm",
	} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			for _, s := range []hashing.Scheme{{}, hashing.NewScheme([]byte("secret"))} {
				keys := map[uint64]hashing.Key{}
				hashes := map[hashing.Key]uint64{}
				for _, ev := range readRecording(t, file).events {
					parent := s.Root("tiny", ev.blockSize)
					if ev.parent != nil {
						parent = keys[*ev.parent]
					}
					for i, h := range ev.external {
						x := hashing.Extra{LoRA: ev.lora}
						if len(ev.salts) > 0 {
							x.Salt = ev.salts[i]
						}
						parent = s.Chain(parent, s.Local(ev.tokens[i*ev.blockSize:(i+1)*ev.blockSize], x))
						if k, ok := keys[h]; ok && k != parent {
							t.Fatalf("%s: hash %#x has keys %#x and %#x", s.Name(), h, k, parent)
						}
						if g, ok := hashes[parent]; ok && g != h {
							t.Fatalf("%s: key %#x has hashes %#x and %#x", s.Name(), parent, g, h)
						}
						keys[h], hashes[parent] = parent, h
					}
				}
				if len(keys) == 0 {
					t.Error("no blocks")
				}
			}
		})
	}
}

// readRecording reads a file of testdata/stored.
func readRecording(t *testing.T, name string) *recording {
	t.Helper()
	var rec recording
	eachLine(t, readTestdata(t, "stored/"+name+".jsonl.gz"), func(n int, line []byte) {
		if n == 0 {
			parseJSON(t, line, &rec)
			return
		}
		var msg struct{ Frames [3][]byte }
		if err := json.Unmarshal(line, &msg); err != nil {
			t.Fatal(err)
		}
		rec.events = append(rec.events, readStored(t, msg.Frames[2])...)
	})
	return &rec
}

// engine returns the hasher that the recording's flags ask for.
func (r *recording) engine(t *testing.T, scheme hashing.ExtraScheme) *hashing.Engine {
	t.Helper()
	algo := hashing.SHA256
	if m := regexp.MustCompile(`--prefix-caching-hash-algo (\S+)`).FindStringSubmatch(r.Flags); m != nil {
		algo = hashing.Algorithm(m[1])
	}
	m := regexp.MustCompile(`PYTHONHASHSEED=(\S+)`).FindStringSubmatch(r.Flags)
	if m == nil {
		t.Fatalf("no seed in %q", r.Flags)
	}
	return newEngine(t, algo, &m[1], scheme)
}

// readStored returns the BlockStored events of a payload, from arrays (up to
// 0.23) or maps.
func readStored(t *testing.T, payload []byte) []stored {
	t.Helper()
	var batch []any
	if err := msgpack.Unmarshal(payload, &batch); err != nil || len(batch) < 2 {
		t.Fatalf("batch of %d: %v", len(batch), err)
	}
	var events []stored
	for _, e := range list(t, batch[1]) {
		var fields map[string]any
		switch e := e.(type) {
		case map[string]any:
			fields = e
		case []any:
			fields = map[string]any{}
			for i, name := range []string{"type", "block_hashes", "parent_block_hash", "token_ids", "block_size"} {
				if i < len(e) {
					fields[name] = e[i]
				}
			}
		}
		if fields["type"] == "BlockStored" {
			events = append(events, newStored(t, fields))
		}
	}
	return events
}

func newStored(t *testing.T, fields map[string]any) stored {
	t.Helper()
	ev := stored{blockSize: int(integer(t, fields["block_size"]))}
	ev.lora, _ = fields["lora_name"].(string)
	for _, v := range list(t, fields["token_ids"]) {
		n := integer(t, v)
		if n > math.MaxUint32 {
			t.Fatalf("token id %d", n)
		}
		ev.tokens = append(ev.tokens, uint32(n))
	}
	for _, v := range list(t, fields["block_hashes"]) {
		if digest, ok := v.([]byte); ok {
			ev.digests = append(ev.digests, digest)
		}
		ev.external = append(ev.external, external(t, v))
	}
	if v := fields["parent_block_hash"]; v != nil {
		parent := external(t, v)
		ev.parent = &parent
	}
	if extras, ok := fields["extra_keys"].([]any); ok {
		for _, extra := range extras {
			ev.salts = append(ev.salts, saltOf(ev.lora, extra))
		}
	}
	return ev
}

// saltOf returns the string among a block's extra keys that is not the adapter.
func saltOf(lora string, extra any) string {
	keys, _ := extra.([]any)
	if lora != "" && len(keys) > 0 {
		keys = keys[1:]
	}
	if len(keys) == 0 {
		return ""
	}
	salt, _ := keys[0].(string)
	return salt
}

func external(t *testing.T, v any) uint64 {
	t.Helper()
	if digest, ok := v.([]byte); ok {
		return hashing.External(digest)
	}
	return integer(t, v)
}

func list(t *testing.T, v any) []any {
	t.Helper()
	l, ok := v.([]any)
	if !ok {
		t.Fatalf("%T is no list", v)
	}
	return l
}

func integer(t *testing.T, v any) uint64 {
	t.Helper()
	switch v := v.(type) {
	case int8:
		return uint64(v)
	case uint8:
		return uint64(v)
	case uint16:
		return uint64(v)
	case uint32:
		return uint64(v)
	case uint64:
		return v
	}
	t.Fatalf("%T is no integer", v)
	return 0
}
