package hashing

import "encoding/binary"

// Extra is what besides its tokens tells a block from another. The zero value
// adds nothing; an empty field and an absent one are the same.
type Extra struct {
	LoRA   string   // name of the adapter, in every block of the request
	Salt   string   // cache_salt of the request, in its first block only
	MM     []MMItem // items that overlap the block, by ascending offset
	Embeds []byte   // digest of the block's prompt embeddings
}

// MMItem is a multimodal item (an image, a clip) that overlaps a block.
type MMItem struct {
	ID     string // what the engine calls its content
	Offset int64  // first token, counted from the block's first; negative if it began earlier
}

// IsZero reports whether x adds nothing to a block's tokens.
func (x *Extra) IsZero() bool {
	return x.LoRA == "" && x.Salt == "" && len(x.MM) == 0 && len(x.Embeds) == 0
}

// appendExtra appends the canonical form of x. Every part has its length or
// count before it and its own place, so that different extras never have the
// same form: an adapter named like a salt is not that salt.
func appendExtra(b []byte, x *Extra) []byte {
	b = appendText(b, x.LoRA)
	b = appendText(b, x.Salt)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(x.MM)))
	for _, item := range x.MM {
		b = appendText(b, item.ID)
		b = binary.LittleEndian.AppendUint64(b, uint64(item.Offset))
	}
	return appendText(b, x.Embeds)
}

// appendText appends the length of s, as 8 bytes, and s.
func appendText[T string | []byte](b []byte, s T) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
	return append(b, s...)
}
