package httpapi

import (
	"errors"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// The standard configuration is never unknown: until it is set it is empty.
func (a *API) getQueueConfig(r *request) error {
	name, err := queueName(r, true)
	if err != nil {
		return err
	}
	q, err := a.Queues.Get(r.Request().Context(), name)
	if err != nil {
		// Any other error, such as an outage, must not look like an empty configuration.
		wire, isWire := errors.AsType[*ojs.Error](err)
		if name != queueconfig.Default || !isWire || ojs.ErrorKind(wire.Type) != ojs.ErrNotFound {
			return err
		}
		q = &queueadmin.Detail{Name: name, Status: queueconfig.Active}
	}
	return a.respondConfig(r, q)
}

// putQueueConfig merges and is idempotent. Nothing is stored if any field is refused. Other nodes follow within a second.
func (a *API) putQueueConfig(r *request) error {
	name, err := queueName(r, true)
	if err != nil {
		return err
	}
	change, err := configChange(r.body)
	if err != nil {
		return err
	}
	q, err := a.Queues.Configure(r.Request().Context(), name, change)
	if err != nil {
		return err
	}
	return a.respondConfig(r, q)
}

// configChange reads the body of a call that changes a configuration.
func configChange(body []byte) (queueconfig.Change, error) {
	object, wire := rawjson.Check(body)
	if wire != nil {
		return queueconfig.Change{}, wire
	}
	change, wire := queueconfig.ParseChange(object, "$")
	if wire != nil {
		return queueconfig.Change{}, wire
	}
	return change, nil
}

// config and configuration are equal; clients read different names. The retention that is shown is the one that holds.
func (a *API) respondConfig(c echo.Context, q *queueadmin.Detail) error {
	// It adds the retention that holds, and the aliases.
	config, err := a.Queues.Config(c.Request().Context(), q.Config)
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, func(b []byte) []byte {
		b = appendQueueHead(append(b, '{'), q)
		b = append(append(b, `,"config":`...), config...)
		b = append(append(b, `,"configuration":`...), config...)
		if !q.UpdatedAt.IsZero() {
			b = appendMoment(b, "updated_at", &q.UpdatedAt)
		}
		return append(b, '}')
	})
}
