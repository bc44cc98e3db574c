//go:build tools

// Package parts names the programs that e2e/parts/get compiles, so that go.mod keeps their modules.
package parts

import (
	_ "github.com/letsencrypt/pebble/v2/cmd/pebble"
	_ "github.com/letsencrypt/pebble/v2/cmd/pebble-challtestsrv"
)
