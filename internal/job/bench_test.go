package job

import "testing"

var (
	smallJob = []byte(`{"type":"mail.send","args":["user-4711@example.org",{"template":"welcome","locale":"de"}],"options":{"queue":"mail"},"meta":{"tenant_id":"t-9"}}`)
	sdkJob   = []byte(`{"type":"invoice.render","args":[{"invoice":"inv-81"}],"meta":{"tenant_id":"t-9","trace_id":"4bf92f3577b34da6a3ce929d0e0e4736"},"x_region":"eu",` +
		`"options":{"queue":"billing","priority":5,"timeout_ms":45000,"tags":["a","b"],"retry":{"max_attempts":4,"initial_interval":"PT2S","backoff_coefficient":2.0,"jitter":true}}}`)
)

func BenchmarkDecodeJob(b *testing.B) {
	for name, body := range map[string][]byte{"Small": smallJob, "SDK": sdkJob, "Minimal": []byte(`{"type":"a.b","args":[]}`)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				if _, err := DecodeJob(body, Limits{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecodeAck(b *testing.B) {
	body := []byte(`{"job_id":"019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f","worker_id":"w-7","result":{"pages":3}}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeAck(body, Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeFetch(b *testing.B) {
	body := []byte(`{"queues":["billing","default"],"count":10,"worker_id":"w-7","visibility_timeout_ms":30000}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeFetch(body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeNack(b *testing.B) {
	body := []byte(`{"job_id":"019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f","worker_id":"w-7","attempt":2,"error":{"code":"timeout","message":"upstream did not answer","retryable":true}}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeNack(body); err != nil {
			b.Fatal(err)
		}
	}
}
