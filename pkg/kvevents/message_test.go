package kvevents

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// bugFrames returns a list of frames of testdata/bugs/frames.json.
func bugFrames(tb testing.TB) map[string][][]byte {
	tb.Helper()
	var in map[string][]string
	fromJSON(tb, mustRead(tb, "testdata/bugs/frames.json"), &in)
	out := make(map[string][][]byte, len(in))
	for name, frames := range in {
		out[name] = hexFrames(tb, frames)
	}
	return out
}

// TestParseMessage is BB-019.
func TestParseMessage(t *testing.T) {
	t.Parallel()

	frames := bugFrames(t)
	for name, want := range map[string]Message{
		"good_three_frames": {Topic: "kv@10.0.0.7:8000@org/model-a", Seq: 0},
		"empty_topic":       {Seq: 2},
	} {
		got, err := ParseMessage(frames[name])
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want.Payload = frames[name][2]
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(frames[name], got.Frames()); diff != "" {
			t.Errorf("%s, frames (-want +got):\n%s", name, diff)
		}
	}
	for _, name := range []string{
		"two_frames_no_seq", "one_frame", "four_frames", "seq_empty", "seq_4_bytes", "seq_9_bytes", "seq_end_marker_live",
	} {
		if _, err := ParseMessage(frames[name]); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: error is %v, want ErrMalformed", name, err)
		}
	}
	for _, n := range []int{0, 7, 9} {
		if _, err := ParseMessage([][]byte{nil, make([]byte, n), {0}}); !errors.Is(err, ErrMalformed) {
			t.Errorf("sequence number of %d bytes: error is %v, want ErrMalformed", n, err)
		}
	}
	if _, err := ParseMessage(nil); !errors.Is(err, ErrMalformed) {
		t.Errorf("no frames: error is %v, want ErrMalformed", err)
	}
}

