// Package store keeps a durable copy of every replica's belief in Redis: the
// block set and the position it stands at, changed together or not at all.
//
// # Layout
//
// All keys of one replica share a hash tag, so that one script can change them
// on a cluster. With the prefix "prefixroute" and a replica "sim-a":
//
//	{prefixroute:sim-a}:meta     hash: fence, rev, position, scheme, model, groups, …
//	{prefixroute:sim-a}:blocks   hash: engine hash, 8 bytes big-endian → record
//	{prefixroute:sim-a}:new:N:M  a set being written as a whole, expires by itself
//
// # Invariants
//
//   - Set and position change in one script call. Whoever reads both without a
//     write between sees the engine's state at that position.
//   - A write names the revision that it builds on; Redis refuses it where the
//     copy is at another, because it was wiped, failed over or restored. The
//     writer then writes the set as a whole. A write that is repeated because its
//     answer was lost finds its own revision and changes nothing.
//   - A write carries its writer's fencing token. Tokens of one replica only
//     grow, even over a wiped Redis, and a copy refuses a lower one than it has
//     seen, so that a process that was paused cannot overwrite its successor's
//     work.
//
// # Concurrency
//
// [Store] may be used from any goroutine, but the writes of one replica come
// from one [Writer].
package store

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/prefixroute/prefixroute/pkg/index"
	"github.com/prefixroute/prefixroute/services/indexer/internal/belief"
)

// Store talks to Redis. Use [Open].
type Store struct {
	rdb     redis.UniversalClient
	prefix  string
	timeout time.Duration // of each call
	chunk   int           // records in one command of a whole write
}

// chunkRecords is a compromise: about 100 kB, and well under a millisecond of
// Redis's only thread.
const chunkRecords = 1000

// ParseURL checks a Redis URL: redis://USER:PASSWORD@HOST:PORT/DB, rediss:// for
// TLS, or unix://PATH.
func ParseURL(raw string) (*redis.Options, error) {
	opt, err := redis.ParseURL(raw)
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // without the URL, which may have a password
	}
	if err != nil {
		return nil, fmt.Errorf("redis URL: %w", err)
	}
	return opt, nil
}

// Open returns a store at rawURL whose keys begin with prefix, and whose calls take
// at most timeout each. It does not connect yet.
func Open(rawURL, prefix string, timeout time.Duration) (*Store, error) {
	opt, err := ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	opt.ContextTimeoutEnabled = true
	opt.DialTimeout, opt.ReadTimeout, opt.WriteTimeout, opt.PoolTimeout = timeout, timeout, timeout, timeout
	opt.MaxRetries = -1 // the writer tries again, knowing what it may repeat
	opt.DialerRetries = 1
	silence.Do(func() { redis.SetLogger(quiet{}) })
	opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return &Store{rdb: redis.NewClient(opt), prefix: prefix, timeout: timeout, chunk: chunkRecords}, nil
}

// The client library logs through a logger of the process, in plain text. What it
// has to say comes back as errors too, and is logged once by the writer.
var silence sync.Once

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// Close closes the connections.
func (s *Store) Close() error { return s.rdb.Close() }

// Ping reports whether Redis answers.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.rdb.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("ping redis: %w", err)
	}
	return nil
}

func (s *Store) key(replica, part string) string {
	return "{" + s.prefix + ":" + replica + "}:" + part
}

// Acquire takes a fencing token for the replica's copy, higher than any before
// it, also than those of a Redis that was wiped since. Writers with lower ones are
// refused from then on.
func (s *Store) Acquire(ctx context.Context, replica string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	token, err := acquireScript.Run(ctx, s.rdb, []string{s.key(replica, "meta")}).Uint64()
	if err != nil {
		return 0, fmt.Errorf("take fencing token of %s: %w", replica, err)
	}
	return token, nil
}

// Copy is a replica's durable copy.
type Copy struct {
	Rev     string
	Head    belief.Head
	Records []index.Record // ordered by hash
}

// errUnreadable is in the chain of an error that asking again will not mend.
var errUnreadable = errors.New("the copy cannot be read")

// errMoved is returned where the copy was written while it was read.
var errMoved = errors.New("the copy changed while it was read")

// Load reads the replica's copy; false means that there is none. Reading takes
// several calls: who has acquired the copy reads it undisturbed, others get an
// error if it was written in between.
func (s *Store) Load(ctx context.Context, replica string) (Copy, bool, error) {
	meta, err := s.meta(ctx, replica)
	if err != nil || meta[fieldRev] == "" {
		return Copy{}, false, err
	}
	cp := Copy{Rev: meta[fieldRev]}
	if cp.Head, err = decodeHead(meta); err != nil {
		return Copy{}, false, fmt.Errorf("copy of %s: %w: %w", replica, errUnreadable, err)
	}
	if cp.Records, err = s.records(ctx, replica, cp.Head.Hashes); err != nil {
		return Copy{}, false, fmt.Errorf("copy of %s: %w", replica, err)
	}
	again, err := s.meta(ctx, replica)
	if err != nil {
		return Copy{}, false, err
	}
	if again[fieldRev] != cp.Rev {
		return Copy{}, false, fmt.Errorf("copy of %s: %w", replica, errMoved)
	}
	return cp, true, nil
}

