# Everything here is a shorthand: with the tools on the PATH, plain Pulumi does
# the same (see README).

STACK ?= dev
TENANT ?=
DISRUPT ?=
DO ?= up
LAYER ?= engine
VERIFY_FLAGS ?=
# Tests need neither Docker nor the tools.
GO_TEST_FLAGS ?= -race -timeout 20m

export PATH := $(CURDIR)/.tools/bin:$(PATH)
export PULUMI_SKIP_UPDATE_CHECK := true

# Where you are logged in wins over the project's own backend; Pulumi itself
# would have it the other way round.
ifndef PULUMI_BACKEND_URL
PULUMI_LOGIN := $(shell sed -n 's/.*"current": *"\([^"]*\)".*/\1/p' $${PULUMI_HOME:-$$HOME/.pulumi}/credentials.json 2>/dev/null)
ifneq ($(PULUMI_LOGIN),)
export PULUMI_BACKEND_URL := $(PULUMI_LOGIN)
endif
endif

# A passphrase of one's own wins; without one, a random one is kept beside the
# state that it protects.
ifndef PULUMI_CONFIG_PASSPHRASE
ifndef PULUMI_CONFIG_PASSPHRASE_FILE
export PULUMI_CONFIG_PASSPHRASE_FILE := $(HOME)/.pulumi/gpu-tenants.passphrase
endif
endif

.DEFAULT_GOAL := help
.PHONY: help tools passphrase stack up preview refresh destroy status kubeconfig verify rehearse purge build test test-unit test-engine test-clusters lint fmt golden tidy clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'
	@echo '  STACK=$(STACK) chooses the stack.'

tools: ## bring kind and Pulumi into .tools/ where the machine lacks them
	@tools/install.sh

passphrase:
	@if [ -z "$${PULUMI_CONFIG_PASSPHRASE+set}" ] && [ ! -e "$$PULUMI_CONFIG_PASSPHRASE_FILE" ]; then \
	  umask 077; mkdir -p "$$(dirname "$$PULUMI_CONFIG_PASSPHRASE_FILE")"; \
	  head -c 24 /dev/urandom | base64 >"$$PULUMI_CONFIG_PASSPHRASE_FILE"; \
	  echo "a passphrase for this and later stacks is in $$PULUMI_CONFIG_PASSPHRASE_FILE: keep it"; fi

stack: tools passphrase ## select the stack, after making it when it is new
	@pulumi stack select --create $(STACK)

up: stack ## bring the stack up, or change it to what its configuration says
	pulumi up --yes --stack $(STACK)

preview: stack ## show what `make up` would do
	pulumi preview --diff --stack $(STACK)

refresh: stack ## compare the state with what is there
	pulumi refresh --yes --stack $(STACK)

destroy: tools passphrase ## take the stack away; its configuration stays
	pulumi destroy --yes --stack $(STACK)

status: tools passphrase ## show the stack's outputs
	@pulumi stack output --stack $(STACK)

kubeconfig: tools passphrase ## write a tenant's kubeconfig to .cache/ and name it: TENANT=tenant-a, or none for the management cluster
	@umask 077; mkdir -p .cache; file=.cache/$(STACK)-$(or $(TENANT),management).kubeconfig; \
	pulumi stack output $(if $(TENANT),$(TENANT)-kubeconfig,managementKubeconfig) --show-secrets --stack $(STACK) >$$file && \
	echo "export KUBECONFIG=$$PWD/$$file"

verify: tools passphrase ## run the test cases against the running stack; DISRUPT=1: those that disturb it too
	@go build -C tests/verify -o $(CURDIR)/.cache/bin/verify .
	@.cache/bin/verify --project . --stack $(STACK) $(if $(DISRUPT),--disrupt) $(VERIFY_FLAGS)

rehearse: ## play a stack without Docker: DO="up", preview, refresh, destroy, "stack output"; LAYER=clusters: on real API servers
	@go build -C tests/rehearse -buildvcs=false -o $(CURDIR)/.cache/rehearse/bin/rehearse .
	@.cache/rehearse/bin/rehearse --stack $(STACK) --layer $(LAYER) $(DO)

purge: ## remove what a stack with lost state left in Docker: STACK=...
	@tools/purge.sh $(STACK)

build: ## build the program
	go build -o bin/gpu-tenants .

test: test-unit test-engine ## run all tests but those on real API servers; needs a Go module proxy, and neither Docker nor a registry

test-unit: ## the quick ones: the program against Pulumi's mocks, its shell steps, the agent, verify
	go test $(GO_TEST_FLAGS) ./...
	go test -C agent $(GO_TEST_FLAGS) ./...
	go test -C tests/verify $(GO_TEST_FLAGS) ./...

test-engine: ## the program through the real Pulumi engine, the rest stood in for: ten minutes on two idle cores, as many for Pulumi's command the first time
	@go build -C tests/rehearse -buildvcs=false -o $(CURDIR)/.cache/rehearse/bin/rehearse . && .cache/rehearse/bin/rehearse build
	@echo 'The scenarios on the engine take about ten minutes on two idle cores.'
	go test -C tests/rehearse -timeout 60m ./...

test-clusters: ## the same on real API servers with the real Kubernetes provider; builds those the first time, half an hour on two cores
	REHEARSE_LAYER=clusters go test -C tests/rehearse -timeout 120m ./clusters ./scenarios \
	  -run 'TestCluster$$|TestLifecycle|TestTenants|TestCards|TestQuota|TestTenantGone|TestSecrets|TestTakeover'

golden: ## write the golden files anew; look at the difference before you commit it
	go test ./tests/... -run Golden -update

lint: ## format, vet, static checks, scripts
	tools/lint.sh

fmt: ## format
	gofmt -w .

tidy: ## tidy every module
	for module in . tools/*/ agent tests/*/; do [ ! -f $$module/go.mod ] || go mod tidy -C $$module; done

clean: ## remove what was built and downloaded here
	rm -rf bin .tools .cache
