package batch

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

const (
	waitFor = 10 * time.Second
	tick    = time.Millisecond
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
