package httpapi

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/job"
	fields "github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// queueActor names who changes the status of a queue, with the member of the body that clients may send.
// The member is optional, but a wrong type is a mistake that is better told.
func (a *API) queueActor(c echo.Context, body []byte, member string) (string, error) {
	object, err := optionalObject(body)
	if err != nil {
		return "", err
	}
	claimed, err := textMember(object, member)
	if err != nil {
		return "", err
	}
	return a.caller(c.Request()).Actor(c.Request().Header.Get("X-OJS-Actor"), c.QueryParam(member), claimed), nil
}

// textMember reads a text that an object may have; "": it has none, or there is no object.
func textMember(object jsontext.Value, name string) (string, error) {
	if object == nil {
		return "", nil
	}
	v := fields.Present(fields.Find(object, name))
	text, isText := rawjson.Text(v)
	if v != nil && !isText {
		return "", spec.InvalidPayload(name, "a string", rawjson.Show(v), "'"+name+"' must be a string, got "+rawjson.Describe(v)+".")
	}
	return text, nil
}

// pauseQueue is idempotent: a second call keeps the time of the first and writes no event. Jobs that run go on. A queue that is
// being deleted is 409.
func (a *API) pauseQueue(r *request) error {
	name, err := queueName(r, false)
	if err != nil {
		return err
	}
	by, err := a.queueActor(r, r.body, "paused_by")
	if err != nil {
		return err
	}
	status, err := a.Queues.Pause(r.Request().Context(), name, by)
	if err != nil {
		return err
	}
	return respondStatus(r, status, func(b []byte) []byte { return appendMoment(b, "paused_at", &status.PausedAt) })
}

// resumeQueue also ends a drain, and takes back a deletion that waits for active jobs.
func (a *API) resumeQueue(r *request) error {
	name, err := queueName(r, false)
	if err != nil {
		return err
	}
	// The event that it may write is queue.resumed; a drain has none of its own.
	by, err := a.queueActor(r, r.body, "resumed_by")
	if err != nil {
		return err
	}
	status, err := a.Queues.Resume(r.Request().Context(), name, by)
	if err != nil {
		return err
	}
	return respondStatus(r, status, func(b []byte) []byte { return appendMoment(b, "resumed_at", &status.Since) })
}

// drainQueue takes 1 to 4 s (docs/reference/queues.md, Status): when it answers, no node takes jobs for the queue any more. A
// client that hangs up before has drained it all the same. A queue that is being deleted is 409.
func (a *API) drainQueue(r *request) error {
	name, err := queueName(r, false)
	if err != nil {
		return err
	}
	by, err := a.queueActor(r, r.body, "resumed_by") // draining a paused queue resumes its fetches
	if err != nil {
		return err
	}
	status, err := a.Queues.Drain(r.Request().Context(), name, by)
	if err != nil {
		return err
	}
	return respondStatus(r, status, func(b []byte) []byte { return strconv.AppendInt(append(b, `,"remaining":`...), status.Remaining, 10) })
}

// respondStatus answers with queue as an object or, to clients that send OJS-Version, as the name.
// Vary tells caches that the same URL has two forms.
func respondStatus(c echo.Context, s queueadmin.Status, rest func(b []byte) []byte) error {
	c.Response().Header().Add("Vary", "OJS-Version")
	return respond(c, http.StatusOK, func(b []byte) []byte {
		if flat(c) {
			b = append(appendQueueStatus(append(b, `{"queue":{`...), s.Name, s.Status), `},`...)
		} else {
			b = append(appendQuoted(append(b, `{"queue":`...), s.Name), ',')
		}
		return append(rest(appendQueueStatus(b, s.Name, s.Status)), '}')
	})
}

var deletionStrategies = []string{queueadmin.Reject, queueadmin.Discard, queueadmin.Move}

// deleteQueue is 202 while active jobs remain; any node finishes the deletion then. It refuses new jobs first and so takes as
// long as a drain. If it is refused because jobs wait, the store has taken the refusal of new jobs back.
func (a *API) deleteQueue(r *request) error {
	name, err := queueName(r, false)
	if err != nil {
		return err
	}
	d, err := readDeletion(r, r.body)
	if err != nil {
		return err
	}
	d.Queue = name
	done, err := a.Queues.Delete(r.Request().Context(), d)
	if err != nil {
		return err
	}
	// 202 says that the deletion goes on without the client.
	status, state := http.StatusOK, "deleted"
	if done.Draining {
		status, state = http.StatusAccepted, queueconfig.Draining
	}
	return respond(r, status, func(b []byte) []byte {
		b = appendQuoted(append(b, `{"queue":`...), name)
		b = appendText(b, "strategy", d.Strategy)
		if d.Target != "" {
			b = appendText(b, "target_queue", d.Target)
		}
		b = strconv.AppendInt(append(b, `,"jobs_affected":`...), done.Affected, 10)
		return append(appendText(b, "state", state), '}')
	})
}

