package inbox

import (
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func drain(q *Queue) []Notice {
	var got []Notice
	for n, ok := q.Pop(); ok; n, ok = q.Pop() {
		got = append(got, n)
	}
	return got
}

func msg(s string) [][]byte { return [][]byte{[]byte(s)} }

func TestQueueKeepsOrderAndMarksDrops(t *testing.T) {
	t.Parallel()

	dropped := 0
	q := New(Limits{Messages: 2, Bytes: 100}, func() { dropped++ })
	errGone := errors.New("gone")
	q.Connect()
	for _, s := range []string{"a", "b", "c", "d"} {
		q.Deliver(msg(s))
	}
	q.Close(errGone)
	q.Deliver(msg("late"))

	want := []Notice{
		{Kind: Connected},
		{Kind: Message, Frames: msg("a")},
		{Kind: Message, Frames: msg("b")},
		{Kind: Overrun}, // c and d
		{Kind: Closed, Err: errGone},
	}
	if diff := cmp.Diff(want, drain(q), cmpopts.EquateErrors()); diff != "" {
		t.Errorf("notices (-want +got):\n%s", diff)
	}
	if dropped != 2 {
		t.Errorf("%d messages were counted as dropped, want 2", dropped)
	}
}

func TestQueueTakesMessagesAgainAfterAnOverrun(t *testing.T) {
	t.Parallel()

	q := New(Limits{Messages: 10, Bytes: 5}, nil)
	q.Deliver(msg("abcdefgh")) // larger than the limit, alone: let in
	q.Deliver(msg("x"))        // dropped
	if n, _ := q.Pop(); n.Kind != Message {
		t.Fatalf("first notice is %v, want the message", n.Kind)
	}
	q.Deliver(msg("y"))
	q.Deliver(msg("zzzzz")) // dropped
	want := []Notice{{Kind: Overrun}, {Kind: Message, Frames: msg("y")}, {Kind: Overrun}}
	if diff := cmp.Diff(want, drain(q)); diff != "" {
		t.Errorf("notices (-want +got):\n%s", diff)
	}
}

func TestQueueBesideItsReader(t *testing.T) {
	t.Parallel()

	const messages = 10_000
	q := New(Limits{Messages: messages, Bytes: 1 << 20}, func() { t.Error("a message was dropped") })
	var wg sync.WaitGroup
	wg.Go(func() {
		for range messages {
			q.Deliver(msg("m"))
		}
		q.Close(nil)
	})
	got := 0
	for closed := false; !closed; {
		<-q.Ready()
		for _, n := range drain(q) {
			if n.Kind == Message {
				got++
			}
			closed = n.Kind == Closed
		}
	}
	wg.Wait()
	if got != messages {
		t.Errorf("%d messages came out, want %d", got, messages)
	}
}
