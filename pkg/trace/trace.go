// Package trace makes seeded workloads of OpenAI chat requests: tenants that
// each open every request with their own long system prompt and end it with a
// short question.
//
// A trace is what a prefix cache lives on: requests of one tenant share all of
// the system prompt's blocks and nothing else.
package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Config describes a workload. The zero value is not usable; start from
// [Default].
type Config struct {
	// Tenants is how many distinct system prompts there are.
	Tenants int
	// Words is the length of each system prompt.
	Words int
	// Requests is the length of the trace.
	Requests int
	// Rate is the mean arrival rate in requests a second, Poisson; 0 = each
	// request follows the one before.
	Rate float64
	// Hot is the share of requests that go to the first tenant, 0..1; the rest
	// is spread evenly over all.
	Hot float64
	// MaxTokens bounds each answer.
	MaxTokens int
	// Model is the name in each body.
	Model string
	// Seed decides everything: equal configurations give equal traces.
	Seed uint64
}

// Default is eight tenants with system prompts of 180 words and 64 requests,
// one after the other.
func Default(model string) Config {
	return Config{Tenants: 8, Words: 180, Requests: 64, MaxTokens: 4, Model: model, Seed: 7}
}

// Validate reports every field that is out of range.
func (c Config) Validate() error {
	var errs []error
	for _, f := range []struct {
		name  string
		value int
	}{{"tenants", c.Tenants}, {"words", c.Words}, {"requests", c.Requests}, {"max tokens", c.MaxTokens}} {
		if f.value <= 0 {
			errs = append(errs, fmt.Errorf("%s is %d, expected at least 1", f.name, f.value))
		}
	}
	if !(c.Rate >= 0) {
		errs = append(errs, fmt.Errorf("rate is %v, expected 0 or more requests a second", c.Rate))
	}
	if !(c.Hot >= 0 && c.Hot <= 1) {
		errs = append(errs, fmt.Errorf("hot share is %v, expected 0 to 1", c.Hot))
	}
	if c.Model == "" {
		errs = append(errs, errors.New("model is empty, expected the name that the engines serve"))
	}
	return errors.Join(errs...)
}

// Message is one chat message of a body.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Body is the OpenAI chat request that a trace carries.
type Body struct {
	Model         string         `json:"model"`
	MaxTokens     int            `json:"max_tokens"`
	Stream        bool           `json:"stream,omitempty"`
	StreamOptions *StreamOptions `json:"stream_options,omitempty"`
	Messages      []Message      `json:"messages"`
}

// StreamOptions asks for the usage chunk at the end of a stream.
type StreamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// JSON is the body as it goes over the wire.
func (b Body) JSON() ([]byte, error) { return json.Marshal(b) }

// Request is one line of a trace.
type Request struct {
	// At is when the request arrives, counted from the start of the trace.
	At time.Duration
	// Tenant is the number of the system prompt, from 0.
	Tenant int
	Body   Body
}

// Generate makes the whole trace. It fails only where Validate does.
func Generate(c Config) ([]Request, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	rnd := rand.New(rand.NewPCG(c.Seed, 0))
	systems := make([]string, c.Tenants)
	for i := range systems {
		systems[i] = fmt.Sprintf("tenant%d %s", i, words(rnd, c.Words-1))
	}
	out := make([]Request, c.Requests)
	at := time.Duration(0)
	for i := range out {
		if c.Rate > 0 {
			at += time.Duration(rnd.ExpFloat64() / c.Rate * float64(time.Second))
		}
		tenant := 0
		if rnd.Float64() >= c.Hot {
			tenant = rnd.IntN(c.Tenants)
		}
		question := fmt.Sprintf("question %d please explain %s", i, words(rnd, 4))
		out[i] = Request{At: at, Tenant: tenant, Body: Body{
			Model: c.Model, MaxTokens: c.MaxTokens,
			Messages: []Message{{"system", systems[tenant]}, {"user", question}},
		}}
	}
	return out, nil
}

// words draws n words of the vocabulary, separated by spaces.
func words(rnd *rand.Rand, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(vocabulary[rnd.IntN(len(vocabulary))])
	}
	return b.String()
}

// vocabulary is short enough to read and long enough that two tenants never
// open with the same sixteen tokens by chance.
var vocabulary = strings.Fields(`
	account amount answer audit balance basket branch bundle cancel carrier
	charge claim client coupon credit currency customer damage deadline delay
	deliver deposit device discount dispute escalate estimate exchange expire
	export feature fee filter forward gateway gift guide handle history import
	index inform insure invoice issue label ledger limit login margin merge
	method monitor notify number offer order outage owner package parcel patch
	payment penalty period policy portal prefer price profile prompt quota
	receipt record refund region reject renew repair replace report reset
	return review route sample schedule secure select service settle shipment
	signal status stock store submit support switch ticket tone transfer trial
	update usage validate vendor verify voucher warranty window`)
