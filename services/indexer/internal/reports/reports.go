// Package reports sums up what routers say about each replica: which requests
// they have in flight there, and how well the index had predicted what the engine
// then reused.
package reports

import "sync"

// Precision sums observations of one replica, in tokens.
type Precision struct {
	Requests, ExactRequests       uint64
	PredictedTokens, ActualTokens uint64
	// OverTokens were promised and not cached, UnderTokens cached and not
	// promised.
	OverTokens, UnderTokens uint64
}

// Summary is what the ledger has of one replica.
type Summary struct {
	InFlight  uint64
	Precision Precision
}

// Ledger holds the summaries of all replicas. The zero value is empty and ready
// for use, from any goroutine.
type Ledger struct {
	mu  sync.Mutex
	all map[string]*Summary // guarded by mu
}

func (l *Ledger) update(replica string, f func(*Summary)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = map[string]*Summary{}
	}
	s := l.all[replica]
	if s == nil {
		s = &Summary{}
		l.all[replica] = s
	}
	f(s)
}

// Began counts a request in flight.
func (l *Ledger) Began(replica string) { l.update(replica, func(s *Summary) { s.InFlight++ }) }

// Ended takes back what Began counted; the caller calls it once for each.
func (l *Ledger) Ended(replica string) { l.update(replica, func(s *Summary) { s.InFlight-- }) }

// Observe adds one finished request: the tokens that were predicted to be cached,
// and those that the engine says it reused.
func (l *Ledger) Observe(replica string, predicted, actual uint64) {
	l.update(replica, func(s *Summary) {
		p := &s.Precision
		p.Requests++
		p.PredictedTokens += predicted
		p.ActualTokens += actual
		switch {
		case predicted > actual:
			p.OverTokens += predicted - actual
		case predicted < actual:
			p.UnderTokens += actual - predicted
		default:
			p.ExactRequests++
		}
	})
}

// Of returns the replica's summary.
func (l *Ledger) Of(replica string) Summary {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.all[replica]; s != nil {
		return *s
	}
	return Summary{}
}
