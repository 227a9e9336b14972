package e2e

import (
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/prefixroute/prefixroute/e2e/harness"
)

// askAll sends requests one after the other through the first router.
func (f *fleet) askAll(t *testing.T, requests [][]byte) []reply {
	t.Helper()
	var out []reply
	for _, body := range requests {
		out = append(out, f.ask(t.Context(), 0, body))
	}
	return out
}

func median(replies []reply) time.Duration {
	var took []time.Duration
	for _, r := range replies {
		took = append(took, r.took)
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// text reads a page.
func text(t *testing.T, url string) string {
	t.Helper()
	page, err := harness.Get(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// replicaStatus is the part of the indexer's /replicas that the tests read.
type replicaStatus struct {
	Name       string `json:"name"`
	State      string `json:"state"`
	Generation struct {
		Counter uint64 `json:"counter"`
	} `json:"generation"`
}

func generationsOf(t *testing.T, f *fleet) map[string]uint64 {
	t.Helper()
	var page struct {
		Replicas []replicaStatus `json:"replicas"`
	}
	if err := harness.GetJSON(t.Context(), f.indexerOps+"/replicas", &page); err != nil {
		t.Fatal(err)
	}
	out := map[string]uint64{}
	for _, r := range page.Replicas {
		out[r.Name] = r.Generation.Counter
	}
	return out
}

func allOnes(m map[string]uint64) bool {
	for _, n := range m {
		if n != 1 {
			return false
		}
	}
	return len(m) > 0
}

var failedWrite = regexp.MustCompile(`(?m)^prefixroute_indexer_store_writes_total\{result="failed"\} [1-9]`)
