package batch

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

const (
	waitFor = time.Minute // a limit that a busy machine does not reach
	tick    = time.Millisecond
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
