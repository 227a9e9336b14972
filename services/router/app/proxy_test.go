package app

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// still keeps the fleet as it was first seen.
func still(c *Config) { c.ScrapeInterval, c.MetricsStaleAfter = time.Hour, 2*time.Hour }

func TestDeadReplicaIsReplaced(t *testing.T) {
	t.Parallel()

	engines := []*engine{newEngine(t, "m"), newEngine(t, "m"), newEngine(t, "m")}
	for _, e := range engines {
		// A kept connection that closes while a request is written to it is another case.
		e.Config.SetKeepAlivesEnabled(false)
	}
	r := start(t, still, engines...)
	body := ids(1, 60)
	first := r.post(completions, body)
	dead := int(first.endpoint()[0] - 'a')
	engines[dead].Close()

	a := r.post(completions, body)
	if a.status != http.StatusOK || a.endpoint() == first.endpoint() {
		t.Fatalf("status %d from %s, want 200 from another than %s", a.status, a.endpoint(), first.endpoint())
	}
	calls := engines[int(a.endpoint()[0]-'a')].seen()
	if got := calls[len(calls)-1].body; got != body {
		t.Errorf("the other replica got %d bytes, want the whole body of %d", len(got), len(body))
	}
	if n := r.metric("retries_total"); n != 1 {
		t.Errorf("%v retries, want 1", n)
	}
	if d := r.state().Replicas[dead]; d.Reachable || d.Reason == "" {
		t.Errorf("dead replica is reachable %v, reason %q; want not, with a reason", d.Reachable, d.Reason)
	}
	// The belief follows the request, not the attempt.
	if b := r.post(completions, body); b.endpoint() != a.endpoint() || b.match() != "4/4" {
		t.Errorf("next went to %s with %s, want %s with 4/4", b.endpoint(), b.match(), a.endpoint())
	}
	if n := r.metric("retries_total"); n != 1 {
		t.Errorf("%v retries after the dead one was known, want 1", n)
	}
}

func TestReplicaComesBack(t *testing.T) {
	t.Parallel()

	e := newEngine(t, "m")
	r := start(t, nil, newEngine(t, "m"), e)
	addr := e.Listener.Addr().String()
	e.Close()
	r.eventually("b to be missed", func() bool { return !r.state().Replicas[1].Reachable })
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: e.Config.Handler, ReadHeaderTimeout: patience}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(lis) })
	t.Cleanup(func() {
		_ = srv.Close()
		wg.Wait()
	})
	r.eventually("b to be back", func() bool { return r.state().Replicas[1].Reachable })
}

// errorOf reads an error in the API's form.
func errorOf(t *testing.T, a answer) (kind, param, code string) {
	t.Helper()
	var doc struct {
		Error *struct {
			Message, Type string
			Param, Code   *string
		}
	}
	if err := json.Unmarshal([]byte(a.body), &doc); err != nil || doc.Error == nil || doc.Error.Message == "" {
		t.Fatalf("status %d: %q is no error in the API's form (%v)", a.status, a.body, err)
	}
	str := func(p *string) string {
		if p == nil {
			return ""
		}
		return *p
	}
	return doc.Error.Type, str(doc.Error.Param), str(doc.Error.Code)
}

func TestNobodyAnswers(t *testing.T) {
	t.Parallel()

	engines := []*engine{newEngine(t, "m"), newEngine(t, "m")}
	r := start(t, still, engines...)
	engines[0].Close()
	engines[1].Close()
	a := r.post(completions, ids(1, 60))
	if _, _, code := errorOf(t, a); a.status != http.StatusBadGateway || code != "replica_unreachable" {
		t.Errorf("first: status %d, code %s; want 502, replica_unreachable", a.status, code)
	}
	for _, path := range []string{completions, "/v1/embeddings"} {
		a := r.post(path, ids(1, 60))
		if _, _, code := errorOf(t, a); a.status != http.StatusServiceUnavailable || code != "no_replica" || a.header.Get("Retry-After") != "1" {
			t.Errorf("%s: status %d, code %s, Retry-After %q; want 503, no_replica, 1", path, a.status, code, a.header.Get("Retry-After"))
		}
	}
	if a := r.do(http.MethodGet, "/v1/models", ""); a.status != http.StatusServiceUnavailable {
		t.Errorf("models: status %d, want 503", a.status)
	}
	if n := r.metric("replica_in_flight"); n != 0 {
		t.Errorf("%v requests in flight, want 0", n)
	}
}

