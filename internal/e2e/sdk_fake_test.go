package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/ojsadmin"
	"github.com/ojsd/ojsd/ojs/ojstest"
)

// judged is what a program can tell of an answer: the status, and the code, the type and the field of a refusal.
func judged(t *testing.T, client *ojs.Client, method, path, body string) string {
	t.Helper()
	call := ojs.Call{Method: method}
	path, query, _ := strings.Cut(path, "?")
	call.Path = path
	var err error
	call.Query, err = url.ParseQuery(query)
	require.NoError(t, err)
	if body != "" {
		call.Body = json.RawMessage(body)
	}
	var answer map[string]any
	err = client.Do(t.Context(), call, &answer)
	var refused *ojs.Error
	switch {
	case err == nil:
		return "accepted"
	case !errors.As(err, &refused):
		text, _, _ := strings.Cut(err.Error(), ": the answer is no error") // of a bulk change that changes nothing
		return text
	}
	field := refused.Details["field"]
	if field == nil {
		field = ""
	}
	text := strings.TrimSpace(fmt.Sprintf("%d %s %s %v", refused.Status, refused.Code, refused.Type, field))
	if index, found := refused.Details["index"]; found {
		text += fmt.Sprintf(" [%v]", index)
	}
	return text
}

const (
	fakeJob       = "019a3c10-5a02-7b11-9c22-000000000001"
	fakeDone      = "019a3c10-5a02-7b11-9c22-000000000002"
	fakeOps       = "019a3c10-5a02-7b11-9c22-000000000003"
	fakeRun       = "019a3c10-5a02-7b11-9c22-000000000004"
	fakeCancelled = "019a3c10-5a02-7b11-9c22-000000000005"
	fakeMissing   = "019a3c10-5a02-7b11-9c22-00000000000f"
)

