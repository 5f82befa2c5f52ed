package ojs_test

import (
	"encoding/json"
	"testing"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/require"
)

// TestDecodeArgs reads back what TestEnqueueBody sends.
func TestDecodeArgs(t *testing.T) {
	t.Parallel()
	type tuple struct {
		ojs.Tuple
		A string
		B int
	}
	decode := func(args string, into any) error {
		return (&ojs.Job{RawArgs: json.RawMessage(args)}).DecodeArgs(into)
	}
	var (
		one      email
		ptr      *email
		whole    tuple
		n        int
		list     []int
		bytes    []byte
		whatever any
	)
	require.NoError(t, decode(`[{"to":"a"},2]`, &one))
	require.Equal(t, email{"a"}, one)
	require.NoError(t, decode(`[{"to":"a"}]`, &ptr))
	require.Equal(t, "a", ptr.To)
	require.NoError(t, decode(`["x"]`, &whole))
	require.Equal(t, tuple{A: "x"}, whole)
	require.NoError(t, decode(`["x",1,true]`, &whole))
	require.Equal(t, 1, whole.B)
	require.NoError(t, decode(`[7]`, &n))
	require.Equal(t, 7, n)
	require.NoError(t, decode(`[1,2]`, &list))
	require.Equal(t, []int{1, 2}, list)
	require.NoError(t, decode(`["YQ=="]`, &bytes))
	require.Equal(t, "a", string(bytes))
	require.NoError(t, decode(`[1]`, &whatever))
	require.NoError(t, decode(`[]`, &one), "no arguments leave the zero value")
	require.ErrorContains(t, decode(`["x","y"]`, &whole), "element 1")
	require.Error(t, decode(`{}`, &one))
	var result int
	require.NoError(t, (&ojs.Job{}).DecodeResult(&result))
	require.NoError(t, (&ojs.Job{Result: json.RawMessage("7")}).DecodeResult(&result))
	require.Equal(t, 7, result)
}
