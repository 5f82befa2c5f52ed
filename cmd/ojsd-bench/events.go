package main

import (
	"context"
	"errors"
	"fmt"
)

// pollEvents is a watch that polls GET /ojs/v1/events. The cursor is taken before the first enqueue of the load, so every event
// of it is behind the cursor.
func pollEvents(ctx context.Context, l *load, onEvent func(jobID)) (<-chan error, error) {
	c := newClient(l.target, "poller", l.bodies)
	cursor, err := c.newestEvent()
	if err != nil {
		c.close()
		return nil, err
	}
	stopped := make(chan error, 1)
	go func() {
		defer c.close()
		for ctx.Err() == nil {
			var more bool
			if cursor, more, err = c.events(cursor, onEvent); err != nil {
				break
			}
			if !more {
				sleep(ctx, l.cfg.PollInterval)
			}
		}
		stopped <- err
	}()
	return stopped, nil
}

// newestEvent is the id of the newest event, "" if there is none. With page and per_page the newest comes first.
func (c *client) newestEvent() (string, error) {
	c.calls[opEvents].SetRequestURI(c.target.base + "/ojs/v1/events?page=1&per_page=1")
	body, err := c.do(opEvents)
	if err != nil {
		return "", err
	}
	list, err := member(body, "events")
	if err != nil {
		return "", fmt.Errorf("list events: %w", err)
	}
	newest := ""
	err = elements(list, func(event []byte) error {
		id, err := stringMember(event, "id")
		newest = string(id)
		return err
	})
	return newest, err
}

// events reads the events after cursor and returns the next cursor, and whether more events are there already.
// An empty page moves the cursor too, so that the same events are not looked at again.
func (c *client) events(cursor string, onEvent func(jobID)) (string, bool, error) {
	uri := c.target.base + "/ojs/v1/events?types=job.enqueued&limit=1000&queues=" + c.bodies.queue
	if cursor != "" {
		uri += "&after=" + cursor
	}
	c.calls[opEvents].SetRequestURI(uri)
	body, err := c.do(opEvents)
	if err != nil {
		return cursor, false, err
	}
	next, more, err := readEvents(body, onEvent)
	if err != nil {
		return cursor, false, fmt.Errorf("list events: %w", err)
	}
	if next != "" {
		cursor = next
	}
	return cursor, more, nil
}

func readEvents(body []byte, onEvent func(jobID)) (cursor string, more bool, err error) {
	list, err := member(body, "events")
	if err == nil {
		err = elements(list, func(event []byte) error {
			id, err := idMember(event, "subject")
			if err == nil {
				onEvent(id)
			}
			return err
		})
	}
	next, errCursor := stringMember(body, "cursor")
	hasMore, errMore := member(body, "has_more")
	return string(next), string(hasMore) == "true", errors.Join(err, errCursor, errMore)
}

// listenEvents is a watch that uses LISTEN ojs_events on a connection of its own.
func listenEvents(ctx context.Context, l *load, onEvent func(jobID)) (<-chan error, error) {
	notifications, err := l.db.listen(ctx)
	if err != nil {
		return nil, err
	}
	stopped := make(chan error, 1)
	go func() {
		stopped <- notifications.each(ctx, func(payload string) error {
			return readNotification([]byte(payload), l.bodies.queue, onEvent)
		})
	}()
	return stopped, nil
}

// It gets the events of all queues and passes over the others.
func readNotification(event []byte, queue string, onEvent func(jobID)) error {
	kind, err := stringMember(event, "type")
	if err != nil || string(kind) != "job.enqueued" {
		return err
	}
	from, err := stringMember(event, "queue")
	if err != nil || string(from) != queue {
		return err
	}
	id, err := idMember(event, "subject")
	if err != nil {
		return err
	}
	onEvent(id)
	return nil
}
