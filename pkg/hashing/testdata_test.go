package hashing_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

// readTestdata returns a file of testdata, unpacked if its name ends in .gz.
func readTestdata(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(name, ".gz") {
		return b
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if b, err = io.ReadAll(z); err != nil {
		t.Fatal(err)
	}
	return b
}

func parseJSON(t *testing.T, b []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatal(err)
	}
}

// eachLine calls f with every line of a JSON lines file.
func eachLine(t *testing.T, b []byte, f func(n int, line []byte)) {
	t.Helper()
	r := bufio.NewReader(bytes.NewReader(b))
	for n := 0; ; n++ {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		f(n, line)
	}
}

// ramp returns n tokens that count up from first.
func ramp(first uint32, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = first + uint32(i)
	}
	return tokens
}
