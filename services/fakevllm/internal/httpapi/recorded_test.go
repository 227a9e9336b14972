package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/prefixroute/prefixroute/pkg/blockpool"
	"github.com/prefixroute/prefixroute/pkg/hashing"
	"github.com/prefixroute/prefixroute/services/fakevllm/internal/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newServer is a server without events, whose engine runs until the test ends,
// with the sizes of the recorded one.
func newServer(t *testing.T) *Server {
	t.Helper()
	const blockSize = 32
	hash, err := hashing.NewEngine(hashing.SHA256, nil, hashing.Tagged)
	if err != nil {
		t.Fatal(err)
	}
	hasher, err := blockpool.NewHasher(hash, hashing.Scheme{}, "tiny", blockSize)
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	e, err := engine.New(engine.Config{
		Blocks: 64, BlockSize: blockSize, MaxSeqs: 16, MaxRequests: 64,
		Hasher: hasher, Metrics: engine.NewMetrics(reg, "tiny"),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- e.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-stopped; err != nil {
			t.Errorf("engine: %v", err)
		}
	})
	return New(Config{
		Engine: e, Registry: reg, Log: slog.New(slog.DiscardHandler), Model: "tiny",
		Adapters:  []blockpool.Adapter{{ID: 1, Name: "la", Path: "/la"}, {ID: 2, Name: "lb", Path: "/lb"}},
		BlockSize: blockSize, MaxModelLen: 1000, AnswerTokens: 16, MaxRequests: 64,
	})
}

// recorded is one request with vLLM's answer.
type recorded struct {
	Note        string
	Method      string
	Path        string
	Request     json.RawMessage
	Status      int
	ContentType *string `json:"content_type"`
	Response    json.RawMessage
	Text        string
}

func (r recorded) name() string { return r.Method + " " + r.Path + " " + r.Note }

// body is what was sent: JSON, or for broken JSON the text itself.
func (r recorded) body(t *testing.T) io.Reader {
	t.Helper()
	switch {
	case len(r.Request) == 0 || string(r.Request) == "null":
		return http.NoBody
	case r.Request[0] != '"':
		return bytes.NewReader(r.Request)
	}
	var text string
	if err := json.Unmarshal(r.Request, &text); err != nil {
		t.Fatal(err)
	}
	return strings.NewReader(text)
}

func readRecorded(t *testing.T) []recorded {
	t.Helper()
	f, err := os.Open("testdata/vllm-0.32.0-answers.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var list []recorded
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var r recorded
		if err := json.Unmarshal(sc.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	if err := sc.Err(); err != nil || len(list) == 0 {
		t.Fatalf("read %d recorded answers: %v", len(list), err)
	}
	return list
}

// TestRecordedAnswers sends what was sent to a real engine. Answers must have
// the same fields in the same order with the same types, errors the same words,
// and usage the same numbers where the tokens are given.
func TestRecordedAnswers(t *testing.T) {
	t.Parallel()

	s := newServer(t)
	for _, r := range readRecorded(t) {
		rec := httptest.NewRecorder()
		s.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), r.Method, r.Path, r.body(t)))
		if rec.Code != r.Status {
			t.Errorf("%s: status %d, recorded is %d: %s", r.name(), rec.Code, r.Status, rec.Body)
			continue
		}
		contentType, want := rec.Header().Get("Content-Type"), ""
		if r.ContentType != nil {
			want = *r.ContentType
		}
		if contentType != want {
			t.Errorf("%s: content type %q, recorded is %q", r.name(), contentType, want)
		}
		switch {
		case r.Path == "/kv_event_sources": // {} here: these tests have no sockets
		case r.Response == nil:
			compareStreams(t, r, rec.Body.String())
		case r.Status == http.StatusOK:
			compareShapes(t, r, r.Response, rec.Body.Bytes())
			compareUsage(t, r, rec.Body.Bytes())
		default:
			compareErrors(t, r, rec.Body.Bytes())
		}
	}
}

