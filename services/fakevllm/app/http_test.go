package app

import (
	"bufio"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// quiet is a server without events: it needs no libzmq.
func quiet() Config {
	cfg := testConfig()
	cfg.Events = ""
	return cfg
}

// metric returns the value of a counter or gauge of the given labels.
func (r replica) metric(t *testing.T, name string, labels map[string]string) float64 {
	t.Helper()
	status, page, err := r.do(t.Context(), http.MethodGet, "/metrics", nil)
	if err != nil || status != http.StatusOK {
		t.Fatalf("GET /metrics = %d, %v", status, err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(page)))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range families[name].GetMetric() {
		all := map[string]string{}
		for _, l := range m.GetLabel() {
			all[l.GetName()] = l.GetValue()
		}
		match := true
		for k, v := range labels {
			match = match && all[k] == v
		}
		if match {
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s with labels %v", name, labels)
	return 0
}

// eventually polls until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("not after 20 s: %s", what)
		}
	}
}

// Log probabilities of the prompt need all of it computed; those of the answer
// do not.
func TestPromptLogProbabilitiesReuseNothing(t *testing.T) {
	t.Parallel()

	r := start(t, quiet())
	prompt := tokens(1, 33)
	r.cached(t, prompt)
	for _, tt := range []struct {
		more object
		want int
	}{
		{object{"logprobs": 1}, 32},
		{object{"echo": true}, 32},
		{object{"prompt_logprobs": 0}, 0},
		{object{"echo": true, "logprobs": 0}, 0},
	} {
		body := object{"model": "tiny", "prompt": prompt, "max_tokens": 1}
		maps.Copy(body, tt.more)
		var answer completion
		r.call(t, http.MethodPost, "/v1/completions", body, &answer)
		if got := answer.Usage.Details.Cached; got != tt.want {
			t.Errorf("%v: %d tokens cached, want %d", tt.more, got, tt.want)
		}
	}
}

// A conversation's next turn hits what its last turn generated: the answer's
// text has the tokens that were cached for it.
func TestNextTurnHitsTheAnswer(t *testing.T) {
	t.Parallel()

	r := start(t, quiet())
	messages := []object{
		{"role": "system", "content": strings.Repeat("you answer questions about foxes and dogs. ", 4)},
		{"role": "user", "content": "what does the fox say?"},
	}
	var turn completion
	r.call(t, http.MethodPost, "/v1/chat/completions", object{"model": "tiny", "messages": messages, "max_tokens": 80, "return_token_ids": true}, &turn)
	answer := turn.Choices[0]
	held := turn.Usage.Prompt + 80 - 1 // the last token is never cached
	if held/16 == turn.Usage.Prompt/16 {
		t.Fatalf("the answer fills no block after %d prompt tokens", turn.Usage.Prompt)
	}

	messages = append(messages, object{"role": "assistant", "content": answer.Message.Content}, object{"role": "user", "content": "and the dog?"})
	var next completion
	r.call(t, http.MethodPost, "/v1/chat/completions", object{"model": "tiny", "messages": messages, "max_tokens": 1, "return_token_ids": true}, &next)
	if got, want := next.Usage.Details.Cached, held/16*16; got != want {
		t.Errorf("next turn hit %d tokens, want %d: the first prompt's %d and the answer's", got, want, turn.Usage.Prompt)
	}
	if got, want := next.PromptIDs[:held], slices.Concat(turn.PromptIDs, answer.IDs[:79]); !slices.Equal(got, want) {
		t.Errorf("the next turn's prompt begins with %v, want the first turn's prompt and answer %v", got, want)
	}
}

