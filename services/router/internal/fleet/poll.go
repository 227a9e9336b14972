package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/prefixroute/prefixroute/pkg/enginemetrics"
)

// maxModelsBytes bounds an engine's list of models.
const maxModelsBytes = 4 << 20

// missesAllowed is how many polls in a row may go unanswered before a replica
// counts as unreachable: a busy engine misses one now and then, and losing it
// means losing its cache.
const missesAllowed = 1

// idleTimeout is below the 5 s after which the engines' HTTP server closes an
// idle connection.
const idleTimeout = 4 * time.Second

// An outcome says how one question to an engine ended. Its values are label
// values.
type outcome string

const (
	answered    outcome = "ok"
	refused     outcome = "connect"    // no connection
	noAnswer    outcome = "timeout"    // no complete answer in time
	broken      outcome = "read"       // the answer ended early
	wrongStatus outcome = "status"     // answered with another status than 200
	unreadable  outcome = "unreadable" // answered with something else than was asked for
	stopped     outcome = "stopped"    // the router is going away
)

// statusError is an answer with another status than 200.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("status is %d, expected 200", int(e)) }

func newClient() *http.Client {
	dialer := &net.Dialer{}
	return &http.Client{
		Transport: &http.Transport{
			DialContext: dialer.DialContext, MaxIdleConnsPerHost: 2,
			IdleConnTimeout: idleTimeout, MaxResponseHeaderBytes: 64 << 10,
		},
		// What answers elsewhere is not the engine that was listed.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// poll asks one replica how it is and takes in what it says.
func (f *Fleet) poll(ctx context.Context, r *replica) {
	page, how, err := f.scrape(ctx, r)
	if how == stopped {
		return
	}
	f.metrics.Scrapes.WithLabelValues(string(how)).Inc()
	f.heard(r, page, how, err)
	if how != refused {
		f.list(ctx, r)
	}
	r.mu.Lock()
	r.state.polled = true
	r.mu.Unlock()
}

// list asks one replica for its models, if it is time to.
func (f *Fleet) list(ctx context.Context, r *replica) {
	r.mu.Lock()
	due := time.Since(r.state.modelsAt) >= f.opts.ModelsInterval
	r.mu.Unlock()
	if !due {
		return
	}
	models, how, err := f.models(ctx, r)
	if how == stopped {
		return
	}
	f.metrics.Scrapes.WithLabelValues(string(how)).Inc()
	f.listed(r, models, how, err)
}

// heard takes in the end of a scrape.
func (f *Fleet) heard(r *replica, page enginemetrics.Metrics, how outcome, err error) {
	r.mu.Lock()
	was, first, before := r.state.reachable, !r.state.polled, r.state.page.StartTime
	r.state.apply(how, err)
	if !was || !r.state.reachable {
		r.state.modelsAt = time.Time{} // what was listed while it was away may be old
	}
	restarted := false
	if how == answered {
		restarted = before != 0 && page.StartTime != 0 && page.StartTime != before
		r.state.page, r.state.pageAt = page, time.Now()
		if restarted {
			r.state.modelsAt = time.Time{}
		}
	}
	now := r.state.reachable
	r.mu.Unlock()

	if restarted && f.opts.Restarted != nil {
		f.opts.Restarted(r.spec.Name)
	}
	if how == answered && f.opts.Sized != nil && page.NumGPUBlocks.OK && page.BlockSize.OK {
		f.opts.Sized(r.spec.Name, int(page.NumGPUBlocks.N), int(page.BlockSize.N))
	}
	switch {
	case was && !now, first && !now:
		f.log.Warn("replica lost", "replica", r.spec.Name, "err", err)
	case !was && now:
		f.log.Info("replica answers", "replica", r.spec.Name)
	}
}

// apply moves the state on by one answer, or by the want of one.
func (s *state) apply(how outcome, err error) {
	s.reason = ""
	if err != nil {
		s.reason = "metrics: " + err.Error()
	}
	switch how {
	case refused:
		s.misses++
		s.reachable, s.slow = false, false
	case noAnswer, broken:
		s.misses++
		if s.misses > missesAllowed || !s.reachable {
			s.reachable, s.slow = false, true
		}
	case answered, wrongStatus, unreadable, stopped:
		s.misses = 0
		s.reachable, s.slow = true, false
	}
}

// listed takes in the end of a look at the models. A list that cannot be had
// leaves the last one in place.
func (f *Fleet) listed(r *replica, models []Model, how outcome, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case how == answered:
		r.state.models, r.state.listed, r.state.modelsAt = models, true, time.Now()
	case r.state.reason == "":
		r.state.reason = "models: " + err.Error()
	}
}

func (f *Fleet) scrape(ctx context.Context, r *replica) (page enginemetrics.Metrics, how outcome, err error) {
	how, err = f.ask(ctx, r, "/metrics", func(body io.Reader) (outcome, error) {
		var err error
		page, err = enginemetrics.Read(body)
		if errors.Is(err, enginemetrics.ErrTooLarge) || errors.Is(err, enginemetrics.ErrNoMetrics) {
			return unreadable, err
		}
		return broken, err
	})
	return page, how, err
}

func (f *Fleet) models(ctx context.Context, r *replica) (models []Model, how outcome, err error) {
	how, err = f.ask(ctx, r, "/v1/models", func(body io.Reader) (outcome, error) {
		text, err := io.ReadAll(io.LimitReader(body, maxModelsBytes+1))
		if err != nil {
			return broken, err
		}
		if len(text) > maxModelsBytes {
			return unreadable, fmt.Errorf("list has more than %d bytes", maxModelsBytes)
		}
		models, err = parseModels(text)
		return unreadable, err
	})
	return models, how, err
}

// parseModels reads an OpenAI list of models.
func parseModels(text []byte) ([]Model, error) {
	var list struct {
		Data []json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("list of models: %w", err)
	}
	models := make([]Model, 0, len(list.Data))
	for _, raw := range list.Data {
		m := Model{Raw: raw}
		if err := json.Unmarshal(raw, &m); err != nil {
			return nil, fmt.Errorf("list of models: %w", err)
		}
		if m.ID != "" {
			models = append(models, m)
		}
	}
	return models, nil
}

// ask sends one GET with a deadline and has read take the answer's body. read
// says what a failure of its own means.
func (f *Fleet) ask(ctx context.Context, r *replica, path string, read func(io.Reader) (outcome, error)) (outcome, error) {
	asked, cancel := context.WithTimeout(ctx, f.opts.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(asked, http.MethodGet, r.url.JoinPath(path).String(), http.NoBody)
	if err != nil {
		return refused, err
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return classify(ctx, err, broken), err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return wrongStatus, statusError(resp.StatusCode)
	}
	if how, err := read(resp.Body); err != nil {
		return classify(ctx, err, how), err
	}
	return answered, nil
}

// classify says what an error on the way means; other is for one that is
// neither a matter of time nor of the connection.
func classify(ctx context.Context, err error, other outcome) outcome {
	if ctx.Err() != nil {
		return stopped
	}
	var timed interface{ Timeout() bool }
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timed) && timed.Timeout() {
		return noAnswer
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return refused
	}
	return other
}
