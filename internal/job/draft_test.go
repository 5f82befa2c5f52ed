package job

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ojsd/ojsd/internal/job/retry"
)

// TestDraftEqualsItsJSON: a draft is checked like the JSON that says the same, and becomes the same job.
func TestDraftEqualsItsJSON(t *testing.T) {
	t.Parallel()
	pick := func(list ...string) *rapid.Generator[string] { return rapid.SampledFrom(list) }
	names := rapid.SliceOfN(pick("a", "args", "type", "", "x\x00", "0"), 0, 3)
	number := rapid.SampledFrom([]int64{0, 0, 1, -1, 5, 100, 101, -100, 1000, 604_800_000, 604_800_001, 1 << 40, 1 << 60})
	rapid.Check(t, func(t *rapid.T) {
		d := Draft{
			Type: pick("a", "a.b", "", "A", "a b", "é").Draw(t, "type"),
			Args: []byte(pick(`[]`, `[1,{"a":"x"}]`, `["\u0000"]`, `[[[[1]]]]`).Draw(t, "args")),
		}
		if rapid.Bool().Draw(t, "options") {
			d.Options = &Options{
				Queue: pick("", "default", "q", "Q", "-").Draw(t, "queue"), Priority: number.Draw(t, "priority"), TimeoutMS: number.Draw(t, "timeout"),
				VisibilityMS: number.Draw(t, "visibility"), MaxAttempts: number.Draw(t, "max_attempts"), Tags: names.Draw(t, "tags"),
				TTL: time.Duration(number.Draw(t, "ttl")%1e6) * time.Microsecond, Pending: rapid.Bool().Draw(t, "pending"),
			}
			o := d.Options
			o.TTL = max(o.TTL, 0)
			if rapid.Bool().Draw(t, "delayed") {
				at := rapid.SampledFrom([]time.Time{{}, time.Unix(0, 1).UTC(), time.Date(2040, 1, 2, 3, 4, 5, 678_901_234, time.UTC)}).Draw(t, "delay")
				o.DelayUntil = &at
			}
			if rapid.Bool().Draw(t, "retry") {
				o.Retry = &retry.Draft{
					MaxAttempts: number.Draw(t, "attempts"), InitialIntervalMS: number.Draw(t, "initial"), MaxIntervalMS: number.Draw(t, "max"),
					BackoffCoefficient: rapid.SampledFrom([]float64{0, 1, 2.5, 0.5, 1e-9, 1e30}).Draw(t, "coefficient"), Jitter: rapid.Bool().Draw(t, "jitter"),
					NonRetryable: names.Draw(t, "errors"), OnExhaustion: pick("", "discard", "dead_letter", "x").Draw(t, "exhaustion"),
				}
			}
			if rapid.Bool().Draw(t, "unique") {
				o.Unique = &UniqueDraft{
					Key: names.Draw(t, "key"), PeriodMS: number.Draw(t, "period"), OnConflict: pick("", "reject", "x").Draw(t, "conflict"),
					States: rapid.SliceOfN(pick("active", "pending", "99"), 0, 2).Draw(t, "states"), ArgsKeys: names.Draw(t, "args_keys"), MetaKeys: names.Draw(t, "meta_keys"),
				}
			}
			if rapid.Bool().Draw(t, "meta") {
				o.Meta = []byte(pick(`{}`, `{"trace_id":"t"}`, `{"a":[[[[[1]]]]]}`, `{"b":1.0,"a":2}`).Draw(t, "object"))
			}
		}
		lim := rapid.SampledFrom([]Limits{{}, {MaxDepth: 3}, {MaxMetaBytes: 10}, {MaxEnvelopeBytes: 120}}).Draw(t, "limits")
		text := d.appendJSON(nil)
		want, wantErr := DecodeJob(text, lim)
		got, gotErr := d.Job(lim)
		require.Equal(t, wantErr, gotErr, string(text))
		require.Equal(t, want, got, string(text))
	})
}

// TestDraftOfTheLargestSize: the limit is that of the JSON that says the same, whatever makes the draft long.
func TestDraftOfTheLargestSize(t *testing.T) {
	t.Parallel()
	const long = 64 << 10 // more than what need not be counted
	texts := []string{strings.Repeat("x", long)}
	for name, change := range map[string]func(d *Draft){
		"Args":         func(d *Draft) { d.Args = []byte(`["` + texts[0] + `"]`) },
		"Meta":         func(d *Draft) { d.Options = &Options{Meta: []byte(`{"a":"` + texts[0] + `"}`)} },
		"Tags":         func(d *Draft) { d.Options = &Options{Tags: texts} },
		"NonRetryable": func(d *Draft) { d.Options = &Options{Retry: &retry.Draft{NonRetryable: texts}} },
		"UniqueArgs":   func(d *Draft) { d.Options = &Options{Unique: &UniqueDraft{ArgsKeys: texts}} },
	} {
		d := Draft{Type: "a", Args: []byte(`[]`)}
		change(&d)
		text := d.Encode()
		for most, fits := range map[int]bool{len(text) - 1: false, len(text): true} {
			lim := Limits{MaxEnvelopeBytes: most, MaxMetaBytes: 2 * long}
			_, want := DecodeJob(text, lim)
			_, got := d.Job(lim)
			require.Equal(t, want, got, name)
			require.Equal(t, fits, got == nil || got.Details["field"] != "envelope", name)
		}
	}
}