func (s *Store) meta(ctx context.Context, replica string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	meta, err := s.rdb.HGetAll(ctx, s.key(replica, "meta")).Result()
	if err != nil {
		return nil, fmt.Errorf("read meta of %s: %w", replica, err)
	}
	return meta, nil
}

// records scans the block set, which has about count records.
func (s *Store) records(ctx context.Context, replica string, count int) ([]index.Record, error) {
	found := make(map[string]string, min(count, 1<<20)) // a scan may return a field twice
	for cursor := uint64(0); ; {
		page, next, err := s.scan(ctx, replica, cursor)
		if err != nil {
			return nil, err
		}
		for i := 0; i+1 < len(page); i += 2 {
			found[page[i]] = page[i+1]
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
	records, err := decodeRecords(found)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return records, nil
}

func (s *Store) scan(ctx context.Context, replica string, cursor uint64) ([]string, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	page, next, err := s.rdb.HScan(ctx, s.key(replica, "blocks"), cursor, "", int64(s.chunk)).Result()
	if err != nil {
		return nil, 0, fmt.Errorf("scan blocks: %w", err)
	}
	return page, next, nil
}

// write is one change of a replica's copy.
type write struct {
	replica  string
	token    uint64
	expected string // revision that it builds on; of no matter for a whole write
	rev      string // revision that it leads to
	whole    bool   // Changes.Set is the whole set
	delta    belief.Delta
}

// A verdict is what became of a write.
type verdict uint8

const (
	written  verdict = iota // done
	repeated                // had been done before
	mismatch                // the copy is at another revision
	fenced                  // another writer has a higher token
)

// String is the verdict as a metric label.
func (v verdict) String() string {
	return [...]string{written: "written", repeated: "repeated", mismatch: "mismatch", fenced: "fenced"}[v]
}

// apply makes a write. On an error it may have been done or not; a whole write
// is then to be made anew, any other to be repeated as it is.
func (s *Store) apply(ctx context.Context, w *write) (verdict, error) {
	if w.whole {
		return s.replace(ctx, w)
	}
	head, err := encodeHead(w.delta.Head)
	if err != nil {
		return 0, err
	}
	ch := w.delta.Changes
	args := []any{w.token, w.expected, w.rev, flag(ch.Cleared), len(head), len(ch.Deleted), 2 * len(ch.Set)}
	args = append(args, head...)
	for _, h := range ch.Deleted {
		args = append(args, encodeHash(h))
	}
	for i := range ch.Set {
		value, err := encodeRecord(&ch.Set[i])
		if err != nil {
			return 0, err
		}
		args = append(args, encodeHash(ch.Set[i].Hash), value)
	}
	return s.run(ctx, changeScript, []string{s.key(w.replica, "meta"), s.key(w.replica, "blocks")}, args)
}

// replace writes a whole set beside the present one and then puts it in its
// place together with the position.
func (s *Store) replace(ctx context.Context, w *write) (verdict, error) {
	head, err := encodeHead(w.delta.Head)
	if err != nil {
		return 0, err
	}
	set := w.delta.Changes.Set
	staging := s.key(w.replica, "new:"+strconv.FormatUint(w.token, 10)+":"+w.rev)
	for len(set) > 0 {
		n := min(len(set), s.chunk)
		if err := s.stage(ctx, staging, set[:n]); err != nil {
			return 0, err
		}
		set = set[n:]
	}
	args := append([]any{w.token, w.rev, len(w.delta.Changes.Set), len(head)}, head...)
	keys := []string{s.key(w.replica, "meta"), s.key(w.replica, "blocks"), staging}
	return s.run(ctx, replaceScript, keys, args)
}

// stagingLife is when an abandoned set goes away.
const stagingLife = 10 * time.Minute

func (s *Store) stage(ctx context.Context, key string, set []index.Record) error {
	values := make([]any, 0, 2*len(set))
	for i := range set {
		value, err := encodeRecord(&set[i])
		if err != nil {
			return err
		}
		values = append(values, encodeHash(set[i].Hash), value)
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	_, err := s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.HSet(ctx, key, values...)
		p.Expire(ctx, key, stagingLife)
		return nil
	})
	if err != nil {
		return fmt.Errorf("write %d records: %w", len(set), err)
	}
	return nil
}

func (s *Store) run(ctx context.Context, script *redis.Script, keys []string, args []any) (verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	answer, err := script.Run(ctx, s.rdb, keys, args...).Text()
	if err != nil {
		return 0, fmt.Errorf("run script: %w", err)
	}
	for _, v := range []verdict{written, repeated, mismatch, fenced} {
		if answer == v.String() {
			return v, nil
		}
	}
	return 0, fmt.Errorf("script answered %q", answer)
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}
