package publish

import "github.com/prefixroute/prefixroute/pkg/kvevents"

// A buffer holds the last messages, for replays.
type buffer struct {
	ring  []kvevents.Message
	start int // of the oldest
	len   int
}

func newBuffer(size int) buffer {
	return buffer{ring: make([]kvevents.Message, size)}
}

// add appends m, whose number is above all others, in place of the oldest
// message if the buffer is full.
func (b *buffer) add(m kvevents.Message) {
	if len(b.ring) == 0 {
		return
	}
	if b.len < len(b.ring) {
		b.ring[(b.start+b.len)%len(b.ring)] = m
		b.len++
		return
	}
	b.ring[b.start] = m
	b.start = (b.start + 1) % len(b.ring)
}

// since returns the messages from number start on, oldest first. Numbers that
// were never added are missing.
func (b *buffer) since(start uint64) []kvevents.Message {
	var list []kvevents.Message
	for i := range b.len {
		if m := b.ring[(b.start+i)%len(b.ring)]; m.Seq >= start {
			list = append(list, m)
		}
	}
	return list
}
