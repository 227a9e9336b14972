package kvevents

// Names of fields on the wire. The empty name stands for all that we don't know.
const (
	fieldTime          = "ts"
	fieldEvents        = "events"
	fieldRank          = "data_parallel_rank"
	fieldType          = "type"
	fieldHashes        = "block_hashes"
	fieldParent        = "parent_block_hash"
	fieldTokens        = "token_ids"
	fieldBlockSize     = "block_size"
	fieldLoRAID        = "lora_id"
	fieldMedium        = "medium"
	fieldLoRAName      = "lora_name"
	fieldExtraKeys     = "extra_keys"
	fieldGroup         = "group_idx"
	fieldSpecKind      = "kv_cache_spec_kind"
	fieldSlidingWindow = "kv_cache_spec_sliding_window"
	fieldLocality      = "locality"
	fieldOwnership     = "ownership"
	fieldSessionID     = "session_id"
	fieldCacheSalt     = "cache_salt" // SGLang only
)

// Tags of the events that are ours.
const (
	tagStored  = "BlockStored"
	tagRemoved = "BlockRemoved"
	tagCleared = "AllBlocksCleared"
)

// What an array event holds by position, after the tag. Each release added to
// the end; vLLM 0.22 is the last to have done so.
var (
	storedPositions = []string{
		fieldHashes, fieldParent, fieldTokens, fieldBlockSize, fieldLoRAID, fieldMedium, fieldLoRAName,
		fieldExtraKeys, fieldGroup, fieldSpecKind, fieldSlidingWindow,
	}
	removedPositions = []string{fieldHashes, fieldMedium, fieldGroup}

	// storedTail would follow storedPositions if a publisher kept sending
	// arrays with the fields of the map form. None is known to, so it is only
	// believed where its first element is a locality.
	storedTail = []string{fieldLocality, fieldOwnership, fieldSessionID}
)

// known returns b as a string, without allocating for the names that make up
// nearly all strings of a stream.
func known(b []byte) string {
	switch string(b) {
	case fieldTime:
		return fieldTime
	case fieldEvents:
		return fieldEvents
	case fieldRank:
		return fieldRank
	case fieldType:
		return fieldType
	case fieldHashes:
		return fieldHashes
	case fieldParent:
		return fieldParent
	case fieldTokens:
		return fieldTokens
	case fieldBlockSize:
		return fieldBlockSize
	case fieldLoRAID:
		return fieldLoRAID
	case fieldMedium:
		return fieldMedium
	case fieldLoRAName:
		return fieldLoRAName
	case fieldExtraKeys:
		return fieldExtraKeys
	case fieldGroup:
		return fieldGroup
	case fieldSpecKind:
		return fieldSpecKind
	case fieldSlidingWindow:
		return fieldSlidingWindow
	case tagStored:
		return tagStored
	case tagRemoved:
		return tagRemoved
	case tagCleared:
		return tagCleared
	case "GPU":
		return "GPU"
	case "CPU":
		return "CPU"
	case "full_attention":
		return "full_attention"
	case "sliding_window":
		return "sliding_window"
	}
	return string(b)
}

// A target is an event that is being read, field by field, in any order.
type target interface {
	Event
	// positions names the fields of the array form.
	positions() []string
	// set reads the value of the named field, or skips it if it has no use
	// for it.
	set(r *reader, field string) error
	// finish checks what only the whole event can tell.
	finish(r *reader) error
}

func newTarget(tag string) (target, error) {
	switch tag {
	case tagStored:
		return &BlockStored{}, nil
	case tagRemoved:
		return &BlockRemoved{}, nil
	case tagCleared:
		return &AllBlocksCleared{}, nil
	}
	return nil, faultf(ReasonUnknownTag, "tag %.*q is unknown", maxTagBytes, tag)
}

// event reads one event, which may be wrapped in bytes once. The tag is
// returned as far as it was read, also beside an error.
func (r *reader) event() (Event, string, error) {
	k, err := r.peek()
	if err != nil {
		return nil, "", err
	}
	if k != kindBytes {
		return r.bareEvent(k)
	}
	body, err := r.body()
	if err != nil {
		return nil, "", err
	}
	inner := newReader(body)
	defer inner.close()
	if k, err = inner.peek(); err != nil {
		return nil, "", err
	}
	ev, tag, err := inner.bareEvent(k)
	if err == nil && inner.left() > 0 {
		err = faultf(ReasonMalformed, "%d bytes after the event inside its wrapping", inner.left())
	}
	return ev, tag, err
}

func (r *reader) bareEvent(k kind) (Event, string, error) {
	r.salt = ""
	switch k {
	case kindArray:
		return r.arrayEvent()
	case kindMap:
		return r.mapEvent()
	case kindNil:
		return nil, "", faultf(ReasonNilEvent, "event is nil")
	default:
		return nil, "", faultf(ReasonMalformed, "event is %v, must be an array or a map", k)
	}
}

