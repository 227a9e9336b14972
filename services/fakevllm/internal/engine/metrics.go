package engine

import (
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/prefixroute/prefixroute/pkg/hashing"
)

// Buckets as vLLM 0.32.0 has them, in seconds.
var (
	firstTokenBuckets = []float64{
		.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
	}
	interTokenBuckets = []float64{
		.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
	}
	requestBuckets = []float64{
		.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
	}
)

// Metrics are what the engine counts, under vLLM's names and labels.
type Metrics struct {
	running, waiting, usage prometheus.Gauge

	queries, hits             prometheus.Counter // tokens
	prompt, computed, reused  prometheus.Counter // tokens
	generated, preemptions    prometheus.Counter
	rejected                  prometheus.Counter
	success                   map[Finish]prometheus.Counter
	firstToken, interToken    prometheus.Histogram
	queueTime, requestLatency prometheus.Histogram
}

// NewMetrics registers the metrics of an engine that serves model with reg.
func NewMetrics(reg prometheus.Registerer, model string) *Metrics {
	f := factory{reg: reg, labels: prometheus.Labels{"model_name": model, "engine": "0"}}
	m := &Metrics{
		running: f.gauge("vllm:num_requests_running", "Number of requests in model execution batches."),
		waiting: f.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed."),
		usage:   f.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage."),

		queries: f.counter("vllm:prefix_cache_queries_total", "Prefix cache queries, in number of queried tokens."),
		hits:    f.counter("vllm:prefix_cache_hits_total", "Prefix cache hits, in number of cached tokens."),

		prompt:      f.counter("vllm:prompt_tokens_total", "Number of prefill tokens processed."),
		generated:   f.counter("vllm:generation_tokens_total", "Number of generation tokens processed."),
		preemptions: f.counter("vllm:num_preemptions_total", "Cumulative number of preemptions."),

		success: map[Finish]prometheus.Counter{},

		firstToken:     f.histogram("vllm:time_to_first_token_seconds", "Time to first token in seconds.", firstTokenBuckets),
		interToken:     f.histogram("vllm:inter_token_latency_seconds", "Inter-token latency in seconds.", interTokenBuckets),
		queueTime:      f.histogram("vllm:request_queue_time_seconds", "Time spent in WAITING phase.", requestBuckets),
		requestLatency: f.histogram("vllm:e2e_request_latency_seconds", "End-to-end request latency in seconds.", requestBuckets),
	}
	source := f.counters("vllm:prompt_tokens_by_source_total", "Number of prompt tokens by source.", "source")
	m.computed, m.reused = source("local_compute"), source("local_cache_hit")
	success := f.counters("vllm:request_success_total", "Count of successfully processed requests.", "finished_reason")
	for _, reason := range []Finish{FinishStop, FinishLength, finishAbort} {
		m.success[reason] = success(string(reason))
	}
	perServer := factory{reg: reg, labels: prometheus.Labels{"model_name": model}}
	m.rejected = perServer.counters("vllm:admission_rejections_total", "Admission attempts rejected by a queue limit.", "reason")("max_num_queued_reqs")
	return m
}

// Static registers what vLLM says about its configuration and process:
// cache_config_info, and the start time by which a restart is recognised. With
// several engines in one process it is the engine's start, not the process's.
func Static(reg prometheus.Registerer, cfg Config, algorithm hashing.Algorithm, maxModelLen int) {
	perRequest := float64((maxModelLen + cfg.BlockSize - 1) / cfg.BlockSize)
	concurrency := float64(cfg.Blocks) / perRequest
	info := prometheus.NewGauge(prometheus.GaugeOpts{ //nolint:promlinter // the name is vLLM's
		Name: "vllm:cache_config_info",
		Help: "Information of the LLMEngine CacheConfig.",
		ConstLabels: prometheus.Labels{
			"block_size":                      strconv.Itoa(cfg.BlockSize),
			"cache_dtype":                     "auto",
			"cache_hit_alignment_tokens":      "None",
			"effective_attention_block_size":  strconv.Itoa(cfg.BlockSize),
			"enable_prefix_caching":           "True",
			"engine":                          "0",
			"hash_block_size":                 "None",
			"kv_cache_max_concurrency":        pythonFloat(concurrency),
			"kv_cache_size_tokens":            strconv.Itoa(int(concurrency * float64(maxModelLen))),
			"mamba_cache_mode":                "none",
			"num_gpu_blocks":                  strconv.Itoa(cfg.Blocks),
			"num_gpu_blocks_override":         strconv.Itoa(cfg.Blocks),
			"prefix_cache_retention_interval": "0",
			"prefix_caching_hash_algo":        string(algorithm),
			"prefix_match_unit":               "None",
			"sliding_window":                  "None",
			"user_specified_block_size":       "True",
		},
	})
	info.Set(1)
	start := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "process_start_time_seconds",
		Help: "Start time of the process since unix epoch in seconds.",
	})
	start.Set(float64(time.Now().UnixMilli()) / 1000)
	reg.MustRegister(info, start)
}

// pythonFloat writes a number as str(float) does.
func pythonFloat(f float64) string {
	if f == float64(int64(f)) {
		return fmt.Sprintf("%.1f", f)
	}
	return strconv.FormatFloat(f, 'g', -1, 64)
}

// admitted counts a request that is admitted for the first time.
func (m *Metrics) admitted(s *sequence, now time.Time) {
	prompt, cached := float64(len(s.req.Prompt)), float64(s.cached)
	if !s.req.SkipLookup {
		m.queries.Add(prompt)
		m.hits.Add(cached)
	}
	m.prompt.Add(prompt)
	m.computed.Add(prompt - cached)
	m.reused.Add(cached)
	m.queueTime.Observe(now.Sub(s.arrived).Seconds())
}

// token counts a token that s is about to get.
func (m *Metrics) token(s *sequence, now time.Time) {
	m.generated.Inc()
	if s.last.IsZero() {
		m.firstToken.Observe(now.Sub(s.arrived).Seconds())
		return
	}
	m.interToken.Observe(now.Sub(s.last).Seconds())
}

func (m *Metrics) finished(s *sequence, why Finish, now time.Time) {
	m.success[why].Inc()
	m.requestLatency.Observe(now.Sub(s.arrived).Seconds())
}

// A factory makes metrics that all have the same constant labels.
type factory struct {
	reg    prometheus.Registerer
	labels prometheus.Labels
}

func (f factory) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: f.labels})
	f.reg.MustRegister(g)
	return g
}

func (f factory) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: f.labels})
	f.reg.MustRegister(c)
	return c
}

func (f factory) counters(name, help, label string) func(value string) prometheus.Counter {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: f.labels}, []string{label})
	f.reg.MustRegister(v)
	return func(value string) prometheus.Counter { return v.WithLabelValues(value) }
}

func (f factory) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: f.labels, Buckets: buckets})
	f.reg.MustRegister(h)
	return h
}
