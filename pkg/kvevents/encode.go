package kvevents

import (
	"fmt"
)

// A Form is the shape in which a release writes batches and events.
type Form uint8

const (
	// FormArray is vLLM up to 0.23: events are arrays, with every field that
	// the release declares.
	FormArray Form = iota
	// FormMap is vLLM since 0.24: the batch is an array, events are maps.
	FormMap
	// FormMapBatch has maps for both. No release is known to write it.
	FormMapBatch
)

// An Encoding is what one engine writes. The zero value is the last release
// with array events.
type Encoding struct {
	Form Form
	// Fields is how many fields a BlockStored array has after its tag, which is
	// the release: 5 is vLLM 0.9, 6 is 0.10, 7 is 0.14, 8 is 0.17, 9 is 0.20 and
	// 11 is 0.22; 4 is what is left without the deprecated lora_id. 0 stands
	// for 11. What doesn't fit is left out, as the release would have. The map
	// forms ignore it.
	Fields int
	// Bytes writes the hashes that have a digest as bytes; those without one
	// stay integers.
	Bytes bool
}

const (
	minFields = 4
	maxFields = 11
	// rankedFields is from which number of fields a batch surely has a third
	// element: rank and fields were added at different times.
	rankedFields = 6
)

// Encode writes b as the engine would, byte for byte: shortest integers,
// required fields as nil where they are unset, optional ones left out of maps.
// It ignores b.Rejected. It fails on an Encoding or event that no engine has,
// naming the field.
func (e Encoding) Encode(b Batch) ([]byte, error) {
	if e.Form > FormMapBatch {
		return nil, fmt.Errorf("form is %d, must be one of the package's", e.Form)
	}
	if e.Fields == 0 {
		e.Fields = maxFields
	}
	if e.Fields < minFields || e.Fields > maxFields {
		return nil, fmt.Errorf("fields is %d, must be 0 or %d to %d", e.Fields, minFields, maxFields)
	}
	var w writer
	w.batch(e, b)
	if w.err != nil {
		return nil, w.err
	}
	return w.bytes(), nil
}

func (w *writer) batch(e Encoding, b Batch) {
	named := e.Form == FormMapBatch
	withRank := b.Rank != nil || !named && (e.Form == FormMap || e.Fields >= rankedFields)
	n := 2
	if withRank {
		n++
	}
	if named {
		w.mapping(n)
		w.text(fieldTime)
	} else {
		w.array(n)
	}
	w.float(b.Time)
	if named {
		w.text(fieldEvents)
	}
	w.array(len(b.Events))
	for i, ev := range b.Events {
		if err := w.event(e, ev); err != nil {
			w.check(fmt.Errorf("event %d: %w", i, err))
		}
	}
	if named && withRank {
		w.text(fieldRank)
	}
	if withRank {
		w.optionalInt(b.Rank)
	}
}

func (w *writer) event(e Encoding, ev Event) error {
	switch ev := ev.(type) {
	case *BlockStored:
		if err := ev.encodable(); err != nil {
			return err
		}
		if e.Form == FormArray {
			w.storedArray(e, ev)
		} else {
			w.storedMap(e, ev)
		}
	case *BlockRemoved:
		if err := encodable(ev.BlockHashes, ev.Digests, ev.Group); err != nil {
			return err
		}
		if e.Form == FormArray {
			w.removedArray(e, ev)
		} else {
			w.removedMap(e, ev)
		}
	case *AllBlocksCleared:
		w.head(e, tagCleared, 0)
	default:
		return fmt.Errorf("event is %T, must be a pointer to an event of the package", ev)
	}
	return nil
}

// encodable says what of s can't be written.
func (s *BlockStored) encodable() error {
	if n := len(s.ExtraKeys); s.ExtraKeys != nil && n != len(s.BlockHashes) {
		return fmt.Errorf("%s has %d entries, must have one for each of %d hashes", fieldExtraKeys, n, len(s.BlockHashes))
	}
	if s.BlockSize < 0 {
		return fmt.Errorf("%s is %d, must not be negative", fieldBlockSize, s.BlockSize)
	}
	if s.SlidingWindow < 0 {
		return fmt.Errorf("%s is %d, must not be negative", fieldSlidingWindow, s.SlidingWindow)
	}
	return encodable(s.BlockHashes, s.Digests, s.Group)
}

func encodable(hashes []Hash, digests [][]byte, group int) error {
	if digests != nil && len(digests) != len(hashes) {
		return fmt.Errorf("digests has %d entries, must have one for each of %d hashes", len(digests), len(hashes))
	}
	if group < 0 {
		return fmt.Errorf("%s is %d, must not be negative", fieldGroup, group)
	}
	return nil
}

