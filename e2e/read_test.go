package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
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
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// eventuallyOnPage waits for a line on a /metrics page.
func (f *fleet) eventuallyOnPage(t *testing.T, ops, line string) {
	t.Helper()
	harness.Eventually(t, line, func(context.Context) error {
		if !strings.Contains(text(t, ops+"/metrics"), "\n"+line+"\n") {
			return errors.New("the page lacks the line")
		}
		return nil
	})
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
	if err := getJSON(t.Context(), f.indexerOps+"/replicas", &page); err != nil {
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

// copyIsWhole says whether the durable copy has caught up with memory.
func copyIsWhole(t *testing.T, f *fleet) error {
	t.Helper()
	page := text(t, f.indexerOps+"/metrics")
	for _, want := range []string{"prefixroute_indexer_store_up 1\n", "prefixroute_indexer_store_pending_replicas 0\n"} {
		if !strings.Contains(page, want) {
			return fmt.Errorf("the indexer's metrics lack %q", want)
		}
	}
	return nil
}
