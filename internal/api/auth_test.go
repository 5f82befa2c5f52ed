package api_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/ojs"
)

func TestKeysBearer(t *testing.T) {
	t.Parallel()
	keys := api.NewKeys([]string{"", "one"})
	for header, want := range map[string]bool{
		"Bearer one": true, "bearer  one ": true, "Bearer ": false, "Bearer  ": false, "Bearer \u00a0": false, "Bearer": false, "": false, "one": false, " one": false, "Basic one": false, "Bearer two": false,
	} {
		principal, err := keys.Admit("192.0.2.1:1", api.BearerToken(header))
		if !want {
			require.ErrorIs(t, err, ojs.ErrUnauthenticated, "%q", header)
			continue
		}
		require.NoError(t, err, "%q", header)
		require.Equal(t, "key:7692c3ad", principal) // the first 8 hex digits of the key's SHA-256
	}
}

// TestGuesses covers docs/reference/http.md, Authentication.
func TestGuesses(t *testing.T) {
	t.Parallel()
	const attacker, other = "192.0.2.1:4711", "192.0.2.2:4711"
	// guess shows count unknown keys that were not shown before. All are 401.
	guess := func(t *testing.T, keys *api.Keys, from string, count int) {
		for i := range count {
			_, err := keys.Admit(from, fmt.Sprint("guess ", i))
			require.ErrorIs(t, err, ojs.ErrUnauthenticated, "%d", i)
		}
	}
	limited := func(t *testing.T, err error, seconds int) {
		var wire *ojs.Error
		require.ErrorAs(t, err, &wire)
		require.ErrorIs(t, err, ojs.ErrRateLimited)
		require.Equal(t, seconds, wire.Details["retry_after_seconds"])
	}

	t.Run("RefusesKeysAfterTooManyUnknownOnes", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			keys := api.NewKeys([]string{"one", "two"})
			guess(t, keys, attacker, 20)
			time.Sleep(15 * time.Second)
			_, err := keys.Admit(attacker, "guess 20")
			limited(t, err, 45)
			_, err = keys.Admit("192.0.2.1:4712", "one") // another port, and a key that was not used before
			limited(t, err, 45)
			_, err = keys.Admit(other, "one")
			require.NoError(t, err)

			time.Sleep(45 * time.Second)
			_, err = keys.Admit(attacker, "one")
			require.NoError(t, err)
			guess(t, keys, attacker, 20)
		})
	})

	t.Run("LeavesKeysAloneThatWereUsedFromThere", func(t *testing.T) {
		t.Parallel()
		keys := api.NewKeys([]string{"one", "two"})
		_, err := keys.Admit(attacker, "one")
		require.NoError(t, err)
		guess(t, keys, attacker, 20)
		principal, err := keys.Admit(attacker, "", "one")
		require.NoError(t, err)
		require.Equal(t, keys.Principal("one"), principal)
		_, err = keys.Admit(attacker, "two")
		require.ErrorIs(t, err, ojs.ErrRateLimited)
	})

	t.Run("CountsAKeyOnce", func(t *testing.T) {
		t.Parallel()
		keys := api.NewKeys([]string{"one"})
		for range 100 {
			_, err := keys.Admit(attacker, "revoked", "")
			require.ErrorIs(t, err, ojs.ErrUnauthenticated)
			_, err = keys.Admit(attacker)
			require.ErrorIs(t, err, ojs.ErrUnauthenticated)
		}
		guess(t, keys, attacker, 19)
		_, err := keys.Admit(attacker, "guess 19")
		require.ErrorIs(t, err, ojs.ErrRateLimited)
		_, err = keys.Admit(attacker, "revoked")
		require.ErrorIs(t, err, ojs.ErrUnauthenticated)
	})

	t.Run("TakesTheNetworkOfIPv6", func(t *testing.T) {
		t.Parallel()
		keys := api.NewKeys([]string{"one"})
		for i := range 20 {
			_, err := keys.Admit(fmt.Sprintf("[2001:db8::%x]:1", i), fmt.Sprint("guess ", i))
			require.ErrorIs(t, err, ojs.ErrUnauthenticated)
		}
		_, err := keys.Admit("[2001:db8::ffff]:1", "one")
		require.ErrorIs(t, err, ojs.ErrRateLimited)
		_, err = keys.Admit("[2001:db8:0:1::1]:1", "one")
		require.NoError(t, err)
	})

	t.Run("WorksWithoutAddresses", func(t *testing.T) {
		t.Parallel()
		keys := api.NewKeys([]string{"one"})
		_, err := keys.Admit("@", "one")
		require.NoError(t, err)
		guess(t, keys, "", 20)
		_, err = keys.Admit("@", "guess 20")
		require.ErrorIs(t, err, ojs.ErrRateLimited)
	})

	t.Run("ForgetsSomeOfManyAddresses", func(t *testing.T) {
		t.Parallel()
		keys := api.NewKeys([]string{"one"})
		for i := range 12_000 {
			from := fmt.Sprintf("10.0.%d.%d:1", i/250, i%250)
			_, err := keys.Admit(from, "no")
			require.ErrorIs(t, err, ojs.ErrUnauthenticated)
			_, err = keys.Admit(from, "one")
			require.NoError(t, err)
		}
		guesses, used := keys.Records()
		require.LessOrEqual(t, guesses, 10_000)
		require.LessOrEqual(t, used, 10_000)
	})
}
