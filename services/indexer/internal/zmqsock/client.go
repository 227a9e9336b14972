//go:build cgo

package zmqsock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/prefixroute/prefixroute/services/indexer/internal/inbox"
)

// pollInterval bounds how late a connect timeout is seen; everything else wakes
// the poller by itself.
const pollInterval = 250 * time.Millisecond

// wakeEndpoint is where the poller listens for being woken, in its own context.
const wakeEndpoint = "inproc://wake"

// Client owns a libzmq context, and with it every socket of the process. Use
// [New]; it does nothing before Run.
type Client struct {
	cfg  Config
	zctx *zmq.Context

	asks sync.WaitGroup // replays being asked

	// Guarded by mu.
	mu       sync.Mutex
	commands []func() // for the poller, in order
	waker    *zmq.Socket
	stopped  bool

	// Owned by Run.
	conns   map[*zmq.Socket]*conn // by both of a conn's sockets
	changed bool                  // conns differ from what is polled
	serial  uint64                // names monitors
}

// New makes a client. It fails where libzmq does.
func New(cfg Config) (*Client, error) {
	zctx, err := zmq.NewContext()
	if err != nil {
		return nil, fmt.Errorf("create libzmq context: %w", err)
	}
	if err := zctx.SetMaxSockets(cfg.MaxSockets); err != nil {
		return nil, errors.Join(fmt.Errorf("set libzmq sockets to %d: %w", cfg.MaxSockets, err), zctx.Term())
	}
	return &Client{cfg: cfg, zctx: zctx, conns: map[*zmq.Socket]*conn{}}, nil
}

// Run polls until ctx ends, then closes every subscription, waits for the
// replays being asked and gives everything back to libzmq.
func (c *Client) Run(ctx context.Context) error {
	woken, err := c.start()
	if err != nil {
		return errors.Join(err, c.zctx.Term())
	}
	unhook := context.AfterFunc(ctx, c.wake)
	defer unhook()

	var poller *zmq.Poller
	for ctx.Err() == nil {
		for _, do := range c.take() {
			do()
		}
		if poller == nil || c.changed {
			poller, c.changed = c.newPoller(woken), false
		}
		polled, err := poller.Poll(pollInterval)
		if err != nil {
			return errors.Join(fmt.Errorf("poll sockets: %w", err), c.stop(woken))
		}
		c.serve(polled, woken)
		c.expire(time.Now())
	}
	return c.stop(woken)
}

// start makes the pair of sockets by which the poller is woken.
func (c *Client) start() (woken *zmq.Socket, err error) {
	if woken, err = c.zctx.NewSocket(zmq.PAIR); err != nil {
		return nil, fmt.Errorf("create wake-up socket: %w", err)
	}
	waker, err := c.zctx.NewSocket(zmq.PAIR)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create wake-up socket: %w", err), woken.Close())
	}
	err = errors.Join(woken.SetLinger(0), waker.SetLinger(0), woken.Bind(wakeEndpoint), waker.Connect(wakeEndpoint))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect wake-up sockets: %w", err), waker.Close(), woken.Close())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waker = waker
	return woken, nil
}

// stop undoes start and closes what is still open. Terminating the context
// blocks until no socket is left.
func (c *Client) stop(woken *zmq.Socket) error {
	c.mu.Lock()
	c.stopped = true
	waker := c.waker
	c.waker = nil
	c.mu.Unlock()

	for _, do := range c.take() {
		do()
	}
	for _, cn := range c.open() {
		c.close(cn, ErrStopped)
	}
	c.asks.Wait()
	return errors.Join(waker.Close(), woken.Close(), c.zctx.Term())
}

// open lists the open connections once each.
func (c *Client) open() []*conn {
	var all []*conn
	for sock, cn := range c.conns {
		if sock == cn.sub {
			all = append(all, cn)
		}
	}
	return all
}

// do runs f in the poller, soon; false if it is stopping.
func (c *Client) do(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return false
	}
	c.commands = append(c.commands, f)
	c.signal()
	return true
}

func (c *Client) take() []func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.commands
	c.commands = nil
	return list
}

func (c *Client) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.signal()
}

// signal makes the poller return from Poll. Its caller holds mu, which is what
// makes the socket safe to share: libzmq wants a full fence between threads. A
// full pipe means that the poller has been woken already.
func (c *Client) signal() {
	if c.waker != nil {
		_, _ = c.waker.SendBytes(nil, zmq.DONTWAIT)
	}
}

func (c *Client) newPoller(woken *zmq.Socket) *zmq.Poller {
	p := zmq.NewPoller()
	p.Add(woken, zmq.POLLIN)
	for sock := range c.conns {
		p.Add(sock, zmq.POLLIN)
	}
	return p
}

// serve takes what the polled sockets have. Messages come before monitor events,
// so that those which arrived before a loss are delivered before it; those of a
// connection that is not known to be up wait for the event that says so.
func (c *Client) serve(polled []zmq.Polled, woken *zmq.Socket) {
	slices.SortStableFunc(polled, func(a, b zmq.Polled) int { return c.rank(a.Socket) - c.rank(b.Socket) })
	for _, p := range polled {
		cn := c.conns[p.Socket]
		switch {
		case p.Socket == woken:
			drain(woken)
		case cn == nil: // closed earlier in this round
		case p.Socket == cn.sub && cn.up:
			cn.receive()
		default:
			c.watch(cn)
		}
	}
}

func (c *Client) rank(s *zmq.Socket) int {
	if cn := c.conns[s]; cn != nil && s == cn.monitor {
		return 1
	}
	return 0
}

func drain(s *zmq.Socket) {
	for {
		if _, err := s.RecvBytes(zmq.DONTWAIT); err != nil {
			return
		}
	}
}

// expire gives up connections that took too long to come about. Some failures
// (a name that does not resolve in libzmq) are reported by no event at all.
func (c *Client) expire(now time.Time) {
	for _, cn := range c.open() {
		if !cn.up && now.After(cn.deadline) {
			c.close(cn, fmt.Errorf("connect to %s: no connection within %v", cn.endpoint, c.cfg.ConnectTimeout))
		}
	}
}

func isAgain(err error) bool { return errors.Is(err, zmq.Errno(syscall.EAGAIN)) }

// Subscribe connects to an engine's event stream and delivers every message of
// it, unfiltered, into q until the connection is lost or end is called. It
// returns an error only where the endpoint cannot be resolved; everything else
// arrives in q, whose last notice is Closed. ctx bounds the resolution.
func (c *Client) Subscribe(ctx context.Context, endpoint string, q *inbox.Queue) (end func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ConnectTimeout)
	defer cancel()
	addr, err := resolve(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	cn := &conn{endpoint: addr, queue: q}
	if !c.do(func() { c.connect(cn) }) {
		q.Close(ErrStopped)
	}
	return func() { c.do(func() { c.close(cn, nil) }) }, nil
}
