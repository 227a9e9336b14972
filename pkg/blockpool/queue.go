package blockpool

// links are a block's neighbours in a doubly linked list. The list runs through
// the blocks themselves, so moving a block neither allocates nor searches, at
// whatever size of the pool. 0 is the null block, which is in no list: it ends
// a list, and the zero value is an unlinked block.
type links struct{ prev, next int32 }

// A queue is the free queue: blocks that nobody uses, in the order in which
// they will be handed out.
type queue struct {
	first, last int32
	len         int
}

func (q *queue) pushBack(blocks []block, id int32) {
	blocks[id].queued = links{prev: q.last}
	if q.last != 0 {
		blocks[q.last].queued.next = id
	} else {
		q.first = id
	}
	q.last = id
	q.len++
}

func (q *queue) pushFront(blocks []block, id int32) {
	blocks[id].queued = links{next: q.first}
	if q.first != 0 {
		blocks[q.first].queued.prev = id
	} else {
		q.last = id
	}
	q.first = id
	q.len++
}

func (q *queue) remove(blocks []block, id int32) {
	l := blocks[id].queued
	if l.prev != 0 {
		blocks[l.prev].queued.next = l.next
	} else {
		q.first = l.next
	}
	if l.next != 0 {
		blocks[l.next].queued.prev = l.prev
	} else {
		q.last = l.prev
	}
	blocks[id].queued = links{}
	q.len--
}

// popFront removes and returns the first block; the queue must not be empty.
func (q *queue) popFront(blocks []block) int32 {
	id := q.first
	q.remove(blocks, id)
	return id
}
