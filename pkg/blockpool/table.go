package blockpool

// A table finds the blocks that hold a hash. Copies of one hash are chained in
// order of entry through the blocks' own links.
type table map[digest]copies

type copies struct{ first, last int32 }

// oldest returns the copy that was entered first among those still held.
func (t table) oldest(d digest) (id int32, ok bool) {
	c, ok := t[d]
	return c.first, ok
}

// add enters block id under its digest, behind the copies that are there.
func (t table) add(blocks []block, id int32) {
	d := blocks[id].digest
	c, ok := t[d]
	blocks[id].copies = links{prev: c.last}
	if ok {
		blocks[c.last].copies.next = id
	} else {
		c.first = id
	}
	c.last = id
	t[d] = c
}

// remove takes block id out; it must be in the table.
func (t table) remove(blocks []block, id int32) {
	d := blocks[id].digest
	c, l := t[d], blocks[id].copies
	if l.prev != 0 {
		blocks[l.prev].copies.next = l.next
	} else {
		c.first = l.next
	}
	if l.next != 0 {
		blocks[l.next].copies.prev = l.prev
	} else {
		c.last = l.prev
	}
	blocks[id].copies = links{}
	if c.first == 0 {
		delete(t, d)
		return
	}
	t[d] = c
}
