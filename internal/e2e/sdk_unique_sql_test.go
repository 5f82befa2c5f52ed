package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/ojspgx"
)

// TestSDKUniqueInTransactions: a job of a policy is the same one over HTTP, whose key the server computes, and in a transaction, whose key the SDK
// computes.
func TestSDKUniqueInTransactions(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	node := setup(t)
	client := sdk(t, node.url)
	pool, err := pgxpool.New(ctx, node.database)
	require.NoError(t, err)
	t.Cleanup(pool.Close)

	args := json.RawMessage(`[{"month":"m","user":1.50,"user":2},5,{"late":true,"user":3,"7":"x"},"\u20ac$\u000f\nA'\u0042\u0022\\\/\b\f\t\r\u007f"]`)
	meta := map[string]any{"region": "eu-1", "n": 1, "b": false}
	for name, r := range map[string]ojs.JobRequest{
		"Default":        {Args: args},
		"DefaultInQueue": {Args: args, Queue: "q.1"},
		"ExtraQueue":     {Args: args, Extra: map[string]any{"queue": "q.2"}},
		"TypeAlone":      {Args: args, Unique: &ojs.UniquePolicy{Keys: []string{"type"}}},
		"Queue":          {Args: args, Unique: &ojs.UniquePolicy{Keys: []string{"queue"}}, Queue: "reports"},
		"Args":           {Args: args, Unique: &ojs.UniquePolicy{Keys: []string{"args"}}},
		"NoArgs":         {Unique: &ojs.UniquePolicy{Keys: []string{"args"}}},
		"ArgsKeys":       {Args: args, Unique: &ojs.UniquePolicy{ArgsKeys: []string{"user", "late"}}},
		"Indexes":        {Args: args, Unique: &ojs.UniquePolicy{Keys: []string{"type", "args"}, ArgsKeys: []string{"1", "02"}}},
		"Meta":           {Args: args, Meta: meta, Unique: &ojs.UniquePolicy{MetaKeys: []string{"region", "missing", "n"}}},
		"NoMeta":         {Args: args, Unique: &ojs.UniquePolicy{MetaKeys: []string{"region"}}},
		"Tenant":         {Args: args, Meta: map[string]any{"tenant_id": "a"}},
		"All": {Args: args, Meta: meta, Queue: "q", Unique: &ojs.UniquePolicy{
			Keys: []string{"queue", "type"}, ArgsKeys: []string{"month"}, MetaKeys: []string{"b"}, Period: time.Hour,
		}},
		"States": {Args: args, Unique: &ojs.UniquePolicy{States: []ojs.JobState{ojs.StateAvailable}}},
		"Numbers": {Args: json.RawMessage(`[1.0,1e2,-0,-0.0,0e5,1E-7,4.50,2e-3,0.000001,1e21,333333333.33333329,1e23,9007199254740993,-9007199254740993,
			9007199254740993.0,123456789012345678901234567890,9223372036854775807.0,-9223372036854775808.0,9223372036854775808.0,0.9999999999999999999999,1e-400,50e-1,12.5e1]`)},
		"Names": {Args: json.RawMessage(`[{"\u20ac":1,"\r":2,"\uff21":3,"1":4,"\ud83d\ude00":5,"\u0080":6,
			"\u00f6":7,"":8,"a b":{"c":1,"b":[]}}]`)},
		"Letters": {Args: []string{"Zoë", "Ŕéports", "Αθήνα", "Москва", "שלום", "سلام", "東京", "かな", "서울", "…—€™", "👍🏽"}},
		"HTML":    {Args: "<a href='x'>&</a>\u2028"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r.Type = fmt.Sprintf("u.t%x", name)
			policy := ojs.UniquePolicy{}
			if r.Unique != nil {
				policy = *r.Unique
			}
			policy.OnConflict = ojs.ConflictIgnore
			r.Unique = &policy
			first, err := client.EnqueueBatch(ctx, []ojs.JobRequest{r})
			require.NoError(t, err)
			tx, err := pool.Begin(ctx)
			require.NoError(t, err)
			defer func() { require.NoError(t, tx.Rollback(context.Background())) }()
			ids, err := ojspgx.EnqueueBatch(ctx, tx, []ojs.JobRequest{r})
			require.NoError(t, err)
			require.Equal(t, first[0].ID, ids[0])
		})
	}

	t.Run("KeepsOthersApart", func(t *testing.T) {
		t.Parallel()
		enqueue := func(args any, options ...ojs.EnqueueOption) string {
			id, err := ojspgx.Enqueue(ctx, pool, "apart", args, append(options, ojs.WithUnique(ojs.UniquePolicy{OnConflict: ojs.ConflictIgnore}))...)
			require.NoError(t, err)
			return id
		}
		one := enqueue(1)
		require.Equal(t, one, enqueue(json.RawMessage("1.0")))
		require.NotEqual(t, one, enqueue("1"))
		require.NotEqual(t, one, enqueue(1, ojs.WithQueue("other")))
	})

	t.Run("AKeyOfTheClientCounts", func(t *testing.T) {
		t.Parallel()
		const key = "25ff5fcbd5f0436a2ed461f767b9ace63b0d48d305d7f7cb3785c77516d15723"
		r := ojs.JobRequest{Type: "own", UniqueKey: key, Args: map[string]int{"no": 1}}
		r.Unique = &ojs.UniquePolicy{ArgsKeys: []string{"no"}, OnConflict: ojs.ConflictIgnore}
		jobs, err := client.EnqueueBatch(ctx, []ojs.JobRequest{r})
		require.NoError(t, err)
		r.Args = map[string]int{"no": 2}
		ids, err := ojspgx.EnqueueBatch(ctx, pool, []ojs.JobRequest{r})
		require.NoError(t, err)
		require.Equal(t, jobs[0].ID, ids[0])
	})
}

