//go:build tools

// Package tools imports the program, so that `go mod tidy` keeps its dependencies.
package tools

import _ "github.com/containerd/containerd/v2/cmd/containerd"
