package grpcapi

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	indexv1 "github.com/prefixroute/prefixroute/proto/prefixroute/index/v1"
)

// Clients ping every 10 s, also without a call open; half of that is allowed.
const (
	minClientPing = 5 * time.Second
	serverPing    = 10 * time.Second
	pingTimeout   = 5 * time.Second
	// maxStreams bounds the calls at once on one connection; more wait in the
	// client.
	maxStreams = 1024
)

// Endpoint is the gRPC server around a [Server], with the standard health and
// reflection services.
type Endpoint struct {
	api    *Server
	grpc   *grpc.Server
	health *health.Server
}

// NewEndpoint makes the endpoint; it is not healthy before Ready.
func NewEndpoint(api *Server, log *slog.Logger) *Endpoint {
	e := &Endpoint{
		api: api,
		grpc: grpc.NewServer(
			grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minClientPing, PermitWithoutStream: true}),
			grpc.KeepaliveParams(keepalive.ServerParameters{Time: serverPing, Timeout: pingTimeout}),
			grpc.MaxConcurrentStreams(maxStreams),
			grpc.UnaryInterceptor(unaryErrors(log)),
			grpc.ChainStreamInterceptor(streamErrors(log), api.endWithServer),
		),
		health: health.NewServer(),
	}
	indexv1.RegisterIndexServiceServer(e.grpc, api)
	healthv1.RegisterHealthServer(e.grpc, e.health)
	reflection.Register(e.grpc)
	e.serving(healthv1.HealthCheckResponse_NOT_SERVING)
	return e
}

func (e *Endpoint) serving(s healthv1.HealthCheckResponse_ServingStatus) {
	e.health.SetServingStatus("", s)
	e.health.SetServingStatus(indexv1.IndexService_ServiceDesc.ServiceName, s)
}

// Ready makes the health service say that look-ups are answered.
func (e *Endpoint) Ready() { e.serving(healthv1.HealthCheckResponse_SERVING) }

// Serve serves until Drain; it owns lis.
func (e *Endpoint) Serve(lis net.Listener) error {
	if err := e.grpc.Serve(lis); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil // drained before it began
}

// Drain ends the streams, lets calls finish until ctx ends, then cuts what is
// left. Nothing of the endpoint runs afterwards.
func (e *Endpoint) Drain(ctx context.Context) {
	e.health.Shutdown()
	e.api.Stop()
	unhook := context.AfterFunc(ctx, e.grpc.Stop)
	e.grpc.GracefulStop()
	unhook()
	e.api.readers.Wait()
}

// endWithServer ends the context of a stream when the server stops, for handlers
// that wait for nothing else: watchers of the health service would hold up a
// graceful stop for as long as they live.
func (s *Server) endWithServer(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-s.stopping:
			cancel()
		case <-done:
		}
	})
	err := handle(srv, endedStream{stream, ctx})
	close(done)
	wg.Wait()
	return err
}

// endedStream is a stream with another context.
type endedStream struct {
	grpc.ServerStream

	ctx context.Context //nolint:containedctx // grpc.ServerStream hands its context out by a method
}

// Context implements [grpc.ServerStream].
func (s endedStream) Context() context.Context { return s.ctx }

func unaryErrors(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		resp, err := handle(ctx, req)
		if err != nil {
			return nil, toStatus(ctx, log, info.FullMethod, err)
		}
		return resp, nil
	}
}

func streamErrors(log *slog.Logger) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		if err := handle(srv, stream); err != nil {
			return toStatus(stream.Context(), log, info.FullMethod, err)
		}
		return nil
	}
}

// toStatus is the one place that turns errors into status codes, and that logs
// an unexpected cause before hiding it.
func toStatus(ctx context.Context, log *slog.Logger, method string, err error) error {
	if bad, ok := errors.AsType[*argumentError](err); ok {
		return status.Error(codes.InvalidArgument, bad.text)
	}
	if inc, ok := errors.AsType[*incompatibleError](err); ok {
		return status.Error(codes.FailedPrecondition, inc.text)
	}
	switch {
	case errors.Is(err, ErrWarmingUp), errors.Is(err, errStopping):
		return status.Error(codes.Unavailable, err.Error())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	}
	if st, ok := status.FromError(err); ok {
		return st.Err()
	}
	log.ErrorContext(ctx, "rpc failed", "method", method, "err", err)
	return status.Error(codes.Internal, "internal error")
}
