package httpapi

import (
	"context"
	"encoding/json"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
)

// statsView is the latest overview, which all stats streams of a node share.
// The zero value is ready to use.
type statsView struct {
	// latest is replaced whole; a shot never changes. nil until the first read.
	latest atomic.Pointer[statsShot]
	mu     sync.Mutex // held by the one that reads
}

// at is by the clock of the process.
type statsShot struct {
	at   time.Time
	data []byte
}

// get reads the overview at most once per interval, whoever asks. While one reads, the others take the one before.
// An error is returned to the one that read; the others still have the old shot. The first callers wait for the first read.
func (v *statsView) get(ctx context.Context, jobs *queue.Store, interval time.Duration) ([]byte, error) {
	shot := v.latest.Load()
	if shot != nil && (time.Since(shot.at) < interval || !v.mu.TryLock()) {
		return shot.data, nil
	}
	if shot == nil {
		v.mu.Lock()
	}
	defer v.mu.Unlock()
	// Another caller may have read while this one waited for the lock.
	if shot = v.latest.Load(); shot != nil && time.Since(shot.at) < interval {
		return shot.data, nil
	}
	o, err := jobs.Overview(ctx)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(newStats(o))
	if err != nil {
		return nil, err
	}
	v.latest.Store(&statsShot{time.Now(), data})
	return data, nil
}

// The names in camel case of the stream are those that its clients read.
type statsQueue struct {
	Queue string `json:"queue"`
	// Finished states are not shown.
	Available int64 `json:"available"`
	Active    int64 `json:"active"`
	Scheduled int64 `json:"scheduled"`
	Retryable int64 `json:"retryable"`
}

type statsWorker struct {
	ID              string `json:"id"`
	State           string `json:"state"`
	ActiveJobs      int32  `json:"activeJobs"`
	LastHeartbeatAt string `json:"lastHeartbeatAt"`
}

type statsThroughput struct {
	Processed float64 `json:"processed_per_second"`
	Failed    float64 `json:"failed_per_second"`
	Enqueued  float64 `json:"enqueued_per_second"`
}

// Total counts all workers; Active lists the latest to send a heartbeat, up to the bound of queue.Store.Overview.
type statsWorkers struct {
	Total int64 `json:"total"`
	// The name is misleading and fixed by clients: it lists workers of all states.
	Active []statsWorker `json:"active"`
}

// Rates are per second, of the last minute. ErrorRate is in per cent: failed attempts of all that ended, 0 if none did.
type statsBody struct {
	Queues     []statsQueue    `json:"queues"`
	Throughput statsThroughput `json:"throughput"`
	Workers    statsWorkers    `json:"workers"`
	ErrorRate  float64         `json:"error_rate"`
}

// Latest has counts of 60 s.
func newStats(o queue.Overview) statsBody {
	const seconds = 60
	body := statsBody{
		Queues:     make([]statsQueue, 0, len(o.Queues)),
		Throughput: statsThroughput{Processed: o.Latest.Completed / seconds, Failed: o.Latest.Failed / seconds, Enqueued: o.Latest.Enqueued / seconds},
		Workers:    statsWorkers{Active: make([]statsWorker, 0, len(o.Workers))},
	}
	for _, q := range o.Queues {
		body.Queues = append(body.Queues, statsQueue(q))
	}
	for _, w := range o.Workers {
		state := w.State
		// Clients of this stream know no such state.
		if state == "terminate" {
			state = "quiet"
		}
		body.Workers.Total = w.Total
		body.Workers.Active = append(body.Workers.Active, statsWorker{w.ID, state, w.ActiveJobs, spec.FormatTime(w.LastBeatAt.Time)})
	}
	if finished := o.Latest.Completed + o.Latest.Failed; finished > 0 {
		body.ErrorRate = 100 * o.Latest.Failed / finished
	}
	return body
}

// liveTypes are shown between two overviews.
// They are public types, so no internal row is read.
var liveTypes = []string{"job.enqueued", "job.completed", "job.failed", "job.cancelled", "queue.paused", "queue.resumed"}

