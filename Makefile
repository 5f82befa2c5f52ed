GO      ?= go
GOTEST  ?= $(GO) test
FUZZTIME ?= 5s
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

# Tools are run from source at a pinned version: nothing to install, and Go keeps the binaries in its cache.
GOLANGCI_LINT := $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
SQLC          := $(GO) run github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1
BUF           := $(GO) run github.com/bufbuild/buf/cmd/buf@v1.75.0
PROTO         := internal/api/grpcapi/proto

# The SDK has modules of its own below ojs/, which this one takes from there; this pattern has the packages of all of them.
PACKAGES := github.com/ojsd/ojsd/...
MODULES  := . ojs ojs/ojspgx ojs/ojsotel

.PHONY: help run build test goldens fuzz lint generate verify conformance matrix bench slips postgres

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: build ## Build and run a server with a private Postgres in .ojsd/, or on DATABASE_URL.
	bin/ojsd dev

build: ## Build bin/ojsd, the server, and bin/ojsd-bench, the load generator: static binaries.
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/ ./cmd/ojsd ./cmd/ojsd-bench

# Without the vet of go test, because lint vets everything, and without debug information: linking takes a quarter less time. Stack
# traces do not need it.
test: postgres ## Run all tests with the race detector, on a real Postgres. Set OJSD_TEST_DATABASE_URL to choose the server.
	@.ci/ensure-cc
	@.ci/ensure-tools
	CGO_ENABLED=1 $(GOTEST) -race -vet=off -ldflags=-w -timeout 20m $(PACKAGES)

goldens: postgres ## Record anew what clients see, and list the files that differ; then look at git diff internal/e2e/golden/testdata.
	$(GOTEST) -vet=off ./internal/e2e/golden -count 1 -update
	@git add -N internal/e2e/golden/testdata && git diff --stat -- internal/e2e/golden/testdata

fuzz: ## Fuzz three decoders of what clients send, FUZZTIME each.
	$(GO) test -vet=off -run '^$$' -fuzz '^FuzzDecodeJob$$' -fuzztime $(FUZZTIME) ./internal/job
	$(GO) test -vet=off -run '^$$' -fuzz '^FuzzParse$$' -fuzztime $(FUZZTIME) ./internal/cron
	$(GO) test -vet=off -run '^$$' -fuzz '^FuzzPosition$$' -fuzztime $(FUZZTIME) ./internal/eventlog

lint: ## Run go vet and golangci-lint.
	$(GO) vet $(PACKAGES)
	@set -e; for module in $(MODULES); do (cd $$module && echo "golangci-lint in $$module" && $(GOLANGCI_LINT) run --allow-parallel-runners ./...); done

generate: ## Generate internal/dbsqlc from migrations/ and queries/, and the Go code beside the .proto files. Takes minutes on first use.
	$(SQLC) generate
	cd $(PROTO) && $(BUF) generate

verify: ## Check that generated code and go.mod are up to date, and that each module builds by itself. Takes minutes on first use.
	$(SQLC) diff
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && cd $(PROTO) && $(BUF) generate -o "$$tmp" && \
		diff -ru -x '*.proto' -x 'buf*.yaml' . "$$tmp"
	@set -e; for module in $(MODULES); do (cd $$module && echo "go mod tidy in $$module" && $(GO) mod tidy -diff && $(GO) build ./...); done

conformance: build ## Run the conformance suites of ../shared/conformance or OJS_CONFORMANCE_DIR against a fresh server.
	@.ci/conformance

matrix: ## Run levels 0 to 4 and the tests of plans, crashes and migrations on PostgreSQL 14 and 18, or VERSIONS. SHORT=1: less.
	@.ci/matrix

bench: build postgres ## Measure a fresh server on a private Postgres, briefly.
	bin/ojsd-bench --private --short

# The first run measures what each test runs, which takes ten minutes; later ones only what has changed.
SEED   ?= 1
N      ?= 30
ONLY   ?=
BUDGET ?= 1m
IDS    ?=
KINDS  ?=
TESTS  ?=
slips: postgres ## Make N small mistakes by SEED in the files that begin with ONLY, one at a time, and list those that no test notices.
	@$(GO) run ./internal/slips/cmd -seed=$(SEED) -n=$(N) -only="$(ONLY)" -budget=$(BUDGET) $(if $(IDS),-ids=$(IDS)) $(if $(KINDS),-kinds="$(KINDS)") $(if $(TESTS),-tests="$(TESTS)")

# Installs PostgreSQL if it is needed and missing. `go run` would compile everything with other flags than build does.
postgres: $(if $(OJSD_TEST_DATABASE_URL),,build)
	@test -n "$(OJSD_TEST_DATABASE_URL)" || bin/ojsd install-postgres