// never is a connection of which a test expects that nothing is sent over it.
type never struct{ sent []string }

func (n *never) QueryRow(_ context.Context, _ string, args ...any) pgx.Row {
	n.sent = append(n.sent, args[3].(string))
	return n
}
func (*never) Scan(...any) error { return nil }

// TestSDKRefusesInTransactions: what ojs.enqueue would refuse, or could not honour, is refused before the database is called, so that the transaction goes
// on.
func TestSDKRefusesInTransactions(t *testing.T) {
	t.Parallel()
	limit := 1
	for name, r := range map[string]ojs.JobRequest{
		"rate_limit":       {RateLimit: &ojs.RateLimit{Key: "k", Concurrency: &limit}},
		"unique.keys":      {Unique: &ojs.UniquePolicy{Keys: []string{"arg"}}},
		"unique.args_keys": {Unique: &ojs.UniquePolicy{ArgsKeys: []string{"no"}}},
		"unique.meta_keys": {Unique: &ojs.UniquePolicy{Keys: []string{"meta"}}},
		"unique":           {Args: "cafe\u0301", Unique: &ojs.UniquePolicy{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := &never{}
			if r.Args == nil {
				r.Args = map[string]int{"a": 1}
			}
			_, err := ojspgx.Enqueue(t.Context(), n, "a", nil, func(to *ojs.JobRequest) { *to = r; to.Type = "a" })
			require.ErrorIs(t, err, ojs.ErrInvalidPayload)
			require.Equal(t, name, ojs.ErrorDetail(err, "field"))
			require.ErrorContains(t, err, "the transaction goes on")
			require.Empty(t, n.sent)
		})
	}
}

// TestSDKUniqueTexts: the SDK takes no text whose form the server would change for the key.
func TestSDKUniqueTexts(t *testing.T) {
	t.Parallel()
	n, taken := &never{}, 0
	for r := rune(1); r < 0x32000; r++ {
		text := string(r)
		if _, err := ojspgx.Enqueue(t.Context(), n, "a", text, ojs.WithUnique(ojs.UniquePolicy{})); err != nil {
			continue
		}
		taken++
		properties := norm.NFC.PropertiesString(text)
		require.True(t, norm.NFC.IsNormalString(text) && properties.BoundaryBefore() && properties.CCC() == 0, "%U", r)
	}
	require.Greater(t, taken, 80_000)
}
