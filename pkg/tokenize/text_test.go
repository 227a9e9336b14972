package tokenize

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// pieces splits s as Text does.
func pieces(s string) []string {
	var list []string
	for s != "" {
		n := piece(s)
		list = append(list, s[:n])
		s = s[n:]
	}
	return list
}

// matched drops the pieces that the expression would skip.
func matched(list []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(p string) bool {
		c, _ := classify(p)
		return c&(punct|word) == 0
	})
}

// TestTextSimulator holds what the recorded events of the simulator depend on.
func TestTextSimulator(t *testing.T) {
	t.Parallel()

	type row struct {
		Recording string
		I         int
		Body      json.RawMessage
		Want      []uint32 `json:"prompt_token_ids"`
	}
	for _, r := range readLines[row](t, "sim_requests.jsonl") {
		got := tokensOf(t, ParseChat, string(r.Body))
		if len(got) != 1 || !slices.Equal(got[0], r.Want) {
			t.Errorf("%s request %d: tokens differ from the recorded ids\n%s", r.Recording, r.I, cmp.Diff(r.Want, got[0]))
		}
	}
}

func TestTextPython(t *testing.T) {
	t.Parallel()

	type row struct {
		Text   string
		Pieces []string
		Tokens []uint32
	}
	for _, r := range readLines[row](t, "python_pieces.jsonl") {
		got := matched(pieces(r.Text))
		if !slices.Equal(got, r.Pieces) {
			t.Errorf("pieces of %q = %q, want %q", r.Text, got, r.Pieces)
			continue
		}
		for i, p := range got {
			if id := Text(p); len(id) != 1 || id[0] != r.Tokens[i] {
				t.Errorf("Text(%q) = %v, want [%d]", p, id, r.Tokens[i])
			}
		}
	}
}

// TestClasses compares every code point with Python's \w and \s, except those
// that its older Unicode does not know.
func TestClasses(t *testing.T) {
	t.Parallel()

	var want struct{ Word, Space, Assigned [][2]rune }
	if err := json.Unmarshal(readFile(t, "python_classes.json"), &want); err != nil {
		t.Fatal(err)
	}
	in := func(ranges [][2]rune, r rune) bool {
		_, ok := slices.BinarySearchFunc(ranges, r, func(e [2]rune, r rune) int {
			switch {
			case e[1] < r:
				return -1
			case e[0] > r:
				return 1
			default:
				return 0
			}
		})
		return ok
	}
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if !utf8.ValidRune(r) || !in(want.Assigned, r) {
			continue
		}
		c, _ := classify(string(r))
		if got := c&inWord != 0; got != in(want.Word, r) {
			t.Errorf("%U is a word character: %v, Python says %v", r, got, !got)
		}
		if got := c&space != 0; got != in(want.Space, r) {
			t.Errorf("%U is a space: %v, Python says %v", r, got, !got)
		}
	}
}

// expression is the lesson's, with Python's classes spelled out for RE2.
var expression = regexp.MustCompile(
	`([{}:,\-.?!;@#$%^&*()+_~/\\><\[\]="']|[\pL\pN_]+)([\t-\r\x{1c}-\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]*)`)

// texts draws strings in which all classes meet, some of them not UTF-8.
func texts() *rapid.Generator[string] {
	parts := rapid.SampledFrom([]string{
		"a", "Z", "word", "x_y", "_", "0", "42", " ", "  ", "\n", "\t", "\v", "\x1c", "\x00", ".", ",", "-", "\\", "'", "\"",
		"|", "`", "é", "\u0301", "你", "好", "，", "\u3000", "\u00a0", "\u200d", "😀", "²", "\ufffd", "\xff", "\xed\xa0\x80",
	})
	return rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOf(rapid.OneOf(parts, rapid.String())).Draw(t, "parts"), "")
	})
}

func TestTextProperties(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		s := texts().Draw(t, "s")
		list := pieces(s)
		if joined := strings.Join(list, ""); joined != s {
			t.Fatalf("pieces of %q make up %q", s, joined)
		}
		if got, want := matched(list), expression.FindAllString(s, -1); !slices.Equal(got, want) {
			t.Fatalf("pieces of %q = %q, the expression finds %q", s, got, want)
		}
		if got := Text(s); len(got) != len(list) {
			t.Fatalf("Text(%q) has %d tokens for %d pieces", s, len(got), len(list))
		}
	})
}

// simulator is llm-d-inference-sim's own reading of the expression, by RE2.
var simulator = regexp.MustCompile(`([{}:,\-.?!;@#$%^&*()+_~/\\><\[\]="']|\w+)(\s*)`)

func TestTextSimulatorProperty(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringMatching("([!-_a-{}~][ -_a-{}~\t\n\r]*)?").Draw(t, "s")
		if got, want := pieces(s), simulator.FindAllString(s, -1); !slices.Equal(got, want) {
			t.Fatalf("pieces of %q = %q, the simulator finds %q", s, got, want)
		}
	})
}

// TestTextApart holds that no text vanishes: prompts that the expression cannot
// tell apart get different tokens.
func TestTextApart(t *testing.T) {
	t.Parallel()

	texts := []string{
		"你好", "你坏", "世界", "😀", "😁", "a|b", "a`b", "ab", "a b", " ab", "ab ", "\nab", "|", "||", "x\xed\xa0\x80y", "x\xed\xbf\xbfy",
		"\u0301", "，", "",
	}
	for i, a := range texts {
		for _, b := range texts[i+1:] {
			if slices.Equal(Text(a), Text(b)) {
				t.Errorf("Text(%q) = Text(%q) = %v", a, b, Text(a))
			}
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("Hello, 世界|\xff _x_ ")
	f.Fuzz(func(t *testing.T, s string) {
		if got := strings.Join(pieces(s), ""); got != s {
			t.Fatalf("pieces of %q make up %q", s, got)
		}
		if got, want := matched(pieces(s)), expression.FindAllString(s, -1); !slices.Equal(got, want) {
			t.Fatalf("pieces of %q = %q, the expression finds %q", s, got, want)
		}
	})
}

func BenchmarkText(b *testing.B) {
	prompt := strings.Repeat("You are the billing assistant. Check the invoice, the refund policy and the order history. ", 2300)
	b.Run("ascii", func(b *testing.B) {
		b.SetBytes(int64(len(prompt)))
		b.ReportAllocs()
		n := 0
		for b.Loop() {
			n = len(Text(prompt))
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/token")
	})
	b.Run("regexp", func(b *testing.B) {
		b.SetBytes(int64(len(prompt)))
		for b.Loop() {
			expression.FindAllStringIndex(prompt, -1)
		}
	})
}
