// Package ops is the plumbing that every service of the product shares: flags
// with environment variables, the logger, the operations listener (metrics,
// health, profiles) and HTTP servers that stop in bounded time.
package ops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// version is set by the linker: -X github.com/prefixroute/prefixroute/pkg/ops.version=v1.2.3.
var version = ""

// Version is the release and, where the build knows it, the commit; "devel"
// for a build that was given neither.
func Version() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return "devel-" + s.Value
			}
		}
	}
	return "devel"
}

// NewLogger writes JSON lines to w.
func NewLogger(w io.Writer, level slog.Leveler) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
}

// NewRegistry returns a registry that already has the process's own metrics
// and prefixroute_build_info.
func NewRegistry(service string) *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "prefixroute_build_info",
			Help:        "Always 1; the labels say which service and version this is.",
			ConstLabels: prometheus.Labels{"service": service, "version": Version()},
		}, func() float64 { return 1 }),
	)
	return reg
}

// NewMux serves /metrics, /healthz (200 while the process lives), /readyz (503
// with the reason while ready returns an error) and /debug/pprof/.
func NewMux(reg *prometheus.Registry, ready func() error) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{Registry: reg}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

// headerTimeout bounds how long a client may take to send its request's
// headers, and how long an idle connection is kept.
const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
)

// NewServer is an HTTP server with the product's limits. It has no write
// timeout: answers stream for as long as an engine generates.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// Serve runs srv on lis until ctx ends, lets open requests finish for at most
// drain, then closes what is left. It returns nil after such a stop.
func Serve(ctx context.Context, srv *http.Server, lis net.Listener, drain time.Duration) error {
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(lis) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	// The parent is over; draining gets its own, bounded, time.
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	err := srv.Shutdown(stop)
	if err != nil {
		err = srv.Close()
	}
	if serveErr := <-failed; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	return err
}

// Listen opens a TCP listener on addr; port 0 takes a free one.
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	lis, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: %w", addr, err)
	}
	return lis, nil
}
