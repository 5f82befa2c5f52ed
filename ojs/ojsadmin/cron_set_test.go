package ojsadmin_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/fakeserver"
	"github.com/ojsd/ojsd/ojs/internal/require"
	"github.com/ojsd/ojsd/ojs/ojsadmin"
	"github.com/ojsd/ojsd/ojs/ojstest"
)

// TestSyncCrons: the crons of an owner become those of its set, and no others are touched.
func TestSyncCrons(t *testing.T) {
	t.Parallel()
	memory := func(t *testing.T) (*fakeserver.Server, *ojsadmin.Client) {
		s := fakeserver.New()
		client, err := ojs.NewClient(ojs.Config{Transport: s, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		return s, ojsadmin.New(client)
	}
	cron := func(name string) ojsadmin.Cron {
		return ojsadmin.Cron{Name: name, Expression: "0 9 * * *", Job: ojs.JobRequest{Type: "a"}}
	}
	sync := func(t *testing.T, c *ojsadmin.Client, crons ...ojsadmin.Cron) *ojsadmin.CronSetResult {
		t.Helper()
		result, err := c.SyncCrons(t.Context(), ojsadmin.CronSet{Owner: "billing", Crons: crons})
		require.NoError(t, err)
		return result
	}
	names := func(t *testing.T, c *ojsadmin.Client) (names []string) {
		t.Helper()
		page, err := c.ListCrons(t.Context(), ojsadmin.PageOptions{})
		require.NoError(t, err)
		for _, info := range page.Items {
			names = append(names, info.Name)
		}
		return names
	}
	changes := func(s *fakeserver.Server) (n int) {
		for _, r := range s.Requests() {
			if r.Method != http.MethodGet {
				n++
			}
		}
		return n
	}

	t.Run("CreatesChangesAndDeletes", func(t *testing.T) {
		t.Parallel()
		_, c := memory(t)
		_, err := c.PutCron(t.Context(), cron("by-hand"))
		require.NoError(t, err)
		_, err = c.SyncCrons(t.Context(), ojsadmin.CronSet{Owner: "mail", Crons: []ojsadmin.Cron{cron("of-others")}})
		require.NoError(t, err)

		require.Equal(t, &ojsadmin.CronSetResult{Created: []string{"a", "b", "c"}}, sync(t, c, cron("b"), cron("a"), cron("c")))
		changed := cron("b")
		changed.Expression, changed.Job.Meta = "0 10 * * *", map[string]any{"k": "v"}
		require.Equal(t, &ojsadmin.CronSetResult{Created: []string{"d"}, Updated: []string{"b"}, Deleted: []string{"a", "c"}},
			sync(t, c, changed, cron("d")))
		require.Equal(t, map[string]any{"k": "v"}, changed.Job.Meta, "the set stays as it is")
		require.Equal(t, []string{"b", "by-hand", "d", "of-others"}, names(t, c))
		info, err := c.GetCron(t.Context(), "b")
		require.NoError(t, err)
		require.Equal(t, map[string]any{"k": "v", ojsadmin.MetaCronOwner: "billing"}, info.Meta)
		require.Equal(t, "0 10 * * *", info.Expression)

		require.Equal(t, &ojsadmin.CronSetResult{Deleted: []string{"b", "d"}}, sync(t, c))
		require.Equal(t, []string{"by-hand", "of-others"}, names(t, c))
	})

	t.Run("SendsNothingForWhatIsEqual", func(t *testing.T) {
		t.Parallel()
		s, c := memory(t)
		full := ojsadmin.Cron{
			Name: "full", Expression: "*/5 * * * *", Timezone: "Europe/Berlin", Overlap: ojsadmin.OverlapAllow, Paused: true, Description: "d",
			Job: ojs.JobRequest{
				Type: "a", Args: []any{int64(9007199254740993), "x<y"}, Meta: map[string]any{"n": 1}, Queue: "q", Priority: 5, Delay: time.Minute,
				Retry: &ojs.RetryPolicy{MaxAttempts: 2}, Unique: &ojs.UniquePolicy{Keys: []string{"args"}},
			},
		}
		sync(t, c, full, cron("plain"))
		sent := changes(s)
		require.Equal(t, &ojsadmin.CronSetResult{}, sync(t, c, full, cron("plain")))
		require.Equal(t, sent, changes(s))
		for name, change := range map[string]func(*ojsadmin.Cron){
			"Expression":  func(c *ojsadmin.Cron) { c.Expression = "*/6 * * * *" },
			"Timezone":    func(c *ojsadmin.Cron) { c.Timezone = "" },
			"Overlap":     func(c *ojsadmin.Cron) { c.Overlap = "" },
			"Description": func(c *ojsadmin.Cron) { c.Description = "" },
			"Type":        func(c *ojsadmin.Cron) { c.Job.Type = "b" },
			"Args":        func(c *ojsadmin.Cron) { c.Job.Args = []any{int64(9007199254740992), "x<y"} },
			"Meta":        func(c *ojsadmin.Cron) { c.Job.Meta = nil },
			"Options":     func(c *ojsadmin.Cron) { c.Job.Priority = 0 },
		} {
			one := full
			change(&one)
			require.Equal(t, []string{"full"}, sync(t, c, one, cron("plain")).Updated, name)
			require.Empty(t, sync(t, c, one, cron("plain")).Updated, name)
			sync(t, c, full, cron("plain"))
		}
	})

	t.Run("LeavesPausesOfOperators", func(t *testing.T) {
		t.Parallel()
		_, c := memory(t)
		sync(t, c, cron("a"))
		_, err := c.PauseCron(t.Context(), "a")
		require.NoError(t, err)
		require.Empty(t, sync(t, c, cron("a")).Updated)
		changed := cron("a")
		changed.Expression = "@hourly"
		require.Equal(t, []string{"a"}, sync(t, c, changed).Updated)
		info, err := c.GetCron(t.Context(), "a")
		require.NoError(t, err)
		require.False(t, info.Enabled)
		_, err = c.ResumeCron(t.Context(), "a")
		require.NoError(t, err)
		changed.Paused = true
		require.Equal(t, []string{"a"}, sync(t, c, changed).Updated)
	})

	t.Run("RefusesNamesOfOthers", func(t *testing.T) {
		t.Parallel()
		s, c := memory(t)
		sync(t, c, cron("old"))
		_, err := c.PutCron(t.Context(), cron("by-hand"))
		require.NoError(t, err)
		_, err = c.SyncCrons(t.Context(), ojsadmin.CronSet{Owner: "mail", Crons: []ojsadmin.Cron{cron("of-others")}})
		require.NoError(t, err)
		sent := changes(s)
		result, err := c.SyncCrons(t.Context(), ojsadmin.CronSet{
			Owner: "billing", Crons: []ojsadmin.Cron{cron("new"), cron("by-hand"), cron("of-others")},
		})
		require.Error(t, err)
		require.Equal(t, `ojsadmin: sync the crons of "billing": nothing was changed, because there are crons of these names already: `+
			`"by-hand" of the owner "", "of-others" of the owner "mail"`, err.Error())
		require.Nil(t, result)
		require.Equal(t, sent, changes(s))

		handed := cron("by-hand")
		handed.Job.Meta = map[string]any{ojsadmin.MetaCronOwner: "billing"}
		_, err = c.PutCron(t.Context(), handed)
		require.NoError(t, err)
		require.Equal(t, &ojsadmin.CronSetResult{Deleted: []string{"old"}}, sync(t, c, cron("by-hand")))
	})

	t.Run("AnOlderReleaseChangesNothing", func(t *testing.T) {
		t.Parallel()
		s, c := memory(t)
		release := func(number int64, crons ...ojsadmin.Cron) *ojsadmin.CronSetResult {
			result, err := c.SyncCrons(t.Context(), ojsadmin.CronSet{Owner: "billing", Release: number, Crons: crons})
			require.NoError(t, err)
			return result
		}
		require.Equal(t, []string{"a", "b"}, release(7, cron("a"), cron("b")).Created)
		require.Equal(t, &ojsadmin.CronSetResult{Created: []string{"c"}, Updated: []string{"b"}, Deleted: []string{"a"}},
			release(8, cron("b"), cron("c")))
		sent := changes(s)
		for _, number := range []int64{7, 0} {
			require.Equal(t, &ojsadmin.CronSetResult{Superseded: true}, release(number, cron("a"), cron("b")))
		}
		require.Equal(t, &ojsadmin.CronSetResult{}, release(8, cron("b"), cron("c")))
		require.Equal(t, sent, changes(s))
		require.Equal(t, []string{"b", "c"}, names(t, c))
		require.Equal(t, &ojsadmin.CronSetResult{Created: []string{"a"}, Updated: []string{"b"}, Deleted: []string{"c"}},
			release(9, cron("a"), cron("b")))
	})

	t.Run("ReadsWhatTheListLeavesOut", func(t *testing.T) {
		t.Parallel()
		const mark = `"meta":{"cron_owner":"billing","tenant_id":"t"}`
		s, c := setup(t,
			ok(`{"cron_jobs":[{"name":"a"},{"name":"b"}],"pagination":{"has_more":false}}`),
			ok(`{"cron_job":{"name":"a","expression":"0 9 * * *","timezone":"UTC","type":"a","args":[],"options":{},"overlap_policy":"skip","enabled":true,`+
				`"description":null,`+mark+`}}`),
			ok(`{"cron_job":{"name":"b","args":[],`+mark+`}}`),
			answer{http.StatusNotFound, `{"error":{"code":"not_found","message":"m"}}`},
		)
		require.Equal(t, &ojsadmin.CronSetResult{Deleted: []string{"b"}}, sync(t, c, cron("a")), "b was deleted meanwhile")
		var targets []string
		for _, r := range s.requests {
			targets = append(targets, r.method+" "+r.target)
		}
		require.Equal(t, []string{"GET /cron?limit=1000", "GET /cron/a", "GET /cron/b", "DELETE /cron/b"}, targets)
	})

	t.Run("SaysWhatWasChangedBeforeAnError", func(t *testing.T) {
		t.Parallel()
		s, c := memory(t)
		bad := cron("b")
		bad.Expression = "never"
		result, err := c.SyncCrons(t.Context(), ojsadmin.CronSet{Owner: "billing", Crons: []ojsadmin.Cron{cron("a"), bad, cron("c")}})
		require.ErrorIs(t, err, ojs.ErrInvalidCron)
		require.ErrorContains(t, err, `cron "b"`)
		require.Equal(t, &ojsadmin.CronSetResult{Created: []string{"a"}}, result)
		s.FailNext(4, http.MethodDelete, "/cron/a", http.StatusServiceUnavailable, nil)
		_, err = c.SyncCrons(t.Context(), ojsadmin.CronSet{Owner: "billing"})
		require.Error(t, err)
	})

	t.Run("MistakesAreErrors", func(t *testing.T) {
		t.Parallel()
		s, c := memory(t)
		for want, set := range map[string]ojsadmin.CronSet{
			`ojsadmin: sync the crons of "": the set has no Owner`:           {Crons: []ojsadmin.Cron{cron("a")}},
			`ojsadmin: sync the crons of "o": cron "a" is in the set twice`:  {Owner: "o", Crons: []ojsadmin.Cron{cron("a"), cron("a")}},
			`ojsadmin: sync the crons of "o": a cron of the set has no Name`: {Owner: "o", Crons: []ojsadmin.Cron{cron("")}},
		} {
			_, err := c.SyncCrons(t.Context(), set)
			require.Error(t, err)
			require.Equal(t, want, err.Error())
		}
		require.Empty(t, s.Requests())
	})
}

// A program calls SyncCrons when it starts, with all its crons.
func ExampleClient_SyncCrons() {
	admin := ojsadmin.New(ojstest.New().Client())
	daily := ojsadmin.Cron{Name: "invoices-daily", Expression: "0 6 * * *", Job: ojs.JobRequest{Type: "invoice.send"}}
	weekly := ojsadmin.Cron{Name: "report-weekly", Expression: "0 7 * * MON", Job: ojs.JobRequest{Type: "report.build"}}
	monthly := ojsadmin.Cron{Name: "report-monthly", Expression: "0 7 1 * *", Job: ojs.JobRequest{Type: "report.build"}}

	for release, crons := range [][]ojsadmin.Cron{{daily, weekly}, {daily, monthly}} {
		result, err := admin.SyncCrons(context.Background(), ojsadmin.CronSet{Owner: "billing", Crons: crons})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("release", release+1, "creates", result.Created, "and deletes", result.Deleted)
	}
	// Output:
	// release 1 creates [invoices-daily report-weekly] and deletes []
	// release 2 creates [report-monthly] and deletes [report-weekly]
}
