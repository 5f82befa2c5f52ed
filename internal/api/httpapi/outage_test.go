package httpapi

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
)

// A call is answered 503 only if none of its items can have been carried out.
func TestOutage(t *testing.T) {
	t.Parallel()
	away, unknown, refused := spec.Unavailable(), spec.OutcomeUnknown(), spec.NotFound("job", "x")
	for name, c := range map[string]struct {
		errs []error
		done bool // the first item
		want error
	}{
		"AllAway":          {errs: []error{away, away}, want: away},
		"AwayAndRefused":   {errs: []error{refused, away}, want: away},
		"AwayThenUnknown":  {errs: []error{away, unknown}, want: unknown},
		"UnknownThenAway":  {errs: []error{unknown, away}, want: unknown},
		"OneWasCarriedOut": {errs: []error{nil, away}, done: true},
		"Refused":          {errs: []error{refused, refused}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			jobs := make([]*job.Record, len(c.errs))
			if c.done {
				jobs[0] = &job.Record{}
			}
			require.Equal(t, c.want, outage(jobs, c.errs))
		})
	}
}
