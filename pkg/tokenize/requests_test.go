package tokenize

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// sample is what a body in testdata/requests is to the parser of its endpoint: a
// request with this text, or an error with this param.
type sample struct {
	flat    string // of a chat
	prompts []Prompt
	refused string // the param; "body" for none
	also    Request
}

// samples has a row for each file, as EXPECTED of the collection has it. What is
// neither a chat nor a completion never reaches the parsers; the rows only say
// that it would not break them.
var samples = map[string]sample{
	"chat_string.json":        {flat: "### user: who are you\n"},
	"chat_content_array.json": {flat: "### user: part one \npart two\n"},
	"chat_image_a.json": {
		flat: "### user: What is in this image?\n<part dec7cb0e 7410e6d0 9eb4605d eabe9645>\n",
		also: Request{Multimodal: true},
	},
	"chat_image_b.json": {
		flat: "### user: What is in this image?\n<part 24b39b6b b892710f 8e777c32 53b95150>\n",
		also: Request{Multimodal: true},
	},
	"chat_image_remote_url.json": {
		flat: "### user: <part 0895af72 0be08bdf 935613d5 4d7f38bd>\ndescribe\n",
		also: Request{Multimodal: true},
	},
	"chat_audio.json": {
		flat: "### user: <part c30fd795 33d24abb a38140c3 0c37d473>\ntranscribe\n",
		also: Request{Multimodal: true},
	},
	"chat_video_unknown_part.json": {
		flat: "### user: <part e34a96fb b76b2280 100cb82c 716d066e>\n<part 0884b769 a972df24 b9ea33c1 d498b239>\n",
		also: Request{Multimodal: true},
	},
	"chat_tools_null_content.json": {
		flat: `#### tools: [{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}]` + "\n" +
			"### system: s\n### user: weather?\n" +
			`### assistant: ` + "\n" + `tool_calls: [{"id":"call_1","type":"function","function":{"name":"get_weather","arguments":"{\"city\":\"X\"}"}}]` + "\n" +
			`### tool: {"t":21}` + "\n" + `tool_call_id: "call_1"` + "\n",
	},
	"chat_tool_content_array.json": {flat: "### tool: r\ntool_call_id: \"c\"\n"},
	"chat_missing_content.json": {
		flat: "### assistant: \n" + `tool_calls: [{"id":"c","type":"function","function":{"name":"f","arguments":""}}]` + "\n",
	},
	"chat_developer_role.json": {flat: "### developer: be brief\n### user: hi\nname: \"alice-1\"\n"},
	"chat_reasoning_fields.json": {
		flat: "#### chat_template_kwargs: {\"enable_thinking\":false,\"reasoning_effort\":\"low\"}\n" +
			"### user: 2+2\n### assistant: 4\nreasoning: \"add\"\nreasoning_content: \"add\"\n### user: and 3+3\n",
	},
	"chat_empty_messages.json":     {refused: "messages"},
	"chat_messages_not_array.json": {refused: "messages"},
	"chat_no_model.json":           {refused: "model"},
	"chat_model_null.json":         {refused: "model"},
	"chat_model_number.json":       {refused: "model"},
	"chat_model_unknown.json":      {flat: "### user: hi\n", also: Request{Model: "no-such-model"}},
	"chat_cache_salt.json":         {flat: "### user: hi\n", also: Request{Salt: "tenant-a"}},
	"chat_n3.json":                 {flat: "### user: hi\n", also: Request{N: 3}},
	"chat_stream_string.json":      {flat: "### user: hi\n", also: Request{Stream: true}},
	"chat_big_seed.json":           {flat: "### user: hi\n", also: Request{MaxTokens: 100}},
	"chat_html_chars.json":         {flat: "### user: <b>a & b</b> \u2028 / / \n"},
	"chat_lone_surrogate_1.json":   {flat: "### user: x\xed\xa0\x80y\n"},
	"chat_lone_surrogate_2.json":   {flat: "### user: x\xed\xbf\xbfy\n"},
	"chat_bom.json":                {flat: "### user: hi\n"},
	"chat_trailing_data.json":      {refused: "body"},
	"chat_not_json.txt":            {refused: "body"},
	"chat_empty_body.json":         {refused: "body"},
	"chat_truncated.json":          {refused: "body"},
	"chat_deep_nesting.json":       {refused: "body"},

	"completion_list.json": {
		prompts: []Prompt{{Text: "first"}, {Text: "second"}},
		also:    Request{MaxTokens: 8},
	},
	"completion_one_in_list.json": {prompts: []Prompt{{Text: "only one"}}, also: Request{MaxTokens: 8}},
	"completion_token_ids.json": {
		prompts: []Prompt{{Tokens: []uint32{128000, 849, 21435, 279, 6371, 315, 445, 24705, 300, 30}}},
		also:    Request{MaxTokens: 8},
	},
	"completion_empty_list.json":         {},
	"completion_prompt_embeds.json":      {also: Request{Opaque: true}},
	"completion_shorter_than_block.json": {prompts: []Prompt{{Tokens: []uint32{1, 2, 3}}}},
	"completion_exact_block.json": {
		prompts: []Prompt{{Tokens: []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}}},
	},

	"embeddings.json":             {refused: "prompt"},
	"generate_token_in.json":      {refused: "prompt"},
	"responses_array_input.json":  {refused: "prompt"},
	"responses_string_input.json": {refused: "prompt"},
}

