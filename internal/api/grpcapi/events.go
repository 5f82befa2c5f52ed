package grpcapi

import (
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ojsd/ojsd/internal/api"
	eventsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/events/v1"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/spec"
)

// typeKeepAlive is no type of the catalogue, and has no id to resume from.
const typeKeepAlive = "stream.keepalive"

// StreamEvents streams events (docs/reference/grpc.md, StreamEvents).
func (a *API) StreamEvents(in *ojsv1.StreamEventsRequest, stream grpc.ServerStreamingServer[ojsv1.Event]) error {
	return a.streamEvents(in, stream, formOJS)
}

// eventsAPI is the service whose numbers are those of the events specification.
type eventsAPI struct {
	eventsv1.UnimplementedOJSEventsServer
	api *API
}

// StreamEvents is that of ojs.v1 in other messages.
func (e *eventsAPI) StreamEvents(in *eventsv1.StreamEventsRequest, stream grpc.ServerStreamingServer[eventsv1.Event]) error {
	// The message of that specification has no job_id and workflow_id.
	same := &ojsv1.StreamEventsRequest{
		EventTypes: in.GetEventTypes(), Queues: in.GetQueues(), JobTypes: in.GetJobTypes(), Sources: in.GetSources(), After: in.GetAfter(),
	}
	return e.api.streamEvents(same, stream, formSpec)
}

// form is how a service shows events.
// number must be unique among the forms that eventlog.Item keeps, from eventlog.GRPCForms on.
type form struct {
	number int // of what streams share
	encode func(*ojsv1.Event) proto.Message
}

var (
	formOJS  = form{eventlog.GRPCForms, func(e *ojsv1.Event) proto.Message { return e }}
	formSpec = form{eventlog.GRPCForms + 1, func(e *ojsv1.Event) proto.Message {
		return &eventsv1.Event{
			Specversion: e.GetSpecversion(), Id: e.GetId(), Type: e.GetType(), Source: e.GetSource(), Time: e.GetTimestamp(),
			Subject: e.GetSubject(), Datacontenttype: "application/json", Data: e.GetData(),
		}
	}}
)

// streamEvents refuses filters before the stream counts against the limits.
func (a *API) streamEvents(in *ojsv1.StreamEventsRequest, stream grpc.ServerStream, as form) error {
	query, err := eventQuery(in)
	if err != nil {
		return err
	}
	query.Tenant = tenantOf(stream.Context())
	out, err := a.open(stream)
	if err != nil {
		return err
	}
	s := &eventStream{sender: out, stream: stream, form: as, query: query, pace: a.Streams.NewPace()}
	return s.run(s.follow)
}

// eventQuery reads the filters, and where to start.
// It leaves Tenant to its caller.
func eventQuery(in *ojsv1.StreamEventsRequest) (eventlog.Query, error) {
	q := eventlog.Query{Types: in.GetEventTypes(), Queues: in.GetQueues(), JobTypes: in.GetJobTypes(), Sources: in.GetSources()}
	for _, filter := range []struct {
		name   string
		values []string
	}{{"event_types", q.Types}, {"queues", q.Queues}, {"job_types", q.JobTypes}, {"sources", q.Sources}} {
		if err := api.CheckFilterSize(filter.name, filter.values); err != nil {
			return q, err
		}
		if err := api.CheckStorable(filter.name, filter.values...); err != nil {
			return q, err
		}
	}
	// Made only to check the patterns before a stream is counted.
	if _, err := eventlog.NewMatcher(q); err != nil {
		var bad *eventlog.PatternError
		if errors.As(err, &bad) && bad.Parameter == "types" {
			bad.Parameter = "event_types" // as the message calls them
		}
		return q, eventlog.WireError(err)
	}
	var err error
	if q.JobID, err = api.ParseFilterID("job_id", in.GetJobId()); err != nil {
		return q, err
	}
	if q.WorkflowID, err = api.ParseFilterID("workflow_id", in.GetWorkflowId()); err != nil {
		return q, err
	}
	q.After, err = api.ParseAfter(in.GetAfter())
	return q, err
}

// eventStream is one stream of events.
// written is when the last message was sent; the keep-alive counts from it. Only the goroutine of follow uses it.
type eventStream struct {
	*sender
	stream  grpc.ServerStream
	form    form
	query   eventlog.Query
	pace    *api.Pace
	written time.Time
}

