package proxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"syscall"
	"time"

	"github.com/prefixroute/prefixroute/services/router/internal/openai"
	"github.com/prefixroute/prefixroute/services/router/internal/pick"
)

const (
	// idlePerHost is how many idle connections to one replica are kept: as many
	// as it may well have requests in flight.
	idlePerHost = 512
	// idleTimeout is below the 5 s after which the engines' HTTP server closes an
	// idle connection, so that a request does not meet one that is being closed.
	idleTimeout = 4 * time.Second
	// maxAnswerHeader bounds the headers of an answer.
	maxAnswerHeader = 256 << 10
)

func newTransport(cfg Config) *http.Transport {
	dialer := &net.Dialer{Timeout: cfg.ConnectTimeout, KeepAlive: 15 * time.Second}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    cfg.ConnectTimeout,
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           0, // the bound is each replica's
		MaxIdleConnsPerHost:    idlePerHost,
		IdleConnTimeout:        idleTimeout,
		ResponseHeaderTimeout:  cfg.ResponseTimeout,
		MaxResponseHeaderBytes: maxAnswerHeader,
		DisableCompression:     true, // what the client did not ask for is not decoded for it
	}
}

// sender is the [http.RoundTripper] that finds a replica for each request.
type sender Proxy

// maxResend is how often a request that an engine may have seen is sent again,
// to another one. More would let a request that kills engines kill them all.
const maxResend = 1

// RoundTrip sends the request to the replica that was chosen, and to the next
// while no connection can be made. A generation whose connection breaks before
// the answer has begun is sent again too: it changes nothing but caches.
func (s *sender) RoundTrip(req *http.Request) (*http.Response, error) {
	x := exchangeOf(req.Context())
	if x == nil {
		return nil, errNoExchange
	}
	var last error
	resent := 0
	for {
		d, err := x.choose(x.tried)
		if err != nil {
			if last != nil {
				return nil, last
			}
			return nil, err
		}
		resp, sent, err := s.attempt(req, x, d)
		switch {
		case err == nil:
			return resp, nil
		case req.Context().Err() != nil || exhausted(err):
			return nil, err
		case sent && (!x.routed || !brokenOff(err) || resent == maxResend):
			return nil, err
		case sent:
			resent++
			last = err
		default:
			last = &connectError{replica: d.Chosen().Name, err: err}
		}
		s.fleet.Failed(d.Chosen().Name, err)
		s.metrics.Retries.Inc()
		s.log.InfoContext(req.Context(), "replica lost a request", "replica", d.Chosen().Name, "err", err)
		x.tried = append(x.tried, d.Chosen().Name)
	}
}

// dialing reports that err comes from making a connection.
func dialing(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// brokenOff reports that a connection ended where an answer was to begin, as it
// does when the engine's process dies.
func brokenOff(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// exhausted reports that a connection failed for want of something here, which
// says nothing about the replica.
func exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.EADDRNOTAVAIL)
}

// connectError is a replica to which no connection could be made.
type connectError struct {
	replica string
	err     error
}

func (e *connectError) Error() string { return "replica " + e.replica + ": " + e.err.Error() }
func (e *connectError) Unwrap() error { return e.err }

// attempt sends the request to one replica. sent reports that a connection was
// had, so that the engine may have seen the request.
func (s *sender) attempt(req *http.Request, x *exchange, d *pick.Decision) (resp *http.Response, sent bool, err error) {
	c := d.Chosen()
	inFlight := s.fleet.Begin(c.Name)
	committed := func() {}
	settle := sync.OnceFunc(func() {
		committed()
		inFlight()
	})
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
		// A second connection is the transport's own repeat on a stale one.
		if !sent && x.routed {
			committed = s.picker.Commit(d)
		}
		sent = true
	}}
	out := req.WithContext(httptrace.WithClientTrace(req.Context(), trace))
	out.URL = target(req.URL, c.URL)
	out.Body, out.GetBody = x.reader(), func() (io.ReadCloser, error) { return x.reader(), nil }
	out.ContentLength = int64(len(x.body))
	out.TransferEncoding = nil

	resp, err = s.transport.RoundTrip(out)
	if err != nil {
		settle()
		// The transport dials again by itself where a kept connection turned out
		// to be closed before anything was written to it.
		return nil, sent && !dialing(err), err
	}
	s.metrics.FirstByte.Observe(time.Since(x.started).Seconds())
	x.decision, x.settle = d, settle
	return resp, sent, nil
}

// target is the request's URL at a replica.
func target(in, base *url.URL) *url.URL {
	u := *in
	u.Scheme, u.Host, u.User = base.Scheme, base.Host, base.User
	if base.Path != "" {
		u.Path = base.Path + in.Path
		if in.RawPath != "" {
			u.RawPath = base.EscapedPath() + in.RawPath
		}
	}
	return &u
}

// reader returns the body from its start.
func (x *exchange) reader() io.ReadCloser {
	if len(x.body) == 0 {
		return http.NoBody
	}
	return io.NopCloser(bytes.NewReader(x.body))
}

// answered takes in an answer before any of it is passed on.
func (p *Proxy) answered(resp *http.Response) error {
	x := exchangeOf(resp.Request.Context())
	x.outcome = class(resp.StatusCode)
	x.show(resp.Header)
	if body, ok := resp.Body.(io.ReadWriteCloser); ok && resp.StatusCode == http.StatusSwitchingProtocols {
		x.complete = true
		resp.Body = &duplex{ReadWriteCloser: body, settle: x.settle}
		return nil
	}
	a := &answer{ReadCloser: resp.Body, proxy: p, exchange: x}
	if x.routed && resp.StatusCode == http.StatusOK {
		a.tap = openai.NewTap(resp.Header)
	}
	resp.Body = a
	return nil
}

// answer is a body on its way to the client. It sees each byte and delays none.
type answer struct {
	io.ReadCloser
	proxy    *Proxy
	exchange *exchange
	tap      *openai.Tap // nil where there is nothing to learn
}

// Read implements [io.Reader].
func (a *answer) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if a.tap != nil {
		a.tap.Pass(p[:n])
	}
	switch {
	case err == nil || a.exchange.complete:
	case errors.Is(err, io.EOF):
		a.exchange.complete = true
		a.complete()
	default:
		a.exchange.broken = true
	}
	return n, err
}

// complete learns from an answer that was received in full.
func (a *answer) complete() {
	if a.tap == nil {
		return
	}
	if a.tap.Failed() {
		a.proxy.metrics.StreamErrors.Inc()
		return
	}
	if u, ok := a.tap.Usage(); ok && u.Told {
		a.proxy.picker.Observe(a.exchange.decision, u.PromptTokens, u.CachedTokens)
	}
}

// Close implements [io.Closer].
func (a *answer) Close() error {
	a.exchange.settle()
	return a.ReadCloser.Close()
}

// duplex is a connection that is no longer HTTP.
type duplex struct {
	io.ReadWriteCloser
	settle func()
}

// Close implements [io.Closer].
func (d *duplex) Close() error {
	d.settle()
	return d.ReadWriteCloser.Close()
}
