package compare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/prefixroute/prefixroute/pkg/enginemetrics"
	"github.com/prefixroute/prefixroute/pkg/trace"
)

// counters sums what the engines say of themselves.
type counters struct {
	queries, hits int64 // tokens looked up and tokens found
	// tokens is each server's cache capacity; 0 where it does not tell.
	tokens map[string]int64
}

func (c *client) counters(ctx context.Context, servers []Server) (counters, error) {
	sum := counters{tokens: map[string]int64{}}
	for _, s := range servers {
		page, err := c.metrics(ctx, s)
		if err != nil {
			return counters{}, err
		}
		if !page.PrefixQueries.OK || !page.PrefixHits.OK {
			return counters{}, fmt.Errorf("server %s: /metrics has no vllm:prefix_cache_queries_total and vllm:prefix_cache_hits_total", s.Name)
		}
		sum.queries += page.PrefixQueries.N
		sum.hits += page.PrefixHits.N
		sum.tokens[s.Name] = page.NumGPUBlocks.N * page.BlockSize.N
	}
	return sum, nil
}

func (c *client) metrics(ctx context.Context, s Server) (enginemetrics.Metrics, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/metrics", http.NoBody)
	if err != nil {
		return enginemetrics.Metrics{}, err
	}
	resp, err := c.do(req)
	if err != nil {
		return enginemetrics.Metrics{}, fmt.Errorf("server %s: %w", s.Name, err)
	}
	defer resp.Body.Close()
	page, err := enginemetrics.Read(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return enginemetrics.Metrics{}, fmt.Errorf("server %s: read metrics: %w", s.Name, err)
	}
	return page, nil
}

// empty drops whatever a server has cached. An engine publishes the clear of
// /reset_prefix_cache only with its next step, so one token is sent after it.
func (c *client) empty(ctx context.Context, s Server) error {
	err := c.call(ctx, s.URL+"/admin/evict", map[string]any{"all": true})
	if !notFound(err) {
		return err
	}
	if err := c.call(ctx, s.URL+"/reset_prefix_cache", map[string]any{}); err != nil {
		return fmt.Errorf("server %s cannot be emptied (vLLM needs VLLM_SERVER_DEV_MODE=1): %w", s.Name, err)
	}
	return c.completion(ctx, s, []int{1})
}

// evict makes every second tenant's system prompt leave all servers: by name
// where the engine has an admin API, else by filling its cache with other prompts.
func (c *client) evict(ctx context.Context, servers []Server, now counters, sent []trace.Request) error {
	prompts := map[int]trace.Message{}
	for _, r := range sent {
		if r.Tenant%2 == 0 {
			prompts[r.Tenant] = r.Body.Messages[0]
		}
	}
	for _, s := range servers {
		if err := c.evictFrom(ctx, s, now, prompts); err != nil {
			return fmt.Errorf("force evictions on server %s: %w", s.Name, err)
		}
	}
	return nil
}

func (c *client) evictFrom(ctx context.Context, s Server, now counters, prompts map[int]trace.Message) error {
	for _, m := range prompts {
		err := c.call(ctx, s.URL+"/admin/evict", map[string]any{"prefix": map[string]any{"messages": []trace.Message{m}}})
		if notFound(err) {
			return c.fill(ctx, s, now)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fillerTokens is the length of one filler prompt, short enough for any model.
const fillerTokens = 512

// fill replaces the whole cache of s by prompts that nobody else sends.
func (c *client) fill(ctx context.Context, s Server, now counters) error {
	capacity := now.tokens[s.Name]
	if capacity == 0 {
		return errors.New("vllm:cache_config_info does not tell block_size and num_gpu_blocks, so the cache cannot be filled")
	}
	for sent := int64(0); sent < capacity; sent += fillerTokens {
		number := int(c.fillerTokens) / fillerTokens
		prompt := make([]int, fillerTokens)
		for i := range prompt {
			// Distinct in the first token, so that no two fillers share a block.
			prompt[i] = 1 + (number*31+i*7)%997
		}
		if err := c.completion(ctx, s, prompt); err != nil {
			return err
		}
		c.fillerTokens += fillerTokens
	}
	return nil
}

// completion sends token ids straight to a server.
func (c *client) completion(ctx context.Context, s Server, prompt []int) error {
	model, err := c.model(ctx, s)
	if err != nil {
		return err
	}
	return c.call(ctx, s.URL+"/v1/completions", map[string]any{"model": model, "prompt": prompt, "max_tokens": 1})
}

// model is the first model that a server lists.
func (c *client) model(ctx context.Context, s Server) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/v1/models", http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := c.do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxBody)).Decode(&list); err != nil {
		return "", fmt.Errorf("server %s: decode /v1/models: %w", s.Name, err)
	}
	if len(list.Data) == 0 {
		return "", fmt.Errorf("server %s lists no model", s.Name)
	}
	return list.Data[0].ID, nil
}

// call posts v and discards the answer.
func (c *client) call(ctx context.Context, url string, v any) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	resp, err := c.post(ctx, url, payload)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxBody))
	return errors.Join(err, resp.Body.Close())
}

// notFound tells an engine without the route from one that refused.
func notFound(err error) bool {
	var status *statusError
	return errors.As(err, &status) && (status.code == http.StatusNotFound || status.code == http.StatusMethodNotAllowed)
}
