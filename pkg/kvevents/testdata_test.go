package kvevents

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func mustRead(tb testing.TB, path string) []byte {
	tb.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

func mustHex(tb testing.TB, s string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func mustGlob(tb testing.TB, pattern string) []string {
	tb.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		tb.Fatalf("no files match %s: %v", pattern, err)
	}
	return paths
}

// fromJSON decodes one value, with numbers as written: hashes don't fit into a
// float64.
func fromJSON(tb testing.TB, data []byte, v any) {
	tb.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(v); err != nil {
		tb.Fatal(err)
	}
}

// lines returns the JSON lines of a file, plain or gzipped.
func lines(tb testing.TB, path string) [][]byte {
	tb.Helper()
	var in io.Reader = bytes.NewReader(mustRead(tb, path))
	if strings.HasSuffix(path, ".gz") {
		z, err := gzip.NewReader(in)
		if err != nil {
			tb.Fatal(err)
		}
		in = z
	}
	var out [][]byte
	sc := bufio.NewScanner(in)
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		out = append(out, bytes.Clone(sc.Bytes()))
	}
	if err := sc.Err(); err != nil || len(out) == 0 {
		tb.Fatalf("%s: %d lines, %v", path, len(out), err)
	}
	return out
}

// hexFrames decodes a list of frames in hex.
func hexFrames(tb testing.TB, in []string) [][]byte {
	tb.Helper()
	out := make([][]byte, len(in))
	for i, s := range in {
		out[i] = mustHex(tb, s)
	}
	return out
}

// vector is a line of testdata/vectors.jsonl.
type vector struct {
	Name, Description, Payload string
	Expect                     struct {
		Error  string
		TS     json.Number
		Rank   *int64 `json:"dp_rank"`
		Events []map[string]any
	}
}

func vectors(tb testing.TB) []vector {
	tb.Helper()
	var out []vector
	for _, line := range lines(tb, "testdata/vectors.jsonl") {
		var v vector
		fromJSON(tb, line, &v)
		out = append(out, v)
	}
	return out
}

func mustDecode(tb testing.TB, payload []byte) Batch {
	tb.Helper()
	b, err := Decode(payload)
	if err != nil {
		tb.Fatalf("Decode: %v", err)
	}
	return b
}

// sample decodes a payload of testdata/bugs.
func sample(tb testing.TB, name string) Batch {
	tb.Helper()
	return mustDecode(tb, mustRead(tb, "testdata/bugs/"+name+".msgpack"))
}

func stored(tb testing.TB, ev Event) *BlockStored {
	tb.Helper()
	s, ok := ev.(*BlockStored)
	if !ok {
		tb.Fatalf("event is %T, want *BlockStored", ev)
	}
	return s
}

func removed(tb testing.TB, ev Event) *BlockRemoved {
	tb.Helper()
	r, ok := ev.(*BlockRemoved)
	if !ok {
		tb.Fatalf("event is %T, want *BlockRemoved", ev)
	}
	return r
}
