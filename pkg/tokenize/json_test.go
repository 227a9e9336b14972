package tokenize

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// whole reads data as one value.
func whole(data []byte) error {
	s := scanner{data: data}
	if err := s.discard(); err != nil {
		return err
	}
	return s.end()
}

// tooDeep reports that err is about nesting, where encoding/json allows more.
func tooDeep(err error) bool {
	return err != nil && strings.Contains(err.Error(), "nested deeper")
}

func TestScannerSyntax(t *testing.T) {
	t.Parallel()

	for _, in := range []string{
		`{}`, `[]`, ` [ ] `, `null`, `-0`, `0.5e-7`, `"\u00E9\\\"\/"`, `{"":{"a":[1,2,{}]}}`, "\"\xff\"", "\"\x7f\"",
		``, `{`, `[1,]`, `[,1]`, `{"a"}`, `{"a":}`, `{a:1}`, `{"a":1,}`, `01`, `-`, `+1`, `1.`, `.5`, `1e`, `1e+`, `--1`,
		`tru`, `nul`, `nullx`, `"`, `"\`, `"\x"`, `"\u12"`, `"\u12g4"`, "\"\n\"", "\"\x00\"", `[1 2]`, `{"a":1 "b":2}`, `1 2`, `NaN`, `'a'`, "\x00", "[\x00]",
		strings.Repeat("[", 1000) + strings.Repeat("]", 1000),
	} {
		if got, want := whole([]byte(in)) == nil, json.Valid([]byte(in)); got != want {
			t.Errorf("%.60q is valid: %v, want %v (%v)", in, got, want, whole([]byte(in)))
		}
	}
	if err := whole([]byte(strings.Repeat("[", 1001) + strings.Repeat("]", 1001))); !tooDeep(err) {
		t.Errorf("1001 arrays in each other: %v, want an error about nesting", err)
	}
}

func TestScannerText(t *testing.T) {
	t.Parallel()

	f := func(in, want string) {
		t.Helper()
		s := scanner{data: []byte(in)}
		if got, err := s.str(); err != nil || got != want {
			t.Errorf("%s = %q, %v; want %q", in, got, err, want)
		}
	}
	f(`""`, "")
	f(`"\b\f\n\r\t\"\\\/"`, "\b\f\n\r\t\"\\/")
	f(`"\ud83d\ude00"`, "😀")
	f(`"\uD83D\uDE00"`, "😀")
	f(`"\ud83d"`, "\xed\xa0\xbd")
	f(`"\ude00\ud83d"`, "\xed\xb8\x80\xed\xa0\xbd")
	f(`"\ud83d\ud83d\ude00"`, "\xed\xa0\xbd😀")
	f(`"\ud83dx"`, "\xed\xa0\xbdx")
	f(`"\ud83d\n"`, "\xed\xa0\xbd\n")
	f("\"\xff\"", "\xff")

	rapid.Check(t, func(t *rapid.T) {
		want := rapid.String().Draw(t, "text")
		quoted, err := json.Marshal(want)
		if err != nil || !utf8.ValidString(want) {
			t.Skip("not text")
		}
		if got := unquote(quoted); got != want {
			t.Fatalf("unquote(%s) = %q, want %q", quoted, got, want)
		}
	})
}

func sampleBodies(tb testing.TB) [][]byte {
	tb.Helper()
	files, err := filepath.Glob("testdata/requests/*")
	if err != nil || len(files) == 0 {
		tb.Fatalf("no sample requests: %v", err)
	}
	bodies := make([][]byte, 0, len(files))
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			tb.Fatal(err)
		}
		bodies = append(bodies, body)
	}
	return bodies
}

// FuzzParse holds for both parsers: no input panics or is changed, an error names
// a field or a place, and what is accepted is JSON by the standard library's
// judgement too.
func FuzzParse(f *testing.F) {
	for _, body := range sampleBodies(f) {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		data := bytes.TrimPrefix(body, []byte("\ufeff"))
		valid := json.Valid(data)
		if err := whole(data); (err == nil) != valid && !tooDeep(err) {
			t.Fatalf("read as a value: %v, valid JSON: %v", err, valid)
		}
		if valid {
			var want bytes.Buffer
			if err := json.Compact(&want, data); err != nil || !bytes.Equal(compact(data), want.Bytes()) {
				t.Fatalf("compact(%q) = %q, want %q (%v)", data, compact(data), want.Bytes(), err)
			}
		}
		sent := bytes.Clone(body)
		for _, parse := range []func([]byte) (Request, error){ParseChat, ParseCompletion} {
			r, err := parse(body)
			if !bytes.Equal(body, sent) {
				t.Fatal("the body was changed")
			}
			if err != nil {
				var re *RequestError
				if !errors.As(err, &re) || re.Message == "" {
					t.Fatalf("error %v, want a RequestError with a message", err)
				}
				continue
			}
			if !valid || r.Model == "" || r.N < 1 {
				t.Fatalf("accepted as %+v, valid JSON: %v", r, valid)
			}
			if _, err := (Lesson{}).Tokens(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			_ = chatBody(&r, r.messages, nil)
		}
	})
}

func BenchmarkParseChat(b *testing.B) {
	text := strings.Repeat(`You are the \"billing\" assistant. Check the invoice and the order history. `, 2800)
	body := []byte(`{"model":"m","messages":[{"role":"system","content":"` + text + `"},{"role":"user","content":"hi"}],"stream":true}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseChat(body); err != nil {
			b.Fatal(err)
		}
	}
}
