package enginemetrics

// A selector names one series family: a metric and, where one metric holds
// several quantities, the label that tells them apart.
type selector struct {
	metric       string
	label, value string // empty: any series of the metric
}

// The selectors of each quantity, the preferred one first: the first that has a
// value is read and the others are ignored, because old and new names of one
// quantity stand beside each other on one page and must not be added up.
var (
	waiting = []selector{
		{metric: "vllm:num_requests_waiting"},
		{metric: "sglang:num_queue_reqs"},
		{metric: "trtllm_num_requests_waiting"},
		{metric: "trtllm:num_requests_waiting"},
		{metric: "pytrtllm:num_requests_waiting"},
		{metric: tritonRequests, label: "request_type", value: "waiting"},
	}
	running = []selector{
		{metric: "vllm:num_requests_running"},
		{metric: "sglang:num_running_reqs"},
		{metric: "trtllm_num_requests_running"},
		{metric: "trtllm:num_requests_running"},
		{metric: "pytrtllm:num_requests_running"},
		{metric: tritonRequests, label: "request_type", value: "scheduled"},
	}
	usage = []selector{
		{metric: "vllm:kv_cache_usage_perc"},
		{metric: "vllm:gpu_cache_usage_perc"}, // until 0.15, beside the new name since 0.10
		{metric: "sglang:token_usage"},
		{metric: "trtllm_kv_cache_utilization"},
		{metric: "trtllm:kv_cache_utilization"},
		{metric: "pytrtllm:kv_cache_utilization"},
		{metric: tritonBlocks, label: blockType, value: "fraction"},
	}
	queries = []selector{
		{metric: "vllm:prefix_cache_queries_total"},
		{metric: "vllm:gpu_prefix_cache_queries_total"},
	}
	hits = []selector{
		{metric: "vllm:prefix_cache_hits_total"},
		{metric: "vllm:gpu_prefix_cache_hits_total"},
	}
	blockSize = []selector{
		{metric: "trtllm_kv_cache_tokens_per_block"},
		{metric: tritonBlocks, label: blockType, value: "tokens_per"},
	}
	numBlocks = []selector{
		{metric: "trtllm_kv_cache_max_blocks"},
		{metric: tritonBlocks, label: blockType, value: "max"},
	}
	startTime = []selector{{metric: "process_start_time_seconds"}}
)

const (
	tritonRequests = "nv_trt_llm_request_metrics"
	tritonBlocks   = "nv_trt_llm_kv_cache_block_metrics"
	blockType      = "kv_cache_block_type"

	adaptersInfo = "vllm:lora_requests_info"
)

// configInfos are the metrics that carry the cache's configuration in labels,
// with the labels of tokens per block and of the number of blocks.
var configInfos = []struct{ metric, blockSize, numBlocks string }{
	{"vllm:cache_config_info", "block_size", "num_gpu_blocks"},
	{"sglang:cache_config_info", "page_size", "num_pages"},
	{"trtllm_cache_config_info", "block_size", "num_gpu_blocks"},
	{"trtllm:cache_config_info", "block_size", "num_gpu_blocks"},
	{"pytrtllm:cache_config_info", "block_size", "num_gpu_blocks"},
}

// names holds every metric that the parser reads. It is never written to.
var names = func() map[string]struct{} {
	set := map[string]struct{}{adaptersInfo: {}}
	for _, list := range [][]selector{waiting, running, usage, queries, hits, blockSize, numBlocks, startTime} {
		for _, s := range list {
			set[s.metric] = struct{}{}
		}
	}
	for _, c := range configInfos {
		set[c.metric] = struct{}{}
	}
	return set
}()
