package kvevents

import (
	"encoding/binary"
	"fmt"
	"math"
)

// endSeq is the sequence number of a replay's end mark. A publisher counts from
// 0 and never gets there.
const endSeq = math.MaxUint64

// A Message is one publication of an engine, live or replayed.
type Message struct {
	Topic string // as sent; may be empty
	Seq   uint64 // counts a publisher's messages from 0
	// Payload is what [Decode] reads.
	Payload []byte
}

// ParseMessage reads the three frames of a live message: topic, sequence number
// (8 bytes, big-endian), payload. The error wraps [ErrMalformed].
func ParseMessage(frames [][]byte) (Message, error) {
	if len(frames) != 3 {
		return Message{}, fmt.Errorf("%w message: %d frames, must be 3", ErrMalformed, len(frames))
	}
	seq, err := parseSeq(frames[1])
	if err != nil {
		return Message{}, fmt.Errorf("%w message: %w", ErrMalformed, err)
	}
	if seq == endSeq {
		return Message{}, fmt.Errorf("%w message: sequence number is the end mark of a replay", ErrMalformed)
	}
	return Message{Topic: string(frames[0]), Seq: seq, Payload: frames[2]}, nil
}

// ParseReply reads one reply of a replay socket, as a DEALER receives it: an
// empty delimiter, then topic, sequence number and payload; vLLM up to 0.25 and
// SGLang leave out the topic. The delimiter may be missing, as a REQ sees it.
//
// It reports end for the mark behind the last reply, with an empty message. The
// error wraps [ErrMalformed].
func ParseReply(frames [][]byte) (m Message, end bool, err error) {
	parts := frames
	if len(parts) > 0 && len(parts[0]) == 0 {
		parts = parts[1:] // exactly one: the topic behind it may be empty too
	}
	switch len(parts) {
	case 2:
	case 3:
		m.Topic = string(parts[0])
		parts = parts[1:]
	default:
		return Message{}, false, fmt.Errorf("%w reply: %d frames, of which %d after the delimiter, must be 2 or 3",
			ErrMalformed, len(frames), len(parts))
	}
	if m.Seq, err = parseSeq(parts[0]); err != nil {
		return Message{}, false, fmt.Errorf("%w reply: %w", ErrMalformed, err)
	}
	m.Payload = parts[1]
	if m.Seq == endSeq || len(m.Payload) == 0 {
		return Message{}, true, nil
	}
	return m, false, nil
}

func parseSeq(frame []byte) (uint64, error) {
	if len(frame) != 8 {
		return 0, fmt.Errorf("sequence number has %d bytes, must have 8", len(frame))
	}
	return binary.BigEndian.Uint64(frame), nil
}

func seqFrame(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// Frames returns the message as a PUB socket sends it.
func (m Message) Frames() [][]byte {
	return [][]byte{[]byte(m.Topic), seqFrame(m.Seq), m.Payload}
}

// A Layout is how a replay socket lays out its replies.
type Layout uint8

const (
	// LayoutTopic has the topic in front, since vLLM 0.26.
	LayoutTopic Layout = iota
	// LayoutBare has no topic: vLLM up to 0.25, SGLang.
	LayoutBare
)

// ReplayRequest returns what a DEALER sends to be given all messages from start
// on, oldest first, as far back as the engine remembers.
func ReplayRequest(start uint64) [][]byte { return [][]byte{{}, seqFrame(start)} }

// ParseReplayRequest reads a request as a ROUTER receives it: the peer's
// identity, an empty delimiter, the start. The error wraps [ErrMalformed].
func ParseReplayRequest(frames [][]byte) (identity []byte, start uint64, err error) {
	if len(frames) != 3 || len(frames[1]) != 0 {
		return nil, 0, fmt.Errorf("%w request: %d frames, must be identity, empty, start", ErrMalformed, len(frames))
	}
	if start, err = parseSeq(frames[2]); err != nil {
		return nil, 0, fmt.Errorf("%w request: %w", ErrMalformed, err)
	}
	return frames[0], start, nil
}

// Reply returns the message as a reply. A ROUTER sends the peer's identity in
// front of it.
func (l Layout) Reply(m Message) [][]byte {
	if l == LayoutBare {
		return [][]byte{{}, seqFrame(m.Seq), m.Payload}
	}
	return [][]byte{{}, []byte(m.Topic), seqFrame(m.Seq), m.Payload}
}

// End returns the mark behind the last reply: the topic of an end mark is
// empty, as is its payload.
func (l Layout) End() [][]byte {
	return l.Reply(Message{Seq: endSeq, Payload: []byte{}})
}
