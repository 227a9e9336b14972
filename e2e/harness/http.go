package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// Client is for everything that tests ask over HTTP; its deadline is far above
// what any answer takes on an idle machine.
var Client = &http.Client{Timeout: Deadline}

// Get reads a page, as JSON where it has that form too. An answer other than 200
// is an error.
func Get(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := Client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answered %d: %.200s", url, resp.StatusCode, text)
	}
	return string(text), err
}

// GetJSON decodes a page into v.
func GetJSON(ctx context.Context, url string, v any) error {
	text, err := Get(ctx, url)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(text), v)
}

// EventuallyOnPage waits for lines on the /metrics page of a service.
func EventuallyOnPage(t *testing.T, service string, lines ...string) {
	t.Helper()
	Eventually(t, strings.Join(lines, " and "), func(ctx context.Context) error {
		page, err := Get(ctx, service+"/metrics")
		if err != nil {
			return err
		}
		for _, line := range lines {
			if !strings.Contains(page, "\n"+line+"\n") {
				return fmt.Errorf("%s/metrics lacks %s", service, line)
			}
		}
		return nil
	})
}

// RequireEqualSets waits until the indexer has applied all that an engine has
// published, and then requires the two sets to be one, block by block.
func RequireEqualSets(t *testing.T, name, engine, indexer string) {
	t.Helper()
	Eventually(t, "the index equals "+name, func(ctx context.Context) error {
		var held, believed Blocks
		if err := GetJSON(ctx, engine+"/admin/blocks", &held); err != nil {
			return err
		}
		if err := GetJSON(ctx, indexer+"/replicas/"+name+"/blocks", &believed); err != nil {
			return err
		}
		if err := settled(held, believed); err != nil {
			return err
		}
		if diff := difference(held, believed); diff != "" {
			// At one and the same batch nothing may differ, not even for a moment.
			t.Fatalf("%s at batch %d: %s", name, held.At(), diff)
		}
		return nil
	})
}
