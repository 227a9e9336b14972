module github.com/prefixroute/prefixroute/services/indexer

go 1.26.0

require (
	github.com/cespare/xxhash/v2 v2.3.0
	github.com/google/go-cmp v0.7.0
	github.com/pebbe/zmq4 v1.4.0
	github.com/prefixroute/prefixroute/pkg v0.0.0
	github.com/prefixroute/prefixroute/proto v0.0.0
	github.com/prometheus/client_golang v1.25.0
	github.com/redis/go-redis/v9 v9.23.0
	github.com/vmihailenco/msgpack/v5 v5.4.1
	go.uber.org/goleak v1.3.0
	golang.org/x/sync v0.25.0
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
)

replace github.com/prefixroute/prefixroute/pkg => ../../pkg

replace github.com/prefixroute/prefixroute/proto => ../../proto
