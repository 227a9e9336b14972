package enginemetrics

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// A sample is one parsed line.
type sample struct {
	value  float64
	at     int64 // milliseconds, 0 if the line has no timestamp
	labels []*dto.LabelPair
}

func (s *sample) label(name string) string {
	for _, l := range s.labels {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// engine identifies the engine that reported the sample: its rank, and its model
// where one server has several. Everything else in the labels (process id, tensor
// or pipeline rank) is a second report by the same engine.
func (s *sample) engine() string {
	return s.label("engine") + "\x00" + s.label("dp_rank") + "\x00" + s.label("model_name")
}

// parser collects the samples of known metrics. It owns one text parser, which
// it feeds line by line so that a bad line cannot end the page.
type parser struct {
	text    expfmt.TextParser
	samples map[string][]sample // by metric, in page order
	dropped int
}

func newParser() *parser {
	return &parser{text: expfmt.NewTextParser(model.UTF8Validation), samples: map[string][]sample{}}
}

// add parses one line of a known metric and reports whether it did.
func (p *parser) add(line []byte) bool {
	// The text parser wants a final line feed and takes a CR for a part of the value.
	line = bytes.TrimRight(line, " \t\r")
	line = append(slices.Clip(line), '\n') // a copy: the page is the caller's
	families, err := p.text.TextToMetricFamilies(bytes.NewReader(line))
	if err != nil {
		return false
	}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			// Without a TYPE line every sample is untyped.
			v := m.GetUntyped().GetValue()
			if m.GetUntyped() == nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
				return false
			}
			p.samples[name] = append(p.samples[name], sample{value: v, at: m.GetTimestampMs(), labels: m.GetLabel()})
		}
	}
	return true
}

func (p *parser) metrics() Metrics {
	var m Metrics
	sum, _, ok := p.total(waiting, math.Inf(1))
	m.Waiting = count(sum, ok)
	sum, _, ok = p.total(running, math.Inf(1))
	m.Running = count(sum, ok)
	sum, n, ok := p.total(usage, 1)
	if ok {
		m.KVUsage = Usage{Share: sum / float64(n), OK: true}
	}
	sum, _, ok = p.total(queries, math.Inf(1))
	m.PrefixQueries = count(sum, ok)
	sum, _, ok = p.total(hits, math.Inf(1))
	m.PrefixHits = count(sum, ok)
	m.BlockSize, m.NumGPUBlocks = p.config()
	m.Adapters = p.adapters()
	if sum, _, ok := p.total(startTime, math.Inf(1)); ok {
		m.StartTime = sum
	}
	m.Dropped = p.dropped
	return m
}

// total adds up the first selector that has a value of at most limit, over the
// engines, and says how many engines there were.
func (p *parser) total(selectors []selector, limit float64) (sum float64, engines int, ok bool) {
	for _, sel := range selectors {
		best := map[string]sample{}
		for _, s := range p.samples[sel.metric] {
			if sel.label != "" && s.label(sel.label) != sel.value {
				continue
			}
			if s.value > limit {
				p.dropped++
				continue
			}
			id := s.engine()
			old, seen := best[id]
			if !seen || s.at > old.at || s.at == old.at && s.value > old.value {
				best[id] = s
			}
		}
		if len(best) == 0 {
			continue
		}
		for _, s := range best {
			sum += s.value
		}
		return sum, len(best), true
	}
	return 0, 0, false
}

// config reads the cache's configuration from labels, or from gauges where the
// engine has those. Engines of one server are configured alike, so the first
// that says something is believed.
func (p *parser) config() (size, blocks Count) {
	for _, c := range configInfos {
		for _, s := range p.samples[c.metric] {
			if !size.OK {
				size = positive(s.label(c.blockSize))
			}
			if !blocks.OK {
				blocks = positive(s.label(c.numBlocks))
			}
		}
	}
	if !size.OK {
		sum, n, ok := p.total(blockSize, math.Inf(1))
		size = count(sum/float64(max(n, 1)), ok && sum > 0)
	}
	if !blocks.OK {
		sum, n, ok := p.total(numBlocks, math.Inf(1))
		blocks = count(sum/float64(max(n, 1)), ok && sum > 0)
	}
	return size, blocks
}

// positive reads a label that should hold a whole number of 1 or more.
func positive(label string) Count {
	n, err := strconv.ParseInt(label, 10, 64)
	if err != nil || n <= 0 {
		return Count{}
	}
	return Count{N: n, OK: true}
}

// adapters reads the newest report: the metric's value is the time at which it
// was made, and old label sets stay on the page.
func (p *parser) adapters() Adapters {
	var newest *sample
	for i, s := range p.samples[adaptersInfo] {
		if newest == nil || s.value > newest.value {
			newest = &p.samples[adaptersInfo][i]
		}
	}
	if newest == nil {
		return Adapters{}
	}
	return Adapters{
		Max:     int(positive(newest.label("max_lora")).N),
		Running: list(newest.label("running_lora_adapters")),
		Waiting: list(newest.label("waiting_lora_adapters")),
	}
}

// list splits a comma list, without its empty entries.
func list(s string) []string {
	var out []string
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}
