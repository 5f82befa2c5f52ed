package webhook

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/config"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	c := config.Default().Webhooks
	for _, x := range []struct {
		name   string
		res    Result
		try    int
		status string
		gone   bool
		least  time.Duration
	}{
		{"OK", Result{Code: 200}, 1, "delivered", false, 0},
		{"NoContent", Result{Code: 299}, 8, "delivered", false, 0},
		{"Redirect", Result{Code: 301}, 1, "failed", false, time.Minute},
		{"ClientError", Result{Code: 400}, 2, "failed", false, 5 * time.Minute},
		{"Gone", Result{Code: 410}, 1, "dead", true, 0},
		{"BodyCutShort", Result{Code: 200, Error: "body"}, 3, "failed", false, 30 * time.Minute},
		{"NoResponse", Result{Error: "connect"}, 4, "failed", false, 2 * time.Hour},
		{"RetryAfterShorter", Result{Code: 429, RetryAfter: time.Second}, 5, "failed", false, 8 * time.Hour},
		{"RetryAfterLonger", Result{Code: 503, RetryAfter: 23 * time.Hour}, 6, "failed", false, 23 * time.Hour},
		{"Seventh", Result{Code: 500}, 7, "failed", false, 24 * time.Hour},
		{"Eighth", Result{Code: 500}, 8, "dead", false, 0},
	} {
		o, gone := decide(c, x.res, x.try)
		require.Equal(t, x.status, o.Status, x.name)
		require.Equal(t, x.gone, gone, x.name)
		require.GreaterOrEqual(t, o.Delay, x.least, x.name)
		require.LessOrEqual(t, o.Delay, x.least+x.least/10, x.name)
	}
	c.RetrySchedule = nil
	o, _ := decide(c, Result{Code: 500}, 1)
	require.Equal(t, "dead", o.Status)
}
