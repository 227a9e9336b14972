package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/prefixroute/prefixroute/services/router/internal/pick"
)

// collector shows what the router believes of each replica.
type collector struct{ app *App }

var (
	preciseDesc = prometheus.NewDesc("prefixroute_router_replica_precise",
		"1 while the replica's cache is known from its events, 0 while it is guessed.", []string{"replica"}, nil)
	approxDesc = prometheus.NewDesc("prefixroute_router_replica_approximate_blocks",
		"Blocks in the router's own index of the replica.", []string{"replica"}, nil)
)

// Describe implements [prometheus.Collector].
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- preciseDesc
	ch <- approxDesc
}

// Collect implements [prometheus.Collector].
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c.app.fleet.Status() {
		precise := 0.0
		if c.app.picker.Outlook(s.Name, s.BlockSize) == pick.ReasonNone {
			precise = 1
		}
		blocks, _ := c.app.approx.Size(s.Name)
		ch <- prometheus.MustNewConstMetric(preciseDesc, prometheus.GaugeValue, precise, s.Name)
		ch <- prometheus.MustNewConstMetric(approxDesc, prometheus.GaugeValue, float64(blocks), s.Name)
	}
}