// head begins an event that has n fields after its tag.
func (w *writer) head(e Encoding, tag string, n int) {
	if e.Form == FormArray {
		w.array(1 + n)
	} else {
		w.mapping(1 + n)
		w.text(fieldType)
	}
	w.text(tag)
}

func (w *writer) storedArray(e Encoding, s *BlockStored) {
	w.head(e, tagStored, e.Fields)
	for _, field := range storedPositions[:e.Fields] {
		w.storedValue(e, s, field)
	}
}

// storedMap writes the fields in the order in which vLLM declares them. Those
// before extra_keys have no default and are always there.
func (w *writer) storedMap(e Encoding, s *BlockStored) {
	fields := append(make([]string, 0, len(storedPositions)+len(storedTail)), storedPositions[:7]...)
	add := func(field string, present bool) {
		if present {
			fields = append(fields, field)
		}
	}
	add(fieldExtraKeys, s.ExtraKeys != nil)
	add(fieldGroup, true)
	add(fieldSpecKind, s.SpecKind != "")
	add(fieldSlidingWindow, s.SlidingWindow != 0)
	add(fieldLocality, s.Locality != "")
	add(fieldOwnership, s.Ownership != "")
	add(fieldSessionID, s.SessionID != "")

	w.head(e, tagStored, len(fields))
	for _, field := range fields {
		w.text(field)
		w.storedValue(e, s, field)
	}
}

func (w *writer) storedValue(e Encoding, s *BlockStored, field string) {
	switch field {
	case fieldHashes:
		w.hashes(e, s.BlockHashes, s.Digests)
	case fieldParent:
		if s.Parent == nil {
			w.nil()
		} else {
			w.hash(e, *s.Parent, s.ParentDigest)
		}
	case fieldTokens:
		w.array(len(s.TokenIDs))
		for _, id := range s.TokenIDs {
			w.uint(uint64(id))
		}
	case fieldBlockSize:
		w.int(int64(s.BlockSize))
	case fieldLoRAID:
		w.optionalInt(s.LoRAID)
	case fieldMedium:
		w.optional(string(s.Medium))
	case fieldLoRAName:
		w.optional(s.LoRAName)
	case fieldExtraKeys:
		w.extraKeys(s.ExtraKeys)
	case fieldGroup:
		w.int(int64(s.Group))
	case fieldSpecKind:
		w.optional(s.SpecKind)
	case fieldSlidingWindow:
		if s.SlidingWindow == 0 {
			w.nil()
		} else {
			w.int(int64(s.SlidingWindow))
		}
	case fieldLocality:
		w.text(s.Locality)
	case fieldOwnership:
		w.text(s.Ownership)
	case fieldSessionID:
		w.text(s.SessionID)
	}
}

// removedArray writes the fields that BlockRemoved had in the release of
// e.Fields: the medium came with BlockStored's sixth, the group with its ninth.
func (w *writer) removedArray(e Encoding, b *BlockRemoved) {
	n := 1
	if e.Fields >= 6 {
		n++
	}
	if e.Fields >= 9 {
		n++
	}
	w.head(e, tagRemoved, n)
	w.hashes(e, b.BlockHashes, b.Digests)
	if n > 1 {
		w.optional(string(b.Medium))
	}
	if n > 2 {
		w.int(int64(b.Group))
	}
}

func (w *writer) removedMap(e Encoding, b *BlockRemoved) {
	n := 3
	if b.Locality != "" {
		n++
	}
	if b.Ownership != "" {
		n++
	}
	w.head(e, tagRemoved, n)
	w.text(fieldHashes)
	w.hashes(e, b.BlockHashes, b.Digests)
	w.text(fieldMedium)
	w.optional(string(b.Medium))
	w.text(fieldGroup)
	w.int(int64(b.Group))
	if b.Locality != "" {
		w.text(fieldLocality)
		w.text(b.Locality)
	}
	if b.Ownership != "" {
		w.text(fieldOwnership)
		w.text(b.Ownership)
	}
}

func (w *writer) hashes(e Encoding, hashes []Hash, digests [][]byte) {
	w.array(len(hashes))
	for i, h := range hashes {
		var digest []byte
		if digests != nil {
			digest = digests[i]
		}
		w.hash(e, h, digest)
	}
}

func (w *writer) hash(e Encoding, h Hash, digest []byte) {
	if e.Bytes && len(digest) > 0 {
		w.blob(digest)
		return
	}
	w.uint(uint64(h))
}

func (w *writer) extraKeys(blocks [][]ExtraKey) {
	if blocks == nil {
		w.nil()
		return
	}
	w.array(len(blocks))
	for _, keys := range blocks {
		if len(keys) == 0 {
			w.nil()
			continue
		}
		w.array(len(keys))
		for _, k := range keys {
			w.extraKey(k)
		}
	}
}
