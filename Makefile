SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

MODULES := proto pkg services/indexer services/router services/fakevllm cmd/prefixroute e2e
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -X github.com/prefixroute/prefixroute/pkg/ops.version=$(VERSION)
FUZZTIME ?= 10s

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## install libzmq, redis-server and a C compiler, or say how
	@scripts/deps

.PHONY: build
build: deps ## build the four programs into dist/
	@mkdir -p dist
	CGO_ENABLED=1 go build -trimpath -ldflags '$(LDFLAGS)' -o dist/ ./cmd/prefixroute ./services/indexer ./services/router ./services/fakevllm

.PHONY: test
test: deps ## run every test
	CGO_ENABLED=1 go test work

.PHONY: race
race: deps ## run every test under the race detector
	CGO_ENABLED=1 go test -race work

.PHONY: demo
demo: deps ## three engines, an indexer and two routers in one process: approximate against precise
	CGO_ENABLED=1 go run ./cmd/prefixroute demo

.PHONY: up
up: ## build the images and start the whole system in containers
	PREFIXROUTE_COMMIT=$$(git rev-parse HEAD) docker compose up --detach --build

.PHONY: down
down: ## stop it; its volume stays
	docker compose down

.PHONY: e2e-compose
e2e-compose: ## end-to-end test of docker-compose.yml on real containers
	scripts/compose-e2e

.PHONY: fuzz
fuzz: deps ## run every fuzz target for FUZZTIME (10s)
	scripts/fuzz $(FUZZTIME)

.PHONY: bench
bench: ## run the benchmarks ten times into bench/<commit>.txt
	@mkdir -p bench
	go test -run '^$$' -bench . -benchmem -count 10 ./pkg/... ./services/router/... | tee bench/$(VERSION).txt

.PHONY: tools
tools: .bin/.stamp ## build the pinned developer tools into .bin/
.bin/.stamp: tools/go.mod tools/buf/go.mod tools/lint/go.mod
	for m in tools tools/buf tools/lint; do (cd $$m && GOWORK=off GOBIN=$(CURDIR)/.bin go install tool); done
	touch $@

.PHONY: lint
lint: tools ## golangci-lint in every module, buf lint and format
	for m in $(MODULES); do (cd $$m && $(CURDIR)/.bin/golangci-lint run --config $(CURDIR)/.golangci.yml --build-tags compose ./...); done
	.bin/buf lint
	.bin/buf format --diff --exit-code

.PHONY: generate
generate: tools ## generate Go from proto/
	.bin/buf generate

.PHONY: check-generate
check-generate: generate ## fail where the committed generated code is stale
	git diff --exit-code -- proto
	test -z "$$(git status --porcelain -- proto)"

.PHONY: check-breaking
check-breaking: tools ## fail where the API breaks clients of what had landed before
	scripts/check-breaking

.PHONY: check-modules
check-modules: ## fail where a module does not build alone or is untidy
	for m in $(MODULES); do (cd $$m && GOWORK=off go build ./... && GOWORK=off go mod tidy -diff); done
	CGO_ENABLED=0 go build work
