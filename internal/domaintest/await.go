package domaintest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Await is the next value of a test signal's WaitC, or of any other channel.
func Await[T any](t testing.TB, c <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-c:
	case <-time.After(WaitFor):
		require.Fail(t, "nothing came", "within %s", WaitFor)
	}
	return value
}