// sameVerdicts are requests that the server in memory must judge as the real one does. They are sent in this order to both.
var sameVerdicts = map[string][]string{
	"Jobs": {
		`POST /jobs {"id":"` + fakeJob + `","type":"a","args":[]}`,
		`POST /jobs {"id":"` + fakeJob + `","type":"a","args":[]}`,
		`POST /jobs {"id":"` + strings.ToUpper(fakeJob) + `","type":"a","args":[]}`,
		`POST /jobs {"id":"x","type":"a","args":[]}`,
		`POST /jobs {"id":7,"type":"a","args":[]}`,
		`POST /jobs {"args":[]}`,
		`POST /jobs {"type":"a"}`,
		`POST /jobs {"type":"","args":[]}`,
		`POST /jobs {"type":7,"args":[]}`,
		`POST /jobs {"type":"A","args":[]}`,
		`POST /jobs {"type":"a..b","args":[]}`,
		`POST /jobs {"type":"a-b_c.d1","args":[]}`,
		`POST /jobs {"type":"` + strings.Repeat("a", 255) + `","args":[]}`,
		`POST /jobs {"type":"` + strings.Repeat("a", 256) + `","args":[]}`,
		`POST /jobs {"type":"a","args":{}}`,
		`POST /jobs {"type":"a","args":null}`,
		`POST /jobs {"type":"a","args":` + strings.Repeat("[", 33) + strings.Repeat("]", 33) + `}`,
		`POST /jobs {"type":"a","args":` + strings.Repeat("[", 32) + strings.Repeat("]", 32) + `}`,
		`POST /jobs {"type":"a","args":[],"meta":[]}`,
		`POST /jobs {"type":"a","args":[],"options":[]}`,
		`POST /jobs {"type":"a","args":[],"options":{"queue":"Q"}}`,
		`POST /jobs {"type":"a","args":[],"options":{"queue":""}}`,
		`POST /jobs {"type":"a","args":[],"options":{"queue":7}}`,
		`POST /jobs {"type":"a","args":[],"options":{"queue":"` + strings.Repeat("q", 128) + `"}}`,
		`POST /jobs {"type":"a","args":[],"options":{"queue":"` + strings.Repeat("q", 129) + `"}}`,
		`POST /jobs {"type":"a","args":[],"queue":"Q"}`,
		`POST /jobs {"type":"a","args":[],"options":{"priority":101}}`,
		`POST /jobs {"type":"a","args":[],"options":{"priority":-101}}`,
		`POST /jobs {"type":"a","args":[],"options":{"priority":100}}`,
		`POST /jobs {"type":"a","args":[],"options":{"priority":1.5}}`,
		`POST /jobs {"type":"a","args":[],"options":{"priority":"5"}}`,
		`POST /jobs {"type":"a","args":[],"options":{"priority":"HIGH"}}`,
		`POST /jobs {"type":"a","args":[],"options":{"tags":[""]}}`,
		`POST /jobs {"type":"a","args":[],"options":{"tags":"x"}}`,
		`POST /jobs {"type":"a","args":[],"options":{"tags":["x","x"]}}`,
		`POST /jobs {"type":"a","args":[],"options":{"delay_until":"tomorrow"}}`,
		`POST /jobs {"type":"a","args":[],"options":{"delay_until":"-PT5S"}}`,
		`POST /jobs {"type":"a","args":[],"options":{"delay_until":"PT5M"}}`,
		`POST /jobs {"type":"a","args":[],"options":{"delay_until":"P1DT2H"}}`,
		`POST /jobs {"type":"a","args":[],"options":{"delay_until":"90s"}}`,
		`POST /jobs {"type":"a","args":[],"options":{"delay_until":"2026-05-04T05:02:01"}}`,
		`POST /jobs {"type":"a","args":[],"options":{"delay_until":"2099-05-04T05:02:01Z","pending":true}}`,
		`POST /jobs {"type":"a","args":[],"options":{"pending":"yes"}}`,
		`POST /jobs {"type":"a","args":[],"options":{"expires_at":"soon"}}`,
		`POST /jobs {"type":"a","args":[],"options":{"expires_at":"2099-01-01T00:00:00Z"}}`,
		`POST /jobs {"type":"a","args":[],"options":{"timeout_ms":-1}}`,
		`POST /jobs {"type":"a","args":[],"options":{"visibility_timeout_ms":604800001}}`,
		`POST /jobs {"type":"a","args":[],"options":{"visibility_timeout_ms":604800000}}`,
		`POST /jobs {"type":"a","args":[],"options":{"enqueue_ttl":-1}}`,
		`POST /jobs {"type":"a","args":[],"options":{"total_timeout":-1}}`,
		`POST /jobs {"type":"a","args":[],"options":{"total_timeout":1,"timeout_ms":2000}}`,
		`POST /jobs {"type":"a","args":[],"options":{"heartbeat_timeout":1.5}}`,
		`POST /jobs {"type":"a","args":[],"options":{"result_ttl":-2}}`,
		`POST /jobs {"type":"a","args":[],"options":{"result_ttl":-1}}`,
		`POST /jobs {"type":"a","args":[],"schema":"relative"}`,
		`POST /jobs {"type":"a","args":[],"schema":"urn:x:y"}`,
		`POST /jobs {"type":"a","args":[],"x_unknown":1,"options":{"y_unknown":2}}`,
		`POST /jobs [1]`,
	},
	"Retry": {
		`POST /jobs {"type":"a","args":[],"options":{"retry":[]}}`,
		`POST /jobs {"type":"a","args":[],"options":{"retry":{"max_attempts":-1}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"retry":{"max_attempts":0}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"retry":{"max_attempts":"3"}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"retry":{"initial_interval":"5s"}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"retry":{"initial_interval":"PT0S"}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"retry":{"initial_interval":"PT1M","max_interval":"PT1S"}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"retry":{"max_interval":"x"}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"retry":{"backoff_coefficient":0.5}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"retry":{"backoff_coefficient":1000.5}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"retry":{"backoff_coefficient":"2"}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"retry":{"backoff_strategy":"expo"}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"retry":{"backoff_strategy":"none"}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"retry":{"on_exhaustion":"drop"}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"retry":{"jitter":"no"}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"retry":{"non_retryable_errors":"x"}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"retry":{"non_retryable_errors":["x","net.*"]}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"retry":{"unknown":1}}}`,
	},
	"Unique": {
		`POST /jobs {"type":"a","args":[],"options":{"unique":[]}}`,
		`POST /jobs {"type":"a","args":[],"options":{"unique":{"keys":["arg"]}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"unique":{"keys":["args","args"]}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"unique":{"keys":"args"}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"unique":{"keys":["meta"]}}}`,
		`POST /jobs {"type":"a","args":[{"n":1}],"options":{"unique":{"keys":["args"],"args_keys":["m"]}}}`,
		`POST /jobs {"type":"a","args":[{"n":1}],"options":{"unique":{"keys":["args"],"args_keys":["1"]}}}`,
		`POST /jobs {"type":"a","args":[{"n":1}],"options":{"unique":{"keys":["args"],"args_keys":["n","0"]}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"unique":{"period":"1h"}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"unique":{"period":"PT0S"}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"unique":{"states":["waiting"]}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"unique":{"states":["active","active"]}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"unique":{"on_conflict":"skip"}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"unique":{"perod":"PT1H"}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"unique_key":"x"}}`,
	},
	"RateLimit": {
		`POST /jobs {"type":"a","args":[],"options":{"rate_limit":[]}}`,
		`POST /jobs {"type":"a","args":[],"options":{"rate_limit":{}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"rate_limit":{"key":"k"}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"rate_limit":{"key":"k","concurrency":0}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"rate_limit":{"key":"k","concurrency":-1}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"rate_limit":{"key":"k","rate":{"limit":0,"period":"PT1S"}}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"rate_limit":{"key":"k","rate":{"limit":1,"period":"PT0S"}}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"rate_limit":{"key":"k","rate":{"limit":1}}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"rate_limit":{"key":"k","concurrency":1,"on_limit":"skip"}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"rate_limit":{"key":"k","concurency":1}}}`,
		`POST /jobs {"type":"a","args":[],"options":{"rate_limit":{"key":"k","concurrency":1,"on_limit":"drop"}}}`,
	},
	"Batches": {
		`POST /jobs/batch {"jobs":[]}`,
		`POST /jobs/batch {}`,
		`POST /jobs/batch {"jobs":[{"type":"a","args":[]},{"type":"A","args":[]}]}`,
		`POST /jobs/batch {"jobs":[{"type":"a","args":[]}],"atomic":true}`,
		`POST /jobs/bulk {"jobs":[]}`,
		`POST /jobs/bulk {"jobs":[{"type":"a","args":[]}],"atomicity":"none"}`,
		`POST /jobs/bulk {"jobs":[{"type":"a","args":[]}],"atomicty":"atomic"}`,
	},
	"Sizes": {
		`POST /jobs {"type":"a","args":[],"meta":{"k":"` + strings.Repeat("x", 65_000) + `"}}`,
		`POST /jobs {"type":"a","args":[],"meta":{"k":"` + strings.Repeat("x", 65_600) + `"}}`,
		`POST /jobs {"type":"a","args":["` + strings.Repeat("x", 1<<20-100) + `"]}`,
		`POST /jobs {"type":"a","args":["` + strings.Repeat("x", 1<<20) + `"]}`,
		`POST /jobs/batch {"jobs":[{"type":"a","args":[]},{"type":"a","args":["` + strings.Repeat("x", 1<<20) + `"]}]}`,
		`POST /jobs/batch {"jobs":[` + strings.Repeat(`{"type":"a","args":[]},`, 10_000) + `{"type":"a","args":[]}]}`,
		`POST /workflows {"type":"group","jobs":[{"type":"a","args":[],"meta":{"k":"` + strings.Repeat("x", 65_600) + `"}}]}`,
	},
	"Reads": {
		`POST /jobs {"id":"` + fakeDone + `","type":"a","args":[],"options":{"queue":"done"}}`,
		`DELETE /jobs/` + fakeDone + `?reasn=x`,
		`DELETE /jobs/` + fakeDone + `?reason=x`,
		`DELETE /jobs/` + fakeDone,
		`DELETE /jobs/` + fakeMissing,
		`POST /jobs/` + fakeDone + `/activate`,
		`POST /jobs/` + fakeMissing + `/activate`,
		`GET /jobs/` + fakeMissing,
		`GET /jobs/x`,
		`GET /jobs?status=available`,
		`GET /jobs?state=avail`,
		`GET /jobs?queue=Q`,
		`GET /jobs?limit=0`,
		`GET /jobs?limit=x`,
		`GET /jobs?limit=1000`,
		`GET /jobs?offset=-1`,
		`GET /jobs?state=available,active&type=a,b&limit=5`,
		`GET /nowhere`,
		`GET /workflows?kind=x`,
		`GET /workflows?state=gone`,
		`GET /cron?x=1`,
		`GET /queues?x=1`,
		`GET /dead-letter?job_type=x`,
		`GET /events?x=1`,
		`GET /webhooks?x=1`,
		`GET /workflows/` + fakeMissing,
		`GET /cron/missing`,
		`GET /dead-letter/` + fakeMissing,
		`POST /dead-letter/retry {"filter":{"queu":"x"},"confirm":true}`,
		`POST /dead-letter/retry {"confirm":true}`,
		`POST /dead-letter/retry {}`,
		`POST /dead-letter/purge?tpye=x`,
		`GET /queues/Q/stats`,
		`GET /queues/none/stats`,
		`GET /jobs/` + fakeMissing + `/result`,
		`GET /jobs/` + fakeMissing + `/progress`,
	},
	"Workers": {
		`POST /workers/fetch {}`,
		`POST /workers/fetch {"queues":[]}`,
		`POST /workers/fetch {"queues":["Q"]}`,
		`POST /workers/fetch {"queues":"a"}`,
		`POST /workers/fetch {"queues":["w"],"cuont":1}`,
		`POST /workers/fetch {"queues":["w"],"count":"1"}`,
		`POST /workers/fetch {"queues":["w"],"count":0}`,
		`POST /workers/fetch {"queues":["w"],"visibility_timeout_ms":-1}`,
		`POST /workers/fetch {"queues":["w"],"worker_id":7}`,
		`POST /workers/ack {"job_id":"` + fakeMissing + `"}`,
		`POST /workers/ack {}`,
		`POST /workers/ack {"job_id":"` + fakeMissing + `","reslt":1}`,
		`POST /workers/nack {"job_id":"` + fakeMissing + `"}`,
		`POST /workers/nack {"job_id":"` + fakeMissing + `","error":{"code":"x"}}`,
		`POST /workers/nack {"job_id":"` + fakeMissing + `","error":"x"}`,
		`POST /workers/nack {"job_id":"` + fakeMissing + `","error":{},"requeu":true}`,
		`POST /workers/nack {"job_id":"` + fakeMissing + `","error":{},"delay_ms":-1}`,
		`POST /workers/nack {"job_id":"` + fakeMissing + `","error":{"code":"x","unknown":1}}`,
		`POST /workers/nack {"job_id":"` + fakeMissing + `","error":{"code":7}}`,
		`POST /workers/nack {"job_id":"` + fakeMissing + `","error":{"backtrace":"a\nb"}}`,
		`POST /workers/nack {"job_id":"` + fakeMissing + `","error":{"backtrace":[1]}}`,
		`POST /workers/nack {"job_id":"` + fakeMissing + `","error":{"stack_trace":"a"}}`,
		`POST /workers/nack {"job_id":"` + fakeMissing + `","error":{"details":"x"}}`,
		`POST /workers/nack {"job_id":"` + fakeMissing + `","error":{"message":{}}}`,
		`POST /workers/nack {"job_id":"` + fakeMissing + `","error":{"retryable":"no"}}`,
		`POST /workers/nack {"job_id":"` + fakeMissing + `","error":{"type":5}}`,
		`POST /workers/nack {"job_id":"` + fakeMissing + `","error":{"rate_limit_until":"soon"}}`,
		`POST /workers/ack {"job_id":"` + fakeMissing + `","attempt":"1"}`,
		`POST /workers/ack {"job_id":"` + fakeMissing + `","attempt":-1}`,
		`POST /workers/ack {"job_id":"` + fakeMissing + `","attempt":0}`,
		`POST /workers/ack {"job_id":"` + fakeMissing + `","lease_token":"?"}`,
		`POST /workers/ack {"job_id":"` + fakeMissing + `","lease_token":7}`,
		`POST /workers/ack {"job_id":"` + fakeMissing + `","worker_id":"` + strings.Repeat("x", 256) + `"}`,
		`POST /workers/ack {"job_id":"` + fakeMissing + `","result":null}`,
		`POST /workers/heartbeat {"worker_id":"w","active_jobs":3}`,
		`POST /workers/heartbeat {"worker_id":"w","active_job_ids":"x"}`,
		`POST /workers/heartbeat {"worker_id":"w","visibility_timeout_ms":-1}`,
		`POST /workers/heartbeat {"worker_id":"w","lease_tokens":[]}`,
		`POST /workers/heartbeat {"worker_id":"w","state":7}`,
		`POST /workers/heartbeat {"worker_id":"w","lease_tokens":{"a":1}}`,
		`POST /workers/ack {"job_id":7}`,
		`POST /workers/ack/batch {"acks":[{"job_id":7}]}`,
		`POST /workers/ack/batch {"acks":[{"job_id":"x"}],"fetch":{"queues":["w"],"wait_ms":5}}`,
		`POST /workers/ack/batch {"acks":[{"job_id":"x"}],"fetch":{}}`,
		`POST /jobs/` + fakeMissing + `/checkpoint {}`,
		`POST /jobs/` + fakeMissing + `/checkpoint {"state":1,"stat":2}`,
		`POST /workers/register {}`,
		`GET /events?limit=x`,
		`GET /events?types=job.completed&after=x`,
		`GET /jobs/` + fakeMissing + `/result?wait=maybe`,
		`GET /jobs/` + fakeMissing + `/result?wait=true&timeout=0`,
		`POST /workers/ack/batch {"acks":[]}`,
		`POST /workers/ack/batch {"nacks":[{"job_id":"` + fakeMissing + `"}]}`,
		`POST /workers/heartbeat {"worker_id":"w","x":1}`,
		`POST /workers/heartbeat {}`,
		`POST /workers/heartbeat {"worker_id":"w","state":"asleep"}`,
		`POST /workers/register {"worker_id":"w","x":1}`,
		`POST /workers/progress {"job_id":"` + fakeMissing + `","percentage":50}`,
		`POST /workers/progress {"job_id":"` + fakeMissing + `","percentage":150}`,
		`POST /workers/progress {"job_id":"` + fakeMissing + `","percentge":50}`,
	},
	"Crons": {
		`POST /cron {"name":"five","expression":"*/5 0-12/2 1,15 JAN-MAR MON","type":"a"}`,
		`POST /cron {"name":"six","expression":"0 30 9 L * ?","type":"a","timezone":"Europe/Berlin"}`,
		`POST /cron {"name":"hourly","expression":"@hourly","type":"a"}`,
		`POST /cron {"name":"every","expression":"@every 90s","type":"a"}`,
		`POST /cron {"name":"special","expression":"0 0 15W,LW,L-3 * FRIL,MON#2","type":"a"}`,
		`POST /cron {"name":"leap","expression":"0 0 29 2 *","type":"a"}`,
		`POST /cron {"name":"n","expression":"0 0 30 2 *","type":"a"}`,
		`POST /cron {"name":"n","expression":"* * * *","type":"a"}`,
		`POST /cron {"name":"n","expression":"* * * * * * *","type":"a"}`,
		`POST /cron {"name":"n","expression":"60 * * * *","type":"a"}`,
		`POST /cron {"name":"n","expression":"* 24 * * *","type":"a"}`,
		`POST /cron {"name":"n","expression":"* * 0 * *","type":"a"}`,
		`POST /cron {"name":"n","expression":"* * * 13 *","type":"a"}`,
		`POST /cron {"name":"n","expression":"* * * * 8","type":"a"}`,
		`POST /cron {"name":"n","expression":"5-1 * * * *","type":"a"}`,
		`POST /cron {"name":"n","expression":"*/0 * * * *","type":"a"}`,
		`POST /cron {"name":"n","expression":"* * * * L","type":"a"}`,
		`POST /cron {"name":"n","expression":"? * * * *","type":"a"}`,
		`POST /cron {"name":"n","expression":"@reboot","type":"a"}`,
		`POST /cron {"name":"n","expression":"@every soon","type":"a"}`,
		`POST /cron {"name":"n","expression":"TZ=UTC * * * * *","type":"a"}`,
		`POST /cron {"name":"n","expression":"","type":"a"}`,
		`POST /cron {"name":"n","type":"a"}`,
		`POST /cron {"name":"n","expression":7,"type":"a"}`,
		`POST /cron {"name":"n","expression":"@daily","type":"a","timezone":"EST"}`,
		`POST /cron {"name":"n","expression":"@daily","type":"a","timezone":"Europe/Nowhere"}`,
		`POST /cron {"name":"n","expression":"@daily","type":"a","timezone":"UTC"}`,
		`POST /cron {"name":"N","expression":"@daily","type":"a"}`,
		`POST /cron {"expression":"@daily","type":"a"}`,
		`POST /cron {"name":"n","expression":"@daily"}`,
		`POST /cron {"name":"n","expression":"@daily","type":"A"}`,
		`POST /cron {"name":"n","expression":"@daily","type":"a","args":{}}`,
		`POST /cron {"name":"n","expression":"@daily","type":"a","options":{"priority":1000}}`,
		`POST /cron {"name":"n","expression":"@daily","type":"a","options":{"retry":{"on_exhaustion":"x"}}}`,
		`POST /cron {"name":"n","expression":"@daily","type":"a","overlap_policy":"never"}`,
		`POST /cron {"name":"n","expression":"@daily","type":"a","enable":true}`,
		`POST /cron {"name":"n","expression":"@daily","type":"a","enabled":"yes"}`,
		`POST /cron/missing/pause`,
		`POST /cron/five/pause`,
		`POST /cron/five/trigger`,
		`PATCH /cron/five {"enabled":true}`,
		`PATCH /cron/five {"expression":"* * *"}`,
		`DELETE /cron/missing`,
	},
	"Workflows": {
		`POST /workflows {"type":"chain","steps":[{"type":"a","args":[]},{"type":"b","args":[]}]}`,
		`POST /workflows {"type":"chain"}`,
		`POST /workflows {"type":"chain","steps":[]}`,
		`POST /workflows {"type":"ring","steps":[{"type":"a","args":[]}]}`,
		`POST /workflows {"type":"saga","steps":[{"type":"a","args":[]}]}`,
		`POST /workflows {"type":"group","jobs":[{"type":"A","args":[]}]}`,
		`POST /workflows {"type":"group","jobs":[{"type":"a"}]}`,
		`POST /workflows {"type":"group","jobs":[7]}`,
		`POST /workflows {"type":"group","jobs":[{"id":"x","type":"a","args":[]},{"id":"x","type":"a","args":[]}]}`,
		`POST /workflows {"type":"group","jobs":[{"id":"` + strings.Repeat("x", 129) + `","type":"a","args":[]}]}`,
		`POST /workflows {"type":"group","jobs":[{"type":"a","args":[],"options":{"queue":"Q"}}]}`,
		`POST /workflows {"type":"batch","jobs":[{"type":"a","args":[]}]}`,
		`POST /workflows {"type":"batch","jobs":[{"type":"a","args":[]}],"callbacks":{"on_end":{"type":"a","args":[]}}}`,
		`POST /workflows {"type":"batch","jobs":[{"type":"a","args":[]}],"callbacks":{"on_success":{"type":"A","args":[]}}}`,
		`POST /workflows {"type":"batch","jobs":[{"type":"a","args":[]}],"callbacks":{"on_success":{"type":"a","args":[]}}}`,
		`POST /workflows {"type":"group","jobs":[{"type":"a","args":[]}],"calbacks":{}}`,
		`POST /workflows {"type":"group","name":7,"jobs":[{"type":"a","args":[]}]}`,
		`POST /workflows {"type":"group","jobs":[{"type":"a","args":[]}],"options":{"queue":"Q"}}`,
		`POST /workflows {"steps":[{"id":"a","type":"a","args":[]},{"id":"b","type":"a","args":[],"depends_on":["a"]}]}`,
		`POST /workflows {"steps":[{"type":"a","args":[]}]}`,
		`POST /workflows {"steps":[{"id":"a","type":"a","args":[]},{"id":"a","type":"a","args":[]}]}`,
		`POST /workflows {"steps":[{"id":"a","type":"a","args":[]},{"id":"b","type":"a","args":[],"depends_on":["c"]}]}`,
		`POST /workflows {"steps":[{"id":"a","type":"a","args":[],"depends_on":["a"]}]}`,
		`POST /workflows {"steps":[{"id":"a","type":"a","args":[]},{"id":"b","type":"a","args":[],"depends_on":["a","a"]}]}`,
		`POST /workflows {"steps":[{"id":"a","type":"a","args":[],"depends_on":["b"]},{"id":"b","type":"a","args":[],"depends_on":["a"]}]}`,
		`POST /workflows {"steps":[{"id":"r","type":"a","args":[]},{"id":"a","type":"a","args":[],"depends_on":["r","c"]},{"id":"b","type":"a","args":[],"depends_on":["a"]},{"id":"c","type":"a","args":[],"depends_on":["b"]}]}`,
		`POST /workflows {"steps":[{"id":"a","type":"a","args":[]},{"id":"b","type":"a","args":[],"depends_on":"a"}]}`,
		`POST /workflows ` + nestedWorkflow(8),
		`POST /workflows ` + nestedWorkflow(40),
	},
	"Runs": {
		`POST /jobs {"id":"` + fakeRun + `","type":"a","args":[],"options":{"queue":"run"}}`,
		`POST /workers/ack {"job_id":"` + fakeRun + `"}`,
		`POST /workers/progress {"job_id":"` + fakeRun + `","percentage":5}`,
		`POST /jobs/` + fakeRun + `/checkpoint {"state":1}`,
		`POST /workers/fetch {"queues":["run"],"worker_id":"w1"}`,
		`PATCH /jobs/` + fakeRun + ` {"priority":1}`,
		`POST /workers/ack {"job_id":"` + fakeRun + `","worker_id":"w2"}`,
		`POST /workers/nack {"job_id":"` + fakeRun + `","worker_id":"w2","requeue":true}`,
		`POST /workers/ack {"job_id":"` + fakeRun + `","worker_id":"w1","attempt":9}`,
		`POST /workers/ack {"job_id":"` + fakeRun + `","worker_id":"w1","lease_token":"zzz"}`,
		`POST /workers/progress {"job_id":"` + fakeRun + `","worker_id":"w2","percentage":5}`,
		`POST /workers/progress {"job_id":"` + fakeRun + `","worker_id":"w1","percentage":150}`,
		`POST /workers/progress {"job_id":"` + fakeRun + `","worker_id":"w1","percentage":"5"}`,
		`POST /workers/progress {"job_id":"` + fakeRun + `","worker_id":"w1"}`,
		`POST /workers/progress {"job_id":"` + fakeRun + `","worker_id":"w1","percentage":50,"message":"half","data":{"n":1}}`,
		`POST /workers/progress {"job_id":"` + fakeRun + `","worker_id":"w1","percentage":50,"data":7}`,
		`POST /jobs/` + fakeRun + `/checkpoint {"state":1,"worker_id":"w2"}`,
		`POST /jobs/` + fakeRun + `/checkpoint {"state":1,"worker_id":"w1","attempt":9}`,
		`POST /jobs/` + fakeRun + `/checkpoint {"state":{"n":1},"worker_id":"w1","attempt":1}`,
		`POST /jobs/` + fakeRun + `/activate`,
		`POST /jobs/bulk/cancel {"job_ids":["` + fakeRun + `"]}`,
		`GET /jobs/` + fakeRun + `/progress`,
		`POST /workers/ack {"job_id":"` + fakeRun + `","worker_id":"w1","attempt":1,"result":{"n":1}}`,
		`POST /workers/ack {"job_id":"` + fakeRun + `","worker_id":"w1","attempt":1}`,
		`POST /workers/nack {"job_id":"` + fakeRun + `","error":{"code":"x"}}`,
		`POST /workers/progress {"job_id":"` + fakeRun + `","worker_id":"w1","percentage":50}`,
		`POST /jobs/` + fakeRun + `/checkpoint {"state":1,"worker_id":"w1"}`,
		`DELETE /jobs/` + fakeRun,
		`PATCH /jobs/` + fakeRun + ` {"priority":1}`,
		`POST /dead-letter/` + fakeRun + `/retry`,
		`GET /jobs/` + fakeRun + `/result?wait=1&timeout=1`,
		`POST /jobs {"id":"` + fakeCancelled + `","type":"a","args":[],"options":{"queue":"run"}}`,
		`POST /workers/fetch {"queues":["run"],"worker_id":"w1"}`,
		`DELETE /jobs/` + fakeCancelled,
		`POST /workers/ack {"job_id":"` + fakeCancelled + `","worker_id":"w2"}`,
		`POST /workers/progress {"job_id":"` + fakeCancelled + `","worker_id":"w1","percentage":50}`,
		`POST /workers/ack {"job_id":"` + fakeCancelled + `","worker_id":"w1"}`,
		`POST /workers/nack {"job_id":"` + fakeCancelled + `","worker_id":"w1","error":{}}`,
		`POST /jobs/bulk/delete {"job_ids":["` + fakeCancelled + `"]}`,
		`GET /jobs/` + fakeCancelled,
	},
	"Operators": {
		`POST /jobs {"id":"` + fakeOps + `","type":"a","args":[],"options":{"queue":"ops","rate_limit":{"key":"k"}}}`,
		`PATCH /jobs/` + fakeOps + ` {"priority":101}`,
		`PATCH /jobs/` + fakeOps + ` {"prio":1}`,
		`PATCH /jobs/` + fakeOps + ` {}`,
		`PATCH /jobs/` + fakeOps + ` {"priority":1}`,
		`GET /jobs/` + fakeOps + `?limit=1`,
		`GET /jobs/` + fakeOps + `/explain?limit=1`,
		`GET /jobs/` + fakeMissing + `/explain`,
		`GET /queues/ops/stats?limit=1`,
		`GET /queues/ops?x=1`,
		`POST /queues/Q/pause`,
		`POST /queues/ops/pause?x=1`,
		`POST /queues/ops/purge {}`,
		`POST /queues/ops/purge {"states":["active"],"confirm":true}`,
		`POST /queues/ops/purge {"states":["available"]}`,
		`POST /queues/ops/purge {"states":["waiting"],"confirm":true}`,
		`POST /queues/ops/purge {"states":["completed"],"confirm":true,"olderthan":"1d"}`,
		`GET /rate-limits?x=1`,
		`GET /rate-limits/k?limit=1`,
		`GET /rate-limits/unknown`,
		`PUT /rate-limits/k/override {}`,
		`PUT /rate-limits/k/override {"concurency":1}`,
		`PUT /rate-limits/k/override {"concurrency":1,"expires_at":"soon"}`,
		`PUT /rate-limits/k/override {"concurrency":1}`,
		`DELETE /rate-limits/k/override`,
		`POST /jobs/bulk/cancel {}`,
		`POST /jobs/bulk/cancel {"job_ids":[]}`,
		`POST /jobs/bulk/cancel {"job_ids":["` + fakeOps + `"],"filter":{"queue":"ops"}}`,
		`POST /jobs/bulk/cancel {"filter":{}}`,
		`POST /jobs/bulk/cancel {"filter":{"queu":"ops"}}`,
		`POST /jobs/bulk/cancel {"job_ids":["` + fakeOps + `"],"dryrun":true}`,
		`POST /jobs/bulk/cancel {"job_ids":["` + fakeOps + `"],"dry_run":true}`,
		`POST /jobs/bulk/delete {"filter":{"queue":"ops"}}`,
		`POST /jobs/bulk/delete {"filter":{"state":"gone"}}`,
		`GET /workers?x=1`,
		`GET /admin/stats?limit=1`,
		`GET /admin/stats/history?period=1w`,
		`GET /admin/stats/history?since=soon`,
		`GET /admin/stats/history?period=1h&since=2d`,
		`POST /admin/workers/w/directive {"directive":"sleep"}`,
		`POST /admin/workers/w/directive {}`,
		`POST /dead-letter/` + fakeOps + `/retry`,
		`GET /jobs/` + fakeOps + `/result?x=1`,
		`DELETE /dead-letter/` + fakeMissing,
		`DELETE /workflows/` + fakeMissing + `?force=true`,
		`DELETE /workflows/` + fakeMissing + `?forced=true`,
	},
	"Webhooks": {
		`POST /webhooks {"events":["job.completed"],"secret":"0123456789abcdef"}`,
		`POST /webhooks {"url":"ftp://example.com","events":["job.completed"],"secret":"0123456789abcdef"}`,
		`POST /webhooks {"url":"https://example.com","secret":"0123456789abcdef"}`,
		`POST /webhooks {"url":"https://example.com","events":["job.done"],"secret":"0123456789abcdef"}`,
		`POST /webhooks {"url":"https://example.com","events":["job.completed"],"secret":"0123456789abcdef","actve":true}`,
		`GET /webhooks/sub_` + fakeMissing,
		`DELETE /webhooks/sub_` + fakeMissing,
	},
}

