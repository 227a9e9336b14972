package audit

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Recordings live beside their reader, for all who replay them.
func recorded(name string) string {
	return filepath.Join("..", "..", "..", "..", "pkg", "recording", "testdata", "vllm", name+".jsonl.gz")
}

// TestRecordings holds the index to real engines: every request is predicted
// exactly, but for those whose cause the recording proves.
func TestRecordings(t *testing.T) {
	t.Parallel()
	type figures struct{ Requests, Exact, Over, Under, Explained int }
	tests := []struct {
		file   string
		want   figures
		causes map[Cause]int
	}{
		{"v0.32.0-sha256-everything", figures{115, 100, 2, 13, 15}, map[Cause]int{InFlight: 13, Cleared: 2}},
		{"v0.32.0-sha256_cbor-copies-sleep", figures{95, 91, 4, 0, 4}, map[Cause]int{Cleared: 4}},
		{"v0.32.0-bytes-hashes", figures{93, 92, 0, 1, 1}, map[Cause]int{InFlight: 1}},
		{"v0.32.0-lora", figures{12, 12, 0, 0, 0}, nil},
		{"v0.32.0-churn", figures{500, 500, 0, 0, 0}, nil},
		{"v0.32.0-xxhash_cbor-noseed-churn", figures{528, 527, 0, 1, 1}, map[Cause]int{InFlight: 1}},
		{"v0.32.0-hybrid-window", figures{49, 48, 0, 1, 1}, map[Cause]int{InFlight: 1}},
		{"v0.32.0-hybrid-churn", figures{500, 500, 0, 0, 0}, nil},
		{"v0.32.0-storm", figures{360, 352, 0, 8, 8}, map[Cause]int{InFlight: 8}},
		{"v0.32.0-report-mode-full", figures{38, 37, 1, 0, 1}, map[Cause]int{Reported: 1}},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			t.Parallel()
			rep, err := File(t.Context(), recorded(tt.file), Options{})
			if err != nil {
				t.Fatal(err)
			}
			got := figures{rep.Requests, rep.Exact, rep.Over, rep.Under, rep.Explained}
			if got != tt.want {
				t.Errorf("figures are %+v, want %+v", got, tt.want)
			}
			var causes map[Cause]int
			for _, d := range rep.Differences {
				if causes == nil {
					causes = make(map[Cause]int)
				}
				causes[d.Cause]++
			}
			if diff := cmp.Diff(tt.causes, causes); diff != "" {
				t.Errorf("causes (-want +got):\n%s", diff)
			}
			if len(rep.Notes) != 0 {
				t.Errorf("notes: %q, want none", rep.Notes)
			}
		})
	}
}

// TestSaltsWithoutExtraKeys: a release that publishes no extra keys cannot be
// predicted by content, and the audit says so instead of explaining it away.
func TestSaltsWithoutExtraKeys(t *testing.T) {
	t.Parallel()
	rep, err := File(t.Context(), recorded("v0.16.0-all"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if rep.OK() || rep.Requests != 599 || rep.Explained != 3 {
		t.Errorf("%d requests, %d explained, ok %v; want 599, 3, false", rep.Requests, rep.Explained, rep.OK())
	}
	if notes := strings.Join(rep.Notes, "\n"); !strings.Contains(notes, "carry no extra keys") {
		t.Errorf("notes %q do not say why", notes)
	}
}

// TestTwoRanks: who served a request is not recorded, so none is compared.
func TestTwoRanks(t *testing.T) {
	t.Parallel()
	rep, err := File(t.Context(), recorded("v0.32.0-dp2"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if rep.Requests != 0 || len(rep.Notes) != 1 || !strings.HasPrefix(rep.Notes[0], "2 ranks publish events") {
		t.Errorf("%d requests, notes %q; want none compared and a note on ranks", rep.Requests, rep.Notes)
	}
	want := []Skipped{{skipOtherAPI, 1}, {"served by an unknown rank", 36}}
	if diff := cmp.Diff(want, rep.Skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
}

func TestRunJSON(t *testing.T) {
	t.Parallel()
	files := []string{recorded("v0.32.0-lora"), recorded("v0.32.0-bytes-hashes")}
	var out bytes.Buffer
	ok, err := Run(t.Context(), files, Options{JSON: true}, &out)
	if err != nil || !ok {
		t.Fatalf("Run = %v, %v; want true", ok, err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	want := []map[string]any{
		{"file": files[0], "requests": 12.0, "exact": 12.0, "over": 0.0, "under": 0.0, "explained": 0.0},
		{"file": files[1], "requests": 93.0, "exact": 92.0, "over": 0.0, "under": 1.0, "explained": 1.0},
	}
	var got []map[string]any
	for _, line := range lines {
		var object map[string]any
		if err := json.Unmarshal([]byte(line), &object); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		got = append(got, object)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

func TestRunTable(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	ok, err := Run(t.Context(), []string{recorded("v0.32.0-report-mode-full"), recorded("v0.32.0-lora")}, Options{}, &out)
	if err != nil || !ok {
		t.Fatalf("Run = %v, %v; want true", ok, err)
	}
	for _, want := range []string{
		"requests  exact  promised too much  too little  explained",
		"38     37                  1           0          1",
		"76    100     96        0         report: block 0 was reported, not stored  after fillers",
		"12     12                  0           0          0",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("table lacks %q:\n%s", want, out.String())
		}
	}
}

func TestCommand(t *testing.T) {
	t.Parallel()
	run := func(args ...string) (string, error) {
		cmd := NewCommand()
		var out bytes.Buffer
		cmd.SetArgs(args)
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SilenceErrors = true
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	if out, err := run(recorded("v0.32.0-lora")); err != nil || !strings.Contains(out, "requests") {
		t.Errorf("audit of a good recording: %v\n%s", err, out)
	}
	if _, err := run("--json", recorded("v0.16.0-all")); err == nil || err.Error() != ErrUnexplained.Error() {
		t.Errorf("audit of a release without extra keys: error %v, want %v", err, ErrUnexplained)
	}
	if _, err := run("nowhere.jsonl"); err == nil || !strings.Contains(err.Error(), "audit nowhere.jsonl:") {
		t.Errorf("audit of a missing file: error %v, want one that names it", err)
	}
	if _, err := run(); err == nil {
		t.Error("audit without a file: no error")
	}
}