func (r *reader) arrayEvent() (Event, string, error) {
	n, err := r.arrayLen()
	if err != nil {
		return nil, "", err
	}
	if n == 0 {
		return nil, "", faultf(ReasonNoTag, "event is an empty array")
	}
	tag, err := r.tag()
	if err != nil {
		return nil, "", err
	}
	ev, err := newTarget(tag)
	if err != nil {
		return nil, tag, err
	}
	names := ev.positions()
	for i := range n - 1 {
		if i == len(storedPositions) && tag == tagStored && r.atLocality() {
			names = append(names[:i:i], storedTail...)
		}
		var name string
		if i < len(names) {
			name = names[i]
		}
		if err := ev.set(r, name); err != nil {
			return nil, tag, err
		}
	}
	return ev, tag, ev.finish(r)
}

func (r *reader) mapEvent() (Event, string, error) {
	n, err := r.mapLen()
	if err != nil {
		return nil, "", err
	}
	start := r.pos()
	tag, err := r.findTag(n)
	if err != nil {
		return nil, "", err
	}
	ev, err := newTarget(tag)
	if err != nil {
		return nil, tag, err
	}
	r.seek(start)
	for range n {
		name, err := r.text()
		if err != nil {
			return nil, tag, err
		}
		if err := ev.set(r, name); err != nil {
			return nil, tag, err
		}
	}
	return ev, tag, ev.finish(r)
}

// findTag returns the value of the key "type". vLLM writes it first, but maps
// have no order.
func (r *reader) findTag(pairs int) (string, error) {
	for range pairs {
		name, err := r.text()
		if err != nil {
			return "", err
		}
		if name == fieldType {
			return r.tag()
		}
		if err := r.skip(); err != nil {
			return "", err
		}
	}
	return "", faultf(ReasonNoTag, "event is a map without %q", fieldType)
}

func (r *reader) tag() (string, error) {
	k, err := r.peek()
	if err != nil {
		return "", err
	}
	if k != kindText && k != kindBytes {
		return "", faultf(ReasonNoTag, "tag is %v, must be a string", k)
	}
	body, err := r.body()
	if err != nil {
		return "", err
	}
	return known(body[:min(len(body), maxTagBytes)]), nil
}

// atLocality reports whether the next value is a locality.
func (r *reader) atLocality() bool {
	start := r.pos()
	defer r.seek(start)
	s, err := r.text()
	return err == nil && (s == "LOCAL" || s == "REMOTE")
}

func (s *BlockStored) positions() []string { return storedPositions }

func (s *BlockStored) set(r *reader, field string) (err error) {
	switch field {
	case fieldHashes:
		s.BlockHashes, s.Digests, err = r.hashes()
	case fieldParent:
		s.Parent, s.ParentDigest, err = r.parent()
	case fieldTokens:
		s.TokenIDs, err = r.tokens()
	case fieldBlockSize:
		s.BlockSize, err = r.blockSize()
	case fieldLoRAID:
		s.LoRAID, err = r.optionalInt(field)
	case fieldMedium:
		s.Medium, err = r.medium()
	case fieldLoRAName:
		s.LoRAName, err = r.loraName()
	case fieldExtraKeys:
		s.ExtraKeys, err = r.extraKeys()
	case fieldGroup:
		s.Group, err = r.optionalCount(field)
	case fieldSpecKind:
		s.SpecKind, err = r.text()
	case fieldSlidingWindow:
		s.SlidingWindow, err = r.optionalCount(field)
	case fieldLocality:
		s.Locality, err = r.text()
	case fieldOwnership:
		s.Ownership, err = r.text()
	case fieldSessionID:
		s.SessionID, err = r.text()
	case fieldCacheSalt:
		r.salt, err = r.text()
	default:
		err = r.skip()
	}
	return err
}

func (s *BlockStored) finish(r *reader) error {
	if s.BlockHashes == nil {
		return faultf(ReasonMalformed, "%s is missing", fieldHashes)
	}
	if s.ExtraKeys != nil && len(s.ExtraKeys) != len(s.BlockHashes) {
		// Dropping the keys instead would make salted blocks look public.
		return faultf(ReasonMalformed, "%s has %d entries for %d hashes", fieldExtraKeys, len(s.ExtraKeys), len(s.BlockHashes))
	}
	// SGLang names the salt once for the event. It seeds the chain like vLLM's,
	// so it is stored where vLLM would have it: with the prompt's first block.
	if r.salt != "" && s.Parent == nil && s.ExtraKeys == nil && len(s.BlockHashes) > 0 {
		s.ExtraKeys = make([][]ExtraKey, len(s.BlockHashes))
		s.ExtraKeys[0] = []ExtraKey{{Kind: KindText, Text: r.salt}}
	}
	return nil
}

func (b *BlockRemoved) positions() []string { return removedPositions }

func (b *BlockRemoved) set(r *reader, field string) (err error) {
	switch field {
	case fieldHashes:
		b.BlockHashes, b.Digests, err = r.hashes()
	case fieldMedium:
		b.Medium, err = r.medium()
	case fieldGroup:
		b.Group, err = r.optionalCount(field)
	case fieldLocality:
		b.Locality, err = r.text()
	case fieldOwnership:
		b.Ownership, err = r.text()
	default:
		err = r.skip()
	}
	return err
}

func (b *BlockRemoved) finish(*reader) error {
	if b.BlockHashes == nil {
		return faultf(ReasonMalformed, "%s is missing", fieldHashes)
	}
	return nil
}

func (*AllBlocksCleared) positions() []string           { return nil }
func (*AllBlocksCleared) set(r *reader, _ string) error { return r.skip() }
func (*AllBlocksCleared) finish(*reader) error          { return nil }
