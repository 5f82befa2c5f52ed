package golden_test

import "regexp"

var requestID = regexp.MustCompile(`"request_id":"(req_[^"]+)"`)

// ojs declares an RPC of the service with all operations.
func ojs(method, good string, ids ...string) rpc {
	return rpc{method: "ojs.v1.OJSService/" + method, good: good, ids: ids}
}

func (r rpc) reading(messages int) rpc       { r.messages = messages; return r }
func (r rpc) seeded(names ...string) rpc     { r.seed = names; return r }
func (r rpc) settled() rpc                   { r.settle = true; return r }
func (r rpc) apart() rpc                     { r.alone = true; return r }
func (r rpc) extraGood(bodies ...string) rpc { r.extra = bodies; return r }

var rpcs = []rpc{
	ojs("Manifest", `{}`), ojs("Health", `{}`).settled().apart(), // counts queues every 10 s
	ojs("Enqueue", `{"type":"golden","args":[{"n":1}],"options":{"queue":"golden"}}`),
	{method: "ojs.v1.OJSService/EnqueueBatch", good: `{"jobs":[{"type":"golden","args":[1]}]}`, maxMessage: 32 << 20, extra: []string{`{"jobs":[{"type":"golden"},{"type":"Golden 2"},{"type":"golden","options":{"priority":1000}}]}`}},
	ojs("GetJob", `{"job_id":"$completed"}`, "job_id"), ojs("CancelJob", `{"job_id":"$job"}`, "job_id"), ojs("ActivateJob", `{"job_id":"$pending"}`, "job_id"),
	ojs("Fetch", `{"queues":["$queue"],"worker_id":"golden"}`).extraGood(`{"queues":["unknown"]}`), ojs("Ack", `{"job_id":"$active"}`, "job_id"), ojs("Nack", `{"job_id":"$active","error":{"code":"boom","message":"it broke","retryable":true}}`, "job_id"),
	ojs("Heartbeat", `{"id":"$active","worker_id":"$owner"}`, "id"),
	ojs("StreamJobs", `{"queues":["$queue"],"worker_id":"golden","max_concurrent":1}`), ojs("StreamEvents", `{"after":"`+oldEvent+`","job_id":"$completed"}`, "job_id", "workflow_id", "after").reading(3).settled().apart(),
	ojs("ListQueues", `{"limit":2}`).seeded("$queue", "$idle"), ojs("QueueStats", `{"queue":"$queue"}`).extraGood(`{"queue":"unknown"}`).settled(), ojs("PauseQueue", `{"queue":"$queue"}`).extraGood(`{"queue":"unknown"}`), ojs("ResumeQueue", `{"queue":"$queue"}`).extraGood(`{"queue":"unknown"}`),
	ojs("ListDeadLetter", `{"limit":2}`).seeded("$discarded", "$discarded2"), ojs("RetryDeadLetter", `{"job_id":"$discarded"}`, "job_id"), ojs("DeleteDeadLetter", `{"job_id":"$discarded"}`, "job_id"),
	ojs("RegisterCron", `{"name":"$new","cron":"0 0 1 1 *","type":"golden","args":[1]}`), ojs("UnregisterCron", `{"name":"$cron"}`), ojs("ListCron", `{}`).seeded("$cron"),
	ojs("CreateWorkflow", `{"name":"golden","steps":[{"id":"a","type":"golden"},{"id":"b","type":"golden","depends_on":["a"]}]}`).extraGood(`{"steps":[{"id":"a","type":"golden","depends_on":["a"]}]}`, `{"steps":[{"id":"a","type":"golden"},{"id":"a","type":"golden"}]}`),
	ojs("GetWorkflow", `{"workflow_id":"$workflow"}`, "workflow_id"), ojs("CancelWorkflow", `{"workflow_id":"$workflow"}`, "workflow_id"),
	{method: "ojs.events.v1.OJSEvents/StreamEvents", good: `{"after":"` + oldEvent + `","event_types":["job.completed"]}`, messages: 1, seed: []string{"$completed"}, settle: true, ids: []string{"after"}},
	{method: "grpc.health.v1.Health/Check", good: `{"service":"ojs.v1.OJSService"}`, settle: true}, {method: "grpc.health.v1.Health/List", good: `{}`, settle: true}, {method: "grpc.health.v1.Health/Watch", good: `{"service":"ojs.v1.OJSService"}`, settle: true},
}