// TestSamples covers BB-178, BB-184, BB-188, BB-190, BB-202 and BB-205 as far as
// they are the parser's.
func TestSamples(t *testing.T) {
	t.Parallel()

	files, err := filepath.Glob("testdata/requests/*")
	if err != nil || len(files) != len(samples) {
		t.Fatalf("%d files for %d rows: %v", len(files), len(samples), err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want, ok := samples[name]
			if !ok {
				t.Fatal("no row for this file")
			}
			body, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			sent := bytes.Clone(body)
			parse := ParseCompletion
			if strings.HasPrefix(name, "chat_") {
				parse = ParseChat
			}
			got, err := parse(body)
			if !bytes.Equal(body, sent) {
				t.Error("the body was changed")
			}
			checkSample(t, got, err, want)
		})
	}
}

func checkSample(t *testing.T, got Request, err error, want sample) {
	t.Helper()
	if want.refused != "" {
		var re *RequestError
		if !errors.As(err, &re) {
			t.Fatalf("error %v, want a RequestError", err)
		}
		if re.Param != strings.TrimSuffix(want.refused, "body") || re.Message == "" {
			t.Errorf("param %q with message %q, want param %q", re.Param, re.Message, want.refused)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	expect := want.also
	if expect.Model == "" {
		expect.Model = "org/model-a"
	}
	expect.N = max(1, expect.N)
	expect.Prompts = want.prompts
	diff := cmp.Diff(expect, got, cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(Request{}, Prompt{}),
		cmpopts.IgnoreFields(Request{}, "Messages", "Preamble"))
	if diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if got.Flat() != want.flat {
		t.Errorf("flat text\n got %q\nwant %q", got.Flat(), want.flat)
	}
	if _, err := (Lesson{}).Tokens(t.Context(), got); err != nil {
		t.Error(err)
	}
}

// TestApart holds the pairs whose tokens must differ although their text is the
// same, and how much they share before they do.
func TestApart(t *testing.T) {
	t.Parallel()

	const system = `{"role":"system","content":"you are a helpful assistant who answers in one short sentence"}`
	image := func(url string) string {
		return `{"model":"m","messages":[` + system + `,{"role":"user","content":[{"type":"text","text":"look at this"},` +
			`{"type":"image_url","image_url":{"url":"` + url + `"}},{"type":"text","text":"what is it"}]}]}`
	}
	with := func(args string) string {
		return `{"model":"m",` + args + `"messages":[` + system + `,{"role":"user","content":"hi"}]}`
	}
	prefix := len(Text("### system: you are a helpful assistant who answers in one short sentence\n### user: look at this\n<part "))

	tests := []struct {
		name  string
		a, b  string
		share int // −1: not beyond the preamble
	}{
		{"images", image("data:,a"), image("data:,b"), prefix},
		{"template arguments", with(`"chat_template_kwargs":{"enable_thinking":false},`), with(""), -1},
		{"other template arguments", with(`"chat_template_kwargs":{"x":1},`), with(`"chat_template_kwargs":{"x":2},`), -1},
		{"tools", with(`"tools":[{"type":"function","function":{"name":"a"}}],`), with(`"tools":[{"type":"function","function":{"name":"b"}}],`), -1},
		{"reasoning effort", with(`"reasoning_effort":"low",`), with(`"reasoning_effort":"high",`), -1},
		{"template", with(`"chat_template":"{{ a }}",`), with(""), -1},
		{"special tokens", with(`"add_special_tokens":true,`), with(""), -1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a, b := tokensOf(t, ParseChat, tt.a)[0], tokensOf(t, ParseChat, tt.b)[0]
			got := shared(a, b)
			if slices.Equal(a, b) {
				t.Fatalf("the same %d tokens", len(a))
			}
			if tt.share >= 0 && got != tt.share {
				t.Errorf("share %d tokens, want %d", got, tt.share)
			}
			r, err := ParseChat([]byte(tt.a))
			if err != nil {
				t.Fatal(err)
			}
			if most := len(Text(r.Preamble)); tt.share < 0 && got >= most {
				t.Errorf("share %d tokens, more than the %d of the preamble", got, most)
			}
		})
	}
}

// TestAlike holds spellings that mean the same to an engine.
func TestAlike(t *testing.T) {
	t.Parallel()

	tests := []struct{ name, a, b string }{
		{
			"whitespace", `{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"a": 1}]}`,
			"{ \"model\" : \"m\",\n\"tools\" : [ { \"a\":1 } ] , \"messages\" : [ { \"content\" : \"hi\" , \"role\":\"user\" } ] }",
		},
		{
			"escapes", `{"model":"m","messages":[{"role":"user","content":"h\u00e9 \ud83d\ude00 \/"}]}`,
			`{"model":"m","messages":[{"role":"user","content":"hé 😀 /"}]}`,
		},
		{
			"escaped names", `{"model":"m","messages":[{"role":"user","content":"hi"}]}`,
			`{"mod\u0065l":"m","m\u0065ssages":[{"r\u006fle":"user","content":"hi"}]}`,
		},
		{
			"the last of equal names", `{"model":5,"model":"m","messages":7,"messages":[{"role":"user","content":"hi"}]}`,
			`{"model":"m","messages":[{"role":"system","content":[{"type":"x"}]}],"messages":[{"role":"x","content":null,"role":"user","content":"hi"}]}`,
		},
		{
			"other case is another name", `{"model":"m","Model":5,"Messages":[],"messages":[{"role":"user","content":"hi"}]}`,
			`{"model":"m","messages":[{"role":"user","content":"hi"}]}`,
		},
		{
			"one text part", `{"model":"m","messages":[{"role":"user","content":"hi"}]}`,
			`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}`,
		},
		{
			"null and empty members", `{"model":"m","messages":[{"role":"assistant","content":"hi"}]}`,
			`{"model":"m","tools":null,"chat_template_kwargs":{},"messages":[{"role":"assistant","content":"hi","tool_calls":[],"name":null,"refusal":null}]}`,
		},
		{
			"members of no interest", `{"model":"m","messages":[{"role":"user","content":"hi"}]}`,
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"temperature":0.5,"seed":9007199254740993,"x":[1e400,-0]}`,
		},
		{
			"the tail of the template", `{"model":"m","messages":[{"role":"user","content":"hi"}]}`,
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"add_generation_prompt":false}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a, b := tokensOf(t, ParseChat, tt.a), tokensOf(t, ParseChat, tt.b)
			if diff := cmp.Diff(a, b); diff != "" {
				t.Errorf("tokens differ:\n%s", diff)
			}
		})
	}
}

func TestParseFields(t *testing.T) {
	t.Parallel()

	f := func(members string, want Request) {
		t.Helper()
		got, err := ParseChat([]byte(`{"model":"m","messages":[{}]` + members + `}`))
		if err != nil {
			t.Errorf("%s: %v", members, err)
			return
		}
		want.Model, want.N = "m", max(1, want.N)
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Request{}), cmpopts.IgnoreFields(Request{}, "Messages")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", members, diff)
		}
	}
	f(``, Request{})
	f(`,"stream":true`, Request{Stream: true})
	f(`,"stream":"yes"`, Request{Stream: true})
	f(`,"stream":1`, Request{Stream: true})
	f(`,"stream":[true]`, Request{})
	f(`,"stream":null`, Request{})
	f(`,"stream":true,"stream":false`, Request{})
	f(`,"max_tokens":7`, Request{MaxTokens: 7})
	f(`,"max_tokens":7,"max_completion_tokens":9`, Request{MaxTokens: 9})
	f(`,"max_completion_tokens":null,"max_tokens":7`, Request{MaxTokens: 7})
	f(`,"max_tokens":1e999`, Request{})
	f(`,"max_tokens":123456789012345678901234567890`, Request{MaxTokens: 1<<31 - 1})
	f(`,"max_tokens":-5`, Request{})
	f(`,"max_tokens":1.5`, Request{})
	f(`,"n":2.0`, Request{N: 2})
	f(`,"n":0`, Request{})
	f(`,"user":"u"`, Request{User: "u"})
	f(`,"user":{"id":1}`, Request{})
	f(`,"cache_salt":null`, Request{})
	f(`,"cache_salt":"x\ud800"`, Request{Salt: "x\xed\xa0\x80"})
	f(`,"truncate_prompt_tokens":10`, Request{Opaque: true})
	f(`,"truncate_prompt_tokens":null`, Request{})
}

func TestRefused(t *testing.T) {
	t.Parallel()

	f := func(parse func([]byte) (Request, error), body, param, message string) {
		t.Helper()
		_, err := parse([]byte(body))
		var re *RequestError
		if !errors.As(err, &re) {
			t.Errorf("%s: error %v, want a RequestError", body, err)
			return
		}
		if re.Param != param || !strings.Contains(re.Message, message) {
			t.Errorf("%s: param %q, message %q; want %q and %q", body, re.Param, re.Message, param, message)
		}
	}
	f(ParseChat, `{}`, "model", "model is missing, expected the name of a model")
	f(ParseChat, `{"model":""}`, "model", "is empty")
	f(ParseChat, `{"model":"m"}`, "messages", "messages is missing")
	f(ParseChat, `{"model":"m","messages":null}`, "messages", "messages is null, expected a list of messages")
	f(ParseChat, `{"model":"m","messages":["hi"]}`, "messages", "messages holds a text")
	f(ParseChat, `{"model":"m","messages":[{}],"messages":{}}`, "messages", "messages is an object")
	f(ParseChat, `{"model":"m","messages":[{}],"cache_salt":""}`, "cache_salt", "cache_salt is empty")
	f(ParseChat, `{"model":"m","messages":[{}],"cache_salt":5}`, "cache_salt", "cache_salt is a number")
	f(ParseChat, `[]`, "", "not a JSON object")
	f(ParseChat, ` `, "", "the body is empty")
	f(ParseChat, "\ufeff", "", "the body is empty")
	f(ParseChat, `{"model":"m" "messages":[]}`, "", "expected ',' or '}' at byte 13")
	f(ParseChat, `{"model":"m",}`, "", "expected a member name at byte 13")
	f(ParseChat, `{"model":NaN}`, "", "not valid JSON")
	f(ParseChat, strings.Repeat("[", 100000), "", "nested deeper than 1000")
	f(ParseCompletion, `{"model":"m"}`, "prompt", "prompt is missing")
	f(ParseCompletion, `{"model":"m","prompt":null}`, "prompt", "prompt is missing")
	f(ParseCompletion, `{"model":"m","prompt":{}}`, "prompt", "prompt is an object")
	f(ParseCompletion, `{"model":"m","prompt":["a",1]}`, "prompt", "mixes")
	f(ParseCompletion, `{"model":"m","prompt":[1,"a"]}`, "prompt", "mixes")
	f(ParseCompletion, `{"model":"m","prompt":[[1],2]}`, "prompt", "mixes")
	f(ParseCompletion, `{"model":"m","prompt":[-1]}`, "prompt", "holds -1, expected token ids in 0..4294967295")
	f(ParseCompletion, `{"model":"m","prompt":[4294967296]}`, "prompt", "holds 4294967296")
	f(ParseCompletion, `{"model":"m","prompt":[1.5]}`, "prompt", "holds 1.5")
	f(ParseCompletion, `{"model":"m","prompt":[[1],[null]]}`, "prompt", "holds null")
	f(ParseCompletion, `{"model":"m","prompt":[true]}`, "prompt", "holds true")
}

func TestPrompts(t *testing.T) {
	t.Parallel()

	f := func(members string, want ...[]uint32) {
		t.Helper()
		if diff := cmp.Diff(want, tokensOf(t, ParseCompletion, `{"model":"m",`+members+`}`), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", members, diff)
		}
	}
	f(`"prompt":"a b"`, Text("a b"))
	f(`"prompt":["a","b"]`, Text("a"), Text("b"))
	f(`"prompt":[0, 4294967295]`, []uint32{0, 4294967295})
	f(`"prompt":[[1,2],[],[3]]`, []uint32{1, 2}, []uint32{}, []uint32{3})
	f(`"prompt":"x","prompt":[7]`, []uint32{7})
	f(`"prompt":[]`)
	f(`"prompt":"x","prompt_embeds":"AAAA"`)
	f(`"prompt":"x","prompt_embeds":null`, Text("x"))
	f(`"prompt":"x","truncate_prompt_tokens":4`)
	f(`"prompt":"x","add_special_tokens":false`, Text("#### add_special_tokens: false\nx"))
}
