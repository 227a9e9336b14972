// Package sources finds where a replica publishes its events: from the list of
// replicas where it says so, else from the engine itself, which answers GET
// /kv_event_sources with its endpoints and GET /v1/models with what it serves.
package sources

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prefixroute/prefixroute/pkg/kvevents"
	"github.com/prefixroute/prefixroute/pkg/replicas"
)

// maxBody bounds an engine's answer: /v1/models of an engine with a thousand
// adapters has 300 kB.
const maxBody = 4 << 20

// Source is where and under which name a replica publishes.
type Source struct {
	Events string // ZMQ endpoint of the live stream
	Replay string // ZMQ endpoint of the replay socket; "" if there is none
	Topic  string // "" if not known, or empty
	// Model is the name of the base model; "" if nothing has told it yet, and
	// then only the topic of a message can.
	Model string
}

// Resolver asks engines over HTTP.
type Resolver struct {
	client  *http.Client
	timeout time.Duration // for each request
}

// NewResolver returns a resolver whose requests take at most timeout each.
// Its client keeps no idle connections: engines are asked once per connection.
func NewResolver(timeout time.Duration) *Resolver {
	return &Resolver{
		timeout: timeout,
		client:  &http.Client{Transport: &http.Transport{DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment}},
	}
}

// Resolve finds the replica's source. What the configuration says is taken as it
// is; only what it leaves open is asked for. It is an error if there is no events
// endpoint in the end; a missing replay endpoint or model is not.
func (r *Resolver) Resolve(ctx context.Context, cfg replicas.Replica) (Source, error) {
	src := Source{Events: cfg.Events, Replay: cfg.Replay, Topic: cfg.Topic, Model: cfg.Model}
	if src.Events == "" || src.Replay == "" || src.Topic == "" && src.Model == "" {
		found, err := r.discover(ctx, cfg)
		if err != nil && src.Events == "" {
			return Source{}, fmt.Errorf("ask %s where it publishes events: %w", cfg.Name, err)
		}
		src = fill(src, found)
	}
	if src.Model == "" {
		if t, ok := kvevents.ParseTopic(src.Topic); ok {
			src.Model = t.Model
		}
	}
	if src.Model == "" {
		// A name that cannot be had now may come with the first message's topic.
		src.Model, _ = r.model(ctx, cfg)
	}
	return src, nil
}

func fill(src, found Source) Source {
	if src.Events == "" {
		src.Events = found.Events
	}
	if src.Replay == "" {
		src.Replay = found.Replay
	}
	if src.Topic == "" {
		src.Topic = found.Topic
	}
	return src
}

// publisher is one rank's entry in /kv_event_sources.
type publisher struct {
	Enabled   bool    `json:"enable_kv_cache_events"`
	Publisher string  `json:"publisher"`
	Endpoint  string  `json:"endpoint"`
	Replay    *string `json:"replay_endpoint"`
	Topic     string  `json:"topic"`
}

func (r *Resolver) discover(ctx context.Context, cfg replicas.Replica) (Source, error) {
	var ranks map[string]publisher
	if err := r.get(ctx, cfg.URL+"/kv_event_sources", &ranks); err != nil {
		return Source{}, err
	}
	p, err := pick(ranks, cfg.Rank)
	if err != nil {
		return Source{}, err
	}
	host := hostOf(cfg.URL)
	src := Source{Events: reachable(p.Endpoint, host), Topic: p.Topic}
	if p.Replay != nil {
		src.Replay = reachable(*p.Replay, host)
	}
	return src, nil
}

// pick finds the entry of rank. An engine that reports a single rank is taken at
// its word: behind an external load balancer ranks are numbered over the group,
// each server reporting its own.
func pick(ranks map[string]publisher, rank int) (publisher, error) {
	if len(ranks) == 0 {
		return publisher{}, errors.New("the engine publishes no events: start it with --kv-events-config and enable_kv_cache_events")
	}
	p, ok := ranks[strconv.Itoa(rank)]
	if !ok {
		if len(ranks) > 1 {
			return publisher{}, fmt.Errorf("rank is %d, the engine reports ranks %s", rank, names(ranks))
		}
		for _, only := range ranks {
			p = only
		}
	}
	if !p.Enabled || p.Publisher != "zmq" || p.Endpoint == "" {
		return publisher{}, fmt.Errorf("rank %d has publisher %q with endpoint %q, expected events enabled with publisher \"zmq\"", rank, p.Publisher, p.Endpoint)
	}
	return p, nil
}

func names(ranks map[string]publisher) string {
	var list []string
	for name := range ranks {
		list = append(list, name)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

func hostOf(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// reachable puts host in the place of a wildcard: engines report what they have
// bound, and only the caller knows by which address it reaches them.
func reachable(endpoint, host string) string {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return endpoint
	}
	i := strings.LastIndexByte(rest, ':')
	if i < 0 {
		return endpoint
	}
	bound, port := strings.Trim(rest[:i], "[]"), rest[i+1:]
	addr, err := netip.ParseAddr(bound)
	if bound == "*" || bound == "" || err == nil && addr.IsUnspecified() {
		return "tcp://" + net.JoinHostPort(host, port)
	}
	return endpoint
}

// model returns the name of the base model that the engine serves: adapters are
// listed too, with the model they belong to as their parent.
func (r *Resolver) model(ctx context.Context, cfg replicas.Replica) (string, error) {
	var list struct {
		Data []struct {
			ID     string  `json:"id"`
			Parent *string `json:"parent"`
		} `json:"data"`
	}
	if err := r.get(ctx, cfg.URL+"/v1/models", &list); err != nil {
		return "", err
	}
	for _, m := range list.Data {
		if m.Parent == nil && m.ID != "" {
			return m.ID, nil
		}
	}
	return "", errors.New("the engine lists no base model")
}

func (r *Resolver) get(ctx context.Context, target string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, http.NoBody)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	target = req.URL.Redacted() // for messages
	resp, err := r.client.Do(req)
	if err != nil {
		return err // names method and URL
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: status is %d, expected 200", target, resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return fmt.Errorf("GET %s: %w", target, err)
	}
	if len(body) > maxBody {
		return fmt.Errorf("GET %s: answer is larger than %d bytes", target, maxBody)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("GET %s: read JSON: %w", target, err)
	}
	return nil
}