// TestEngineThatBreaksOff: an answer that has not begun is asked of one other
// replica, and of no third: the request itself may be what kills engines.
func TestEngineThatBreaksOff(t *testing.T) {
	t.Parallel()

	breakOff := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	asked := func(engines []*engine) (n int) {
		for _, e := range engines {
			n += len(e.seen())
		}
		return n
	}

	engines := []*engine{newEngine(t, "m"), newEngine(t, "m"), newEngine(t, "m")}
	r := start(t, still, engines...)
	first := r.post(completions, ids(1, 60))
	broken := int(first.endpoint()[0] - 'a')
	engines[broken].set(func(e *engine) { e.serve = breakOff })
	if a := r.post(completions, ids(1, 60)); a.status != http.StatusOK || a.endpoint() == first.endpoint() {
		t.Errorf("status %d from %s after %s broke off, want 200 from another", a.status, a.endpoint(), first.endpoint())
	}
	if n := asked(engines); n != 3 {
		t.Errorf("engines were asked %d times for two requests, want 3", n)
	}

	only := newEngine(t, "m")
	only.serve = breakOff
	alone := start(t, still, only)
	if _, _, code := errorOf(t, alone.post(completions, ids(1, 60))); code != "replica_failed" {
		t.Errorf("code %s with nobody else to ask, want replica_failed: it was reached", code)
	}

	all := []*engine{newEngine(t, "m"), newEngine(t, "m"), newEngine(t, "m")}
	for _, e := range all {
		e.serve = breakOff
	}
	r = start(t, still, all...)
	a := r.post(completions, ids(1, 60))
	if _, _, code := errorOf(t, a); a.status != http.StatusBadGateway || code != "replica_failed" {
		t.Errorf("status %d, code %s; want 502, replica_failed", a.status, code)
	}
	if n := asked(all); n != 2 {
		t.Errorf("engines that all break off were asked %d times, want 2", n)
	}
	if n := r.metric("replica_in_flight"); n != 0 {
		t.Errorf("%v requests in flight, want 0", n)
	}
}

func TestEngineThatDoesNotAnswer(t *testing.T) {
	t.Parallel()

	e := newEngine(t, "m")
	e.serve = func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	r := start(t, func(c *Config) { c.ResponseTimeout = 50 * time.Millisecond }, e)
	a := r.post(completions, ids(1, 60))
	if _, _, code := errorOf(t, a); a.status != http.StatusGatewayTimeout || code != "replica_timeout" {
		t.Errorf("status %d, code %s; want 504, replica_timeout", a.status, code)
	}
	if n := r.metric("upstream_errors_total", "reason=timeout"); n != 1 {
		t.Errorf("%v timeouts counted, want 1", n)
	}
}

func TestEnginesErrorsPassUnchanged(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name, kind, body string
		status           int
	}{
		{"text", "text/plain", "no healthy upstream", 503},
		{"html", "text/html", "<h1>Bad Gateway</h1>", 502},
		{"empty", "", "", 500},
		{"json", "application/json", `{"error":{"message":"slow down"}}`, 429},
		{"context length", "application/json", `{"error":{"message":"too long","type":"BadRequestError","code":400}}`, 400},
		{"no content", "", "", 204},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t, "m")
			e.serve = func(w http.ResponseWriter, _ *http.Request) {
				if tt.kind != "" {
					w.Header().Set("Content-Type", tt.kind)
				}
				w.Header().Set("Retry-After", "7")
				w.Header().Set("X-Engine", "yes")
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			}
			r := start(t, nil, e)
			a := r.post(completions, ids(1, 60))
			if a.status != tt.status || a.body != tt.body || a.header.Get("Content-Type") != tt.kind || a.header.Get("Retry-After") != "7" || a.header.Get("X-Engine") != "yes" {
				t.Errorf("status %d, body %q, headers %v; want the engine's", a.status, a.body, a.header)
			}
			if !r.state().Replicas[0].Reachable {
				t.Error("replica is out because of what it answered")
			}
		})
	}
}

