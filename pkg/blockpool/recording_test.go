package blockpool_test

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/prefixroute/prefixroute/pkg/blockpool"
	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
)

const (
	recordedBlocks    = 64
	recordedBlockSize = 32
)

// TestRecordings feeds a pool with nothing but the requests of a recording, and
// the tokens that the engine sampled. It must publish what the engine did.
func TestRecordings(t *testing.T) {
	t.Parallel()

	tests := []struct {
		file     string
		algo     hashing.Algorithm
		seed     string
		requests int
	}{
		{"v0.32.0-churn", hashing.SHA256, "42", 500},
		{"v0.32.0-sha256_cbor-copies-sleep", hashing.SHA256CBOR, "42", 97},
		{"v0.32.0-lora", hashing.SHA256, "0", 12},
		{"v0.32.0-sha256-everything.head", hashing.SHA256, "42", 25},
		{"v0.32.0-bytes-hashes.head", hashing.SHA256, "42", 25},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			t.Parallel()
			engine, err := hashing.NewEngine(tt.algo, &tt.seed, hashing.Tagged)
			if err != nil {
				t.Fatal(err)
			}
			r := newReplayer(t, engine)
			lines := readRecording(t, tt.file)
			for _, l := range lines {
				r.play(t, l)
			}
			if r.requests != tt.requests {
				t.Errorf("replayed %d requests, want %d: the recording is read wrongly", r.requests, tt.requests)
			}
			compareEvents(t, r.events, recordedEvents(t, lines))
		})
	}
}

// compareEvents compares one by one, so that the first difference is what the
// failure shows.
func compareEvents(t *testing.T, got, want []kvevents.Event) {
	t.Helper()
	for i := range min(len(got), len(want)) {
		g := got[i]
		if !hasDigests(want[i]) {
			g = withoutDigests(g)
		}
		if d := cmp.Diff(want[i], g); d != "" {
			t.Fatalf("event %d differs from the recorded one (-recorded +pool):\n%s", i, d)
		}
	}
	if len(got) != len(want) {
		t.Errorf("pool published %d events, recorded were %d", len(got), len(want))
	}
}

func hasDigests(ev kvevents.Event) bool {
	switch ev := ev.(type) {
	case *kvevents.BlockStored:
		return ev.Digests != nil
	case *kvevents.BlockRemoved:
		return ev.Digests != nil
	default:
		return false
	}
}

func withoutDigests(ev kvevents.Event) kvevents.Event {
	switch ev := ev.(type) {
	case *kvevents.BlockStored:
		c := *ev
		c.Digests, c.ParentDigest = nil, nil
		return &c
	case *kvevents.BlockRemoved:
		c := *ev
		c.Digests = nil
		return &c
	default:
		return ev
	}
}

// A replayer is an engine without time: it runs one request after the other.
type replayer struct {
	pool     *blockpool.Pool
	hasher   *blockpool.Hasher
	adapters map[string]*blockpool.Adapter
	events   []kvevents.Event
	requests int
}

func newReplayer(t *testing.T, engine *hashing.Engine) *replayer {
	t.Helper()
	pool, err := blockpool.New(recordedBlocks, recordedBlockSize)
	if err != nil {
		t.Fatal(err)
	}
	hasher, err := blockpool.NewHasher(engine, hashing.Scheme{}, "tiny", recordedBlockSize)
	if err != nil {
		t.Fatal(err)
	}
	// The adapters' paths are part of the recorded hashes, though in no event.
	return &replayer{pool: pool, hasher: hasher, adapters: map[string]*blockpool.Adapter{
		"la": {ID: 1, Name: "la", Path: "/tmp/real/tiny-la"},
		"lb": {ID: 2, Name: "lb", Path: "/tmp/real/tiny-lb"},
	}}
}

func (r *replayer) play(t *testing.T, l recordedLine) {
	t.Helper()
	if l.Kind != "http" || l.Status != 200 {
		return
	}
	path, _, _ := strings.Cut(l.Path, "?")
	switch path {
	case "/reset_prefix_cache", "/sleep", "/pause":
		if !r.pool.Reset() {
			t.Fatalf("%s: reset refused with no request running", l.Note)
		}
	case "/v1/completions", "/v1/chat/completions", "/v1/messages", "/inference/v1/generate":
		r.request(t, l)
	}
}

