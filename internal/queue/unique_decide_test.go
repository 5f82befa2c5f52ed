package queue

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

func policy(key, onConflict string, states ...ojs.JobState) *job.Job {
	if states == nil {
		states = job.LiveStates
	}
	return &job.Job{UniqueKey: key, Unique: &job.Unique{States: states, OnConflict: onConflict}}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	stored := func(id byte, state ojs.JobState, age time.Duration) uniqueHolder {
		return uniqueHolder{ID: [16]byte{id}, State: state, Item: storedJob, createdAt: now.Add(-age), seenAt: now}
	}
	one := func(j *job.Job, held ...uniqueHolder) uniqueVerdict {
		return decide([]*job.Job{j}, map[string][]uniqueHolder{"k": held}, now)[0]
	}

	require.Equal(t, uniqueVerdict{}, one(policy("k", "reject")))
	require.Equal(t, uniqueVerdict{}, one(policy("k", "reject"), stored(1, ojs.StateDiscarded, 0), stored(2, ojs.StateCompleted, 0)))
	require.Equal(t, uniqueVerdict{}, one(policy("other", "reject"), stored(1, ojs.StateActive, 0)))

	v := one(policy("k", "reject"), stored(3, ojs.StateActive, time.Minute), stored(2, ojs.StateActive, time.Hour), stored(1, ojs.StateActive, time.Minute))
	require.Equal(t, [16]byte{2}, v.Existing.ID, "the oldest")
	v = one(policy("k", "ignore"), stored(3, ojs.StateActive, time.Minute), stored(1, ojs.StateActive, time.Minute))
	require.Equal(t, [16]byte{1}, v.Existing.ID, "of equal age, the lower id")
	require.True(t, v.Ignore)

	within := policy("k", "reject")
	within.Unique.Period = time.Hour
	require.True(t, one(within, stored(1, ojs.StateActive, time.Hour-1)).Prevented())
	require.False(t, one(within, stored(1, ojs.StateActive, time.Hour)).Prevented(), "the period has passed")

	v = one(policy("k", "replace", ojs.StateActive, ojs.StateCompleted, ojs.StateDiscarded),
		stored(1, ojs.StateCompleted, 0), stored(2, ojs.StateDiscarded, 0), stored(3, ojs.StateActive, 0), stored(4, ojs.StateAvailable, 0))
	require.False(t, v.Prevented())
	require.Len(t, v.Replaced, 1)
	require.Equal(t, [16]byte{3}, v.Replaced[0].ID)

	at := job.When{Set: true, At: now.Add(time.Hour)}
	scheduled := stored(1, ojs.StateScheduled, time.Hour)
	scheduled.ScheduledAt = at
	require.Equal(t, &at, one(policy("k", "replace_except_schedule"), scheduled, stored(2, ojs.StateAvailable, 0)).Takes)
	require.Nil(t, one(policy("k", "replace_except_schedule"), scheduled, stored(2, ojs.StateAvailable, 2*time.Hour)).Takes, "the oldest is not scheduled")
	require.Nil(t, one(policy("k", "replace"), scheduled).Takes)
}

// A search has to find what every policy with its key asks for.
func TestSearches(t *testing.T) {
	t.Parallel()
	a, b, c := "0000000000000002"+key48, "ffffffffffffffff"+key48, "0000000000000001"+key48
	within := func(j *job.Job, d time.Duration) *job.Job {
		j.Unique.Period = d
		return j
	}
	list := searches([]*job.Job{
		{}, policy(a, "reject"), policy(a, "ignore"),
		within(policy(b, "reject", ojs.StateActive), time.Hour), within(policy(b, "reject", ojs.StateCompleted), 2*time.Hour),
		within(policy(c, "replace"), time.Hour), policy(c, "reject"),
	})
	require.Len(t, list, 3)
	require.Equal(t, []string{b, c, a}, []string{list[0].key, list[1].key, list[2].key}, "ascending by their locks")
	require.Equal(t, []bool{true, true, false}, []bool{list[0].all, list[1].all, list[2].all})
	require.Equal(t, []time.Duration{2 * time.Hour, 0, 0}, []time.Duration{list[0].period, list[1].period, list[2].period})
	require.Equal(t, []ojs.JobState{ojs.StateActive, ojs.StateCompleted}, list[0].states)
	require.Equal(t, []ojs.JobState{ojs.StateCompleted}, list[0].done())
	require.Nil(t, list[2].done())
}

const key48 = "000000000000000000000000000000000000000000000000"
