//go:build compose

package compose

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prefixroute/prefixroute/e2e/harness"
	"github.com/prefixroute/prefixroute/pkg/trace"
)

// reply is one answer as a client sees it.
type reply struct {
	status   int
	endpoint string
	index    string
	match    string
	prompt   int // tokens
	cached   int // tokens
	err      error
}

// ask sends one chat request, not as a stream: an answer is whole or lost.
func ask(ctx context.Context, url string, body []byte) reply {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := harness.Client.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	r := reply{
		status: resp.StatusCode, endpoint: resp.Header.Get("X-Prefixroute-Endpoint"),
		index: resp.Header.Get("X-Prefixroute-Index"), match: resp.Header.Get("X-Prefixroute-Match"), err: err,
	}
	if err != nil || r.status != http.StatusOK {
		r.err = fmt.Errorf("status %d from %q: %.300s: %w", r.status, r.endpoint, text, errOr(err))
		return r
	}
	var answer struct {
		Usage struct {
			PromptTokens int `json:"prompt_tokens"`
			Details      struct {
				CachedTokens int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	r.err = json.Unmarshal(text, &answer)
	r.prompt, r.cached = answer.Usage.PromptTokens, answer.Usage.Details.CachedTokens
	return r
}

func errOr(err error) error {
	if err == nil {
		return io.EOF
	}
	return err
}

// tenants is the number of distinct system prompts of a load.
const tenants = 12

// window is a load in which each tenant asks equally often, so that two windows
// differ only in how they were routed. number makes its questions new.
func window(t *testing.T, rounds, number int) [][]byte {
	t.Helper()
	c := trace.Default("demo")
	c.Tenants, c.Requests, c.MaxTokens = tenants, tenants*60, 4
	reqs, err := trace.Generate(c)
	if err != nil {
		t.Fatal(err)
	}
	systems := map[int]trace.Body{}
	for _, r := range reqs {
		systems[r.Tenant] = r.Body
	}
	if len(systems) != tenants {
		t.Fatalf("the trace has %d tenants, want %d", len(systems), tenants)
	}
	var out [][]byte
	for round := range rounds {
		for tenant := range tenants {
			b := systems[tenant]
			b.Messages = []trace.Message{b.Messages[0], {Role: "user", Content: fmt.Sprintf("question %d %d", number, round)}}
			body, err := b.JSON()
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, body)
		}
	}
	return out
}

// clients is how many requests of a load are open at once: few enough that no
// engine has a queue, which would rightly overrule locality.
const clients = 3

// send sends every body once and returns the answers.
func send(ctx context.Context, url string, bodies [][]byte) []reply {
	replies := make([]reply, len(bodies))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(bodies); i = int(next.Add(1)) - 1 {
				replies[i] = ask(ctx, url, bodies[i])
			}
		})
	}
	wg.Wait()
	return replies
}

// background sends window after window until stop, which returns all answers.
func background(t *testing.T, url string, number int) (stop func() []reply) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var replies []reply
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			// New questions each time, so that blocks and events never end.
			replies = append(replies, send(context.WithoutCancel(ctx), url, window(t, 4, 1000*number+i))...)
		}
	})
	return func() []reply {
		cancel()
		wg.Wait()
		return replies
	}
}

// requireAnswered fails the test if an answer was lost.
func requireAnswered(t *testing.T, replies []reply) {
	t.Helper()
	lost := 0
	for _, r := range replies {
		if r.err == nil {
			continue
		}
		if lost++; lost == 1 {
			t.Errorf("a request was lost: %v", r.err)
		}
	}
	if lost > 0 || len(replies) == 0 {
		t.Errorf("%d of %d requests were lost", lost, len(replies))
	}
}

// shares is the hit rate in tokens, and each replica's share of the requests.
func shares(replies []reply) (hits float64, share map[string]float64) {
	prompt, cached := 0, 0
	share = map[string]float64{}
	for _, r := range replies {
		prompt += r.prompt
		cached += r.cached
		share[r.endpoint] += 1 / float64(len(replies))
	}
	return float64(cached) / float64(prompt), share
}

// indexes counts answers by what they rest on.
func indexes(replies []reply) map[string]int {
	count := map[string]int{}
	for _, r := range replies {
		count[r.index]++
	}
	return count
}