func (r *replayer) request(t *testing.T, l recordedLine) {
	t.Helper()
	var req recordedRequest
	var resp recordedResponse
	decode(t, l.Request, &req)
	decode(t, l.Response, &resp)
	r.requests++

	seq := r.hasher.Sequence(prompt(t, req, resp), blockpool.Content{LoRA: r.adapters[req.Model], Salt: req.Salt})
	if req.PromptLogprobs != nil || req.Echo && req.Logprobs != nil {
		seq.SkipLookup()
	}
	hit, ok := r.pool.Admit(seq)
	if !ok {
		t.Fatalf("%s: pool has no room for the only request", l.Note)
	}
	r.events = append(r.events, r.pool.TakeEvents()...)
	for i, token := range resp.generated() {
		if i == resp.Usage.completion()-1 {
			break // never fed back
		}
		seq.Append(token)
		if !r.pool.Grow(seq) {
			t.Fatalf("%s: pool has no room for the only request", l.Note)
		}
		r.events = append(r.events, r.pool.TakeEvents()...)
	}
	r.pool.Free(seq)
	if want := resp.Usage.cached(); hit != want {
		t.Errorf("%s: pool reused %d tokens, engine reported %d", l.Note, hit, want)
	}
}

// The parts of a recording that matter here.
type (
	recordedLine struct {
		Kind     string          `json:"kind"`
		Note     string          `json:"note"`
		Path     string          `json:"path"`
		Status   int             `json:"status"`
		Request  json.RawMessage `json:"request"`
		Response json.RawMessage `json:"response"`
		Frames   [][]byte        `json:"frames"`
	}
	recordedRequest struct {
		Model          string          `json:"model"`
		Prompt         json.RawMessage `json:"prompt"`
		TokenIDs       []uint32        `json:"token_ids"`
		Salt           string          `json:"cache_salt"`
		PromptLogprobs *int            `json:"prompt_logprobs"`
		Logprobs       *int            `json:"logprobs"`
		Echo           bool            `json:"echo"`
	}
	recordedResponse struct {
		PromptTokens []uint32 `json:"prompt_token_ids"`
		Choices      []struct {
			TokenIDs     []uint32 `json:"token_ids"`
			PromptTokens []uint32 `json:"prompt_token_ids"`
		} `json:"choices"`
		Usage recordedUsage `json:"usage"`
	}
	recordedUsage struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		Details          struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
		InputTokens  int `json:"input_tokens"` // these three are of /v1/messages
		OutputTokens int `json:"output_tokens"`
		CacheRead    int `json:"cache_read_input_tokens"`
	}
)

func (u recordedUsage) completion() int { return u.CompletionTokens + u.OutputTokens }
func (u recordedUsage) cached() int     { return u.Details.Cached + u.CacheRead }

// generated returns the sampled tokens; arbitrary ones where the answer doesn't
// tell them, which only happens in requests that fill no block.
func (r recordedResponse) generated() []uint32 {
	if len(r.Choices) == 1 && r.Choices[0].TokenIDs != nil {
		return r.Choices[0].TokenIDs
	}
	return make([]uint32, r.Usage.completion())
}

func prompt(t *testing.T, req recordedRequest, resp recordedResponse) []uint32 {
	t.Helper()
	switch {
	case req.TokenIDs != nil:
		return req.TokenIDs
	case resp.PromptTokens != nil:
		return resp.PromptTokens
	case len(resp.Choices) == 1 && resp.Choices[0].PromptTokens != nil:
		return resp.Choices[0].PromptTokens
	}
	var tokens []uint32
	if len(req.Prompt) > 0 && json.Unmarshal(req.Prompt, &tokens) == nil {
		return tokens
	}
	n := resp.Usage.PromptTokens + resp.Usage.InputTokens
	if n >= recordedBlockSize {
		t.Fatalf("a prompt of %d tokens fills blocks, but the recording doesn't tell its tokens", n)
	}
	return make([]uint32, n)
}

func readRecording(t *testing.T, name string) []recordedLine {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name+".jsonl.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var lines []recordedLine
	sc := bufio.NewScanner(z)
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		var l recordedLine
		decode(t, sc.Bytes(), &l)
		lines = append(lines, l)
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	return lines
}

func recordedEvents(t *testing.T, lines []recordedLine) []kvevents.Event {
	t.Helper()
	var events []kvevents.Event
	for _, l := range lines {
		if l.Kind != "frames" {
			continue
		}
		batch, err := kvevents.Decode(l.Frames[2])
		if err != nil || len(batch.Rejected) > 0 {
			t.Fatalf("decode a recorded payload: %v, rejected %v", err, batch.Rejected)
		}
		events = append(events, batch.Events...)
	}
	return events
}

func decode(t *testing.T, data []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("read recording: %v", err)
	}
}
