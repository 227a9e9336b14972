package compare

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/pkg/trace"
)

const (
	// requestTimeout bounds one request of the load, its stream included.
	requestTimeout = 60 * time.Second
	// maxBody bounds what is read of any answer that is not a stream.
	maxBody = 16 << 20
	// maxLine bounds one line of a stream.
	maxLine = 1 << 20
)

// client speaks to routers and engines for one side of a comparison.
type client struct {
	http *http.Client
	// fillerTokens were sent straight to the engines; owned by evict.
	fillerTokens int64
}

// answer is what one request of the load came back with.
type answer struct {
	replica, index string
	promptTokens   int
	promised       int // tokens that the router said the replica holds
	cached         int // tokens that the engine reused
	ttft           time.Duration
	err            error
}

// send posts one request through the router as a stream and reads it to its end.
func (c *client) send(ctx context.Context, router string, r trace.Request) answer {
	body := r.Body
	body.Stream, body.StreamOptions = true, &trace.StreamOptions{IncludeUsage: true}
	payload, err := body.JSON()
	if err != nil {
		return answer{err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	start := time.Now()
	resp, err := c.post(ctx, router+"/v1/chat/completions", payload)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	a := answer{replica: resp.Header.Get("X-Prefixroute-Endpoint"), index: resp.Header.Get("X-Prefixroute-Index")}
	matched, blockSize, err := promise(resp.Header)
	if err != nil {
		return answer{err: err}
	}
	first, usage, err := readStream(resp.Body)
	if err != nil {
		return answer{err: err}
	}
	a.ttft = first.Sub(start)
	a.promptTokens, a.cached = usage.PromptTokens, usage.Details.CachedTokens
	// The approximate chain counts a last, partial block that no engine can reuse.
	a.promised = min(matched, hashing.Usable(a.promptTokens, blockSize)) * blockSize
	return a
}

// promise reads how many blocks the chosen replica is said to hold (the 12 of
// "12/14"), and how many tokens one of them has.
func promise(h http.Header) (matched, blockSize int, err error) {
	match, size := h.Get("X-Prefixroute-Match"), h.Get("X-Prefixroute-Block-Size")
	head, _, ok := strings.Cut(match, "/")
	matched, err = strconv.Atoi(head)
	if !ok || err != nil {
		return 0, 0, fmt.Errorf("header x-prefixroute-match is %q, expected MATCHED/TOTAL blocks: is this a prefixroute router?", match)
	}
	blockSize, err = strconv.Atoi(size)
	if err != nil || blockSize <= 0 {
		return 0, 0, fmt.Errorf("header x-prefixroute-block-size is %q, expected a positive number of tokens", size)
	}
	return matched, blockSize, nil
}

type usage struct {
	PromptTokens int `json:"prompt_tokens"`
	Details      struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// readStream reads server-sent events to the end. It returns when the first one
// came, and the usage that the last one carries.
func readStream(r io.Reader) (first time.Time, u usage, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	var found, done bool
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data:")
		if !ok {
			continue
		}
		if first.IsZero() {
			first = time.Now()
		}
		data = strings.TrimSpace(data)
		if data == "[DONE]" {
			done = true
			continue
		}
		var chunk struct {
			Usage *usage          `json:"usage"`
			Error json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return first, u, fmt.Errorf("decode stream chunk: %w", err)
		}
		if len(chunk.Error) > 0 {
			return first, u, fmt.Errorf("stream ended with an error: %s", chunk.Error)
		}
		if chunk.Usage != nil {
			u, found = *chunk.Usage, true
		}
	}
	switch {
	case lines.Err() != nil:
		return first, u, fmt.Errorf("read stream: %w", lines.Err())
	case !done:
		return first, u, errors.New("stream ended before [DONE]")
	case !found:
		return first, u, errors.New("stream had no usage chunk: the engine must report prompt_tokens_details (vLLM: --enable-prompt-tokens-details)")
	}
	return first, u, nil
}

// post sends JSON and returns only answers of status 200.
func (c *client) post(ctx context.Context, url string, payload []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(payload))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return c.do(req)
}

// statusError is an answer other than 200.
type statusError struct {
	url  string
	code int
	text string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("%s answered %d: %s", e.url, e.code, e.text)
}

func (c *client) do(req *http.Request) (*http.Response, error) {
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		text, err := io.ReadAll(io.LimitReader(resp.Body, 500))
		if err != nil {
			return nil, err
		}
		return nil, &statusError{url: req.URL.String(), code: resp.StatusCode, text: strings.TrimSpace(string(text))}
	}
	return resp, nil
}