func nestedWorkflow(depth int) string {
	return strings.Repeat(`{"type":"chain","steps":[`, depth) + `{"type":"a","args":[]}` + strings.Repeat(`]}`, depth)
}

// TestSDKFakeRefuses: a program that a test with package ojstest has accepted is not refused by the server, and the other way round.
func TestSDKFakeRefuses(t *testing.T) {
	t.Parallel()
	server := sdk(t, setup(t).url)
	for subject, requests := range sameVerdicts {
		t.Run(subject, func(t *testing.T) {
			t.Parallel()
			fake := ojstest.New().Client()
			for _, request := range requests {
				method, rest, _ := strings.Cut(request, " ")
				path, body, _ := strings.Cut(rest, " ")
				want, got := judged(t, server, method, path, body), judged(t, fake, method, path, body)
				if want != got {
					t.Errorf("%.200s\n\twant %s\n\tgot  %s", request, want, got)
				}
			}
		})
	}
}

// summary is what a program sees of a server that it uses with packages ojs and ojsadmin.
func summary(t *testing.T, client *ojs.Client) (lines []string) {
	t.Helper()
	ctx, admin := t.Context(), ojsadmin.New(client)
	say := func(name string, values ...any) { lines = append(lines, name+" "+fmt.Sprint(values...)) }
	kind := func(err error) string {
		if refused, ok := errors.AsType[*ojs.Error](err); ok {
			return refused.Type
		}
		return fmt.Sprint(err)
	}
	enqueue := func(queue string, options ...ojs.EnqueueOption) *ojs.Job {
		job, err := client.Enqueue(ctx, "a", nil, append(options, ojs.WithQueue(queue))...)
		require.NoError(t, err)
		return job
	}
	fetch := func(queue string, count int) (jobs []ojs.Job) {
		var answer struct{ Jobs []ojs.Job }
		require.NoError(t, client.Do(ctx, ojs.Call{Method: "POST", Path: "/workers/fetch", Body: map[string]any{"queues": []string{queue}, "count": count}}, &answer))
		return answer.Jobs
	}
	report := func(kind, id string, body map[string]any) {
		body["job_id"] = id
		require.NoError(t, client.Do(ctx, ojs.Call{Method: "POST", Path: "/workers/" + kind, Body: body}, nil))
	}
	explain := func(name, id string) {
		e, err := admin.Explain(ctx, id)
		require.NoError(t, err)
		say("explain "+name, e.State, " ", e.Running, " ", e.Reasons[0].Code, " ", e.Summary != "", " ", e.Estimate != nil)
	}
	for i, expression := range []string{"0 9 * * *", "30 4 15W * *", "0 0 L * *", "15 3 LW * ?", "0 0 L-3 */2 *", "0 0 * * FRIL", "0 0 * * MON#2", "0 12 13 * FRI", "@yearly",
		"0 0 29 2 *", "0 5 1-7 JAN-MAR 7", "30 15 5 10/7 * *"} {
		c, err := admin.PutCron(ctx, ojsadmin.Cron{Name: fmt.Sprintf("c%d", i), Expression: expression, Timezone: []string{"", "Asia/Tokyo"}[i%2], Job: ojs.JobRequest{Type: "a"}})
		require.NoError(t, err)
		say(expression, c.NextRunAt.UTC())
	}
	one := 1

	limited := ojs.WithRateLimit(ojs.RateLimit{Key: "k", Concurrency: &one})
	enqueue("limits", limited)
	second := enqueue("limits", limited)
	first := fetch("limits", 2)
	say("fetched", len(first))
	explain("limited", second.ID)
	explain("running", first[0].ID)
	limit, err := admin.GetRateLimit(ctx, "k")
	require.NoError(t, err)
	say("limit", *limit.Concurrency, limit.Active, limit.Waiting)
	two := 2
	limit, err = admin.OverrideRateLimit(ctx, ojs.RateLimit{Key: "k", Concurrency: &two}, time.Time{})
	require.NoError(t, err)
	say("overridden", limit.Concurrency.Limit, limit.Override["concurrency"])
	say("fetched", len(fetch("limits", 2)))
	_, err = admin.GetRateLimit(ctx, "unknown")
	say("unknown limit", kind(err))
	_, err = admin.OverrideRateLimit(ctx, ojs.RateLimit{Key: "k"}, time.Time{})
	say("empty override", kind(err))
	report("ack", first[0].ID, map[string]any{"result": 1})
	explain("ended", first[0].ID)

	for _, code := range []string{"DISCARD", "DEAD_LETTER", "boom"} {
		id := enqueue("fails", ojs.WithRetry(ojs.RetryPolicy{MaxAttempts: 2, InitialInterval: time.Hour, MaxInterval: time.Hour})).ID
		fetch("fails", 1)
		report("nack", id, map[string]any{"error": map[string]any{"code": code, "message": "m", "retryable": true}})
		explain(code, id)
		_, err := admin.GetDeadLetter(ctx, id)
		say("dead letter", kind(err))
	}
	dead, err := admin.ListDeadLetters(ctx, ojsadmin.DeadLetterFilter{Queues: []string{"fails"}, ErrorCodes: []string{"DEAD_LETTER"}})
	require.NoError(t, err)
	say("dead letters", dead.Total)
	five := 5
	again, err := admin.RetryDeadLetterWith(ctx, dead.Items[0].ID, ojsadmin.JobOverride{Queue: "again", Priority: &five, Args: "x"})
	require.NoError(t, err)
	say("retried", again.State, again.Queue, again.Priority, string(again.RawArgs), again.Attempt)
	_, err = admin.RetryDeadLetterWith(ctx, again.ID, ojsadmin.JobOverride{})
	say("retried again", kind(err))

	explain("scheduled", enqueue("times", ojs.WithDelay(time.Hour)).ID)
	explain("pending", enqueue("times", func(r *ojs.JobRequest) { r.Pending = true }).ID)
	low, high := enqueue("times", ojs.WithPriority(1)), enqueue("times", ojs.WithPriority(2))
	changed, err := admin.SetPriority(ctx, low.ID, 3)
	require.NoError(t, err)
	say("priority", changed.Priority)
	priorities, err := admin.QueuePriorities(ctx, "times")
	require.NoError(t, err)
	say("priorities", priorities)
	require.NoError(t, admin.PauseQueue(ctx, "times"))
	explain("paused", high.ID)
	say("fetched", len(fetch("times", 9)))
	require.NoError(t, admin.ResumeQueue(ctx, "times"))
	stats, err := admin.QueueStats(ctx, "times")
	require.NoError(t, err)
	say("queue", stats.Status, stats.Available, stats.Active, stats.Scheduled, stats.Retryable, stats.Discarded)
	all, err := admin.Stats(ctx, "times")
	require.NoError(t, err)
	say("stats", all.Jobs)

	history, err := admin.StatsHistory(ctx, ojsadmin.StatsFilter{Period: "1h", Since: time.Now().Add(-26 * time.Hour)})
	require.NoError(t, err)
	say("history", len(history), history[0].Enqueued)
	bulk, err := admin.CancelJobs(ctx, ojsadmin.Bulk{Filter: &ojsadmin.BulkFilter{Queue: "times", Type: "a*"}})
	require.NoError(t, err)
	say("cancelled", bulk.Matched, bulk.Succeeded, bulk.Skipped)
	bulk, err = admin.CancelJobs(ctx, ojsadmin.Bulk{IDs: []string{low.ID, fakeMissing}})
	require.NoError(t, err)
	say("cancelled", bulk.Succeeded, bulk.Items[0].Status, bulk.Items[0].Reason, bulk.Items[1].Reason)
	bulk, err = admin.DeleteJobs(ctx, ojsadmin.Bulk{IDs: []string{low.ID, again.ID}, Atomic: true})
	require.NoError(t, err)
	say("deleted", bulk.Succeeded, bulk.Items[0].Status, bulk.Items[1].Reason)
	_, err = admin.DeleteJobs(ctx, ojsadmin.Bulk{Filter: &ojsadmin.BulkFilter{Queue: "times"}})
	say("delete without states", kind(err))
	bulk, err = admin.RetryJobs(ctx, ojsadmin.Bulk{Filter: &ojsadmin.BulkFilter{Queue: "fails"}})
	require.NoError(t, err)
	say("retried", bulk.Succeeded)
	deleted, more, err := admin.PurgeQueue(ctx, "times", ojs.StateCancelled)
	require.NoError(t, err)
	say("purged", deleted, more)
	_, _, err = admin.PurgeQueue(ctx, "times", ojs.StateActive)
	say("purge of active", kind(err))
	remaining, err := admin.DrainQueue(ctx, "times")
	require.NoError(t, err)
	stats, err = admin.QueueStats(ctx, "times")
	require.NoError(t, err)
	say("draining", remaining, stats.Status)
	details, err := admin.GetQueue(ctx, "again")
	require.NoError(t, err)
	say("queue", details.Name, details.Status, details.Depth, details.Running)
	_, err = admin.GetQueue(ctx, "unknown")
	say("unknown queue", kind(err))
	say("unknown worker", kind(admin.DirectWorker(ctx, "unknown", ojs.DirectiveQuiet)))
	return lines
}

// TestSDKFakeKnows: what operators' calls tell of jobs is the same from the server in memory and from the real one.
func TestSDKFakeKnows(t *testing.T) {
	t.Parallel()
	require.Equal(t, summary(t, sdk(t, setup(t).url)), summary(t, ojstest.New().Client()))
}
