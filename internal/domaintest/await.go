package domaintest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Await returns the next value of a channel, for example the WaitC of a test signal. The test fails after WaitFor.
func Await[T any](t testing.TB, c <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-c:
	case <-time.After(WaitFor):
		require.Fail(t, "no value on the channel", "within %s", WaitFor)
	}
	return value
}
