//go:build tools

// Package parts names the program that e2e/parts/get compiles, so that go.mod keeps its module.
package parts

import _ "helm.sh/helm/v3/cmd/helm"
