module github.com/prefixroute/prefixroute/e2e

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/prefixroute/prefixroute/pkg v0.0.0
	github.com/prefixroute/prefixroute/proto v0.0.0
	github.com/redis/go-redis/v9 v9.23.0
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
)

replace github.com/prefixroute/prefixroute/pkg => ../pkg

replace github.com/prefixroute/prefixroute/proto => ../proto
