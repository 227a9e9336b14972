//go:build cgo

package zmqsock

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/prefixroute/prefixroute/services/indexer/internal/inbox"
)

// maxBurst bounds the messages taken from one socket before the others get
// their turn.
const maxBurst = 256

// conn is one subscription: a SUB socket that never reconnects and the monitor
// that tells what becomes of its connection. Owned by the poller.
type conn struct {
	endpoint     string
	queue        *inbox.Queue
	sub, monitor *zmq.Socket
	up           bool      // the handshake has succeeded
	deadline     time.Time // by which it must have
}

// connect opens both sockets of cn and registers them.
func (c *Client) connect(cn *conn) {
	c.serial++
	cn.deadline = time.Now().Add(c.cfg.ConnectTimeout)
	if err := c.openSockets(cn, "inproc://monitor-"+strconv.FormatUint(c.serial, 10)); err != nil {
		c.closeSockets(cn)
		cn.queue.Close(fmt.Errorf("connect to %s: %w", cn.endpoint, err))
		return
	}
	c.conns[cn.sub], c.conns[cn.monitor] = cn, cn
	c.changed = true
}

func (c *Client) openSockets(cn *conn, monitor string) (err error) {
	if cn.sub, err = c.zctx.NewSocket(zmq.SUB); err != nil {
		return fmt.Errorf("create socket: %w", err)
	}
	if err := errors.Join(c.options(cn.sub, cn.endpoint),
		cn.sub.SetReconnectIvl(-1),
		// The queue behind the socket is what bounds memory, with a count of what
		// it drops, and the poller does nothing but move messages there. A mark of
		// the socket's own would make libzmq stop reading, heartbeats included,
		// and abort the process afterwards (libzmq #4767, open in 4.3.4 and 4.3.5).
		cn.sub.SetRcvhwm(0),
		cn.sub.SetSubscribe("")); err != nil {
		return fmt.Errorf("set socket options: %w", err)
	}
	// MONITOR_STOPPED is left out on purpose: libzmq sends it from the thread
	// that reaps closed sockets, blocking, to a monitor that may be gone.
	const events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
	if err := cn.sub.Monitor(monitor, events); err != nil {
		return fmt.Errorf("monitor socket: %w", err)
	}
	if cn.monitor, err = c.zctx.NewSocket(zmq.PAIR); err != nil {
		return fmt.Errorf("create monitor socket: %w", err)
	}
	if err := errors.Join(cn.monitor.SetLinger(0), cn.monitor.Connect(monitor)); err != nil {
		return fmt.Errorf("connect monitor socket: %w", err)
	}
	return cn.sub.Connect(cn.endpoint)
}

// options sets what every socket that talks to an engine has in common.
func (c *Client) options(s *zmq.Socket, endpoint string) error {
	return errors.Join(
		s.SetLinger(0),
		s.SetIpv6(isIPv6(endpoint)),
		s.SetMaxmsgsize(c.cfg.MaxMessageBytes),
		s.SetHeartbeatIvl(c.cfg.HeartbeatInterval),
		s.SetHeartbeatTimeout(c.cfg.HeartbeatTimeout),
		s.SetHeartbeatTtl(c.cfg.HeartbeatInterval+c.cfg.HeartbeatTimeout),
		s.SetHandshakeIvl(c.cfg.ConnectTimeout),
		s.SetConnectTimeout(c.cfg.ConnectTimeout),
	)
}

// receive delivers what the socket has, up to a burst.
func (cn *conn) receive() {
	for range maxBurst {
		frames, err := cn.sub.RecvMessageBytes(zmq.DONTWAIT)
		if err != nil {
			return // nothing left; a lost connection is the monitor's business
		}
		cn.queue.Deliver(frames)
	}
}

// watch reads the monitor of cn. DISCONNECTED ends an established connection,
// CLOSED an attempt.
func (c *Client) watch(cn *conn) {
	for {
		event, _, value, err := cn.monitor.RecvEvent(zmq.DONTWAIT)
		if err != nil {
			if !isAgain(err) {
				c.close(cn, fmt.Errorf("read monitor of %s: %w", cn.endpoint, err))
			}
			return
		}
		switch event {
		case zmq.EVENT_HANDSHAKE_SUCCEEDED:
			cn.up = true
			cn.queue.Connect()
		case zmq.EVENT_DISCONNECTED:
			cn.receive()
			c.close(cn, fmt.Errorf("connection to %s was lost", cn.endpoint))
			return
		case zmq.EVENT_CLOSED:
			c.close(cn, fmt.Errorf("connect to %s: refused or unreachable (event value %d)", cn.endpoint, value))
			return
		default:
		}
	}
}

// close ends a subscription. It is a no-op for one that is over.
func (c *Client) close(cn *conn, why error) {
	if cn.sub == nil || c.conns[cn.sub] == nil {
		return
	}
	delete(c.conns, cn.sub)
	delete(c.conns, cn.monitor)
	c.changed = true
	c.closeSockets(cn)
	cn.queue.Close(why)
}

func (c *Client) closeSockets(cn *conn) {
	if cn.sub != nil {
		// Stopping the monitor first keeps libzmq from sending it events when
		// its other end is gone.
		_ = cn.sub.Monitor("", 0)
		_ = cn.sub.Close()
	}
	if cn.monitor != nil {
		_ = cn.monitor.Close()
	}
}
