module github.com/prefixroute/prefixroute/services/fakevllm

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/pebbe/zmq4 v1.4.0
	github.com/prefixroute/prefixroute/pkg v0.0.0
	github.com/prometheus/client_golang v1.25.0
	github.com/prometheus/common v0.74.0
	go.uber.org/goleak v1.3.0
	golang.org/x/sync v0.25.0
)

replace github.com/prefixroute/prefixroute/pkg => ../../pkg
