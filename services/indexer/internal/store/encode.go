package store

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/prefixroute/prefixroute/pkg/index"
	"github.com/prefixroute/prefixroute/pkg/kvevents"
	"github.com/prefixroute/prefixroute/services/indexer/internal/belief"
)

// layout is the version of everything below. A copy of another one is not read.
const layout = "1"

func encodeHash(h kvevents.Hash) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(h))
	return string(b[:])
}

func decodeHash(s string) (kvevents.Hash, error) {
	if len(s) != 8 {
		return 0, fmt.Errorf("block hash has %d bytes, must have 8", len(s))
	}
	return kvevents.Hash(binary.BigEndian.Uint64([]byte(s))), nil
}

func decodeRecords(found map[string]string) ([]index.Record, error) {
	all := make([]index.Record, 0, len(found))
	for field, value := range found {
		hash, err := decodeHash(field)
		if err != nil {
			return nil, err
		}
		r, err := decodeRecord(hash, value)
		if err != nil {
			return nil, fmt.Errorf("block %016x: %w", uint64(hash), err)
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b index.Record) int { return cmp.Compare(a.Hash, b.Hash) })
	return all, nil
}

// encodeHead returns the head as field names and values of meta.
func encodeHead(h belief.Head) ([]any, error) {
	packed, err := encodeGroups(h.Groups)
	if err != nil {
		return nil, err
	}
	return []any{
		"layout", layout,
		"scheme", h.Scheme,
		"model", h.Model,
		"epoch", h.Generation.Epoch,
		"counter", h.Generation.Counter,
		"known", flag(h.Position.Known),
		"seq", h.Position.Seq,
		"payload_digest", h.Position.Digest,
		"incomplete", h.Doubts.Incomplete,
		"suspect", h.Doubts.Suspect,
		"set_digest", h.Digest,
		"hashes", h.Hashes,
		"groups", packed,
	}, nil
}

func decodeHead(meta map[string]string) (belief.Head, error) {
	if v := meta["layout"]; v != layout {
		return belief.Head{}, fmt.Errorf("layout is %q, expected %q", v, layout)
	}
	var errs []error
	number := func(field string) uint64 {
		n, err := strconv.ParseUint(meta[field], 10, 64)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s is %q, expected a whole number", field, meta[field]))
		}
		return n
	}
	h := belief.Head{
		Scheme:     meta["scheme"],
		Model:      meta["model"],
		Generation: belief.Generation{Epoch: number("epoch"), Counter: number("counter")},
		Position:   belief.Position{Known: number("known") == 1, Seq: number("seq"), Digest: number("payload_digest")},
		Doubts:     belief.Doubts{Incomplete: meta["incomplete"], Suspect: meta["suspect"]},
		Digest:     number("set_digest"),
		Hashes:     int(min(number("hashes"), 1<<40)),
	}
	groups, err := decodeGroups(meta["groups"])
	h.Groups = groups
	return h, errors.Join(append(errs, err)...)
}
