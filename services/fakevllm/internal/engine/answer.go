package engine

import (
	"fmt"
	"strings"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/tokenize"
)

// text is what answers are made of.
const text = `about above across after again against almost along already also always among another answer around
arrive because become before begin behind below beside better between beyond bring build call carry change choose
clear close come common count course cover cross decide deep describe different discover distance draw during early
easy either enough even ever every example explain family figure final find follow force forward found general give
great ground group grow half hand happen hard head help high hold home hour house however idea important include
inside instead keep kind know language large last late later lead learn least leave less letter light like line list
little long look machine main make many mark matter mean measure might moment more most move much must name near need
never next night north note nothing notice number often once only open order other over own page part pass pattern
people perhaps piece place plain plan point possible power present problem produce question quick quite reach ready
reason record remember rest result right round rule same second seem sense serve several shape short should side
simple since small some sound south space special stand start state still stop story strong study such system table
take tell term test than then there thing think though thought through time together true turn under unit until upon
usual voice watch water well where which while whole wide wind word work world would write year yellow young`

// vocabulary holds the words of answers with the ids that the tokenizer gives
// them, so that an answer sent back in the next turn has the same tokens again.
type vocabulary struct {
	spaced, bare []piece // the same words, with and without a space behind
}

type piece struct {
	text string
	id   uint32
}

func newVocabulary() vocabulary {
	var v vocabulary
	for w := range strings.FieldsSeq(text) {
		v.spaced = append(v.spaced, newPiece(w+" "))
		v.bare = append(v.bare, newPiece(w))
	}
	return v
}

func newPiece(s string) piece {
	ids := tokenize.Text(s)
	if len(ids) != 1 {
		panic(fmt.Sprintf("engine: %q is %d tokens, expected 1", s, len(ids)))
	}
	return piece{text: s, id: ids[0]}
}

// An answer is a fixed sequence of tokens: a preempted sequence goes on with the
// very tokens that it would have had.
type answer struct {
	words vocabulary
	lead  []uint32
	state uint64
	last  int
}

// answer returns what the model says to r: always the same for the same seed,
// prompt and sample, on every replica.
func (v vocabulary) answer(seed uint64, r Request) answer {
	var scheme hashing.Scheme
	key := scheme.Chain(hashing.Key(seed), scheme.Local(r.Prompt, hashing.Extra{}))
	return answer{
		words: v,
		lead:  r.Lead,
		state: uint64(scheme.Chain(key, uint64(r.Sample))),
		last:  r.MaxTokens - 1,
	}
}

// token returns the i-th token.
func (a answer) token(i int) (id uint32, text string) {
	if i < len(a.lead) {
		return a.lead[i], ""
	}
	h := uint64(hashing.Scheme{}.Chain(hashing.Key(a.state), uint64(i)))
	p := a.words.spaced[h%uint64(len(a.words.spaced))]
	if i == a.last {
		p = a.words.bare[h%uint64(len(a.words.bare))]
	}
	return p.id, p.text
}
