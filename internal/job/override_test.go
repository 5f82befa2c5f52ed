package job

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDecodeRetry(t *testing.T) {
	t.Parallel()
	for _, body := range []string{``, " \n", `{}`, `{"override":null}`} {
		o, err := DecodeRetry([]byte(body), Limits{})
		require.Nil(t, err, body)
		require.Nil(t, o, body)
	}
	_, err := DecodeRetry([]byte(`{"overide":{"queue":"a"}}`), Limits{})
	require.Equal(t, "'overide' is unknown; the nearest known name is 'override'.", err.Message)
	o, err := DecodeRetry([]byte(`{"override":{"queue":"default","args":[ 1 ],"priority":"low"}}`), Limits{})
	require.Nil(t, err)
	require.Equal(t, "default", o.Queue)
	require.Equal(t, `[1]`, string(o.Args))
	require.EqualValues(t, -10, *o.Priority)

	// What is not overridden stays as it is.
	meta, err := o.MergedMeta([]byte(`{"a":1}`))
	require.Nil(t, err)
	require.Nil(t, meta)
	policy, failed := o.MergedRetry([]byte(`{}`), 3)
	require.NoError(t, failed)
	require.Nil(t, policy)
	require.Equal(t, `{"a":1}`, string(o.MergedExtra([]byte(`{"a":1}`))))
	require.Nil(t, o.MergedExtra(nil))
}

func TestOverrideMerges(t *testing.T) {
	t.Parallel()
	o, err := DecodeRetry([]byte(`{"override":{"meta":{"b":null,"c":3},"retry":{"initialInterval":"PT10M"}}}`), Limits{})
	require.Nil(t, err)
	meta, err := o.MergedMeta([]byte(`{"a":"\u0000","b":2}`))
	require.Nil(t, err)
	require.Equal(t, `{"a":"\u0000","b":null,"c":3}`, string(meta))
	meta, err = o.MergedMeta(nil)
	require.Nil(t, err)
	require.Equal(t, `{"b":null,"c":3}`, string(meta))
	_, err = o.MergedMeta([]byte(`{"a":"` + strings.Repeat("0", MaxMetaBytes) + `"}`))
	require.Equal(t, 413, stage(err))

	policy, failed := o.MergedRetry(nil, 7)
	require.NoError(t, failed)
	require.EqualValues(t, 7, policy.MaxAttempts)
	require.Equal(t, policy.InitialInterval, policy.MaxInterval, "the new interval pulls the other along")
	require.Equal(t, `{"timeout":5,"retry":{"jitter":false,"initialInterval":"PT10M"},"z":1}`,
		string(o.MergedExtra([]byte(`{"timeout":5,"retry":{"initial_interval":"PT1S","jitter":false},"z":1}`))))
	require.Equal(t, `{"retry":{"initialInterval":"PT10M"}}`, string(o.MergedExtra(nil)))
}

func TestWithoutExpiry(t *testing.T) {
	t.Parallel()
	require.Nil(t, WithoutExpiry(nil))
	require.Equal(t, `{}`, string(WithoutExpiry([]byte(`{"expires_at":"x"}`))))
	require.Equal(t, `{"timeout":1,"x":{"expires_at":1}}`, string(WithoutExpiry([]byte(`{"timeout":1,"expires_at":"x","x":{"expires_at":1}}`))))
}

func TestScheduledFor(t *testing.T) {
	t.Parallel()
	require.Nil(t, ScheduledFor([]byte(`{"scheduled_at":"x"}`), ""))
	require.Equal(t, `{"scheduled_at":"y"}`, string(ScheduledFor(nil, "y")))
	require.Equal(t, `{"timeout":1,"tags":["a"],"scheduled_at":"y"}`, string(ScheduledFor([]byte(`{"timeout":1,"scheduled_at":"x","tags":["a"]}`), "y")))
}
