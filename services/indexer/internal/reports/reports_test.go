package reports

import (
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLedger(t *testing.T) {
	t.Parallel()

	var l Ledger
	if got := l.Of("a"); got != (Summary{}) {
		t.Errorf("an empty ledger has %+v", got)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				l.Began("a")
				l.Observe("a", 64, 64)
				l.Observe("a", 64, 16)
				l.Observe("a", 16, 64)
				l.Ended("a")
			}
		})
	}
	l.Began("b")
	wg.Wait()
	want := Summary{Precision: Precision{
		Requests: 2400, ExactRequests: 800, PredictedTokens: 144 * 800, ActualTokens: 144 * 800, OverTokens: 48 * 800, UnderTokens: 48 * 800,
	}}
	if diff := cmp.Diff(want, l.Of("a")); diff != "" {
		t.Errorf("summary of a (-want +got):\n%s", diff)
	}
	if got := l.Of("b").InFlight; got != 1 {
		t.Errorf("%d requests of b are in flight, want 1", got)
	}
}
