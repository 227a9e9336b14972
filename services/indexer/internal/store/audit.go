package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// auditInterval is how often copies are looked at that nothing is written to. A
// store that was wiped under a quiet fleet would stay empty otherwise.
const auditInterval = 5 * time.Second

// revision reads a copy's revision; "" means that there is no copy.
func (s *Store) revision(ctx context.Context, replica string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	rev, err := s.rdb.HGet(ctx, s.key(replica, "meta"), fieldRev).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", fmt.Errorf("read revision of %s: %w", replica, err)
	}
	return rev, nil
}

// audit plans a whole write of every copy that is not the one that was written
// last. It runs between writes, in their goroutine, so that what it compares
// stands still. Whether another writer may have it is for that write to find out.
func (w *Writer) audit(ctx context.Context) {
	for _, c := range w.idle() {
		rev, err := w.store.revision(ctx, c.replica.Name())
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			w.metrics.Up.Set(0)
			w.log.DebugContext(ctx, "copy could not be looked at", "replica", c.replica.Name(), "err", err)
			return // the others are no nearer
		case rev != c.rev:
			w.log.WarnContext(ctx, "durable copy is not the one that was written last; writing it whole", "replica", c.replica.Name())
			c.whole = true
			w.Dirty(c.replica)
		}
		w.metrics.Up.Set(1)
	}
}

// idle lists the copies that this process writes and has nothing to write to.
func (w *Writer) idle() []*replicaCopy {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []*replicaCopy
	for name, c := range w.copies {
		if _, dirty := w.dirty[name]; !dirty && c.token != 0 && !c.whole && !c.lost && c.pending == nil {
			list = append(list, c)
		}
	}
	return list
}