func TestModels(t *testing.T) {
	t.Parallel()

	// c has no models of its own: what is forwarded there says that it was asked.
	engines := []*engine{newEngine(t, "m", "ad<m"), newEngine(t, "m", "other"), newEngine(t)}
	r := start(t, nil, engines...)
	r.eventually("the models to be known", func() bool { return len(r.app.fleet.Models()) == 3 })
	a := r.do(http.MethodGet, "/v1/models", "")
	var list struct {
		Object string
		Data   []struct {
			ID      string
			OwnedBy string `json:"owned_by"`
			Parent  *string
		}
	}
	if err := json.Unmarshal([]byte(a.body), &list); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range list.Data {
		got = append(got, m.ID+" "+m.OwnedBy)
	}
	if diff := cmp.Diff([]string{"m vllm", "ad vllm", "other vllm"}, got); diff != "" || list.Object != "list" {
		t.Errorf("models (-want +got):\n%s", diff)
	}
	if h := r.do(http.MethodHead, "/v1/models", ""); h.status != http.StatusOK || h.body != "" || h.header.Get("Content-Length") != strconv.Itoa(len(a.body)) {
		t.Errorf("HEAD: status %d, length %s; want 200 and the length of GET", h.status, h.header.Get("Content-Length"))
	}
	for model, want := range map[string]string{"ad": "a", "other": "b"} {
		for _, path := range []string{completions, "/v1/embeddings"} {
			for range 3 {
				if a := r.post(path, `{"model":"`+model+`","prompt":"x","input":"x"}`); a.endpoint() != want {
					t.Errorf("%s for %s went to %q (status %d), want %s", path, model, a.endpoint(), a.status, want)
				}
			}
		}
	}
	for _, path := range []string{completions, "/v1/embeddings"} {
		a := r.post(path, `{"model":"no-such-model","prompt":"x"}`)
		if kind, param, code := errorOf(t, a); a.status != http.StatusNotFound || code != "model_not_found" || param != "model" || kind != "not_found_error" {
			t.Errorf("%s: status %d, %s, %s, %s; want 404, not_found_error, model, model_not_found", path, a.status, kind, param, code)
		}
	}
}

func TestForwardedPaths(t *testing.T) {
	t.Parallel()

	e1, e2 := newEngine(t, "m"), newEngine(t, "m")
	r := start(t, nil, e1, e2)
	tests := []struct {
		method, path string
		forwarded    bool
	}{
		{http.MethodPost, "/v1/embeddings?x=1;y=%zz", true},
		{http.MethodGet, "/v1/completions", true}, // the engine says 405
		{http.MethodDelete, "/v1/responses/r-1", true},
		{http.MethodOptions, "/v1/chat/completions", true},
		{http.MethodPost, "/inference/v1/generate", true},
		{http.MethodPost, "/tokenize", true},
		{http.MethodGet, "/version", true},
		{http.MethodPost, "/reset_prefix_cache", false},
		{http.MethodGet, "/metrics", false},
		{http.MethodGet, "/", false},
	}
	for _, tt := range tests {
		a := r.do(tt.method, tt.path, "")
		calls := slices.Concat(e1.seen(), e2.seen())
		forwarded := len(calls) > 0
		e1.set(func(e *engine) { e.calls = nil })
		e2.set(func(e *engine) { e.calls = nil })
		if forwarded != tt.forwarded || forwarded == (a.status == http.StatusNotFound) {
			t.Errorf("%s %s: forwarded %v, status %d; want forwarded %v", tt.method, tt.path, forwarded, a.status, tt.forwarded)
		}
		if forwarded && (a.endpoint() == "" || a.header.Get("X-Prefixroute-Policy") != "least-queue" || a.match() != "") {
			t.Errorf("%s %s: headers %v, want an endpoint, policy least-queue and no match", tt.method, tt.path, a.header)
		}
		if forwarded && calls[0].path+"?"+calls[0].query != tt.path && calls[0].path != tt.path {
			t.Errorf("engine got %s?%s, want %s", calls[0].path, calls[0].query, tt.path)
		}
	}
}

func TestForwardingGoesByLoad(t *testing.T) {
	t.Parallel()

	release := make(chan struct{})
	busy, idle := newEngine(t, "m"), newEngine(t, "m", "big")
	wait := func(http.ResponseWriter, *http.Request) { <-release }
	busy.serve = wait
	r := start(t, nil, newEngine(t), busy, idle)
	r.eventually("the models to be known", func() bool { return len(r.app.fleet.Models()) == 2 })
	idle.serve = wait
	resp := make(chan struct{})
	go func() {
		defer close(resp)
		r.post("/v1/embeddings", `{"model":"big"}`)
	}()
	r.eventually("c to be busy", func() bool { return r.metric("replica_in_flight", "replica=c") == 1 })
	busy.set(func(e *engine) { e.serve = nil })
	for range 5 {
		if a := r.post("/v1/embeddings", `{"model":"m"}`); a.endpoint() != "b" {
			t.Errorf("went to %s, want b, which has nothing in flight", a.endpoint())
		}
	}
	close(release)
	<-resp
}

