package compare

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/prefixroute/prefixroute/pkg/trace"
)

// Eviction is what two routers make of one prefix that its only holder lost.
type Eviction struct {
	// Replica held the prompt of Tokens tokens and lost it.
	Replica              string
	Tokens               int
	Approximate, Precise Choice
	// Promised is what the approximate router then said Replica holds, Cached
	// what Replica reused; both in tokens.
	Promised, Cached int
}

// Choice is where a router would send a request, and why.
type Choice struct {
	Index   string
	Replica string `json:"replica"`
	Matched int    `json:"matched"`
	Total   int    `json:"total"`
	Sum     float64
}

// String says it in a few words.
func (c Choice) String() string {
	if c.Matched == 0 {
		return fmt.Sprintf("cold, no replica holds a block; goes to %s (score %.2f)", c.Replica, c.Sum)
	}
	return fmt.Sprintf("match %d/%d blocks on %s (score %.2f)", c.Matched, c.Total, c.Replica, c.Sum)
}

// Evict sends r through the approximate router and then through the precise
// one, which finds it where the first has put it; takes it away from there
// behind both routers' backs; and asks both where it would go next. At last it
// sends it through the approximate router, to hear what the replica reuses.
func Evict(ctx context.Context, approximate, precise Target, r trace.Request) (Eviction, error) {
	c := newClient(1)
	defer c.http.CloseIdleConnections()
	var e Eviction
	for _, t := range []Target{approximate, precise} {
		a := c.send(ctx, t.Router, r)
		if a.err != nil {
			return e, fmt.Errorf("warm through the %s router: %w", t.Index, a.err)
		}
		e.Replica, e.Tokens = a.replica, a.promptTokens
	}
	if err := c.evictMessages(ctx, approximate.Servers, e.Replica, r); err != nil {
		return e, err
	}
	var err error
	if e.Approximate, err = c.explain(ctx, approximate, r); err != nil {
		return e, err
	}
	if e.Precise, err = c.explainWithout(ctx, precise, e.Replica, r); err != nil {
		return e, err
	}
	last := c.send(ctx, approximate.Router, r)
	e.Promised, e.Cached = last.promised, last.cached
	return e, last.err
}

func (c *client) evictMessages(ctx context.Context, servers []Server, name string, r trace.Request) error {
	for _, s := range servers {
		if s.Name == name {
			return c.call(ctx, s.URL+"/admin/evict", map[string]any{"prefix": map[string]any{"messages": r.Body.Messages[:1]}})
		}
	}
	return fmt.Errorf("the router answered from %q, which is none of the servers", name)
}

// explain asks a router what it would do, without doing it.
func (c *client) explain(ctx context.Context, t Target, r trace.Request) (Choice, error) {
	payload, err := r.Body.JSON()
	if err != nil {
		return Choice{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	resp, err := c.post(ctx, t.Router+"/prefixroute/explain", payload)
	if err != nil {
		return Choice{}, err
	}
	defer resp.Body.Close()
	var answer struct {
		Candidates []Choice `json:"candidates"`
		Chosen     string   `json:"chosen"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxBody)).Decode(&answer); err != nil {
		return Choice{}, fmt.Errorf("decode the %s router's explanation: %w", t.Index, err)
	}
	for _, choice := range answer.Candidates {
		if choice.Replica == answer.Chosen {
			choice.Index = t.Index
			return choice, nil
		}
	}
	return Choice{}, fmt.Errorf("the %s router chose %q, which is none of its candidates", t.Index, answer.Chosen)
}

// explainWithout asks until the router has heard that replica lost the prefix:
// the eviction's event is on its way.
func (c *client) explainWithout(ctx context.Context, t Target, replica string, r trace.Request) (Choice, error) {
	ctx, cancel := context.WithTimeout(ctx, countersDeadline)
	defer cancel()
	for {
		choice, err := c.explain(ctx, t, r)
		if err != nil || choice.Matched == 0 || choice.Replica != replica {
			return choice, err
		}
		if err := wait(ctx, pollInterval); err != nil {
			return Choice{}, fmt.Errorf("the %s router still finds the prefix on %s: %w", t.Index, replica, err)
		}
	}
}
