// Package scoring answers one question: given how much of a prompt each replica
// holds and how busy each one is, which replica should take the request?
//
// # Model
//
// A scorer gives every candidate a value in 0..1, or leaves it unscored when
// what it would need is unknown. A [Policy] multiplies the values by weights,
// adds them up and takes the largest sum; exact ties fall to a random draw from
// a generator that the caller seeds, so a decision can be repeated.
//
// The names and formulas are those of the field (the endpoint picker of
// llm-d-router), checked in the tests against values recorded from it.
//
// # Invariants
//
//   - Every value is in 0..1 and no sum is NaN, whatever the input: a
//     measurement that is NaN, infinite or negative leaves the candidate
//     unscored, which counts as 0. So a replica that was never measured, or
//     whose metrics are nonsense, cannot win by them.
//   - The order of the candidates has no influence on their scores, with the
//     one exception that [Ranked] states.
//
// # Concurrency
//
// All functions are pure and a [Policy] is fixed after [New]: any number of
// goroutines may decide at once. What changes from one request to the next (the
// order of cold requests, the turn of round-robin, the random generator) is the
// caller's and comes in as an argument. [ColdOrder] is not safe for concurrent
// use.
package scoring

import "math"

// Candidate is one replica that could take the request, as seen at the moment
// of the decision.
type Candidate struct {
	// Name identifies the replica; names of one list are distinct.
	Name string

	// Matched of Total is how many leading blocks of the prompt the replica is
	// believed to hold. Total 0 says that nothing is known about the prompt (no
	// index, no tokens, no prompt in the request): the prefix scorer leaves the
	// candidate out. Matched outside 0..Total is cut to it.
	Matched, Total int
	// BlockSize is the tokens in one block; only the match-length term uses it.
	BlockSize int

	Load Load
}

// Load is how busy a replica is.
type Load struct {
	// Known says that the engine's own figures below were read, and recently
	// enough to be believed. InFlight does not depend on it.
	Known bool
	// Waiting and Running are the engine's requests in the queue and in the
	// batch.
	Waiting, Running int
	// KVUsage is the part of the KV cache in use, 0..1.
	KVUsage float64

	// InFlight is how many requests the router has sent and not seen the end of.
	InFlight int
}

// Score is what one scorer says about one candidate. The zero value is
// unscored.
type Score struct {
	// Value is in 0..1; 0 when OK is false.
	Value float64
	// OK is false for a candidate that the scorer leaves out. It counts as 0 in
	// the sum, and an explanation shows it as unscored.
	OK bool
}

// scored wraps a value, cut to 0..1. A NaN is left out: it would survive every
// comparison and win or lose by accident.
func scored(v float64) Score {
	if math.IsNaN(v) {
		return Score{}
	}
	return Score{Value: min(1, max(0, v)), OK: true}
}

// matched is the number of leading blocks held, cut to what the prompt has.
func (c *Candidate) matched() int {
	return max(0, min(c.Matched, c.Total))
}