func TestTokenizeGivesThePromptsTokens(t *testing.T) {
	t.Parallel()

	r := start(t, quiet())
	for _, tt := range []struct {
		path string
		body object
	}{
		{"/v1/completions", object{"model": "tiny", "prompt": "the quick brown fox, 東京"}},
		{"/v1/chat/completions", object{"model": "tiny", "messages": []object{{"role": "user", "content": "hello, world"}}}},
	} {
		var tokenized struct {
			Count  int
			Tokens []uint32
		}
		r.call(t, http.MethodPost, "/tokenize", tt.body, &tokenized)
		tt.body["return_token_ids"], tt.body["max_tokens"] = true, 1
		var answer struct {
			PromptIDs []uint32 `json:"prompt_token_ids"`
			Choices   []struct {
				PromptIDs []uint32 `json:"prompt_token_ids"`
			}
		}
		r.call(t, http.MethodPost, tt.path, tt.body, &answer)
		if want := slices.Concat(answer.PromptIDs, answer.Choices[0].PromptIDs); !slices.Equal(tokenized.Tokens, want) || tokenized.Count != len(want) {
			t.Errorf("%s: /tokenize gives %d tokens %v, the prompt has %v", tt.path, tokenized.Count, tokenized.Tokens, want)
		}
	}
}

// The counters that a router's hit rate is made of are the sums over answers.
func TestCountersAreTheSumsOverAnswers(t *testing.T) {
	t.Parallel()

	cfg := quiet()
	cfg.LoRAs = Adapters{{Name: "la", Path: "/la"}}
	r := start(t, cfg)
	var prompt, cached, generated int
	for i := range 40 {
		body := object{"model": []string{"tiny", "la"}[i%2], "prompt": tokens(uint32(i%5), 40+i), "max_tokens": 1 + i%7}
		var c completion
		r.call(t, http.MethodPost, "/v1/completions", body, &c)
		prompt += c.Usage.Prompt
		cached += c.Usage.Details.Cached
		generated += c.Usage.Completion
	}
	if cached == 0 {
		t.Fatal("nothing was cached: the load is of no use")
	}
	labels := map[string]string{"model_name": "tiny", "engine": "0"}
	for name, want := range map[string]int{
		"vllm:prefix_cache_queries_total": prompt,
		"vllm:prefix_cache_hits_total":    cached,
		"vllm:prompt_tokens_total":        prompt,
		"vllm:generation_tokens_total":    generated,
	} {
		if got := r.metric(t, name, labels); got != float64(want) {
			t.Errorf("%s = %v, want %d", name, got, want)
		}
	}
	if got := r.metric(t, "vllm:cache_config_info", map[string]string{"block_size": "16", "num_gpu_blocks": "1024"}); got != 1 {
		t.Errorf("vllm:cache_config_info = %v, want 1", got)
	}
}

// openStream starts an answer of so many tokens and reads its first event.
func (r replica) openStream(ctx context.Context, t *testing.T, tokens int) *bufio.Scanner {
	t.Helper()
	body, err := json.Marshal(object{"model": "tiny", "prompt": "once upon a time", "max_tokens": tokens, "stream": true})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL()+"/v1/completions", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	sc := bufio.NewScanner(resp.Body)
	if !sc.Scan() || !strings.HasPrefix(sc.Text(), "data: {") {
		t.Fatalf("first line of the stream is %q, %v", sc.Text(), sc.Err())
	}
	return sc
}

