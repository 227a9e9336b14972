module github.com/prefixroute/prefixroute/services/router

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/hashicorp/golang-lru/v2 v2.0.7
	github.com/prefixroute/prefixroute/pkg v0.0.0
	github.com/prefixroute/prefixroute/proto v0.0.0
	github.com/prometheus/client_golang v1.25.0
	github.com/prometheus/client_model v0.6.3
	github.com/prometheus/common v0.74.0
	go.uber.org/goleak v1.3.0
	golang.org/x/sync v0.25.0
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
)

replace github.com/prefixroute/prefixroute/pkg => ../../pkg

replace github.com/prefixroute/prefixroute/proto => ../../proto
