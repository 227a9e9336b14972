package kvevents

import (
	"errors"
	"fmt"
	"slices"
)

const (
	// minEventBytes is the shortest event that can be accepted: a BlockStored
	// array with an empty hash list. It bounds what an event list can claim.
	minEventBytes = 14
	// maxRejected is how many events of a batch can be stepped over. A step of
	// an engine has hundreds of events at most; beyond this, what arrives is no
	// batch, and a list of what is wrong with it only eats memory.
	maxRejected = 4096
	// maxTagBytes is how much of an unknown tag is kept for the log.
	maxTagBytes = 64
)

// Decode reads the payload of one message: a batch as an array [time, events,
// rank, ...] or as a map, whose events are arrays, maps or either wrapped in
// bytes. Events that can't be used are listed in [Batch.Rejected].
//
// The error wraps [ErrMalformed] and means that nothing of the payload is
// usable. A payload with bytes behind the batch is refused too: whoever wrote
// it meant something else.
//
// The memory allocated is proportional to len(payload), whatever lengths it
// claims.
func Decode(payload []byte) (Batch, error) {
	if len(payload) == 0 {
		return Batch{}, fmt.Errorf("%w payload: empty", ErrMalformed)
	}
	r := newReader(payload)
	defer r.close()
	b, err := r.batch()
	if err == nil && r.left() > 0 {
		err = fmt.Errorf("%d bytes after the batch", r.left())
	}
	if err != nil {
		return Batch{}, fmt.Errorf("%w payload: %w", ErrMalformed, err)
	}
	return b, nil
}

func (r *reader) batch() (Batch, error) {
	k, err := r.peek()
	if err != nil {
		return Batch{}, err
	}
	switch k {
	case kindArray:
		return r.arrayBatch()
	case kindMap:
		return r.mapBatch()
	default:
		return Batch{}, fmt.Errorf("batch is %v, must be an array or a map", k)
	}
}

// arrayBatch reads [time, events, rank, ...]. Batches of the first release and
// of SGLang in 2025 have no third element; a fourth one is of the future.
func (r *reader) arrayBatch() (b Batch, err error) {
	n, err := r.arrayLen()
	if err != nil {
		return b, err
	}
	if n < 2 {
		return b, fmt.Errorf("batch has %d elements, must have at least 2", n)
	}
	for i := range n {
		switch i {
		case 0:
			b.Time, err = r.time()
		case 1:
			err = r.events(&b)
		case 2:
			b.Rank, err = r.rank()
		default:
			err = r.skip()
		}
		if err != nil {
			return b, err
		}
	}
	return b, nil
}

func (r *reader) mapBatch() (b Batch, err error) {
	n, err := r.mapLen()
	if err != nil {
		return b, err
	}
	var hasTime, hasEvents bool
	for range n {
		name, err := r.text()
		if err != nil {
			return b, err
		}
		switch name {
		case fieldTime:
			hasTime = true
			b.Time, err = r.time()
		case fieldEvents:
			hasEvents = true
			b.Events, b.Rejected = nil, nil // a repeated key replaces, as it does in Python
			err = r.events(&b)
		case fieldRank:
			b.Rank, err = r.rank()
		default:
			err = r.skip()
		}
		if err != nil {
			return b, err
		}
	}
	if !hasTime || !hasEvents {
		return b, fmt.Errorf("batch is a map without %q and %q", fieldTime, fieldEvents)
	}
	return b, nil
}

func (r *reader) time() (float64, error) {
	k, err := r.peek()
	if err != nil {
		return 0, err
	}
	switch k {
	case kindFloat:
		t, err := r.dec.DecodeFloat64()
		if err != nil {
			return 0, errTruncated
		}
		return t, nil
	case kindInt:
		n, err := r.integer()
		if n.negative {
			return float64(int64(n.bits)), err
		}
		return float64(n.bits), err
	default:
		return 0, fmt.Errorf("%s is %v, must be a number", fieldTime, k)
	}
}

func (r *reader) rank() (*int64, error) {
	k, err := r.peek()
	if err != nil {
		return nil, err
	}
	switch k {
	case kindNil:
		return nil, r.skip()
	case kindInt:
		n, err := r.integer()
		if err != nil {
			return nil, err
		}
		rank, ok := n.signed()
		if !ok || rank < 0 {
			return nil, fmt.Errorf("%s is %v, must be nil or a number from 0", fieldRank, n)
		}
		return &rank, nil
	default:
		return nil, fmt.Errorf("%s is %v, must be nil or a number from 0", fieldRank, k)
	}
}

// events reads the event list into b. It fails only where the list's structure
// is broken; an event that is merely wrong is noted and stepped over.
func (r *reader) events(b *Batch) error {
	k, err := r.peek()
	if err != nil {
		return err
	}
	if k != kindArray {
		return fmt.Errorf("%s is %v, must be an array", fieldEvents, k)
	}
	n, err := r.arrayLen()
	if err != nil {
		return err
	}
	b.Events = slices.Grow(b.Events, min(n, r.left()/minEventBytes))
	for i := range n {
		start := r.pos()
		ev, tag, err := r.event()
		if err == nil {
			b.Events = append(b.Events, ev)
			continue
		}
		r.seek(start)
		if broken := r.skip(); broken != nil {
			return fmt.Errorf("event %d: %w", i, broken)
		}
		if len(b.Rejected) == maxRejected {
			return fmt.Errorf("more than %d events can't be used, the last because %w", maxRejected, err)
		}
		b.Rejected = append(b.Rejected, reject(i, tag, err))
	}
	return nil
}

// A fault is what is wrong with one event that can be stepped over.
type fault struct {
	reason Reason
	detail string
}

func (f *fault) Error() string { return f.detail }

func faultf(reason Reason, format string, args ...any) error {
	return &fault{reason: reason, detail: fmt.Sprintf(format, args...)}
}

func reject(i int, tag string, err error) Rejected {
	out := Rejected{Index: i, Reason: ReasonMalformed, Tag: tag, Detail: err.Error()}
	if f, ok := errors.AsType[*fault](err); ok {
		out.Reason = f.reason
	}
	return out
}