func TestHeadersOnTheWay(t *testing.T) {
	t.Parallel()

	e := newEngine(t, "m")
	e.serve = func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Connection", "X-Hop")
		h.Set("X-Hop", "1")
		h.Set("Proxy-Authenticate", "Basic")
		h.Set("X-Request-Id", "abc")
		h.Set("X-Prefixroute-Endpoint", "forged")
		h.Set("X-Prefixroute-Debug", "forged")
		h.Set("Access-Control-Allow-Origin", "*")
		fmt.Fprint(w, "ok")
	}
	r := start(t, nil, e)
	a := r.post(completions, ids(1, 60), "X-Prefixroute-Endpoint", "z", "x-prefixroute-anything", "1", "X-Request-Id", "abc",
		"Authorization", "Bearer key", "X-Forwarded-For", "203.0.113.9", "Te", "trailers", "Expect", "100-continue", "Proxy-Authorization", "Basic Zm9v")
	got := e.seen()[0]
	for _, name := range []string{"X-Prefixroute-Endpoint", "X-Prefixroute-Anything", "Te", "Expect", "Proxy-Authorization", "Connection"} {
		if v := got.header.Get(name); v != "" {
			t.Errorf("engine got %s: %s, want it removed", name, v)
		}
	}
	if got.header.Get("Authorization") != "Bearer key" || got.header.Get("X-Request-Id") != "abc" {
		t.Errorf("engine got headers %v, want the client's key and request id", got.header)
	}
	if v := got.header.Values("X-Forwarded-For"); len(v) != 1 || v[0] != "203.0.113.9, 127.0.0.1" {
		t.Errorf("engine got X-Forwarded-For %q, want one with both addresses", v)
	}
	if want := strings.TrimPrefix(e.URL, "http://"); got.host != want {
		t.Errorf("engine got host %s, want its own %s", got.host, want)
	}
	if a.endpoint() != "a" || a.header.Get("X-Prefixroute-Debug") != "" || a.header.Get("X-Hop") != "" || a.header.Get("Proxy-Authenticate") != "" {
		t.Errorf("client got headers %v, want ours, and no hop-by-hop ones", a.header)
	}
	if a.header.Get("X-Request-Id") != "abc" || len(a.header.Values("Access-Control-Allow-Origin")) != 1 {
		t.Errorf("client got headers %v, want the engine's end-to-end ones, once", a.header)
	}
}

func TestSampleRequests(t *testing.T) {
	t.Parallel()

	var samples map[string]struct{ Path, Expect string }
	if err := json.Unmarshal(readFile(t, "requests", "EXPECTED.json"), &samples); err != nil {
		t.Fatal(err)
	}
	if len(samples) < 40 {
		t.Fatalf("%d samples, want at least 40", len(samples))
	}
	// What the router refuses itself; everything else is for the engine to judge.
	refused := map[string]int{
		"chat_empty_messages.json": 400, "chat_messages_not_array.json": 400, "chat_no_model.json": 400, "chat_model_null.json": 400,
		"chat_model_number.json": 400, "chat_model_unknown.json": 404, "chat_trailing_data.json": 400, "chat_not_json.txt": 400,
		"chat_empty_body.json": 400, "chat_truncated.json": 400, "chat_deep_nesting.json": 400,
	}
	x := newIndexer(t, live("a"))
	x.set(func(x *indexer) {
		x.replicas[0].Model = "org/model-a"
		x.held["a"] = 1000
	})
	e := newEngine(t, "org/model-a")
	r := start(t, unhurried(x), e)
	r.precise("a", true)
	for _, name := range slices.Sorted(maps.Keys(samples)) {
		body := string(readFile(t, "requests", name))
		e.set(func(e *engine) { e.calls = nil })
		a := r.post(samples[name].Path, body)
		calls := e.seen()
		if want, ok := refused[name]; ok {
			if a.status != want || len(calls) > 0 {
				t.Errorf("%s: status %d, %d calls; want %d from the router", name, a.status, len(calls), want)
			}
			errorOf(t, a)
			continue
		}
		if a.status != http.StatusOK || len(calls) != 1 {
			t.Errorf("%s: status %d, %d calls: %.200s", name, a.status, len(calls), a.body)
			continue
		}
		if calls[0].body != body || calls[0].length != int64(len(body)) {
			t.Errorf("%s: engine got %d bytes as %d, want the %d that were sent", name, len(calls[0].body), calls[0].length, len(body))
		}
	}
	if _, param, _ := errorOf(t, r.post("/v1/chat/completions", string(readFile(t, "requests", "chat_no_model.json")))); param != "model" {
		t.Errorf("error names %q, want model", param)
	}
	for _, name := range []string{"completion_prompt_embeds.json", "completion_empty_list.json", "completion_shorter_than_block.json"} {
		if a := r.post(completions, string(readFile(t, "requests", name))); a.match() != "0/0" {
			t.Errorf("%s: match is %s, want no claim", name, a.match())
		}
	}
}

