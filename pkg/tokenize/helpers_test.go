package tokenize

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func readFile(tb testing.TB, name string) []byte {
	tb.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

// readLines decodes a file of JSON lines.
func readLines[T any](tb testing.TB, name string) []T {
	tb.Helper()
	var rows []T
	lines := bufio.NewScanner(bytes.NewReader(readFile(tb, name)))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var row T
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			tb.Fatalf("%s: %v", name, err)
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		tb.Fatalf("%s has no rows: %v", name, lines.Err())
	}
	return rows
}

// tokensOf tokenizes a body by the lesson's scheme.
func tokensOf(tb testing.TB, parse func([]byte) (Request, error), body string) [][]uint32 {
	tb.Helper()
	r, err := parse([]byte(body))
	if err != nil {
		tb.Fatalf("parse %.100s: %v", body, err)
	}
	lists, err := Lesson{}.Tokens(tb.Context(), r)
	if err != nil {
		tb.Fatal(err)
	}
	return lists
}

// shared is the length of the common prefix.
func shared(a, b []uint32) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
