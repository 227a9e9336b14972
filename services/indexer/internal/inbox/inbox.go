// Package inbox holds what one connection to an engine has delivered until the
// replica's follower takes it: messages in order, and what became of the
// connection itself.
//
// # Invariants
//
//   - Notices come out in the order in which they went in.
//   - Messages are bounded in number and bytes. A message that finds the queue
//     full is dropped and counted, and an [Overrun] notice takes the place of the
//     first one of a row: the follower repairs the hole from the engine's replay
//     socket, and need not wait for the next message to see it.
//   - Connected and Closed are never dropped; there is at most one of each.
package inbox

import (
	"slices"
	"sync"
)

// Kind says what a [Notice] is about.
type Kind uint8

const (
	// Connected says that the connection is up and messages will follow.
	Connected Kind = iota
	// Message has one message, whole, in Frames.
	Message
	// Overrun says that one or more messages were dropped here.
	Overrun
	// Closed says that the connection is over, and why in Err. Nothing follows.
	Closed
)

// A Notice is one thing that happened to a connection.
type Notice struct {
	Kind   Kind
	Frames [][]byte
	Err    error
}

// Limits bound the messages that wait in a queue. Both must be positive.
type Limits struct {
	Messages int
	Bytes    int64
}

// A Queue carries the notices of one connection from the goroutine that owns
// the socket to the one that follows the replica. It is safe for both.
type Queue struct {
	limits  Limits
	dropped func() // called for each dropped message
	ready   chan struct{}

	// Guarded by mu.
	mu       sync.Mutex
	items    []Notice // items[head:] wait
	head     int
	messages int
	bytes    int64
	overrun  bool // the newest item is an Overrun notice that still waits
	closed   bool
}

// New returns an empty queue. dropped, which may be nil, is called once for each
// message that was dropped, from the goroutine that delivered it.
func New(limits Limits, dropped func()) *Queue {
	return &Queue{limits: limits, dropped: dropped, ready: make(chan struct{}, 1)}
}

// Connect puts a Connected notice into the queue.
func (q *Queue) Connect() { q.put(Notice{Kind: Connected}) }

// Close puts the Closed notice into the queue. What is delivered afterwards is
// ignored.
func (q *Queue) Close(err error) { q.put(Notice{Kind: Closed, Err: err}) }

// Deliver puts a message into the queue, which owns frames from then on.
func (q *Queue) Deliver(frames [][]byte) { q.put(Notice{Kind: Message, Frames: frames}) }

func (q *Queue) put(n Notice) {
	if !q.add(n) {
		if q.dropped != nil {
			q.dropped()
		}
	}
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// add reports false if the message was dropped for want of room.
func (q *Queue) add(n Notice) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return true
	}
	q.closed = n.Kind == Closed
	if n.Kind == Message {
		size := frameBytes(n.Frames)
		// One message larger than the limit is let into an empty queue: it
		// would never fit, and the socket has its own bound on it.
		if q.messages >= q.limits.Messages || q.messages > 0 && q.bytes+size > q.limits.Bytes {
			if !q.overrun {
				q.overrun = true
				q.items = append(q.items, Notice{Kind: Overrun})
			}
			return false
		}
		q.messages++
		q.bytes += size
	}
	q.overrun = false
	q.items = append(q.items, n)
	return true
}

// Ready is readable when something was put into the queue since the last time.
// Its reader takes notices with [Queue.Pop] until there are none.
func (q *Queue) Ready() <-chan struct{} { return q.ready }

// Pop takes the oldest notice; false means that none waits.
func (q *Queue) Pop() (Notice, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head == len(q.items) {
		return Notice{}, false
	}
	n := q.items[q.head]
	q.items[q.head] = Notice{} // the frames belong to the caller now
	q.head++
	switch {
	case q.head == len(q.items):
		q.items, q.head = q.items[:0], 0
		q.overrun = false
	case q.head >= 1024 && q.head*2 >= len(q.items):
		q.items = slices.Delete(q.items, 0, q.head)
		q.head = 0
	}
	if n.Kind == Message {
		q.messages--
		q.bytes -= frameBytes(n.Frames)
	}
	return n, true
}

func frameBytes(frames [][]byte) int64 {
	var n int64
	for _, f := range frames {
		n += int64(len(f))
	}
	return n
}
