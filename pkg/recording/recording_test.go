package recording_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/prefixroute/prefixroute/pkg/recording"
)

const header = `{"kind":"recording","engine":"vllm","release":"0.32.0","device":"cpu","flags":"--block-size 32"}` + "\n"

func TestReaderReadsEveryKind(t *testing.T) {
	t.Parallel()
	text := header + `
{"i":1,"t":0.5,"kind":"scenario","name":"basics"}
{"i":2,"t":1.5,"kind":"frames","frames":["a3Y=","AAAAAAAAAAE=","kw=="]}
{"i":3,"t":2.0001,"kind":"http","note":"n","method":"POST","path":"/v1/completions","request":{"a":1},"status":200,"content_type":"application/json","ms":12.5,"response":{"b":2}}
{"i":4,"t":3,"kind":"http","method":"POST","path":"/x","request":"{\"bro","status":400,"ms":0,"text":"no"}
{"i":5,"t":4,"kind":"replay","note":"from 0","start":18446744073709551615,"replies":[["","AQ=="]]}
{"i":6,"t":5,"kind":"note","note":"aborted","prompt":[1,4294967295]}
{"i":7,"t":6,"kind":"weather","rain":true}
`
	want := []recording.Record{
		{Line: 3, Index: 1, Time: 500 * time.Millisecond, Kind: "scenario", Note: "basics"},
		{Line: 4, Index: 2, Time: 1500 * time.Millisecond, Kind: "frames", Frames: [][]byte{[]byte("kv"), {0, 0, 0, 0, 0, 0, 0, 1}, {0x93}}},
		{Line: 5, Index: 3, Time: 2000100 * time.Microsecond, Kind: "http", HTTP: &recording.HTTP{
			Note: "n", Method: "POST", Path: "/v1/completions", Request: []byte(`{"a":1}`), Status: 200,
			ContentType: "application/json", Duration: 12500 * time.Microsecond, Response: []byte(`{"b":2}`),
		}},
		{Line: 6, Index: 4, Time: 3 * time.Second, Kind: "http", HTTP: &recording.HTTP{
			Method: "POST", Path: "/x", Request: []byte(`"{\"bro"`), Status: 400, Text: "no",
		}},
		{Line: 7, Index: 5, Time: 4 * time.Second, Kind: "replay", Replay: &recording.Replay{
			Note: "from 0", Start: 1<<64 - 1, Replies: [][][]byte{{{}, {1}}},
		}},
		{Line: 8, Index: 6, Time: 5 * time.Second, Kind: "note", Note: "aborted", Prompt: []uint32{1, 1<<32 - 1}},
		{Line: 9, Index: 7, Time: 6 * time.Second, Kind: "weather"},
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := io.WriteString(z, text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for name, src := range map[string]io.Reader{"plain": strings.NewReader(text), "gzipped": &zipped} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := recording.NewReader(src)
			if err != nil {
				t.Fatal(err)
			}
			wantHeader := recording.Header{Engine: "vllm", Release: "0.32.0", Device: "cpu", Flags: "--block-size 32"}
			if got := r.Header(); got != wantHeader {
				t.Errorf("Header() = %+v, want %+v", got, wantHeader)
			}
			var got []recording.Record
			for rec, err := range r.All() {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, rec)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("records (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReaderRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text, err string
		not             bool // not a recording at all
	}{
		{"empty", "", "it is empty", true},
		{"another first line", `{"kind":"frames"}`, `first line's kind is "frames"`, true},
		{"no JSON", "hello", "line 1: invalid character", true},
		{"a list", "[1]", "line 1: json: cannot unmarshal array", true},
		{"broken line", header + `{"kind":"frames"`, "line 2: unexpected end of JSON input", false},
		{"broken base64", header + `{"kind":"frames","frames":["*"]}`, "line 2: illegal base64", false},
		{"time before the start", header + `{"kind":"note","t":-1}`, "line 2: t is -1, must be from 0", false},
		{"time past all", header + `{"kind":"note","t":1e300}`, "line 2: t is 1e+300, must be from 0", false},
		{"negative duration", header + `{"kind":"http","t":1,"ms":-5}`, "line 2: ms is -5, must be from 0", false},
		{"cut gzip", "\x1f\x8b\x08", "unzip: unexpected EOF", false},
		{"long line", header + strings.Repeat(" ", recording.MaxLine), "line 2 is longer than 67108864 bytes", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := readAll(strings.NewReader(tt.text))
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("error is %v, want one that says %q", err, tt.err)
			}
			if got := errors.Is(err, recording.ErrNotRecording); got != tt.not {
				t.Errorf("errors.Is(%v, ErrNotRecording) = %v, want %v", err, got, tt.not)
			}
		})
	}
}

func readAll(src io.Reader) error {
	r, err := recording.NewReader(src)
	if err != nil {
		return err
	}
	for _, err := range r.All() {
		if err != nil {
			return err
		}
	}
	return nil
}

// TestOpenReadsOurRecordings reads every recording from front to back.
func TestOpenReadsOurRecordings(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/vllm/*.jsonl.gz")
	if err != nil || len(files) != 12 {
		t.Fatalf("found %d recordings, want 12 (%v)", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			r, err := recording.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			}()
			if r.Header().Engine != "vllm" {
				t.Errorf("engine is %q, want vllm", r.Header().Engine)
			}
			kinds := make(map[recording.Kind]int)
			for rec, err := range r.All() {
				if err != nil {
					t.Fatal(err)
				}
				kinds[rec.Kind]++
			}
			if kinds[recording.KindFrames] == 0 || kinds[recording.KindHTTP] == 0 || kinds[recording.KindReplay] != 3 {
				t.Errorf("kinds of records: %v", kinds)
			}
		})
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte(header))
	f.Add([]byte(header + `{"i":2,"t":1.5,"kind":"frames","frames":["a3Y=","AAAAAAAAAAE=","kw=="]}`))
	f.Add([]byte(header + `{"kind":"http","ms":1,"response":{}}`))
	f.Fuzz(func(_ *testing.T, text []byte) {
		_ = readAll(bytes.NewReader(text)) // must end, and not panic
	})
}