func compareStreams(t *testing.T, r recorded, got string) {
	t.Helper()
	w, g := strings.Split(r.Text, "\n\n"), strings.Split(got, "\n\n")
	if len(w) != len(g) {
		t.Errorf("%s: %d events, recorded are %d", r.name(), len(g), len(w))
		return
	}
	for i := range w {
		wantData, isJSON := strings.CutPrefix(w[i], "data: {")
		gotData, alsoJSON := strings.CutPrefix(g[i], "data: {")
		if isJSON && alsoJSON {
			compareShapes(t, r, []byte("{"+wantData), []byte("{"+gotData))
		} else if w[i] != g[i] {
			t.Errorf("%s: event %d is %q, recorded is %q", r.name(), i, g[i], w[i])
		}
	}
}

func compareShapes(t *testing.T, r recorded, want, got []byte) {
	t.Helper()
	if d := cmp.Diff(shape(t, want), shape(t, got)); d != "" {
		t.Errorf("%s: shape (-recorded +fakevllm):\n%s", r.name(), d)
	}
}

// compareUsage compares numbers where both engines have the same tokens: those
// of prompts that were sent as token ids.
func compareUsage(t *testing.T, r recorded, got []byte) {
	t.Helper()
	if r.Path != "/v1/completions" {
		return
	}
	usage := func(body []byte) (u struct{ Usage any }) {
		if err := json.Unmarshal(body, &u); err != nil {
			t.Fatal(err)
		}
		return u
	}
	if d := cmp.Diff(usage(r.Response), usage(got)); d != "" {
		t.Errorf("%s: usage (-recorded +fakevllm):\n%s", r.name(), d)
	}
}

// compareErrors compares errors word by word, but for those of the body as a
// whole: they come from another JSON parser.
func compareErrors(t *testing.T, r recorded, got []byte) {
	t.Helper()
	type answer struct {
		Detail string
		Error  struct {
			Message, Type string
			Param         *string
			Code          int
		}
	}
	var want, have answer
	if err := json.Unmarshal(r.Response, &want); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(got, &have); err != nil {
		t.Fatalf("%s: answer is %s: %v", r.name(), got, err)
	}
	switch r.Note {
	case "broken JSON", "no messages", "no prompt", "salt not a string", "empty salt":
		want.Error.Message = have.Error.Message
	}
	switch r.Note {
	case "broken JSON", "no messages":
		want.Error.Param, want.Error.Type = have.Error.Param, have.Error.Type
	}
	if strings.HasPrefix(want.Error.Message, "The model `nope`") {
		want.Error.Message = strings.Replace(want.Error.Message, "tiny.", "tiny, la, lb.", 1)
	}
	want.Error.Message = strings.Replace(want.Error.Message, "-1.0", "-1", 2)
	if d := cmp.Diff(want, have); d != "" {
		t.Errorf("%s: error (-recorded +fakevllm):\n%s", r.name(), d)
	}
}

// shape lists the paths of a JSON value in order, each with its type. Of a list
// it takes the first element.
func shape(t *testing.T, data []byte) []string {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(data))
	var lines []string
	if err := walk(dec, "", &lines); err != nil {
		t.Fatalf("answer is %.200s: %v", data, err)
	}
	return lines
}

func walk(dec *json.Decoder, path string, lines *[]string) error {
	token, err := dec.Token()
	if err != nil {
		return err
	}
	delim, ok := token.(json.Delim)
	if !ok {
		*lines = append(*lines, fmt.Sprintf("%s %T", path, token))
		return nil
	}
	*lines = append(*lines, path+" "+delim.String())
	for i := 0; dec.More(); i++ {
		child, into := path+"[]", lines
		if i > 0 && delim == '[' {
			into = new([]string)
		}
		if delim == '{' {
			key, err := dec.Token()
			if err != nil {
				return err
			}
			child = fmt.Sprintf("%s.%v", path, key)
		}
		if err := walk(dec, child, into); err != nil {
			return err
		}
	}
	_, err = dec.Token()
	return err
}