// streamStats is GET /admin/stats/stream (docs/reference/events.md, Statistics stream).
// It is for operators and has no filters. It begins live and cannot be resumed.
func (a *API) streamStats(r *request) error {
	return a.stream(r, func(s *sse) error {
		sub, err := a.Feed.Subscribe(s.ctx, eventlog.Query{Types: liveTypes}, nil)
		if err != nil {
			return api.EventError(err)
		}
		defer sub.Close()
		sub.CountIn(s.flow)
		if goOn, err := s.open(r); err != nil || !goOn {
			return err
		}
		return s.runStats(sub)
	})
}

// The overview has its own time and is not put off by events. A gap in the events is not told: the next overview shows the
// present.
func (s *sse) runStats(sub *eventlog.Subscription) error {
	interval := s.api.streams.Config().StatsInterval
	due := time.Now()
	for {
		// Events that come all the time must not put the overview off.
		if !time.Now().Before(due) {
			if err := s.overview(interval); err != nil {
				return err
			}
			// From now and not from due: after a pause the overviews are not made up for.
			due = time.Now().Add(interval)
		}
		s.idle.Reset(min(time.Until(due), time.Until(s.written.Add(s.api.streams.Config().KeepAlive))))
		items, _, err := sub.Next(s.ctx, s.idle.C, s.api.streams.Batch())
		if s.ctx.Err() != nil {
			return s.ctx.Err()
		}
		if err != nil {
			if err := s.failed(err); err != nil {
				return err
			}
		}
		// items is empty when the time of the overview or of the keep-alive has come.
		if err := s.live(items); err != nil {
			return err
		}
		if err := s.keepAlive(); err != nil {
			return err
		}
	}
}

// The context is that of the node, because others wait for the same read; a client that leaves must not end it. A failure is
// logged and the stream goes on.
func (s *sse) overview(interval time.Duration) error {
	data, err := s.api.stats.get(s.api.streams.Life(), s.api.Jobs, interval) // for the others, too
	if err != nil {
		s.api.logger.WarnContext(s.ctx, "stats stream cannot read the overview; trying again", slog.Any("error", err))
		return s.ctx.Err()
	}
	return s.send(systemFrame("metrics", nil, data))
}

// Unlike show it applies no filter.
func (s *sse) live(items []*eventlog.Item) error {
	if len(items) == 0 {
		return nil
	}
	buf := buffers.Get().(*[]byte)
	defer release(buf)
	*buf = (*buf)[:0]
	for _, item := range items {
		*buf = append(*buf, item.Shown(formStats, liveFrame)...)
	}
	if err := s.send(*buf); err != nil {
		return err
	}
	api.Pause(s.ctx, s.pace.Spend(len(items)))
	return nil
}

// liveFrame is flat.
// type and job_type are both the type of the job; the type of the event is the name of the frame.
func liveFrame(e *eventlog.Event) []byte {
	b := frameHead(make([]byte, 0, 384), e, e.Type)
	b = append(e.Position.Append(append(b, `{"id":"`...)), '"')
	if e.JobID != nil {
		b = append(spec.AppendID(append(b, `,"job_id":"`...), *e.JobID), '"')
		b = appendText(appendText(b, "type", e.JobType), "job_type", e.JobType)
	}
	b = appendText(b, "queue", e.Queue)
	b = append(appendClock(append(b, `,"timestamp":"`...), e.Time), '"')
	if e.Attempt != nil {
		b = strconv.AppendInt(append(b, `,"attempt":`...), int64(*e.Attempt), 10)
	}
	if e.DurationMS != nil {
		b = strconv.AppendInt(append(b, `,"duration":`...), *e.DurationMS, 10)
	}
	if message := failureOf(e); message != nil {
		b = append(append(b, `,"error":`...), message...)
	}
	return endFrame(append(b, '}'))
}

// failureOf is the message of a failure as JSON; nil without one.
func failureOf(e *eventlog.Event) json.RawMessage {
	if e.Type != "job.failed" {
		return nil
	}
	var data struct {
		Error struct {
			Message json.RawMessage `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal([]byte(e.Data), &data) != nil {
		return nil
	}
	return data.Error.Message
}