// follow keeps an order: the subscription begins before the headers are sent, so what happens after the client has seen them is
// in the stream.
func (s *eventStream) follow() error {
	// A position that retention has overtaken is refused before anything is sent, as by polling; without this look the client would get
	// system.gap.
	if s.query.After != nil {
		if _, err := s.api.Events.ListAfter(s.ctx, eventlog.Query{After: s.query.After, Internal: true, Limit: 1}); err != nil {
			return api.EventError(err)
		}
	}
	// Without After it is live from here on.
	sub, err := s.api.Feed.Subscribe(s.ctx, s.query, s.query.After)
	if err != nil {
		return api.EventError(err)
	}
	defer sub.Close()
	sub.CountIn(s.flow)
	// The headers tell the client that the stream is live; without them it would wait for the first event.
	if err := s.stream.SendHeader(nil); err != nil {
		return err
	}
	s.written = time.Now()
	idle := time.NewTimer(s.api.config.GRPC.KeepAlive)
	defer idle.Stop()
	for {
		if err := s.trim(sub); err != nil {
			return err
		}
		idle.Reset(time.Until(s.written.Add(s.api.config.GRPC.KeepAlive)))
		items, gap, err := sub.Next(s.ctx, idle.C, s.api.Streams.Batch())
		switch {
		case s.ctx.Err() != nil:
			return s.ctx.Err()
		// A read that fails rests and goes on; the stream stays open while the database is away.
		case err != nil:
			err = s.failed("read events", err)
		case gap != nil:
			err = s.system("system.gap", gap.End, map[string]*structpb.Value{
				"gap_start": structpb.NewStringValue(gap.Start.String()), "gap_end": structpb.NewStringValue(gap.End.String()),
				// Numbers of the log, of which internal rows have some.
				"estimated_missed_count": structpb.NewNumberValue(float64(max(0, gap.End.Seq-gap.Start.Seq))),
			})
		default:
			err = s.show(items)
		}
		if err != nil {
			return err
		}
		if time.Since(s.written) >= s.api.config.GRPC.KeepAlive {
			// Its time is that of this node's clock: it is no event.
			if err := s.write(s.form.encode(&ojsv1.Event{Type: typeKeepAlive, Timestamp: timestamppb.Now()})); err != nil {
				return err
			}
		}
	}
}

func (s *eventStream) write(message any) error {
	if err := s.send(func() error { return s.stream.SendMsg(message) }); err != nil {
		return err
	}
	s.written = time.Now()
	return nil
}

// show sends an encoding that is shared by all streams of the same form. Each event is a message.
func (s *eventStream) show(items []*eventlog.Item) error {
	for _, item := range items {
		message := item.Shown(s.form.number, func(e *eventlog.Event) []byte {
			// An item is encoded once, whatever the number of streams.
			text, _ := proto.Marshal(s.form.encode(eventOf(e))) // what comes out of valid JSON is valid UTF-8
			return text
		})
		if err := s.write(encoded(message)); err != nil {
			return err
		}
	}
	api.Pause(s.ctx, s.pace.Spend(len(items)))
	return nil
}

// trim lets a slow client lose its oldest events, if that is how the server is set up.
// A failed read rests, and is no error unless the stream has to end.
func (s *eventStream) trim(sub *eventlog.Subscription) error {
	realtime := s.api.config.Realtime
	if !realtime.DropOldest() {
		return nil
	}
	d, err := sub.Trim(s.ctx, realtime.BufferSize)
	if err != nil {
		return s.failed("read events", err)
	}
	if d == nil {
		return nil
	}
	// The client resumes behind the newest that was dropped.
	return s.system("system.events_dropped", d.Newest, map[string]*structpb.Value{
		"dropped_count": structpb.NewNumberValue(float64(d.Count)), "oldest_dropped_id": structpb.NewStringValue(d.Oldest.String()),
		"newest_dropped_id": structpb.NewStringValue(d.Newest.String()),
	})
}

// system says what became of events that are not sent (docs/reference/events.md, System frames). Its id is one to resume from.
func (s *eventStream) system(kind string, id eventlog.Position, data map[string]*structpb.Value) error {
	data["channel"] = structpb.NewStringValue("events")
	return s.write(s.form.encode(&ojsv1.Event{
		Id: id.String(), Type: kind, Timestamp: timestamppb.Now(), Specversion: api.SpecVersion, Data: &structpb.Struct{Fields: data},
	}))
}

// eventOf is the plain envelope (docs/reference/events.md, Envelope).
// job_id is set for job events only, as the specification has it, although other rows may know a job.
func eventOf(e *eventlog.Event) *ojsv1.Event {
	out := &ojsv1.Event{
		Id: e.ID(), Type: e.Type, JobType: e.JobType, Queue: e.Queue, Timestamp: timestamppb.New(e.Time), Data: structOf([]byte(e.Data)),
		Source: e.Source(), Subject: e.Subject(), Specversion: api.SpecVersion,
	}
	if e.JobID != nil && strings.HasPrefix(e.Type, "job.") {
		out.JobId = spec.FormatID(*e.JobID)
	}
	if e.WorkflowID != nil {
		out.WorkflowId = spec.FormatID(*e.WorkflowID)
	}
	return out
}
