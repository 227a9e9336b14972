package enginemetrics

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func n(v int64) Count   { return Count{N: v, OK: true} }
func u(v float64) Usage { return Usage{Share: v, OK: true} }

// near compares usages as the mean of two floats deserves.
var near = cmpopts.EquateApprox(0, 1e-12)

func read(t *testing.T, name string) []byte {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return page
}

func TestParsePages(t *testing.T) {
	t.Parallel()

	tests := []struct {
		page    string
		want    Metrics
		wantErr error
	}{
		{page: "vllm_0_32_0_recorded.txt", want: Metrics{
			Waiting: n(0), Running: n(0), KVUsage: u(0), BlockSize: n(32), NumGPUBlocks: n(64),
			PrefixQueries: n(1200), PrefixHits: n(384), Adapters: Adapters{Max: 1}, StartTime: 1.79612898359e+09,
		}},
		{page: "vllm_v1_one_engine.txt", want: Metrics{
			Waiting: n(0), Running: n(4), KVUsage: u(9.75010481363281e-06), BlockSize: n(16), PrefixQueries: n(32),
		}},
		{page: "vllm_v1_dp2.txt", want: Metrics{Waiting: n(12), Running: n(31), KVUsage: u(0.5)}},
		{page: "vllm_v1_dp2_reordered.txt", want: Metrics{Waiting: n(12), Running: n(31), KVUsage: u(0.5)}},
		{page: "vllm_v1_waiting_by_reason.txt", want: Metrics{Waiting: n(5), Running: n(2), KVUsage: u(0.3)}},
		{page: "vllm_cache_config_hybrid.txt", want: Metrics{BlockSize: n(4), NumGPUBlocks: n(9408)}},
		{page: "vllm_cache_config_mamba_stale.txt", want: Metrics{BlockSize: n(16), NumGPUBlocks: n(5120)}},
		{page: "sglang_single.txt", want: Metrics{Waiting: n(1), Running: n(6), KVUsage: u(0.28)}},
		{page: "sglang_dp8.txt", want: Metrics{Waiting: n(3), Running: n(145), KVUsage: u(0.38)}},
		{page: "sglang_tp4_same_requests.txt", want: Metrics{Waiting: n(2), Running: n(6)}},
		{page: "trtllm_metrics_is_json_array.txt", wantErr: ErrNoMetrics},
		{page: "trtllm_gauges.txt", want: Metrics{Waiting: n(2), Running: n(14), KVUsage: u(0.5), BlockSize: n(32), NumGPUBlocks: n(4096)}},
		{page: "odd_label_spaces_timestamp.txt", want: Metrics{Waiting: n(3), Running: n(2)}},
		{page: "odd_missing_value.txt", want: Metrics{Waiting: n(3)}},
		{page: "odd_unescaped_quote_label.txt", want: Metrics{Waiting: n(3)}},
		{page: "odd_no_type_lines.txt", want: Metrics{Waiting: n(4), Running: n(1)}},
		{page: "odd_crlf.txt", want: Metrics{Waiting: n(4)}},
		{page: "odd_no_final_newline.txt", want: Metrics{Dropped: 1}, wantErr: ErrNoMetrics},
		{page: "odd_duplicate_series.txt", want: Metrics{Waiting: n(4)}},
		{page: "odd_two_models_one_server.txt", want: Metrics{Waiting: n(13)}},
		{page: "odd_gzip_no_header.bin", wantErr: ErrNoMetrics},
		{page: "big_info_label.txt", want: Metrics{Waiting: n(7), Running: n(1), KVUsage: u(0.91)}},
		{page: "wedged_engine.txt", want: Metrics{Waiting: n(64), Running: n(0), KVUsage: u(0)}},
	}
	tested := map[string]bool{}
	for _, tt := range tests {
		tested[tt.page] = true
		t.Run(tt.page, func(t *testing.T) {
			t.Parallel()
			page := read(t, tt.page)
			before := string(page)
			got, err := Parse(page)
			if !errors.Is(err, tt.wantErr) {
				t.Fatalf("Parse(%s) error = %v, want %v", tt.page, err, tt.wantErr)
			}
			if diff := cmp.Diff(tt.want, got, near); diff != "" {
				t.Errorf("Parse(%s) (-want +got):\n%s", tt.page, diff)
			}
			if string(page) != before {
				t.Errorf("Parse(%s) changed the page", tt.page)
			}
		})
	}

	var expected map[string]any
	if err := json.Unmarshal(read(t, "EXPECTED.json"), &expected); err != nil {
		t.Fatal(err)
	}
	for page := range expected {
		if !tested[page] {
			t.Errorf("no row for %s", page)
		}
	}
}

