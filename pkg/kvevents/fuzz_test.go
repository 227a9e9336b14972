package kvevents

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// seedPayloads adds every payload of testdata that is worth mutating.
func seedPayloads(f *testing.F) {
	f.Helper()
	for _, v := range vectors(f) {
		f.Add(mustHex(f, v.Payload))
	}
	for _, path := range mustGlob(f, "testdata/bugs/*.msgpack") {
		f.Add(mustRead(f, path))
	}
	for _, path := range mustGlob(f, "testdata/vllm/*.jsonl.gz") {
		var frames []string
		fromJSON(f, lines(f, path)[0], &frames)
		f.Add(mustHex(f, frames[2]))
	}
}

// FuzzDecode holds four promises: no input panics, a refusal is ErrMalformed,
// memory stays in proportion to the payload, and what is accepted can be
// written and read again without a change.
func FuzzDecode(f *testing.F) {
	seedPayloads(f)
	f.Fuzz(func(t *testing.T, payload []byte) {
		var first Batch
		var err error
		// The fuzzer's own goroutines allocate beside us, hence the slack.
		if got, limit := allocated(func() { first, err = Decode(payload) }), uint64(1<<20+allocPerByte*len(payload)); got > limit {
			t.Fatalf("%d bytes allocated for a payload of %d", got, len(payload))
		}
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("error without ErrMalformed: %v", err)
			}
			return
		}
		first.Rejected = nil
		for _, enc := range []Encoding{{Form: FormMap, Bytes: true}, {Form: FormMapBatch, Bytes: true}} {
			out, err := enc.Encode(first)
			if err != nil {
				t.Fatalf("own batch can't be written: %v", err)
			}
			second, err := Decode(out)
			if err != nil {
				t.Fatalf("own encoding is refused: %v", err)
			}
			if diff := cmp.Diff(first, second, cmpopts.EquateNaNs(), cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("round trip (-first +second):\n%s", diff)
			}
			again, err := enc.Encode(second)
			if err != nil || !bytes.Equal(out, again) {
				t.Fatalf("written twice: %v\n%x\n%x", err, out, again)
			}
		}
		for fields := minFields; fields <= maxFields; fields++ {
			out, err := Encoding{Fields: fields}.Encode(first)
			if err != nil {
				t.Fatalf("own batch can't be written with %d fields: %v", fields, err)
			}
			if b, err := Decode(out); err != nil || len(b.Events) != len(first.Events) || len(b.Rejected) != 0 {
				t.Fatalf("own encoding with %d fields: %d events of %d, %v", fields, len(b.Events), len(first.Events), err)
			}
		}
	})
}

// seedFrames adds the recorded frame lists, packed as split unpacks them.
func seedFrames(f *testing.F) {
	f.Helper()
	for _, frames := range bugFrames(f) {
		f.Add(pack(frames))
	}
	f.Add(pack(LayoutTopic.End()))
	f.Add(pack(LayoutBare.End()))
	f.Add(pack(ReplayRequest(7)))
}

// pack joins frames, each behind a byte for its length, for a fuzzer that
// knows no lists. Frames are cut to 255 bytes.
func pack(frames [][]byte) []byte {
	var out []byte
	for _, fr := range frames {
		fr = fr[:min(len(fr), 255)]
		out = append(append(out, byte(len(fr))), fr...)
	}
	return out
}

func unpack(in []byte) [][]byte {
	var out [][]byte
	for len(in) > 0 {
		n := min(int(in[0]), len(in)-1)
		out = append(out, in[1:1+n])
		in = in[1+n:]
	}
	return out
}

func FuzzParseMessage(f *testing.F) {
	seedFrames(f)
	f.Fuzz(func(t *testing.T, packed []byte) {
		frames := unpack(packed)
		m, err := ParseMessage(frames)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("error without ErrMalformed: %v", err)
			}
			return
		}
		if diff := cmp.Diff(frames, m.Frames(), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("round trip (-frames +again):\n%s", diff)
		}
	})
}

func FuzzParseReply(f *testing.F) {
	seedFrames(f)
	f.Fuzz(func(t *testing.T, packed []byte) {
		m, end, err := ParseReply(unpack(packed))
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("error without ErrMalformed: %v", err)
			}
			return
		}
		if end {
			if diff := cmp.Diff(Message{}, m); diff != "" {
				t.Fatalf("end mark with a message (-want +got):\n%s", diff)
			}
			return
		}
		again, end, err := ParseReply(LayoutTopic.Reply(m))
		if err != nil || end {
			t.Fatalf("own reply: end %v, %v", end, err)
		}
		if diff := cmp.Diff(m, again); diff != "" {
			t.Fatalf("round trip (-first +second):\n%s", diff)
		}
	})
}

func FuzzParseReplayRequest(f *testing.F) {
	seedFrames(f)
	f.Add(pack(append([][]byte{[]byte("peer")}, ReplayRequest(7)...)))
	f.Fuzz(func(t *testing.T, packed []byte) {
		frames := unpack(packed)
		id, start, err := ParseReplayRequest(frames)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("error without ErrMalformed: %v", err)
			}
			return
		}
		if diff := cmp.Diff(frames, append([][]byte{id}, ReplayRequest(start)...), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("round trip (-frames +again):\n%s", diff)
		}
	})
}

func FuzzParseTopic(f *testing.F) {
	var cases struct{ Topics []struct{ Topic string } }
	fromJSON(f, mustRead(f, "testdata/bugs/topics.json"), &cases)
	for _, c := range cases.Topics {
		f.Add(c.Topic)
	}
	f.Fuzz(func(t *testing.T, s string) {
		topic, ok := ParseTopic(s)
		if !ok {
			if (topic != Topic{}) {
				t.Fatalf("%q is refused with %+v", s, topic)
			}
			return
		}
		if topic.String() != s || topic.Pod == "" || topic.Model == "" {
			t.Fatalf("ParseTopic(%q) = %+v", s, topic)
		}
	})
}
