package workflow

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/ojs"
)

// Options and meta of a workflow, copied into each of its jobs, must not fill the memory.
func TestInheritedOptionsAreBounded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 10_000)
	jobs := strings.Repeat(`,{"type":"a","args":[]}`, 9_000)[1:]
	for _, inherited := range []string{`"options":{"mine":"` + long + `"}`, `"meta":{"tracestate":"` + long + `"}`} {
		r := &reader{maxDepth: DefaultDepth, templateRoom: 1 << 20}
		_, err := r.decode([]byte(`{"type":"group",` + inherited + `,"jobs":[` + jobs + `]}`))
		require.Equal(t, string(ojs.ErrPayloadTooLarge), err.Type)
		require.Less(t, r.leaves, 110)
	}
}