// TestParseReply is BB-020: both layouts, and the end mark in both.
func TestParseReply(t *testing.T) {
	t.Parallel()

	seq, end, topic, body := seqFrame(3), seqFrame(endSeq), []byte("kv@a@m"), []byte{1}
	for _, tt := range []struct {
		name   string
		frames [][]byte
		want   Message
		end    bool
	}{
		{"with topic", [][]byte{{}, topic, seq, body}, Message{Topic: "kv@a@m", Seq: 3, Payload: body}, false},
		{"with empty topic", [][]byte{{}, {}, seq, body}, Message{Seq: 3, Payload: body}, false},
		{"without topic", [][]byte{{}, seq, body}, Message{Seq: 3, Payload: body}, false},
		{"end with topic", [][]byte{{}, {}, end, {}}, Message{}, true},
		{"end without topic", [][]byte{{}, end, {}}, Message{}, true},
		{"end by number alone", [][]byte{{}, end, body}, Message{}, true},
		{"end by payload alone", [][]byte{{}, topic, seq, {}}, Message{}, true},
		{"as a REQ sees it", [][]byte{topic, seq, body}, Message{Topic: "kv@a@m", Seq: 3, Payload: body}, false},
		{"as a REQ sees it, without topic", [][]byte{seq, body}, Message{Seq: 3, Payload: body}, false},
	} {
		got, atEnd, err := ParseReply(tt.frames)
		if err != nil || atEnd != tt.end {
			t.Errorf("%s: end %v, error %v, want %v and none", tt.name, atEnd, err, tt.end)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	for name, frames := range map[string][][]byte{
		"nothing":          nil,
		"delimiter":        {{}},
		"one frame":        {body},
		"delimiter and 1":  {{}, seq},
		"five":             {{}, topic, seq, body, body},
		"four, no empty":   {topic, topic, seq, body},
		"two delimiters":   {{}, {}, topic, seq, body},
		"short seq":        {{}, {0, 0, 0, 5}, body},
		"seq where topic":  {{}, seq, topic, body},
		"long seq":         {{}, make([]byte, 9), body},
		"empty everywhere": {{}, {}, {}, {}},
	} {
		if m, end, err := ParseReply(frames); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %+v, end %v, error %v, want ErrMalformed", name, m, end, err)
		}
	}
}

func TestParseReplySamples(t *testing.T) {
	t.Parallel()

	frames := bugFrames(t)
	for name, wantEnd := range map[string]bool{
		"replay_two_frames": false, "replay_three_frames": false, "replay_end_two": true, "replay_end_three": true,
	} {
		m, end, err := ParseReply(frames[name])
		if err != nil || end != wantEnd || !end && m.Seq != 3 {
			t.Errorf("%s: seq %d, end %v, error %v", name, m.Seq, end, err)
		}
	}
}

// TestRecordedReplies reads what vLLM's replay socket answered, in the layout
// before and after 0.26, and writes it again.
func TestRecordedReplies(t *testing.T) {
	t.Parallel()

	layouts := map[string]Layout{"v0.16.0-all": LayoutBare, "v0.32.0-lora": LayoutTopic}
	for _, line := range lines(t, "testdata/replies.jsonl") {
		var rec struct {
			Recording string
			Start     uint64
			Replies   [][]string
		}
		fromJSON(t, line, &rec)
		layout := layouts[rec.Recording]
		next := rec.Start
		for i, reply := range rec.Replies {
			frames := hexFrames(t, reply)
			m, end, err := ParseReply(frames)
			if err != nil {
				t.Fatalf("%s from %d, reply %d: %v", rec.Recording, rec.Start, i, err)
			}
			if end != (i == len(rec.Replies)-1) {
				t.Errorf("%s from %d, reply %d of %d: end = %v", rec.Recording, rec.Start, i, len(rec.Replies), end)
			}
			again := layout.End()
			if !end {
				if m.Seq != next {
					t.Errorf("%s: seq %d, want %d", rec.Recording, m.Seq, next)
				}
				next++
				mustDecode(t, m.Payload)
				again = layout.Reply(m)
			}
			if diff := cmp.Diff(frames, again); diff != "" {
				t.Errorf("%s reply %d written again (-want +got):\n%s", rec.Recording, i, diff)
			}
		}
	}
}

func TestReplayRequest(t *testing.T) {
	t.Parallel()

	const start = 0x0102030405060708
	sent := ReplayRequest(start)
	want := [][]byte{{}, {1, 2, 3, 4, 5, 6, 7, 8}}
	if diff := cmp.Diff(want, sent); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	seen := append([][]byte{[]byte("peer")}, sent...)
	id, got, err := ParseReplayRequest(seen)
	if err != nil || got != start || !bytes.Equal(id, []byte("peer")) {
		t.Errorf("ParseReplayRequest = %q, %d, %v", id, got, err)
	}
	for _, frames := range [][][]byte{nil, sent, {[]byte("peer"), {1}, seqFrame(0)}, {[]byte("peer"), {}, {0}}, append(seen, nil)} {
		if _, _, err := ParseReplayRequest(frames); !errors.Is(err, ErrMalformed) {
			t.Errorf("%q: error is %v, want ErrMalformed", frames, err)
		}
	}
}

func TestReplyFrames(t *testing.T) {
	t.Parallel()

	m := Message{Topic: "kv@a@m", Seq: 7, Payload: []byte{1}}
	got, end, err := ParseReply(LayoutTopic.Reply(m))
	if err != nil || end {
		t.Fatalf("own reply: end %v, %v", end, err)
	}
	if diff := cmp.Diff(m, got); diff != "" {
		t.Errorf("own reply (-want +got):\n%s", diff)
	}
	for _, frames := range [][][]byte{LayoutTopic.End(), LayoutBare.End()} {
		if _, end, err := ParseReply(frames); err != nil || !end {
			t.Errorf("own end mark %q: end %v, %v", frames, end, err)
		}
	}
}
