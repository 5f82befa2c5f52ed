package e2e_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
)

// TestCopy covers docs/operations.md, Backup and restore: a copy of a database is made quiet before a node runs on it.
func TestCopy(t *testing.T) {
	t.Parallel()
	log := &lockedBuffer{}
	logged := func(c *app.Config) { c.Logger = slog.New(slog.NewJSONHandler(log, nil)) }
	e := newEndpoint(t)
	a := setup(t, e.quick, logged)
	a.post("/ojs/v1/cron", `{"name":"often","expression":"@every 1s","type":"t","queue":"`+queue()+`"}`).is(201)
	hook := a.subscribe(e, "/", `"job.enqueued"`)
	eventually(t, func() bool { return a.one(`SELECT COALESCE(timeline, '') FROM ojs.event_relay`) != "" })
	require.NotContains(t, log.String(), "was restored or copied")
	require.Equal(t, a.one(`SELECT timeline FROM ojs.event_relay`), a.one(`SELECT ojs.database_identity()`))
	require.Equal(t, "0", a.one(`SELECT count(*)::text FROM ojs.event_epochs`))
	require.NoError(t, a.app.Stop())

	for _, step := range []struct {
		name, known string
		copied      bool
		warned      bool
		enabled     string
	}{
		{"SameDatabase", ``, false, false, "true true"},
		{"AsReleasesBeforeHaveStoredIt", `split_part(timeline, '/', 1) || '/' || split_part(timeline, '/', 2)`, false, false, "true true"},
		{"Undeclared", `'1/00000001/1'`, false, true, "true true"},
		{"Declared", `'1/00000001/1'`, true, false, "false false"},
	} {
		if step.known != "" {
			a.exec(`UPDATE ojs.event_relay SET timeline = ` + step.known)
		}
		before := len(log.String())
		b := a.another(e.quick, logged, func(c *app.Config) { c.Database.Copy = step.copied })
		require.Equal(t, step.warned, strings.Contains(log.String()[before:], "was restored or copied"), step.name)
		require.Equal(t, step.enabled, b.get("/ojs/v1/cron/often").at("enabled")+" "+b.get("/ojs/v1/webhooks/"+hook).at("active"), step.name)
		eventually(t, func() bool {
			return b.one(`SELECT (timeline = ojs.database_identity())::text FROM ojs.event_relay`) == "true"
		})
		require.NoError(t, b.app.Stop())
	}
	require.Equal(t, "copy", a.one(`SELECT disabled_reason FROM ojs.webhooks`))
	require.Equal(t, "2", a.one(`SELECT count(*)::text FROM ojs.event_epochs`), "the two other databases")

	// What is registered on the copy works, also after the next start.
	b := a.another(e.quick, func(c *app.Config) { c.Database.Copy = true })
	b.put("/ojs/v1/cron/often", `{"expression":"@every 1s","type":"t","enabled":true,"queue":"`+queue()+`"}`).is(200)
	b.patch("/ojs/v1/webhooks/"+hook, `{"active":true}`).is(200)
	require.NoError(t, b.app.Stop())
	c := a.another(e.quick, func(c *app.Config) { c.Database.Copy = true })
	require.Equal(t, "true true", c.get("/ojs/v1/cron/often").at("enabled")+" "+c.get("/ojs/v1/webhooks/"+hook).at("active"))
}
