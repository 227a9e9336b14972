package app

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testConfig is a server on free ports that takes no time.
func testConfig() Config {
	cfg := DefaultConfig()
	cfg.Listen = "127.0.0.1:0"
	return cfg
}

// replica is a running App and a client for it.
type replica struct {
	*App
	client *http.Client
}

// start runs an App until the test ends.
func start(t *testing.T, cfg Config) replica {
	t.Helper()
	a, err := New(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- a.Run(ctx) }()
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		stop()
		select {
		case err := <-stopped:
			if err != nil {
				t.Errorf("Run = %v, want nil after a clean stop", err)
			}
		case <-time.After(cfg.DrainTimeout + 10*time.Second):
			t.Error("Run goes on long after its context has ended")
		}
	})
	return replica{App: a, client: &http.Client{Transport: transport}}
}

// do sends a request whose context ends the call, and returns the answer's body.
func (r replica) do(ctx context.Context, method, path string, body any) (status int, answer []byte, err error) {
	var sent io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return 0, nil, err
		}
		sent = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, r.URL()+path, sent)
	if err != nil {
		return 0, nil, err
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}

// call is do for a test that expects 200, and decodes the answer into v.
func (r replica) call(t *testing.T, method, path string, body, v any) {
	t.Helper()
	status, answer, err := r.do(t.Context(), method, path, body)
	if err != nil || status != http.StatusOK {
		t.Fatalf("%s %s = %d %s, %v; want 200", method, path, status, answer, err)
	}
	if v == nil {
		return
	}
	if err := json.Unmarshal(answer, v); err != nil {
		t.Fatalf("%s %s answered %s: %v", method, path, answer, err)
	}
}

type object = map[string]any

// completion is what tests read of an answer.
type completion struct {
	Choices []struct {
		Text    string
		Message struct{ Content string }
		Finish  string   `json:"finish_reason"`
		IDs     []uint32 `json:"token_ids"`
	}
	PromptIDs []uint32 `json:"prompt_token_ids"`
	Usage     struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Details    struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
}

// cached sends a prompt of token ids and returns how many were cached.
func (r replica) cached(t *testing.T, prompt []uint32) int {
	t.Helper()
	var c completion
	r.call(t, http.MethodPost, "/v1/completions", object{"model": "tiny", "prompt": prompt, "max_tokens": 1}, &c)
	return c.Usage.Details.Cached
}

type snapshot struct {
	Epoch      int64   `json:"epoch"`
	Generation uint64  `json:"generation"`
	LastSeq    *uint64 `json:"last_seq"`
	Pending    int     `json:"pending_events"`
	Blocks     []block `json:"blocks"`
}

type block struct {
	Hash   string `json:"hash"`
	Key    string `json:"key"`
	Group  int    `json:"group"`
	Medium string `json:"medium"`
	Copies int    `json:"copies"`
}

func (r replica) snapshot(t *testing.T) snapshot {
	t.Helper()
	var s snapshot
	r.call(t, http.MethodGet, "/admin/blocks", nil, &s)
	return s
}

// tokens returns n distinct tokens that start with root.
func tokens(root uint32, n int) []uint32 {
	s := make([]uint32, n)
	for i := range s {
		s[i] = root + uint32(i)
	}
	return s
}