// readDeletion reads body or query: not every client can send a body with DELETE.
// With a body the query is not read.
func readDeletion(c echo.Context, body []byte) (d queueadmin.Deletion, err error) {
	object, err := optionalObject(body)
	if err != nil {
		return d, err
	}
	read := func(name string) (string, error) {
		if object == nil {
			return c.QueryParam(name), nil
		}
		return textMember(object, name)
	}
	if d.Strategy, err = read("strategy"); err != nil {
		return d, err
	}
	if d.Target, err = read("target_queue"); err != nil {
		return d, err
	}
	switch {
	case d.Strategy == "":
		d.Strategy = queueadmin.Reject
	case !slices.Contains(deletionStrategies, d.Strategy):
		return d, spec.InvalidPayload("strategy", "reject, discard or move", d.Strategy, "'strategy' must be reject, discard or move.")
	}
	if d.Strategy != queueadmin.Move {
		// The answer must not name a target that nothing moved to.
		d.Target = ""
		return d, nil
	}
	if !job.ValidQueue(d.Target) {
		return d, spec.InvalidPayload("target_queue", "the name of a queue", d.Target, "'target_queue' must be the name of the queue to which jobs move.")
	}
	return d, nil
}

// See adminPurgeQueue, which differs in the form of body and answer.
func (a *API) purgeQueue(r *request) error {
	name, err := queueName(r, false)
	if err != nil {
		return err
	}
	p, shown, err := readPurge(r.body)
	if err != nil {
		return err
	}
	p.Queue, p.By = name, a.actor(r, "cancelled_by")
	deleted, more, err := a.Queues.Purge(r.Request().Context(), p)
	if err != nil {
		return err
	}
	return respond(r, http.StatusOK, func(b []byte) []byte {
		b = strconv.AppendInt(append(b, `{"deleted":`...), deleted, 10)
		b = strconv.AppendInt(append(b, `,"purged_count":`...), deleted, 10)
		b = append(append(b, `,"states":`...), shown...)
		if more {
			b = append(b, `,"has_more":true`...)
		}
		return append(b, '}')
	})
}

// confirm is needed only for states that are not final: those jobs are cancelled, with effect on their workflows. shown is
// the array as sent.
func readPurge(body []byte) (p queueadmin.Purge, shown []byte, err error) {
	object, wire := rawjson.Check(body)
	if wire != nil {
		return p, nil, wire
	}
	// Problems of a body have a JSONPath, which the helper adds.
	refuse := func(field, expected string, v jsontext.Value) error {
		var ps fields.Problems
		ps.Add(ojs.ErrInvalidPayload, field, "$."+field, expected, v)
		return ps.Err()
	}
	v := fields.Present(fields.Find(object, "states"))
	const expected = "an array of job states but active, at least one"
	if v == nil || v[0] != '[' {
		return p, nil, refuse("states", expected, v)
	}
	names, ok := fields.Texts(v)
	// A state that is listed twice is no mistake.
	names = fields.Distinct(names)
	if !ok || len(names) == 0 {
		return p, nil, refuse("states", expected, v)
	}
	confirm := fields.Present(fields.Find(object, "confirm"))
	confirmed, isBool := rawjson.Bool(confirm)
	if confirm != nil && !isBool {
		return p, nil, refuse("confirm", "a boolean", confirm)
	}
	for _, name := range names {
		state := ojs.JobState(name)
		if !state.Valid() || state == ojs.StateActive {
			return p, nil, refuse("states", expected, v)
		}
		// The refusal comes before anything is read, so a call without confirm changes nothing, also for the final states
		// among them.
		if !state.Terminal() && !confirmed {
			return p, nil, refuse("confirm", "true to cancel and remove jobs that have not ended", confirm)
		}
		p.States = append(p.States, state)
	}
	return p, rawjson.Compact(v), nil
}
