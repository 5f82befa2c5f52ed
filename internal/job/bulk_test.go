package job

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/ojs"
)

func TestDecodeBulkSelect(t *testing.T) {
	t.Parallel()
	waiting, dead := []ojs.JobState{"available", "scheduled"}, []ojs.JobState{"discarded"}
	at := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	for text, c := range map[string]struct {
		op   BulkOp
		want BulkSelect
	}{
		`{"job_ids":["a","b","a"]}`:                                    {BulkCancel, BulkSelect{IDs: NewIDList([]string{"a", "b", "a"})}},
		`{"job_ids":["a"],"filter":null}`:                              {BulkDelete, BulkSelect{IDs: NewIDList([]string{"a"})}},
		`{"job_ids":["a"],"atomicity":"atomic","idempotency_key":"k"}`: {BulkRetry, BulkSelect{BulkOptions: BulkOptions{true, "k"}, IDs: NewIDList([]string{"a"})}},
		`{"filter":{"queue":"q"}}`:                                     {BulkCancel, BulkSelect{Filter: &BulkFilter{Queue: "q", States: waiting}}},
		`{"filter":{"type":"a.b"}}`:                                    {BulkRetry, BulkSelect{Filter: &BulkFilter{Type: "a.b", States: dead}}},
		`{"filter":{"type":"a.*"}}`:                                    {BulkRetry, BulkSelect{Filter: &BulkFilter{Type: "a.", TypePrefix: true, States: dead}}},
		`{"filter":{"state":"completed"}}`:                             {BulkDelete, BulkSelect{Filter: &BulkFilter{States: []ojs.JobState{"completed"}}}},
		`{"filter":{"state":["completed","cancelled","completed"]}}`:   {BulkDelete, BulkSelect{Filter: &BulkFilter{States: []ojs.JobState{"completed", "cancelled"}}}},
		`{"filter":{"priority":5.0}}`:                                  {BulkCancel, BulkSelect{Filter: &BulkFilter{Priority: new(int16(5)), States: waiting}}},
		`{"filter":{"priority":"low"}}`:                                {BulkCancel, BulkSelect{Filter: &BulkFilter{Priority: new(int16(-10)), States: waiting}}},
		`{"filter":{"enqueued_before":"2026-05-04T03:02:01Z","enqueued_after":"2026-05-04T03:02:01Z"}}`: {BulkCancel, BulkSelect{Filter: &BulkFilter{EnqueuedBefore: at, EnqueuedAfter: at, States: waiting}}},
		`{"filter":{"since":"P7D","until":"2026-05-04T03:02:01Z","older_than":"7d"}}`: {BulkCancel, BulkSelect{Filter: &BulkFilter{
			Since: When{Set: true, Relative: true, In: 168 * time.Hour}, Until: When{Set: true, At: at}, OlderThan: When{Set: true, Relative: true, In: 168 * time.Hour}, States: waiting}}},
		`{"filter":{"meta":{"b": [ 1 ],"a":"x","b":2.0}}}`: {BulkCancel, BulkSelect{Filter: &BulkFilter{Meta: []MetaEqual{{"b", []byte("2.0")}, {"a", []byte(`"x"`)}}, States: waiting}}},
	} {
		c.want.Op = c.op
		got, err := DecodeBulkSelect(c.op, []byte(text), 10)
		require.Nil(t, err, text)
		require.Equal(t, c.want, got, text)
	}
}

func TestDecodeBulkSelectRefuses(t *testing.T) {
	t.Parallel()
	for text, field := range map[string]string{
		`{}`: "job_ids", `{"job_ids":null}`: "job_ids", `{"job_ids":[]}`: "job_ids", `{"job_ids":"a"}`: "job_ids", `{"job_ids":[1]}`: "job_ids", `{"job_ids":{}}`: "job_ids",
		`{"job_ids":["a"],"filter":{"queue":"q"}}`: "filter", `{"filter":{}}`: "filter", `{"filter":{"queue":null}}`: "filter", `{"filter":[]}`: "filter", `{"filter":5}`: "filter",
		`{"filter":{"tenant":"x","queue":"q"}}`: "filter.tenant", `{"filter":{"queue":""}}`: "filter.queue", `{"filter":{"queue":5}}`: "filter.queue", `{"filter":{"queue":"a\u0000"}}`: "filter.queue",
		`{"filter":{"type":""}}`: "filter.type", `{"filter":{"state":[]}}`: "filter.state", `{"filter":{"state":"gone"}}`: "filter.state", `{"filter":{"state":["active",1]}}`: "filter.state",
		`{"filter":{"state":["active","gone"]}}`: "filter.state", `{"filter":{"enqueued_before":"7d"}}`: "filter.enqueued_before", `{"filter":{"enqueued_after":5}}`: "filter.enqueued_after",
		`{"filter":{"since":"x"}}`: "filter.since", `{"filter":{"until":"-P1D"}}`: "filter.until", `{"filter":{"older_than":"+P1D"}}`: "filter.older_than", `{"filter":{"older_than":7}}`: "filter.older_than",
		`{"filter":{"priority":200}}`: "filter.priority", `{"filter":{"meta":[]}}`: "filter.meta", `{"job_ids":["a"],"atomicity":"x"}`: "atomicity", `[]`: "body",
	} {
		_, err := DecodeBulkSelect(BulkCancel, []byte(text), 10)
		require.NotNil(t, err, text)
		require.Equal(t, 400, stage(err), text)
		require.Equal(t, field, err.Details["field"], text)
	}
	_, err := DecodeBulkSelect(BulkDelete, []byte(`{"filter":{"queue":"q"}}`), 10)
	require.Equal(t, "filter.state", err.Details["field"], "a delete names its states")
	_, err = DecodeBulkSelect(BulkCancel, []byte(`{"job_ids":["a","b"]}`), 1)
	require.Equal(t, 413, stage(err))
}