func TestImagesAreToldApart(t *testing.T) {
	t.Parallel()

	r := start(t, nil, newEngine(t, "org/model-a"))
	first, second := string(readFile(t, "requests", "chat_image_a.json")), string(readFile(t, "requests", "chat_image_b.json"))
	r.post("/v1/chat/completions", first)
	a, b := r.post("/v1/chat/completions", first), r.post("/v1/chat/completions", second)
	if m, total, _ := strings.Cut(a.match(), "/"); m != total {
		t.Errorf("same image matches %s, want all", a.match())
	}
	if m, total, _ := strings.Cut(b.match(), "/"); m == total {
		t.Errorf("other image matches %s, want less than all", b.match())
	}
}

func TestOwnPagesWithAnotherMethod(t *testing.T) {
	t.Parallel()

	r := start(t, nil, newEngine(t, "m"))
	for path, allow := range map[string]string{"/prefixroute/state": http.MethodGet, "/prefixroute/explain": http.MethodPost} {
		a := r.do(http.MethodDelete, path, "")
		if _, _, code := errorOf(t, a); a.status != http.StatusMethodNotAllowed || code != "method_not_allowed" || a.header.Get("Allow") != allow {
			t.Errorf("DELETE %s: status %d, code %s, Allow %q; want 405, method_not_allowed, %s", path, a.status, code, a.header.Get("Allow"), allow)
		}
	}
	if a := r.do(http.MethodGet, "/prefixroute/other", ""); a.status != http.StatusNotFound {
		t.Errorf("unknown page: status %d, want 404", a.status)
	}
}

func TestBodyLimit(t *testing.T) {
	t.Parallel()

	e := newEngine(t, "m")
	r := start(t, func(c *Config) { c.MaxBodyBytes = 1000 }, e)
	large := `{"model":"m","prompt":"` + strings.Repeat("x", 2000) + `"}`
	for _, path := range []string{completions, "/v1/chat/completions", "/v1/embeddings", "/prefixroute/explain"} {
		a := r.post(path, large)
		if _, _, code := errorOf(t, a); a.status != http.StatusRequestEntityTooLarge || code != "request_too_large" {
			t.Errorf("%s: status %d, code %s; want 413, request_too_large", path, a.status, code)
		}
		// Without an announced length the limit is met while reading.
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.app.URL()+path, io.MultiReader(strings.NewReader(large)))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := r.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("%s, chunked: status %d, want 413", path, resp.StatusCode)
		}
	}
	if n := len(e.seen()); n > 0 {
		t.Errorf("engine got %d requests, want none", n)
	}
}

func TestNothingStaysInFlight(t *testing.T) {
	t.Parallel()

	e := newEngine(t, "m")
	e.serve = func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Query().Get("end") {
		case "500":
			http.Error(w, "no", http.StatusInternalServerError)
		case "abort":
			panic(http.ErrAbortHandler)
		case "midway":
			fmt.Fprint(w, "x")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case "wait":
			<-r.Context().Done()
		default:
			e.answer(w, r)
		}
	}
	r := start(t, nil, e)
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			end := []string{"", "500", "abort", "midway", "wait"}[i%5]
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			if end == "wait" {
				client.Timeout = 50 * time.Millisecond
			}
			resp, err := client.Post(r.app.URL()+completions+"?end="+end, "application/json", strings.NewReader(ids(i, 40)))
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		})
	}
	wg.Wait()
	r.eventually("everything to be taken back", func() bool { return r.metric("replica_in_flight") == 0 })
	r.eventually("all 60 to be counted", func() bool { return r.metric("requests_total") == 60 })
}
