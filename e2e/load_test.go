package e2e

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
)

// load sends requests from a few clients, over the given routers in turn, until
// it is stopped.
type load struct {
	mu      sync.Mutex
	replies []reply
	wg      sync.WaitGroup
	cancel  context.CancelFunc
}

// clients is how many requests of a load are open at once.
const clients = 4

// startLoad repeats bodies until stop; each client starts at its own place.
func (f *fleet) startLoad(t *testing.T, requests [][]byte, routers ...int) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{cancel: cancel}
	for c := range clients {
		l.wg.Go(func() {
			for i := c * len(requests) / clients; ctx.Err() == nil; i++ {
				r := f.ask(ctx, routers[i%len(routers)], requests[i%len(requests)])
				if ctx.Err() != nil {
					return // what was open when the load ended says nothing
				}
				l.mu.Lock()
				l.replies = append(l.replies, r)
				l.mu.Unlock()
			}
		})
	}
	t.Cleanup(func() { l.stop() })
	return l
}

// stop ends the load and returns every reply.
func (l *load) stop() []reply {
	l.cancel()
	l.wg.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.replies
}

// since returns the replies after the first n.
func (l *load) since(n int) []reply {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.replies[n:len(l.replies):len(l.replies)]
}

func (l *load) count() int { return len(l.since(0)) }

// await returns once n more requests were answered than before.
func (l *load) await(n int) func(context.Context) error {
	before := l.count()
	return func(context.Context) error {
		if got := l.count() - before; got < n {
			return fmt.Errorf("%d of %d requests answered", got, n)
		}
		return nil
	}
}

// requireAnswered fails the test for every reply that is not a 200.
func requireAnswered(t *testing.T, replies []reply) {
	t.Helper()
	if len(replies) == 0 {
		t.Fatal("no request was sent")
	}
	for _, r := range replies {
		if r.err != nil || r.status != http.StatusOK {
			t.Fatalf("router %d answered %d from %q: %v", r.router, r.status, r.endpoint, r.err)
		}
	}
}
