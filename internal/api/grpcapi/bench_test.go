package grpcapi

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/job"
)

// BenchmarkConvert measures the way of a message to the jobs that it asks for.
func BenchmarkConvert(b *testing.B) {
	for name, text := range map[string]string{
		"plain":   `{"type":"mail.send","args":[{"to":"ada@example.com","n":17}]}`,
		"typical": `{"type":"invoice.render","args":[{"invoice":"inv-81","customer":{"id":4711,"name":"Ada Lovelace"},"lines":[1,2.5,3]}],"options":{"queue":"billing","priority":5,"timeout":"45s","max_attempts":5,"tags":["a","b"],"meta":{"trace_id":"4bf92f3577b34da6a3ce929d0e0e4736","source":"web"}}}`,
		"full":    `{"type":"invoice.render","args":[{"invoice":"inv-81"}],"options":{"queue":"billing","delay_until":"2040-01-02T03:04:05Z","timeout":"45s","visibility_timeout":"60s","retry":{"max_attempts":7,"initial_interval":"1s","max_interval":"60s","backoff_coefficient":2,"jitter":true,"non_retryable_errors":["a.*"],"on_exhaustion":"discard"},"unique":{"key":["type","queue"],"period":"60s","on_conflict":"UNIQUE_CONFLICT_ACTION_IGNORE"},"ttl":"3600s","tags":["a","b"],"trace_id":"t","meta":{"source":"web"}}}`,
	} {
		in := &ojsv1.EnqueueRequest{}
		require.NoError(b, protojson.Unmarshal([]byte(text), in))
		a := &API{config: config.Default()}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				text, err := object(func(w *jsonWriter) { w.job(in.GetType(), in.GetArgs(), in.GetOptions()) })
				if err != nil {
					b.Fatal(err)
				}
				if _, wire := job.DecodeItem(text, a.JobLimits); wire != nil {
					b.Fatal(wire)
				}
			}
		})
		if name != "typical" {
			continue
		}
		batch := &ojsv1.EnqueueBatchRequest{}
		for range 100 {
			batch.Jobs = append(batch.Jobs, &ojsv1.BatchJobEntry{Type: in.GetType(), Args: in.GetArgs(), Options: in.GetOptions()})
		}
		b.Run("batch of 100", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := a.decodeBatch(context.Background(), batch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
