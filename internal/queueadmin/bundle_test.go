package queueadmin_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/ojs"
)

// bundle is the domains of a node on a database of the test's own.
type bundle struct{ *domaintest.Bundle }

func setup(t *testing.T, change ...func(*domaintest.Config)) *bundle {
	t.Helper()
	b := &bundle{domaintest.New(t, change...)}
	b.Queues.SetSettled(time.Millisecond, 0)
	return b
}

func extended(c *domaintest.Config) { c.Events.ExtensionTypes = true }

// change parses a configuration.
func change(t *testing.T, text string) queueconfig.Change {
	t.Helper()
	object, invalid := jsonread.Check([]byte(text))
	require.Nil(t, invalid)
	c, invalid := queueconfig.ParseChange(object, "$")
	require.Nil(t, invalid)
	return c
}

func (b *bundle) configure(name, text string) {
	b.T.Helper()
	_, err := b.Queues.Configure(b.T.Context(), name, change(b.T.(*testing.T), text))
	require.NoError(b.T, err)
}

// events are those about the queue, as type data.
func (b *bundle) events(name string) []string {
	b.T.Helper()
	return b.Texts(`SELECT type || ' ' || data::text FROM ojs.events WHERE subject = $1 ORDER BY seq, sub`, name)
}

func (b *bundle) status(name string) string {
	b.T.Helper()
	return strings.Join(b.Texts(`SELECT status || CASE WHEN deletion IS NULL THEN '' ELSE ' deleting' END FROM ojs.queues WHERE name = $1`, name), "")
}

func requireKind(t *testing.T, kind ojs.ErrorKind, err error) {
	t.Helper()
	_ = wireError(t, kind, err)
}

func wireError(t *testing.T, kind ojs.ErrorKind, err error) *ojs.Error {
	t.Helper()
	var wire *ojs.Error
	require.ErrorAs(t, err, &wire)
	require.Equal(t, string(kind), wire.Type)
	return wire
}
