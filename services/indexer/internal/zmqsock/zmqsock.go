// Package zmqsock is all of the indexer's use of libzmq: subscriptions to
// engines' event streams, and questions to their replay sockets.
//
// # One socket, one connection, one engine process
//
// libzmq connects again by itself when a connection is lost, and tells nobody:
// the messages of an engine that was restarted would follow those of the old one
// on the same socket. Here every SUB socket has reconnection switched off and a
// monitor that reports the loss. A subscription is over when its connection is,
// and who wants the stream back subscribes anew. So every message of one
// subscription comes from one TCP connection, that is from one engine process.
//
// # Concurrency
//
// [Client.Run] is the goroutine that creates, polls and closes every
// subscription's sockets; nothing else touches them. Other goroutines talk to it
// through a list of commands and wake it through a socket of its own. A replay is
// asked on a socket that its caller's goroutine creates, uses and closes.
package zmqsock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// ErrNoLibzmq is returned where the program was built without cgo.
var ErrNoLibzmq = errors.New("built without libzmq: install it (apt-get install libzmq3-dev pkg-config) and build with CGO_ENABLED=1")

// ErrStopped is why a subscription is over, or a question is not asked, when
// the client is stopping.
var ErrStopped = errors.New("client is stopping")

// ErrReplayTimeout is returned by Ask when the replay socket was silent for
// longer than the idle timeout.
var ErrReplayTimeout = errors.New("replay socket did not answer in time")

// Config holds the limits of a client. All of them must be positive.
type Config struct {
	// HeartbeatInterval is how often an idle connection is pinged, and
	// HeartbeatTimeout how long the answer may take before the connection
	// counts as lost: together they bound how long a half-open one stays
	// unnoticed.
	HeartbeatInterval, HeartbeatTimeout time.Duration
	// ConnectTimeout bounds name resolution, and then connecting and handshake.
	ConnectTimeout time.Duration
	// ReplayIdleTimeout is how long a replay socket may be silent.
	ReplayIdleTimeout time.Duration
	// MaxMessageBytes bounds one frame; a peer that sends a larger one loses
	// the connection.
	MaxMessageBytes int64
	// MaxSockets bounds the sockets of the process; a subscription takes three.
	MaxSockets int
}

// resolve replaces the host name of a tcp endpoint by one of its addresses, so
// that a slow name server stalls the caller alone and not libzmq's I/O thread,
// which would miss the heartbeats of every replica. IPv4 comes first: engines
// bind all IPv4 addresses by default. Other transports pass as they are.
func resolve(ctx context.Context, endpoint string) (string, error) {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return endpoint, nil
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return "", fmt.Errorf("endpoint is %q, expected tcp://HOST:PORT: %w", endpoint, err)
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return "", fmt.Errorf("resolve endpoint %q: %w", endpoint, err)
	}
	if len(addrs) == 0 {
		return "", fmt.Errorf("resolve endpoint %q: no address", endpoint)
	}
	for i, a := range addrs {
		addrs[i] = a.Unmap()
	}
	first := slices.MinFunc(addrs, func(a, b netip.Addr) int { return cmp.Compare(a.BitLen(), b.BitLen()) })
	return "tcp://" + net.JoinHostPort(first.String(), port), nil
}

// isIPv6 reports whether a resolved endpoint needs an IPv6 socket. libzmq takes
// IPv4 addresses on such sockets too, but not on machines without IPv6.
func isIPv6(endpoint string) bool { return strings.HasPrefix(endpoint, "tcp://[") }