// A token is there as soon as it is generated, and a client that goes away
// leaves nothing behind.
func TestStreamAndDisconnect(t *testing.T) {
	t.Parallel()

	cfg := quiet()
	cfg.InterToken = time.Hour // the second token never comes
	r := start(t, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	r.openStream(ctx, t, 100)
	if got := r.metric(t, "vllm:num_requests_running", nil); got != 1 {
		t.Errorf("vllm:num_requests_running = %v while streaming, want 1", got)
	}
	cancel()
	eventually(t, "nothing runs after the client has gone", func() bool {
		return r.metric(t, "vllm:num_requests_running", nil) == 0
	})
	if got := r.metric(t, "vllm:request_success_total", map[string]string{"finished_reason": "abort"}); got != 1 {
		t.Errorf("aborted requests = %v, want 1", got)
	}
}

func TestStopLetsOpenRequestsFinish(t *testing.T) {
	t.Parallel()

	cfg := quiet()
	cfg.InterToken = 5 * time.Millisecond
	a, err := New(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- a.Run(ctx) }()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	sc := replica{a, &http.Client{Transport: transport}}.openStream(t.Context(), t, 40)
	stop()
	events := 1
	for sc.Scan() {
		if strings.HasPrefix(sc.Text(), "data: ") {
			events++
		}
	}
	if events != 41 || sc.Err() != nil {
		t.Errorf("stream has %d events, %v; want 40 tokens and [DONE]", events, sc.Err())
	}
	if err := <-stopped; err != nil {
		t.Errorf("Run = %v, want nil after a clean stop", err)
	}
}

func TestDrainTimeoutEndsWhatTakesLonger(t *testing.T) {
	t.Parallel()

	cfg := quiet()
	cfg.InterToken, cfg.DrainTimeout = time.Hour, 10*time.Millisecond
	r := start(t, cfg) // whose cleanup waits for Run
	r.openStream(t.Context(), t, 2)
}

func TestTooManyRequests(t *testing.T) {
	t.Parallel()

	cfg := quiet()
	cfg.MaxQueued, cfg.InterToken = 1, time.Hour
	r := start(t, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r.openStream(ctx, t, 2)
	status, answer, err := r.do(t.Context(), http.MethodPost, "/v1/completions", object{"model": "tiny", "prompt": "x"})
	if err != nil || status != http.StatusServiceUnavailable || !strings.Contains(string(answer), "ServiceUnavailableError") {
		t.Errorf("a request beyond the limit got %d %s, %v; want 503", status, answer, err)
	}
}

func TestRefusedRequests(t *testing.T) {
	t.Parallel()

	r := start(t, quiet())
	for _, tt := range []struct {
		change object
		param  string
	}{
		{object{"max_tokens": 1.5}, "max_tokens"},
		{object{"max_completion_tokens": 0}, "max_completion_tokens"},
		{object{"n": 0}, "n"},
		{object{"n": 100_000}, "n"},
		{object{"max_tokens": "many"}, "body.max_tokens"},
		{object{"max_tokens": 1_000_000}, "input_tokens"},
		{object{"stream_options": object{"include_usage": true}}, "stream_options"},
		{object{"prompt": []any{"", "x"}}, ""},
		{object{"prompt_embeds": "AAAA"}, ""},
	} {
		body := object{"model": "tiny", "prompt": "x"}
		maps.Copy(body, tt.change)
		status, answer, err := r.do(t.Context(), http.MethodPost, "/v1/completions", body)
		var got struct {
			Error struct{ Message, Param string }
		}
		if err != nil || status != http.StatusBadRequest || json.Unmarshal(answer, &got) != nil || got.Error.Param != tt.param || got.Error.Message == "" {
			t.Errorf("%v got %d %s, %v; want 400 that names %q", tt.change, status, answer, err, tt.param)
		}
	}
}

func TestWithoutEvents(t *testing.T) {
	t.Parallel()

	r := start(t, quiet())
	if got := r.cached(t, tokens(1, 40)) + r.cached(t, tokens(1, 40)); got != 32 {
		t.Errorf("the same prompt twice hit %d tokens, want 32", got)
	}
	s := r.snapshot(t)
	if s.LastSeq != nil || len(s.Blocks) != 2 {
		t.Errorf("snapshot has last_seq %v and %d blocks, want null and 2", s.LastSeq, len(s.Blocks))
	}
	var sources object
	if r.call(t, http.MethodGet, "/kv_event_sources", nil, &sources); len(sources) != 0 {
		t.Errorf("/kv_event_sources = %v, want {}", sources)
	}
	if status, _, err := r.do(t.Context(), http.MethodPost, "/admin/events", object{"drop": 1}); err != nil || status != http.StatusBadRequest {
		t.Errorf("POST /admin/events = %d, %v; want 400", status, err)
	}
	if got := r.EventsEndpoint() + r.ReplayEndpoint() + r.Topic(); got != "" {
		t.Errorf("endpoints and topic are %q, want none", got)
	}
}

func TestEvict(t *testing.T) {
	t.Parallel()

	cfg := quiet()
	cfg.LoRAs = Adapters{{Name: "la", Path: "/la"}}
	r := start(t, cfg)
	type eviction struct {
		Evicted int
		InUse   int `json:"in_use"`
	}
	chat := []object{{"role": "user", "content": strings.Repeat("one two three four ", 10)}}
	text := strings.Repeat("five six seven eight ", 10)
	r.call(t, http.MethodPost, "/v1/chat/completions", object{"model": "tiny", "messages": chat, "max_tokens": 1}, nil)
	r.call(t, http.MethodPost, "/v1/completions", object{"model": "la", "prompt": text, "max_tokens": 1}, nil)
	r.call(t, http.MethodPost, "/v1/completions", object{"model": "tiny", "prompt": text, "max_tokens": 1, "cache_salt": "s"}, nil)
	r.cached(t, tokens(1, 40))
	r.cached(t, tokens(1000, 40))

	for _, tt := range []struct {
		body object
		want int
	}{
		{object{"prefix": object{"messages": chat}}, 2},
		{object{"prefix": object{"prompt": text}}, 0}, // neither salted nor of an adapter
		{object{"prefix": object{"prompt": text, "model": "la"}}, 2},
		{object{"prefix": object{"prompt": text, "cache_salt": "s"}}, 2},
		{object{"prefix": object{"tokens": tokens(1, 20)}}, 2}, // and what continues it
		{object{"count": 1}, 1},
		{object{"all": true}, 1},
		{object{"all": true}, 0},
	} {
		var got eviction
		if r.call(t, http.MethodPost, "/admin/evict", tt.body, &got); got != (eviction{Evicted: tt.want}) {
			t.Errorf("evict %v = %+v, want %d", tt.body, got, tt.want)
		}
	}
	for _, body := range []any{
		object{},
		object{"count": -1},
		object{"count": 1, "all": true},
		object{"number": 1},
		object{"prefix": object{}},
		object{"prefix": object{"tokens": tokens(1, 20), "model": "none"}},
		"all",
	} {
		if status, answer, err := r.do(t.Context(), http.MethodPost, "/admin/evict", body); err != nil || status/100 != 4 {
			t.Errorf("evict %v = %d %s, %v; want a 4xx", body, status, answer, err)
		}
	}
}

func TestRestartIsVisible(t *testing.T) {
	t.Parallel()

	first, second := start(t, quiet()), start(t, quiet())
	if a, b := first.snapshot(t).Epoch, second.snapshot(t).Epoch; a >= b {
		t.Errorf("epochs of two servers are %d and %d, want them to grow", a, b)
	}
	now := float64(time.Now().UnixMilli()) / 1000
	if got := second.metric(t, "process_start_time_seconds", nil); got > now || got < now-60 {
		t.Errorf("process_start_time_seconds = %v at %v, want the server's own start", got, now)
	}
}

// Without libzmq, and so without cgo, only a server with events needs it.
func TestNewNamesWhatIsMissing(t *testing.T) {
	t.Parallel()

	cfg := testConfig()
	cfg.Events = "tcp://nowhere"
	a, err := New(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err == nil {
		_ = a.Close()
		t.Fatal("New with an endpoint that is none = nil, want an error")
	}
	if !strings.Contains(err.Error(), "tcp://nowhere") && !strings.Contains(err.Error(), "apt-get install") {
		t.Errorf("error is %q, want it to name the endpoint or what to install", err)
	}
}
