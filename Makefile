PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STUBS := session control
PROTOS := $(wildcard proto/holdfast_proto/v1/*.proto)

.PHONY: proto
proto:  ## Generate the message stubs from the .proto files
	cd proto && ../$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. $(PROTOS:proto/%=%)
	cd proto && ../$(BIN)/python -m grpc_tools.protoc -I . --grpc_python_out=. $(STUBS:%=holdfast_proto/v1/%.proto)
