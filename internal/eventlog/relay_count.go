package eventlog

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
)

// Counts are the events that a pass of the relay has published, for metrics. Each event is published by one relay of the
// deployment, so the sum over all nodes counts each once, not always on the node that wrote it. A node that stops between the
// commit of a pass and the report loses the counts of that pass.
type Counts struct {
	// Types is the number of events per public type.
	Types map[string]int64

	// FromSQL are job events that an application wrote in SQL. No node has counted them after its commit.
	// A node counts the job events of its own commits with more detail (metrics.Changes); these would be missing there.
	FromSQL []SQLCount
}

// SQLCount is a number of events of one type, job type and queue.
type SQLCount struct {
	Type, JobType, Queue string
	N                    int64
}

// OnCounts sets the function that gets the counts of each pass that published something. It must not block. Call OnCounts
// before Start.
func (r *Relay) OnCounts(f func(Counts)) { r.onCounts = f }

// It reports what it could read before the error.
func (r *Relay) reportCounts(ctx context.Context, counts passCounts) {
	if r.onCounts == nil {
		return
	}
	c, err := counts.parse()
	if err != nil { // RelayPublish and parse differ
		r.Logger.ErrorContext(ctx, r.Name+": cannot read the counts of RelayPublish; metrics miss these events", slog.Any("error", err))
	}
	r.onCounts(c)
}

// passCounts are the counts in the form that RelayPublish returns. They stay text until the pass has committed, and are parsed
// only if somebody counts.
type passCounts struct {
	types   string // [["type",n],…]
	fromSQL string // [["type","job_type","queue",n],…]
}

func (p passCounts) parse() (c Counts, err error) {
	c.Types = map[string]int64{}
	err = eachTuple(p.types, func(fields []json.RawMessage) error {
		var name string
		var n int64
		if err := scanTuple(fields, &name, &n); err != nil {
			return err
		}
		c.Types[name] += n
		return nil
	})
	if err != nil {
		return c, err
	}
	err = eachTuple(p.fromSQL, func(fields []json.RawMessage) error {
		var n SQLCount
		if err := scanTuple(fields, &n.Type, &n.JobType, &n.Queue, &n.N); err != nil {
			return err
		}
		c.FromSQL = append(c.FromSQL, n)
		return nil
	})
	return c, err
}

func eachTuple(text string, read func(fields []json.RawMessage) error) error {
	if text == "" || text == "[]" { // the usual value of fromSQL
		return nil
	}
	var tuples [][]json.RawMessage
	if err := json.Unmarshal([]byte(text), &tuples); err != nil {
		return fmt.Errorf("read counts: %w", err)
	}
	for _, fields := range tuples {
		if err := read(fields); err != nil {
			return fmt.Errorf("read counts: %w", err)
		}
	}
	return nil
}

func scanTuple(fields []json.RawMessage, into ...any) error {
	if len(fields) != len(into) {
		return fmt.Errorf("%d fields instead of %d", len(fields), len(into))
	}
	for i, f := range fields {
		if err := json.Unmarshal(f, into[i]); err != nil {
			return err
		}
	}
	return nil
}
