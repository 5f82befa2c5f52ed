package api_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/api"
)

func TestKeysBearer(t *testing.T) {
	t.Parallel()
	keys := api.NewKeys([]string{"", "one"})
	for header, want := range map[string]bool{
		"Bearer one": true, "bearer  one ": true, "Bearer ": false, "Bearer  ": false, "Bearer \u00a0": false, "Bearer": false, "": false, "one": false, " one": false, "Basic one": false, "Bearer two": false,
	} {
		principal, ok := keys.Bearer(header)
		require.Equal(t, want, ok, "%q", header)
		if ok {
			require.Equal(t, "key:7692c3ad", principal) // the first 8 hex digits of the key's SHA-256
		}
	}
}
