package kvevents

import (
	"bytes"
	"math"

	"github.com/prefixroute/prefixroute/pkg/hashing"
)

// hashes reads a list of block hashes. The hashes are never nil without an
// error; the digests are nil unless at least one hash came as bytes.
func (r *reader) hashes() ([]Hash, [][]byte, error) {
	k, err := r.peek()
	if err != nil {
		return nil, nil, err
	}
	if k != kindArray {
		return nil, nil, faultf(ReasonMalformed, "%s is %v, must be an array", fieldHashes, k)
	}
	n, err := r.arrayLen()
	if err != nil {
		return nil, nil, err
	}
	hashes := make([]Hash, n)
	var digests [][]byte
	var arena []byte // backs the digests: one allocation for the usual list of equal lengths
	for i := range hashes {
		h, digest, err := r.hash(fieldHashes)
		if err != nil {
			return nil, nil, err
		}
		hashes[i] = h
		if digest == nil {
			continue
		}
		if digests == nil {
			digests = make([][]byte, n)
			arena = make([]byte, 0, min((n-i)*len(digest), len(digest)+r.left()))
		}
		start := len(arena)
		arena = append(arena, digest...)
		digests[i] = arena[start:len(arena):len(arena)]
	}
	return hashes, digests, nil
}

// hash reads one hash. The digest is part of the payload, and nil if the hash
// is an integer.
func (r *reader) hash(field string) (Hash, []byte, error) {
	k, err := r.peek()
	if err != nil {
		return 0, nil, err
	}
	switch k {
	case kindInt:
		n, err := r.integer()
		return Hash(n.bits), nil, err
	case kindBytes:
		digest, err := r.body()
		if err != nil {
			return 0, nil, err
		}
		if len(digest) == 0 {
			return 0, nil, faultf(ReasonMalformed, "%s holds a hash of 0 bytes", field)
		}
		return Hash(hashing.External(digest)), digest, nil
	default:
		return 0, nil, faultf(ReasonMalformed, "%s holds %v, must be an integer or bytes", field, k)
	}
}

func (r *reader) parent() (*Hash, []byte, error) {
	k, err := r.peek()
	if err != nil {
		return nil, nil, err
	}
	if k == kindNil {
		return nil, nil, r.skip()
	}
	h, digest, err := r.hash(fieldParent)
	if err != nil {
		return nil, nil, err
	}
	return &h, bytes.Clone(digest), nil
}

