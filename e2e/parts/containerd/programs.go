//go:build tools

// Package parts names the programs that e2e/parts/get compiles, so that go.mod keeps their module.
package parts

import (
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
)
