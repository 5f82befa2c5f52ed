package main

import (
	"os"
	"slices"
	"testing"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// TestMain also is the child process that scenario null starts from its own binary.
func TestMain(m *testing.M) {
	if slices.Equal(os.Args[1:], []string{"--null-server"}) {
		main()
	}
	dbtest.Main(m)
}