// tokens reads a list of token ids. SGLang's speculative decoding sends pairs
// of neighbouring tokens; the first of each pair is the token in its place.
func (r *reader) tokens() ([]uint32, error) {
	k, err := r.peek()
	if err != nil {
		return nil, err
	}
	switch k {
	case kindNil:
		return nil, r.skip()
	case kindArray:
	default:
		return nil, faultf(ReasonMalformed, "%s is %v, must be an array", fieldTokens, k)
	}
	n, err := r.arrayLen()
	if err != nil {
		return nil, err
	}
	ids := make([]uint32, n)
	for i := range ids {
		if ids[i], err = r.tokenOrPair(); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

func (r *reader) tokenOrPair() (uint32, error) {
	k, err := r.peek()
	if err != nil {
		return 0, err
	}
	if k != kindArray {
		return r.token(k)
	}
	n, err := r.arrayLen()
	if err != nil {
		return 0, err
	}
	if n != 2 {
		return 0, faultf(ReasonMalformed, "%s holds an array of %d, must be a pair", fieldTokens, n)
	}
	if k, err = r.peek(); err != nil {
		return 0, err
	}
	id, err := r.token(k)
	if err != nil {
		return 0, err
	}
	return id, r.skip()
}

func (r *reader) token(k kind) (uint32, error) {
	if k != kindInt {
		return 0, faultf(ReasonMalformed, "%s holds %v, must be an integer", fieldTokens, k)
	}
	n, err := r.integer()
	if err != nil {
		return 0, err
	}
	if n.negative || n.bits > math.MaxUint32 {
		return 0, faultf(ReasonTokenRange, "%s holds %v, must be 0 to 4294967295", fieldTokens, n)
	}
	return uint32(n.bits), nil
}

// blockSize reads the one number that has no default: a publisher that sends
// nil in its place is broken, unlike one that leaves it out.
func (r *reader) blockSize() (int, error) {
	k, err := r.peek()
	if err != nil {
		return 0, err
	}
	if k != kindInt {
		return 0, faultf(ReasonMalformed, "%s is %v, must be an integer", fieldBlockSize, k)
	}
	return r.count(fieldBlockSize)
}

// count reads an integer that must be from 0 to 2^31-1.
func (r *reader) count(field string) (int, error) {
	n, err := r.integer()
	if err != nil {
		return 0, err
	}
	if n.negative || n.bits > math.MaxInt32 {
		return 0, faultf(ReasonMalformed, "%s is %v, must be 0 to 2147483647", field, n)
	}
	return int(n.bits), nil
}

// optionalCount reads a count whose absence, as nil or as a value of another
// type, is 0.
func (r *reader) optionalCount(field string) (int, error) {
	k, err := r.peek()
	if err != nil {
		return 0, err
	}
	if k != kindInt {
		return 0, r.skip()
	}
	return r.count(field)
}

// optionalInt reads an integer; a value of another type is nil.
func (r *reader) optionalInt(field string) (*int64, error) {
	k, err := r.peek()
	if err != nil {
		return nil, err
	}
	if k != kindInt {
		return nil, r.skip()
	}
	n, err := r.integer()
	if err != nil {
		return nil, err
	}
	v, ok := n.signed()
	if !ok {
		return nil, faultf(ReasonMalformed, "%s is %v, must fit into 64 bits with a sign", field, n)
	}
	return &v, nil
}

// text reads an optional string or a map key; a value of another type is "",
// which is the name of no field.
func (r *reader) text() (string, error) {
	k, err := r.peek()
	if err != nil {
		return "", err
	}
	if k != kindText && k != kindBytes {
		return "", r.skip()
	}
	body, err := r.body()
	if err != nil {
		return "", err
	}
	return known(body), nil
}

func (r *reader) medium() (Medium, error) {
	s, err := r.text()
	return Medium(s), err
}

// loraName reads the adapter's name. Arrays of SGLang of mid-2026 have a map of
// metadata in its place, from which only the salt matters.
func (r *reader) loraName() (string, error) {
	k, err := r.peek()
	if err != nil {
		return "", err
	}
	if k != kindMap {
		return r.text()
	}
	n, err := r.mapLen()
	if err != nil {
		return "", err
	}
	for range n {
		name, err := r.text()
		if err != nil {
			return "", err
		}
		if name != fieldCacheSalt {
			err = r.skip()
		} else {
			r.salt, err = r.text()
		}
		if err != nil {
			return "", err
		}
	}
	return "", nil
}

// extraKeys reads the keys of each block. A field of another type is nil, as
// with every optional field; what is inside the list is never dropped, since it
// is what keeps one tenant's blocks apart from another's.
func (r *reader) extraKeys() ([][]ExtraKey, error) {
	k, err := r.peek()
	if err != nil {
		return nil, err
	}
	if k != kindArray {
		return nil, r.skip()
	}
	n, err := r.arrayLen()
	if err != nil {
		return nil, err
	}
	out := make([][]ExtraKey, n)
	for i := range out {
		if out[i], err = r.blockKeys(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// blockKeys reads the keys of one block: nil, a list, or a single key.
func (r *reader) blockKeys() ([]ExtraKey, error) {
	k, err := r.peek()
	if err != nil {
		return nil, err
	}
	n := 1
	switch k {
	case kindNil:
		return nil, r.skip()
	case kindArray:
		if n, err = r.arrayLen(); err != nil || n == 0 {
			return nil, err
		}
	default: // the key itself
	}
	keys := make([]ExtraKey, n)
	for i := range keys {
		if keys[i], err = r.extraKey(); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

func (r *reader) extraKey() (ExtraKey, error) {
	start := r.pos()
	key, err := r.plainKey()
	if err != nil || key.Kind != KindOther {
		return key, err
	}
	r.seek(start)
	if err := r.skip(); err != nil {
		return ExtraKey{}, err
	}
	key.Bytes = bytes.Clone(r.data[start:r.pos()])
	return key, nil
}

// plainKey reads a key of a shape that vLLM publishes. For any other it returns
// KindOther, having consumed some of it.
func (r *reader) plainKey() (ExtraKey, error) {
	other := ExtraKey{Kind: KindOther}
	k, err := r.peek()
	if err != nil {
		return other, err
	}
	switch k {
	case kindText:
		body, err := r.body()
		return ExtraKey{Kind: KindText, Text: string(body)}, err
	case kindBytes:
		body, err := r.body()
		return ExtraKey{Kind: KindBytes, Bytes: bytes.Clone(body)}, err
	case kindInt:
		n, err := r.integer()
		if v, ok := n.signed(); ok {
			return ExtraKey{Kind: KindInt, Int: v}, err
		}
		return other, err
	case kindArray:
		return r.pairKey()
	default:
		return other, nil
	}
}

// pairKey reads [identifier, offset], which is a multimodal item.
func (r *reader) pairKey() (ExtraKey, error) {
	other := ExtraKey{Kind: KindOther}
	if n, err := r.arrayLen(); err != nil || n != 2 {
		return other, err
	}
	if k, err := r.peek(); err != nil || k != kindText {
		return other, err
	}
	id, err := r.body()
	if err != nil {
		return other, err
	}
	if k, err := r.peek(); err != nil || k != kindInt {
		return other, err
	}
	n, err := r.integer()
	if err != nil {
		return other, err
	}
	offset, ok := n.signed()
	if !ok {
		return other, nil
	}
	return ExtraKey{Kind: KindPair, Text: string(id), Int: offset}, nil
}
