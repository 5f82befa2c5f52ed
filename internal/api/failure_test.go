package api_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
)

// Paths, headers and names of members may have 1 MiB, and errors name them several times.
func TestShownErrorsAreShort(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 500_000)
	original := spec.With(spec.NotFound("job", long), "validation_errors", []jsonread.Violation{{Path: "$." + long, Message: long}, {Path: "$.b", Message: "short"}})
	shown, cause := api.Shown(t.Context(), fmt.Errorf("read: %w", original))
	require.Equal(t, api.CauseClient, cause)
	require.Less(t, len(shown.Message), 2100)
	require.True(t, utf8.ValidString(shown.Message))
	require.True(t, strings.HasPrefix(shown.Message, "Job éé"))
	require.Less(t, len(shown.Details["resource_id"].(string)), 2100)
	list := shown.Details["validation_errors"].([]jsonread.Violation)
	require.Less(t, len(list[0].Path)+len(list[0].Message), 4200)
	require.Equal(t, jsonread.Violation{Path: "$.b", Message: "short"}, list[1])
	require.Equal(t, long, original.Details["resource_id"], "other requests may share the error")

	same := spec.NotFound("job", "a")
	shown, _ = api.Shown(t.Context(), same)
	require.Equal(t, same, shown)
	_, cause = api.Shown(t.Context(), errors.New(long))
	require.Equal(t, api.CauseUnknown, cause)
}
