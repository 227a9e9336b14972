package kvevents

import "github.com/prefixroute/prefixroute/pkg/hashing"

// An ExtraKind says which fields of an [ExtraKey] are set.
type ExtraKind uint8

const (
	// KindText is Text: a LoRA name, a cache salt, or in releases up to 0.18 a
	// multimodal identifier.
	KindText ExtraKind = iota
	// KindBytes is Bytes: the digest of prompt embeddings.
	KindBytes
	// KindInt is Int.
	KindInt
	// KindPair is Text and Int: a multimodal identifier and its offset from the
	// block's first token, below 0 if the item began in an earlier block.
	KindPair
	// KindOther is any other value, with its MessagePack encoding in Bytes.
	KindOther
)

// An ExtraKey is one thing besides the tokens that went into a block's hash.
type ExtraKey struct {
	Kind  ExtraKind
	Text  string
	Bytes []byte
	Int   int64
}

// Extra gives the keys of one block the meaning that they had in the engine.
// The engine publishes them without names: the first string is the adapter if
// it has the adapter's name, a pair is a multimodal item, bytes are the digest
// of embeddings and the string that remains is the salt.
//
// What has no such meaning isn't lost, or blocks that differ would look alike:
// strings before the salt become items at offset 0, and all other keys become
// part of Embeds, where no request's own key can equal them.
func Extra(loraName string, keys []ExtraKey) hashing.Extra {
	out := hashing.Extra{LoRA: loraName}
	if loraName != "" && len(keys) > 0 && keys[0].Kind == KindText && keys[0].Text == loraName {
		keys = keys[1:]
	}
	var rest []ExtraKey
	for _, k := range keys {
		switch k.Kind {
		case KindText:
			if out.Salt != "" {
				out.MM = append(out.MM, hashing.MMItem{ID: out.Salt})
			}
			out.Salt = k.Text
		case KindPair:
			out.MM = append(out.MM, hashing.MMItem{ID: k.Text, Offset: k.Int})
		case KindBytes, KindInt, KindOther:
			rest = append(rest, k)
		}
	}
	switch {
	case len(rest) == 0:
	case len(rest) == 1 && rest[0].Kind == KindBytes:
		out.Embeds = rest[0].Bytes
	default:
		var w writer
		w.array(len(rest))
		for _, k := range rest {
			w.extraKey(k)
		}
		out.Embeds = w.bytes()
	}
	return out
}
