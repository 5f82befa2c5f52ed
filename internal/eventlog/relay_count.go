package eventlog

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
)

// Counts is what a pass of the relay has published, for metrics.
type Counts struct {
	// Types is the number of events per public type.
	Types map[string]int64

	// Unclaimed are job events that were written from SQL: no node has counted them after its commit.
	Unclaimed []Unclaimed
}

// Unclaimed is a number of events of one kind.
type Unclaimed struct {
	Type, JobType, Queue string
	N                    int64
}

// OnCounted has f called after each pass that published something. It must not block. Call it before Start.
func (r *Relay) OnCounted(f func(Counts)) { r.counted = f }

func (r *Relay) count(ctx context.Context, a announced) {
	if r.counted == nil {
		return
	}
	c, err := a.counts()
	if err != nil { // our own statement wrote it
		r.Logger.ErrorContext(ctx, r.Name+": events are not counted", slog.String("error", err.Error()))
	}
	r.counted(c)
}

// announced is what RelayPublish says of the rows it has published.
type announced struct {
	types     string // [["type",n],…]
	unclaimed string // [["type","job_type","queue",n],…]
}

func (a announced) counts() (c Counts, err error) {
	c.Types = map[string]int64{}
	err = eachTuple(a.types, func(fields []json.RawMessage) error {
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
	err = eachTuple(a.unclaimed, func(fields []json.RawMessage) error {
		var u Unclaimed
		if err := scanTuple(fields, &u.Type, &u.JobType, &u.Queue, &u.N); err != nil {
			return err
		}
		c.Unclaimed = append(c.Unclaimed, u)
		return nil
	})
	return c, err
}

func eachTuple(text string, read func(fields []json.RawMessage) error) error {
	if text == "" || text == "[]" { // nearly always, of what was written from SQL
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