func TestParseLines(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name, page string
		want       Metrics
		wantErr    error
	}{
		{name: "empty", wantErr: ErrNoMetrics},
		{
			name: "one bad line of a known metric costs itself",
			page: "vllm:num_requests_running{engine=\"0\"} many\nvllm:num_requests_waiting{engine=\"0\"} 2\n",
			want: Metrics{Waiting: n(2), Dropped: 1},
		},
		{
			name: "not finite or negative is unknown",
			page: "vllm:num_requests_running -1\nvllm:num_requests_waiting +Inf\nvllm:kv_cache_usage_perc 0.5\n",
			want: Metrics{KVUsage: u(0.5), Dropped: 2},
		},
		{
			name: "a usage in percent is not a share",
			page: "vllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 43.5\n",
			want: Metrics{Waiting: n(1), Dropped: 1},
		},
		{
			name: "new and old names are not added up",
			page: "vllm:gpu_prefix_cache_hits_total 10\nvllm:prefix_cache_hits_total 10\nvllm:prefix_cache_queries_total 1E3\n",
			want: Metrics{PrefixQueries: n(1000), PrefixHits: n(10)},
		},
		{
			name: "of two reports of one engine the newer counts, though it is lower",
			page: "vllm:num_requests_waiting{pid=\"1\"} 9 1000\nvllm:num_requests_waiting{pid=\"2\"} 2 2000\n",
			want: Metrics{Waiting: n(2)},
		},
		{
			name: "cut in the middle of a value",
			page: "vllm:num_requests_waiting 3\nvllm:num_requests_running 12",
			want: Metrics{Waiting: n(3), Dropped: 1},
		},
		{
			name: "newest report of adapters",
			page: "vllm:num_requests_waiting 0\n" +
				"vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"a\",waiting_lora_adapters=\"\"} 1.7e9\n" +
				"vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"b, c\",waiting_lora_adapters=\"d\"} 1.8e9\n",
			want: Metrics{Waiting: n(0), Adapters: Adapters{Max: 2, Running: []string{"b", "c"}, Waiting: []string{"d"}}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := Parse([]byte(tt.page))
			if !errors.Is(err, tt.wantErr) {
				t.Fatalf("error = %v, want %v", err, tt.wantErr)
			}
			if diff := cmp.Diff(tt.want, got, near); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadRefusesHugePage(t *testing.T) {
	t.Parallel()

	page := "vllm:num_requests_waiting 1\n" + strings.Repeat("# comment\n", MaxBytes/10)
	if _, err := Read(strings.NewReader(page)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("Read of %d bytes: error = %v, want ErrTooLarge", len(page), err)
	}
}

// recorded is one page and what the reference program read from it.
type recorded struct {
	Name, Exposition string
	Expected         struct {
		Waiting  float64
		Running  int64
		KVUsage  any      `json:"kv_usage"`
		Size     int64    `json:"block_size"`
		Blocks   int64    `json:"num_blocks"`
		Max      int      `json:"max_adapters"`
		RunningA []string `json:"running_adapters"`
		WaitingA []string `json:"waiting_adapters"`
	}
}

// corrected is where the reference misreads a page, and what is read here.
var corrected = map[string]Metrics{
	// It takes a value without a TYPE line for 0.
	"vllm untyped samples": {Waiting: n(9), Running: n(9), KVUsage: u(0.9), BlockSize: n(16), NumGPUBlocks: n(10)},
	// It reads the first engine only.
	"vllm two data-parallel engines in one exposition": {Waiting: n(51), Running: n(62), KVUsage: u(0.545), BlockSize: n(16), NumGPUBlocks: n(100)},
	// It passes over the name that engines had before 0.10, which left the usage at 0.
	"vllm old kv metric name": {Waiting: n(4), Running: n(4), KVUsage: u(0.8)},
	// It takes over NaN, which then wins every comparison.
	"NaN usage": {Running: n(1), BlockSize: n(16), Dropped: 2},
	// What is missing is unknown here, not 0.
	"vllm only one metric present": {Waiting: n(4)},
	"unknown engine label":         {Waiting: n(4)},
	"vllm bad block size label":    {Waiting: n(4), Running: n(4), KVUsage: u(0.8)},
	"latest timestamp wins":        {Waiting: n(7), Running: n(0), KVUsage: u(0), BlockSize: n(16)},
}

func TestParseAsReference(t *testing.T) {
	t.Parallel()

	var oracle struct{ Cases []recorded }
	if err := json.Unmarshal(read(t, "metrics_extraction.json"), &oracle); err != nil {
		t.Fatal(err)
	}
	if len(oracle.Cases) < 14 {
		t.Fatalf("oracle has %d cases, want at least 14", len(oracle.Cases))
	}
	for _, c := range oracle.Cases {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			got, err := Parse([]byte(c.Exposition))
			if c.Name == "empty" {
				if !errors.Is(err, ErrNoMetrics) {
					t.Errorf("error = %v, want ErrNoMetrics", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want, ok := corrected[c.Name]
			if !ok {
				want = c.metrics(t)
			}
			if diff := cmp.Diff(want, got, near, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func (c recorded) metrics(t *testing.T) Metrics {
	t.Helper()
	share, ok := c.Expected.KVUsage.(float64)
	if !ok || math.IsNaN(share) {
		t.Fatalf("kv_usage is %v, want a number or a correction", c.Expected.KVUsage)
	}
	return Metrics{
		Waiting: n(int64(c.Expected.Waiting)), Running: n(c.Expected.Running), KVUsage: u(share),
		BlockSize: n(c.Expected.Size), NumGPUBlocks: n(c.Expected.Blocks),
		Adapters: Adapters{Max: c.Expected.Max, Running: c.Expected.RunningA, Waiting: c.Expected.WaitingA},
	}
}

func FuzzParse(f *testing.F) {
	pages, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(pages) == 0 {
		f.Fatalf("no pages in testdata: %v", err)
	}
	for _, p := range pages {
		page, err := os.ReadFile(p)
		if err != nil {
			f.Fatal(err)
		}
		if len(page) < 8<<10 {
			f.Add(page)
		}
	}
	f.Fuzz(func(t *testing.T, page []byte) {
		got, err := Parse(page)
		if err != nil {
			return
		}
		if s := got.KVUsage.Share; !(s >= 0 && s <= 1) {
			t.Errorf("usage is %v, want 0..1", s)
		}
		for _, c := range []Count{got.Waiting, got.Running, got.BlockSize, got.NumGPUBlocks, got.PrefixHits, got.PrefixQueries} {
			if c.N < 0 || !c.OK && c.N != 0 {
				t.Errorf("count is %+v, want 0 or more, 0 when unknown", c)
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	page, err := os.ReadFile("testdata/vllm_0_32_0_recorded.txt")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(page); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(page)), "page-bytes")
}
