module github.com/prefixroute/prefixroute/cmd/prefixroute

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/pebbe/zmq4 v1.4.0
	github.com/prefixroute/prefixroute/pkg v0.0.0
	github.com/prefixroute/prefixroute/proto v0.0.0
	github.com/prefixroute/prefixroute/services/fakevllm v0.0.0
	github.com/prefixroute/prefixroute/services/indexer v0.0.0
	github.com/prefixroute/prefixroute/services/router v0.0.0
	github.com/spf13/cobra v1.10.2
	go.uber.org/goleak v1.3.0
	golang.org/x/sync v0.25.0
)

replace github.com/prefixroute/prefixroute/pkg => ../../pkg

replace github.com/prefixroute/prefixroute/proto => ../../proto

replace github.com/prefixroute/prefixroute/services/indexer => ../../services/indexer

replace github.com/prefixroute/prefixroute/services/router => ../../services/router

replace github.com/prefixroute/prefixroute/services/fakevllm => ../../services/fakevllm
