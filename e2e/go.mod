module github.com/prefixroute/prefixroute/e2e

go 1.26.0

require github.com/prefixroute/prefixroute/pkg v0.0.0

replace github.com/prefixroute/prefixroute/pkg => ../pkg

replace github.com/prefixroute/prefixroute/proto => ../proto
