// Package proxy stands between clients and the replicas: it has each request
// decided, forwards the bytes that came, and passes the answer through as it
// arrives.
//
// # Invariants
//
//   - A request's body reaches the engine byte for byte, and an answer's body the
//     client. Nothing waits for more of an answer.
//   - A request is sent to another replica while no connection was had for it,
//     and once more if it is a generation whose connection broke before the
//     answer had begun. After the first byte there is no other replica.
//   - An answer that breaks off is broken off towards the client too. It never
//     looks complete.
//   - Whatever way a request ends, what was counted for it in flight is taken back.
package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"time"

	"github.com/prefixroute/prefixroute/pkg/tokenize"
	"github.com/prefixroute/prefixroute/services/router/internal/fleet"
	"github.com/prefixroute/prefixroute/services/router/internal/openai"
	"github.com/prefixroute/prefixroute/services/router/internal/pick"
)

// Config sets the proxy's limits.
type Config struct {
	MaxBodyBytes    int64         // of a request; more is a 413
	ConnectTimeout  time.Duration // for a connection to a replica
	ResponseTimeout time.Duration // until an engine's headers; 0 = no limit
}

// Proxy serves the API that clients use. Use [New].
type Proxy struct {
	cfg       Config
	picker    *pick.Picker
	fleet     *fleet.Fleet
	transport *http.Transport
	reverse   *httputil.ReverseProxy
	metrics   *Metrics
	log       *slog.Logger
	mux       *http.ServeMux
}

// New returns a Proxy. [Proxy.Close] releases its idle connections.
func New(cfg Config, picker *pick.Picker, members *fleet.Fleet, metrics *Metrics, log *slog.Logger) *Proxy {
	p := &Proxy{
		cfg: cfg, picker: picker, fleet: members, transport: newTransport(cfg), metrics: metrics, log: log,
		mux: http.NewServeMux(),
	}
	p.reverse = &httputil.ReverseProxy{
		Rewrite:        rewrite,
		Transport:      (*sender)(p),
		FlushInterval:  -1, // at once, headers too
		BufferPool:     &buffers{},
		ModifyResponse: p.answered,
		ErrorHandler:   p.failed,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	p.mux.HandleFunc("POST /v1/chat/completions", p.routed(routeChat, tokenize.ParseChat))
	p.mux.HandleFunc("POST /v1/completions", p.routed(routeCompletions, tokenize.ParseCompletion))
	p.mux.HandleFunc("GET /v1/models", p.models)
	for _, path := range []string{"/v1/", "/inference/v1/", "/tokenize", "/detokenize", "/version"} {
		p.mux.HandleFunc(path, p.forwarded)
	}
	p.mux.HandleFunc("/", p.unknown)
	return p
}

// ServeHTTP implements [http.Handler].
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.mux.ServeHTTP(w, r) }

// Close closes the connections that are idle.
func (p *Proxy) Close() { p.transport.CloseIdleConnections() }

// exchange is one request on its way. It is shared by the handler and the round
// trip, which run one after the other.
type exchange struct {
	route   string
	started time.Time
	body    []byte
	choose  func(tried []string) (*pick.Decision, error)
	routed  bool // by prefix: the decision is worth believing and showing

	tried    []string // replicas to which no connection could be made
	decision *pick.Decision
	outcome  string // label value of the answer
	complete bool   // the answer was passed on in full
	broken   bool   // the engine broke off the answer

	// settle takes back what was counted for the attempt in progress.
	settle func()
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// routed serves the endpoints whose prompt decides.
func (p *Proxy) routed(route string, parse func([]byte) (tokenize.Request, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{route: route, started: time.Now(), routed: true}
		defer p.end(r, x)
		if e := r.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
			p.refuse(w, x, openai.Error{
				Status: http.StatusUnsupportedMediaType, Type: openai.InvalidRequest,
				Message: "the request's body is compressed, expected plain JSON", Code: "unsupported_content_encoding",
			})
			return
		}
		if !p.read(w, r, x) {
			return
		}
		req, err := parse(x.body)
		if err != nil {
			p.refuse(w, x, RequestError(err))
			return
		}
		view, err := p.picker.Look(r.Context(), p.picker.Prepare(r.Context(), req))
		if err != nil {
			p.refuse(w, x, Unserved(err, req.Model))
			return
		}
		x.choose = func(tried []string) (*pick.Decision, error) { return p.picker.Choose(view, tried) }
		p.reverse.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x)))
	}
}

// forwarded serves every other endpoint of the engines.
func (p *Proxy) forwarded(w http.ResponseWriter, r *http.Request) {
	x := &exchange{route: routeForwarded, started: time.Now()}
	defer p.end(r, x)
	if !p.read(w, r, x) {
		return
	}
	model := bodyModel(x.body)
	x.choose = func(tried []string) (*pick.Decision, error) {
		d, err := p.picker.Forward(model, tried)
		if err != nil && len(tried) == 0 {
			return nil, &unservedError{model: model, err: err}
		}
		return d, err
	}
	p.reverse.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x)))
}

// unknown answers for paths that are not the engines'.
func (p *Proxy) unknown(w http.ResponseWriter, r *http.Request) {
	x := &exchange{route: routeUnknown}
	defer p.end(r, x)
	p.refuse(w, x, openai.Error{
		Status: http.StatusNotFound, Type: openai.NotFound, Code: "not_found",
		Message: "the router does not forward this path",
	})
}

// end counts how a request ended. It runs also when the handler is aborted.
func (p *Proxy) end(r *http.Request, x *exchange) {
	if x.settle != nil {
		x.settle()
	}
	switch {
	case x.complete:
	case x.broken && r.Context().Err() == nil:
		x.outcome = outcomeAborted
		p.metrics.Upstream.WithLabelValues(upstreamBroken).Inc()
	default:
		x.outcome = outcomeCanceled
	}
	p.metrics.Requests.WithLabelValues(x.route, x.outcome).Inc()
}

// refuse answers with an error of the router's own.
func (p *Proxy) refuse(w http.ResponseWriter, x *exchange, e openai.Error) {
	x.outcome, x.complete = class(e.Status), true
	e.Write(w)
}

// rewrite prepares the request that is sent on. The replica is put in later.
func rewrite(pr *httputil.ProxyRequest) {
	out := pr.Out
	out.URL.RawQuery = pr.In.URL.RawQuery // as it came, whatever is in it
	out.Host = ""                         // the replica's own name, which gateways route by
	out.Trailer = nil                     // the body is sent with its length
	delete(out.Header, "Expect")          // the body is here already
	delete(out.Header, "Te")              // hop by hop
	if prior := pr.In.Header["X-Forwarded-For"]; len(prior) > 0 {
		out.Header["X-Forwarded-For"] = []string{strings.Join(prior, ", ")}
	}
	pr.SetXForwarded()
	for name := range out.Header {
		if strings.HasPrefix(name, headerPrefix) {
			delete(out.Header, name)
		}
	}
}

// buffers implements [httputil.BufferPool].
type buffers struct{ pool sync.Pool }

const bufferSize = 32 << 10

func (b *buffers) Get() []byte {
	if buf, ok := b.pool.Get().(*[]byte); ok {
		return *buf
	}
	return make([]byte, bufferSize)
}

func (b *buffers) Put(buf []byte) { b.pool.Put(&buf) }

// unservedError is a model for which there is no replica.
type unservedError struct {
	model string
	err   error
}

func (e *unservedError) Error() string { return e.err.Error() }
func (e *unservedError) Unwrap() error { return e.err }

var errNoExchange = errors.New("request did not come through a handler")