func TestTemplateEqualsItsJSON(t *testing.T) {
	t.Parallel()
	for _, options := range []string{"", `{}`, `{"queue":"q","priority":5,"x":{"y":1}}`, `{"queue":"_"}`, `{"meta":{"a":1,"b":2},"retry":{"max_attempts":2}}`, `{"expires_at":"PT5M"}`} {
		for _, kind := range []string{"a.b", "", "A"} {
			doc := `{"args":[1]`
			template := Template{Type: kind, Args: []byte(`[1]`), Meta: []byte(`{"a":0}`)}
			if kind != "" {
				doc += `,"type":"` + kind + `"`
			}
			if options != "" {
				template.Options = []byte(options)
				doc += `,"options":` + options
			}
			want, wantErr := DecodeJob([]byte(doc+`,"meta":{"a":0}}`), Limits{})
			got, gotErr := template.Job(Limits{})
			require.Equal(t, wantErr, gotErr, doc)
			require.Equal(t, want, got, doc)
		}
	}
}

func TestCallsEqualTheirJSON(t *testing.T) {
	t.Parallel()
	long := string(make([]byte, 300))
	for body, got := range map[string]func() (Fetch, error){
		`{}`: func() (Fetch, error) { return asErr(NewFetch(nil, 0, "")) },
		`{"queues":["a","b","a"],"count":2000,"worker_id":"w"}`: func() (Fetch, error) { return asErr(NewFetch([]string{"a", "b", "a"}, 2000, "w")) },
		`{"queues":["a","A"],"count":-1,"worker_id":"a\u0000"}`: func() (Fetch, error) { return asErr(NewFetch([]string{"a", "A"}, -1, "a\x00")) },
	} {
		want, wantErr := asErr(DecodeFetch([]byte(body)))
		f, err := got()
		require.Equal(t, wantErr, err, body)
		if err == nil {
			require.Equal(t, want, f, body)
		}
	}
	for body, got := range map[string]func() (Ack, error){
		`{}`:                                    func() (Ack, error) { return asErr(NewAck("", nil, Limits{})) },
		`{"job_id":"x","result":{"a":[1]}}`:     func() (Ack, error) { return asErr(NewAck("x", []byte(`{"a":[1]}`), Limits{})) },
		`{"job_id":"` + anID + `","result":{}}`: func() (Ack, error) { return asErr(NewAck(anID, []byte(`{}`), Limits{})) },
	} {
		want, wantErr := asErr(DecodeAck([]byte(body), Limits{}))
		a, err := got()
		require.Equal(t, wantErr, err, body)
		require.Equal(t, want, a, body)
	}
	for body, got := range map[string]func() (Nack, error){
		`{}`: func() (Nack, error) { return asErr(NewNack("", nil, Limits{})) },
		`{"job_id":"` + anID + `","error":{"code":"c\u0000","message":"m","retryable":false,"backtrace":"a\r\nb","details":{"error_class":"E"}}}`: func() (Nack, error) {
			return asErr(NewNack(anID, &ErrorDraft{Code: "c\x00", Message: "m", Backtrace: "a\r\nb", Details: []byte(`{"error_class":"E"}`)}, Limits{}))
		},
		`{"job_id":"` + anID + `","error":{"message":"` + "x" + `","retryable":true}}`: func() (Nack, error) {
			return asErr(NewNack(anID, &ErrorDraft{Message: "x", Retryable: true}, Limits{}))
		},
	} {
		want, wantErr := asErr(DecodeNack([]byte(body), Limits{}))
		n, err := got()
		require.Equal(t, wantErr, err, body)
		require.Equal(t, want, n, body)
	}
	_, err := NewFetch([]string{"a"}, 1, long)
	require.Equal(t, "worker_id", err.Details["field"])
}

// asErr keeps a nil *ojs.Error from becoming a non-nil error.
func asErr[T any, E interface {
	comparable
	error
}](v T, err E) (T, error) {
	var none E
	if err == none {
		return v, nil
	}
	return v, err
}
