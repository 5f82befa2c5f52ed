package golden_test

import (
	"slices"
	"strings"
)

const (
	manyBytes = 32 << 20 // what batch calls take
	oldEvent  = "evt_01800000-0000-7000-8000-000000000000"
)

// pages are the parameters of most lists.
func pages(largest int) []member {
	return []member{num("limit", 2, 1, largest), num("offset", 1, 0, 1_000_000), num("page", 2, 1, 1_000_000), num("per_page", 2, 1, largest), {path: "cursor", kind: text, good: "2"}}
}

// ask are the parameters of a list: a filter has the value of a good request.
func ask(filters ...string) (params []member) {
	for _, f := range filters {
		name, value, _ := strings.Cut(f, "=")
		params = append(params, member{path: name, kind: text, good: value})
	}
	return params
}

func params(lists ...[]member) []member { return slices.Concat(lists...) }

// The members of a job. Those of options have the same names and are declared for POST /jobs only.
var (
	jobMembers = []member{
		need(str("type", "golden", 255)), need(arr("args", `[{"n":1}]`)), str("id", "$freeid", 0), str("queue", "golden", 128), obj("meta", `{"trace_id":"t1"}`),
		obj("metadata", `{"k":1}`), num("priority", 5, -100, 100), str("specversion", "1.0", 0), str("scheduled_at", "2099-01-01T00:00:00Z", 0), str("delay_until", "2099-01-01T00:00:00Z", 0), str("expires_at", "2099-01-01T00:00:00Z", 0),
		boolean("pending"), obj("retry", `{"max_attempts":2,"initial_interval":"PT1S"}`), obj("retry_policy", `{"maxAttempts":2}`), num("retry.max_attempts", 2, 0, 1<<31-1), str("retry.initial_interval", "PT1S", 0), num("retry.backoff_coefficient", 2, 1, 1000), str("retry.max_interval", "PT1M", 0),
		boolean("retry.jitter"), arr("retry.non_retryable_errors", `["FatalError"]`), str("retry.on_exhaustion", "dead_letter", 0), str("retry.backoff_strategy", "linear", 0),
		num("max_attempts", 2, 0, 1<<31-1), num("timeout_ms", 1000, 0, 36500*86400000), num("timeout", 10, 0, 36500*86400), num("visibility_timeout_ms", 1000, 0, 604_800_000), num("visibility_timeout", 10, 0, 604_800),
		num("grace_period", 10, 0, 36500*86400), num("total_timeout", 3600, 0, 36500*86400), num("enqueue_ttl", 10, 0, 36500*86400), num("heartbeat_timeout", 10, 0, 36500*86400), num("result_ttl", 10, -1, 36500*86400), arr("tags", `["a","b"]`), str("schema", "urn:golden:schema", 1024),
		obj("unique", `{"keys":["type","args"]}`), arr("unique.keys", `["type"]`), str("unique.period", "PT1H", 0), str("unique.on_conflict", "reject", 0), arr("unique.states", `["available"]`), str("unique_key", strings.Repeat("0", 64), 64),
		obj("rate_limit", `{"key":"golden","concurrency":1}`), obj("options", `{"queue":"golden"}`), str("options.queue", "golden", 128), num("options.priority", 5, -100, 100),
	}
	ackMembers  = []member{need(str("job_id", "$active", 0)), whatever("result", `{"total":3}`), str("worker_id", "$owner", 255), num("attempt", 1, 1, 1<<31-1), str("lease_token", "1z", 0)}
	nackMembers = []member{
		need(str("job_id", "$active", 0)), need(obj("error", `{"code":"boom","message":"it broke"}`)), str("error.code", "boom", 255), str("error.message", "it broke", 16384), boolean("error.retryable"), obj("error.details", `{"line":7}`), arr("error.backtrace", `["main.go:1"]`),
		str("error.rate_limit_until", "2099-01-01T00:00:00Z", 0), str("worker_id", "$owner", 255), num("attempt", 1, 1, 1<<31-1), str("lease_token", "1z", 0), boolean("requeue"), num("delay_ms", 0, 0, 36500*86400000),
	}
	fetchMembers = []member{
		need(arr("queues", `["$queue"]`)), instead("queues", str("queue", "$queue", 128)), num("count", 2, 1, 1000), num("max_jobs", 2, 1, 1000), str("worker_id", "$owner", 255), num("visibility_timeout_ms", 1000, 0, 604_800_000), num("wait_ms", 0, 0, 20000),
		instead("queues", str("pool", "$pool", 128)), str("strategy", "strict", 0), obj("weights", `{"golden":3}`),
	}
	heartbeatMembers = []member{
		need(str("worker_id", "$owner", 255)), str("state", "quiet", 0), boolean("shutdown"), arr("active_jobs", `["$active"]`), arr("active_job_ids", `["$active"]`), str("job_id", "$active", 0), obj("lease_tokens", `{"$active":"1z"}`), num("visibility_timeout_ms", 1000, 0, 604_800_000),
		str("hostname", "h1", 255), num("pid", 7, 0, 1<<31-1), arr("queues", `["golden"]`), num("concurrency", 2, 0, 1<<31-1), obj("labels", `{"zone":"a"}`), str("started_at", "2099-01-01T00:00:00Z", 0), str("version", "1", 0), obj("metadata", `{"k":1}`), num("memory_mb", 7, 0, 1<<31-1), num("cpu_percent", 7, 0, 100),
	}
	progressMembers   = []member{str("worker_id", "$owner", 255), num("attempt", 1, 1, 1<<31-1), str("message", "half", 0), obj("data", `{"page":7}`), obj("checkpoint", `{"page":7}`)}
	checkpointMembers = []member{need(whatever("state", `{"page":7}`)), str("worker_id", "$owner", 255), num("attempt", 1, 1, 1<<31-1), num("sequence", 2, -1<<63, 1<<53-1), num("step_index", 1, 0, 0), obj("metadata", `{"k":1}`)}
	bulkFilter        = []member{
		str("filter.type", "golden", 255), str("filter.queue", "golden-batch", 128), str("filter.state", "available", 0), num("filter.priority", 0, -100, 100), obj("filter.meta", `{"k":1}`), str("filter.enqueued_before", "2099-01-01T00:00:00Z", 0), str("filter.enqueued_after", "2001-01-01T00:00:00Z", 0),
		str("filter.since", "2001-01-01T00:00:00Z", 0), str("filter.until", "2099-01-01T00:00:00Z", 0), str("filter.older_than", "7d", 0),
	}
	bulkMembers     = slices.Concat([]member{instead("job_ids", obj("filter", `{"queue":"golden-batch"}`)), str("atomicity", "atomic", 0), str("idempotency_key", "$new", 256)})
	overrideMembers = []member{obj("override", `{"queue":"golden"}`), str("override.queue", "golden", 128), arr("override.args", `[1]`), num("override.priority", 1, -100, 100), obj("override.meta", `{"k":1}`), obj("override.retry", `{"max_attempts":5}`)}
	deadFilter      = []member{
		need(boolean("confirm")), need(str("filter.queue", "golden-dead", 128)), obj("filter", `{"queue":"golden-dead"}`), str("filter.type", "golden", 255), str("filter.error_type", "boom", 0), str("filter.error_code", "boom", 0), str("filter.since", "2001-01-01T00:00:00Z", 0), str("filter.until", "2099-01-01T00:00:00Z", 0), str("filter.older_than", "7d", 0),
		arr("filter.ids", `["$dead"]`), str("filter.state", "discarded", 0),
	}
	cronMembers = []member{
		need(str("name", "$new", 255)), need(str("expression", "0 0 1 1 *", 1024)), need(str("type", "golden", 255)), instead("expression", str("cron", "0 0 1 1 *", 1024)), instead("expression", str("schedule", "0 0 1 1 *", 1024)), str("timezone", "Europe/Zurich", 0), arr("args", `[1]`), obj("meta", `{"k":1}`), obj("options", `{"priority":1}`),
		str("queue", "golden", 128), instead("type", obj("job_template", `{"type":"golden","args":[1]}`)), str("overlap_policy", "allow", 0), boolean("enabled"), str("description", "yearly", 4096), num("priority", 1, -100, 100),
	}
	webhookMembers = []member{
		need(str("url", "$hook/golden", 2048)), need(arr("events", `["job.completed"]`)), need(str("secret", "whsec_golden-golden-golden", 256)), obj("filter", `{"queues":["golden"]}`), arr("filter.queues", `["golden"]`), arr("filter.job_types", `["golden"]`), arr("filter.sources", `["ojs://*"]`), obj("metadata", `{"k":1}`), boolean("active"),
		num("timeout_ms", 1000, 1000, 60000), num("max_in_flight", 2, 1, 100), str("ordering", "subject", 0), str("payload_format", "cloudevents", 0), boolean("standard_webhooks"),
	}
	configMembers = []member{
		need(num("concurrency", 2, 0, 1_000_000_000)), obj("rate_limit", `{"limit":5,"period":"PT1H"}`), obj("backpressure", `{"max_depth":100}`), num("backpressure.max_depth", 100, 0, 1_000_000_000), num("backpressure.max_size_bytes", 100000, 0, 1<<50), num("backpressure.max_depth_per_tenant", 100, 0, 1_000_000_000), str("backpressure.strategy", "block", 0), num("backpressure.warning_threshold", 1, 0, 1),
		num("visibility_timeout", 60, 1, 604_800), num("default_timeout", 60, 1, 36500*86400), obj("default_retry", `{"max_attempts":2}`), obj("retention", `{"completed":"7d"}`), str("retention.completed", "7d", 0), str("retention.discarded", "7d", 0), str("retention.cancelled", "7d", 0), str("dead_letter_queue", "dead", 128), num("dead_letter_max_size", 10, 0, 1_000_000_000),
		arr("allowed_job_types", `["golden"]`), arr("producers", `["key:7692c3ad"]`), obj("fairness", `{"key":"tenant"}`), num("max_size", 100, 0, 1_000_000_000), num("max_size_bytes", 100000, 0, 1<<50), str("overflow_policy", "reject", 0), str("dead_letter_ttl", "7d", 0),
	}
	limitMembers = []member{num("concurrency", 2, 0, 1_000_000_000), obj("rate", `{"limit":5,"period":"PT1H"}`), num("rate.limit", 5, 1, 1_000_000_000), str("rate.period", "PT1H", 0), obj("throttle", `{"limit":5,"period":"PT1H"}`), num("limit", 5, 1, 1_000_000_000), str("period", "PT1H", 0), num("max_per_second", 5, 1, 1_000_000_000)}
	poolMembers  = []member{
		need(arr("queues", `["golden"]`)), num("concurrency", 2, 0, 10_000), str("strategy", "weighted", 0), obj("weights", `{"golden":3}`), boolean("isolated"), obj("starvation_prevention", `{"enabled":true}`), boolean("starvation_prevention.enabled"), str("starvation_prevention.rotation_interval", "PT30S", 0), num("starvation_prevention.min_dispatch_ratio", 0, 0, 1),
	}
	workflowMembers = []member{
		need(str("type", "group", 0)), need(arr("jobs", `[{"type":"golden","args":[]}]`)), instead("jobs", arr("steps", `[{"type":"golden","args":[]}]`)), instead("jobs", arr("tasks", `[{"type":"golden","args":[]}]`)), obj("callbacks", `{"on_complete":{"type":"golden","args":[]}}`), obj("on_complete", `{"type":"golden","args":[]}`),
		str("name", "golden", 255), obj("options", `{"queue":"golden"}`), obj("meta", `{"k":1}`), str("id", "$freeid", 0),
	}
	eventFilter = ask("types=job.completed", "type=job.completed", "event_types=job.completed", "queues=golden", "queue=golden", "job_types=golden", "job_type=golden", "sources=ojs://*", "source=ojs://*", "job_id=$completed", "workflow_id=$workflow", "subject=golden", "since=2001-01-01T00:00:00Z", "until=2099-01-01T00:00:00Z", "format=cloudevents")
	jobStates   = []string{"$job", "$pending", "$active", "$retryable", "$discarded", "$completed", "$scheduled"}
)

// get, post and so on declare routes below /ojs/v1. The template is that of the path, with the names of the fixtures as parameters.
func get(template, path string, filters ...[]member) route {
	return route{method: "GET", template: "/ojs/v1" + template, path: "/ojs/v1" + path, params: params(filters...)}
}

func del(template, path string) route {
	return route{method: "DELETE", template: "/ojs/v1" + template, path: "/ojs/v1" + path}
}

func send(method, template, path string, body ...member) route {
	return route{method: method, template: "/ojs/v1" + template, path: "/ojs/v1" + path, body: body, takesBody: true}
}

func post(template, path string, body ...member) route { return send("POST", template, path, body...) }
func put(template, path string, body ...member) route  { return send("PUT", template, path, body...) }

// prefixed moves members into an object of an array, as batches have them.
func prefixed(prefix string, members []member, names ...string) (moved []member) {
	for _, m := range members {
		if len(names) > 0 && !slices.Contains(names, m.path) {
			continue
		}
		m.path = prefix + m.path
		if m.without != "" {
			m.without = prefix + m.without
		}
		moved = append(moved, m)
	}
	return moved
}

func (r route) changed(change func(r *route)) route { change(&r); return r }
func (r route) large() route                        { r.maxBody = manyBytes; return r }
func (r route) seeded(names ...string) route        { r.seed = names; return r }
func (r route) settled() route                      { r.settle = true; return r }
func (r route) good(bodies ...string) route         { r.extra = bodies; return r }
func (r route) asking(query string) route           { r.query = query; return r }
func (r route) making(name string) route            { r.before = name; return r }
func (r route) figures() route                      { r.numbers = true; return r }
func (r route) apart() route                        { r.alone = true; return r }
func (r route) stream(frames int) route             { r.frames = frames; return r }
func (r route) also(pairs ...string) route {
	for i := 0; i < len(pairs); i += 3 {
		r.aliases = append(r.aliases, route{method: pairs[i], template: pairs[i+1], path: pairs[i+2]})
	}
	return r
}

func root(method, path string) route { return route{method: method, template: path, path: path} }

var routes = slices.Concat(
	[]route{
		root("GET", "/ojs/manifest"),
		root("GET", "/ojs/v1/health").settled().apart().also("GET", "/health", "/health"),
		root("GET", "/readyz").settled().also("GET", "/ready", "/ready"), root("GET", "/healthz").also("GET", "/livez", "/livez"),
		root("GET", "/metrics").settled().apart(),
		get("/metrics", "/metrics", ask("format=prometheus")).figures().apart(),
	},
	[]route{
		post("/jobs", "/jobs", jobMembers...), get("/jobs", "/jobs", ask("state=available", "queue=golden", "type=golden"), pages(200)).seeded(jobStates...),
		post("/jobs/batch", "/jobs/batch", slices.Concat([]member{need(arr("jobs", `[{"type":"golden","args":[]}]`))}, prefixed("jobs[].", jobMembers, "type", "args", "queue", "priority"))...).large().good(`{"jobs":[{"type":"golden","args":[]},{"type":7,"args":[]},{"type":"golden"}]}`),
		post("/jobs/bulk", "/jobs/bulk", slices.Concat([]member{need(arr("jobs", `[{"type":"golden","args":[]}]`)), str("atomicity", "atomic", 0), str("idempotency_key", "$new", 256)}, prefixed("jobs[].", jobMembers, "type", "args", "queue", "priority"))...).large().good(`{"jobs":[{"type":"golden","args":[]},{"type":7,"args":[]},{"type":"golden"}]}`, `{"atomicity":"atomic","jobs":[{"type":"golden","args":[]},{"type":7,"args":[]}]}`),
		post("/jobs/bulk/cancel", "/jobs/bulk/cancel", slices.Concat([]member{need(arr("job_ids", `["$job"]`))}, bulkMembers, only(bulkFilter, "job_ids"))...).large().making("$batch").good(`{"job_ids":["$job","$active","` + unknownID + `","$job"]}`),
		post("/jobs/bulk/retry", "/jobs/bulk/retry", slices.Concat([]member{need(arr("job_ids", `["$discarded"]`))}, bulkMembers)...).large().good(`{"job_ids":["$discarded","$retryable","` + unknownID + `","$active"]}`),
		post("/jobs/bulk/delete", "/jobs/bulk/delete", slices.Concat([]member{need(arr("job_ids", `["$completed"]`)), instead("job_ids", obj("filter", `{"queue":"golden-batch","state":"completed"}`))}, bulkMembers[1:])...).large().making("$finished").good(`{"job_ids":["$completed","$discarded","`+unknownID+`","$active"]}`, `{"filter":{"queue":"golden-batch","state":"completed"}}`),
		get("/jobs/:id", "/jobs/$completed"), get("/jobs/:id/explain", "/jobs/$job/explain"),
		del("/jobs/:id", "/jobs/$job").changed(func(r *route) { r.params = ask("reason=because", "cancelled_by=me") }),
		send("PATCH", "/jobs/:id", "/jobs/$job", need(num("priority", 7, -100, 100))).also("PATCH", "/ojs/v1/admin/jobs/:id", "/ojs/v1/admin/jobs/$job"),
		post("/jobs/:id/activate", "/jobs/$pending/activate"),
		get("/jobs/:id/result", "/jobs/$completed/result", ask("wait=false"), []member{num("timeout", 1, 1, 60)}),
		post("/jobs/results", "/jobs/results", need(arr("ids", `["$completed","$job","`+unknownID+`"]`))),
		get("/jobs/:id/history", "/jobs/$completed/history", []member{num("limit", 2, 1, 1000)}, ask("cursor=2")).settled(),
		get("/jobs/:id/retries", "/jobs/$retryable/retries").settled(), get("/jobs/:id/lineage", "/jobs/$job/lineage").settled(),
		get("/history", "/history", []member{num("limit", 2, 1, 1000)}, ask("cursor=2", "event_types=job.attempt_completed", "actor_type=worker", "queues=golden", "job_types=golden", "start=2001-01-01T00:00:00Z", "end=2099-01-01T00:00:00Z")).seeded("$completed").changed(func(r *route) { r.settle = true }),
		get("/unique-jobs", "/unique-jobs", pages(100)).seeded("$unique"),
	},
	[]route{
		post("/workers/fetch", "/workers/fetch", fetchMembers...),
		post("/workers/ack", "/workers/ack", ackMembers...), post("/workers/nack", "/workers/nack", nackMembers...).large(),
		post("/jobs/:id/ack", "/jobs/$active/ack", ackMembers[1:]...), post("/jobs/:id/nack", "/jobs/$active/nack", nackMembers[1:]...).large(),
		post("/workers/ack/batch", "/workers/ack/batch", slices.Concat([]member{need(arr("acks", `[{"job_id":"$active"}]`))}, prefixed("acks[].", ackMembers), []member{obj("fetch", `{"queues":["$queue"]}`), num("fetch.count", 1, 1, 1000), num("fetch.wait_ms", 0, 0, 20000)})...).large().good(`{"acks":[{"job_id":"$active"},{"job_id":"` + unknownID + `"},{"job_id":"$job"},{"job_id":7},{"job_id":"$active"}]}`),
		post("/workers/nack/batch", "/workers/nack/batch", slices.Concat([]member{need(arr("nacks", `[{"job_id":"$active","error":{"message":"it broke"}}]`))}, prefixed("nacks[].", nackMembers, "job_id", "error", "requeue"), []member{obj("fetch", `{"queues":["$queue"]}`)})...).large().good(`{"nacks":[{"job_id":"$active","error":{}},{"job_id":"` + unknownID + `","error":{}},{"job_id":"$job","error":{}},{"job_id":7}]}`),
		post("/workers/heartbeat", "/workers/heartbeat", heartbeatMembers...).also("POST", "/ojs/v1/workers/beat", "/ojs/v1/workers/beat"),
		post("/workers/register", "/workers/register", heartbeatMembers...),
		post("/workers/progress", "/workers/progress", slices.Concat([]member{need(str("job_id", "$active", 0)), need(num("percentage", 50, 0, 100))}, progressMembers)...).changed(func(r *route) { r.maxBody = 2 << 20 }),
		put("/jobs/:id/progress", "/jobs/$active/progress", slices.Concat([]member{need(num("progress", 1, 0, 1))}, progressMembers)...).changed(func(r *route) { r.maxBody = 2 << 20 }),
		get("/jobs/:id/progress", "/jobs/$progressing/progress"),
		put("/jobs/:id/checkpoint", "/jobs/$active/checkpoint", checkpointMembers...).changed(func(r *route) { r.maxBody = 2 << 20 }).also(
			"POST", "/ojs/v1/jobs/:id/checkpoint", "/ojs/v1/jobs/$active/checkpoint"),
		post("/checkpoints/:id", "/checkpoints/$active", checkpointMembers...).changed(func(r *route) { r.maxBody = 2 << 20 }).also("POST", "/ojs/v1/ojs/v1/checkpoints/:id", "/ojs/v1/ojs/v1/checkpoints/$active"),
		get("/jobs/:id/checkpoint", "/jobs/$progressing/checkpoint"),
		get("/checkpoints/:id/resume", "/checkpoints/$progressing/resume").also("GET", "/ojs/v1/ojs/v1/checkpoints/:id/resume", "/ojs/v1/ojs/v1/checkpoints/$progressing/resume"),
		del("/jobs/:id/checkpoint", "/jobs/$progressing/checkpoint").also("DELETE", "/ojs/v1/checkpoints/:id", "/ojs/v1/checkpoints/$progressing", "DELETE", "/ojs/v1/ojs/v1/checkpoints/:id", "/ojs/v1/ojs/v1/checkpoints/$progressing"),
		get("/workers", "/workers", ask("state=running", "queue=golden"), pages(200)).seeded("$worker"), get("/admin/workers", "/admin/workers", ask("state=running", "queue=golden"), pages(100)).seeded("$worker"),
		get("/workers/:id", "/workers/$worker").also("GET", "/ojs/v1/admin/workers/:id", "/ojs/v1/admin/workers/$worker"),
		get("/workers/:id/health", "/workers/$worker/health"),
		send("DELETE", "/workers/:id", "/workers/$worker", str("reason", "signal", 0), num("jobs_completed", 12, 0, 1<<53)).also("POST", "/ojs/v1/workers/:id/deregister", "/ojs/v1/workers/$worker/deregister"),
		del("/admin/workers/:id", "/admin/workers/$worker"),
		post("/admin/workers/directive", "/admin/workers/directive", need(str("directive", "quiet", 0))).seeded("$worker"),
		post("/admin/workers/:id/directive", "/admin/workers/$worker/directive", need(str("directive", "quiet", 0))),
		post("/admin/workers/:id/quiet", "/admin/workers/$worker/quiet"), post("/admin/workers/:id/terminate", "/admin/workers/$worker/terminate"), post("/admin/workers/:id/resume", "/admin/workers/$worker/resume"),
	},
	[]route{
		get("/dead-letter", "/dead-letter", ask("queue=golden", "type=golden", "error_type=boom", "error_code=boom", "since=2001-01-01T00:00:00Z", "until=2099-01-01T00:00:00Z", "older_than=7d", "include=all"), pages(200)).seeded("$discarded"),
		get("/admin/dead-letter", "/admin/dead-letter", ask("queue=golden", "type=golden", "error_type=boom", "error_code=boom", "since=2001-01-01T00:00:00Z", "until=2099-01-01T00:00:00Z", "older_than=7d", "include=all"), pages(100)).seeded("$discarded"),
		del("/dead-letter", "/dead-letter").asking("confirm=true&queue=golden-dead").making("$dead").changed(func(r *route) {
			r.params = ask("confirm=true", "queue=golden", "type=golden", "error_type=boom", "error_code=boom", "since=2001-01-01T00:00:00Z", "until=2099-01-01T00:00:00Z", "older_than=7d")
		}),
		send("DELETE", "/admin/dead-letter", "/admin/dead-letter", deadFilter...).making("$dead").good(`{"confirm":true}`, `{"confirm":true,"queue":"golden-dead"}`, `{"confirm":true,"queu":"golden-dead"}`, `{"confirm":true,"filter":{"queu":"golden-dead"}}`),
		get("/dead-letter/stats", "/dead-letter/stats", ask("queue=golden")).seeded("$discarded").also("GET", "/ojs/v1/admin/dead-letter/stats", "/ojs/v1/admin/dead-letter/stats"),
		post("/dead-letter/retry", "/dead-letter/retry", deadFilter...).large().making("$dead").good(`{"confirm":true}`, `{"confirm":true,"queue":"golden-dead"}`, `{"confirm":true,"queu":"golden-dead"}`, `{"confirm":true,"filter":{"queu":"golden-dead"}}`).also("POST", "/ojs/v1/admin/dead-letter/retry", "/ojs/v1/admin/dead-letter/retry"),
		post("/dead-letter/purge", "/dead-letter/purge").asking("queue=golden-dead").making("$dead").changed(func(r *route) {
			r.params = ask("queue=golden", "type=golden", "error_type=boom", "error_code=boom", "since=2001-01-01T00:00:00Z", "until=2099-01-01T00:00:00Z", "older_than=7d")
		}),
		get("/dead-letter/:id", "/dead-letter/$discarded"), del("/dead-letter/:id", "/dead-letter/$discarded"), del("/admin/dead-letter/:id", "/admin/dead-letter/$discarded"),
		post("/dead-letter/:id/retry", "/dead-letter/$discarded/retry", overrideMembers...), post("/admin/dead-letter/:id/retry", "/admin/dead-letter/$discarded/retry", overrideMembers...),
		post("/admin/jobs/:id/retry", "/admin/jobs/$discarded/retry", overrideMembers...),
	},
	[]route{
		get("/admin/jobs", "/admin/jobs", ask("state=available", "queue=golden", "type=gold*", "since=7d", "until=2099-01-01T00:00:00Z", "sort=priority", "order=asc"), pages(100)).seeded(jobStates...),
		get("/admin/jobs/:id", "/admin/jobs/$completed"), post("/admin/jobs/:id/cancel", "/admin/jobs/$job/cancel", str("reason", "because", 1024), str("cancelled_by", "me", 255)),
		post("/admin/jobs/bulk/cancel", "/admin/jobs/bulk/cancel", slices.Concat([]member{need(boolean("confirm")), need(str("filter.queue", "golden-batch", 128))}, but(bulkFilter, "filter.queue"), []member{obj("filter", `{"queue":"golden-batch"}`)})...).making("$batch").good(`{"confirm":true,"queue":"golden-batch"}`, `{"confirm":true,"queu":"golden-batch"}`, `{"confirm":true}`),
		post("/admin/jobs/bulk/retry", "/admin/jobs/bulk/retry", need(boolean("confirm")), need(obj("filter", `{"queue":"golden-dead"}`)), str("filter.state", "discarded", 0)).making("$dead"),
		post("/admin/jobs/bulk/delete", "/admin/jobs/bulk/delete", need(boolean("confirm")), need(obj("filter", `{"queue":"golden-batch","state":"completed"}`)), str("filter.state", "completed", 0)).making("$finished"),
		get("/admin/queues", "/admin/queues", pages(100)).seeded("$queue", "$idle"), get("/admin/queues/:name", "/admin/queues/$queue").settled(),
		send("DELETE", "/admin/queues/:name/jobs", "/admin/queues/$queue/jobs", need(arr("states", `["completed"]`)), need(boolean("confirm")), str("older_than", "7d", 0)).good(`{"states":["available"],"confirm":true}`, `{"states":["available"]}`, `{"states":["active"],"confirm":true}`),
		post("/admin/queues/:name/pause", "/admin/queues/$queue/pause", str("paused_by", "me", 255)), post("/admin/queues/:name/resume", "/admin/queues/$queue/resume", str("resumed_by", "me", 255)),
		get("/admin/stats", "/admin/stats", ask("queue=golden")).seeded("$completed"), get("/admin/stats/history", "/admin/stats/history", ask("period=1h", "since=2h", "until=2099-01-01T00:00:00Z", "queue=golden")).figures(),
		get("/admin/stats/types", "/admin/stats/types", ask("queue=golden")).figures(),
		get("/admin/system/maintenance", "/admin/system/maintenance").also("GET", "/ojs/v1/admin/maintenance", "/ojs/v1/admin/maintenance"),
		post("/admin/system/maintenance", "/admin/system/maintenance", need(boolean("enabled")), str("reason", "upgrade", 1024), str("duration", "30m", 0), str("estimated_duration", "30m", 0), str("started_by", "me", 255)).good(`{"enabled":false}`).also("POST", "/ojs/v1/admin/maintenance", "/ojs/v1/admin/maintenance"),
		get("/admin/system/config", "/admin/system/config").also("GET", "/ojs/v1/admin/config", "/ojs/v1/admin/config"), get("/middleware", "/middleware"),
		get("/admin/tenants", "/admin/tenants", pages(100)).seeded("$job").settled(), get("/admin/tenants/:id", "/admin/tenants/acme").seeded("$job").settled().also("GET", "/ojs/v1/admin/tenants/:id/stats", "/ojs/v1/admin/tenants/acme/stats"),
		post("/admin/reset", "/admin/reset"),
	},
	[]route{
		get("/queues", "/queues", pages(200)).seeded("$queue", "$idle"), post("/queues", "/queues", need(str("name", "$new", 128)), obj("config", `{"concurrency":1}`), num("concurrency", 1, 0, 1_000_000_000)),
		get("/queues/:name", "/queues/$queue").settled(), send("DELETE", "/queues/:name", "/queues/$queue", str("strategy", "discard", 0), str("target_queue", "golden", 128)).changed(func(r *route) { r.params = ask("strategy=discard", "target_queue=golden") }).good(`{"strategy":"move","target_queue":"golden"}`),
		get("/queues/:name/stats", "/queues/$queue/stats").settled(), get("/queues/:name/priority-stats", "/queues/$queue/priority-stats").settled(),
		post("/queues/:name/pause", "/queues/$queue/pause", str("paused_by", "me", 255)), post("/queues/:name/resume", "/queues/$queue/resume", str("resumed_by", "me", 255)), post("/queues/:name/drain", "/queues/$queue/drain", str("drained_by", "me", 255)),
		post("/queues/:name/purge", "/queues/$queue/purge", need(arr("states", `["completed"]`)), boolean("confirm"), str("cancelled_by", "me", 255)).good(`{"states":["available"],"confirm":true}`, `{"states":["available"]}`, `{"states":["active"],"confirm":true}`, `{"states":["available"],"confirm":true,"older_than":"7d"}`),
		get("/queues/:name/config", "/queues/$idle/config"), put("/queues/:name/config", "/queues/$idle/config", configMembers...), put("/admin/queues/:name/config", "/admin/queues/$idle/config", configMembers...),
		get("/rate-limits", "/rate-limits", pages(100)).seeded("$limited"), get("/rate-limits/:key", "/rate-limits/$limited"),
		put("/rate-limits/:key", "/rate-limits/$limited", slices.Concat([]member{need(limitMembers[0])}, limitMembers[1:], []member{str("expires_at", "2099-01-01T00:00:00Z", 0)})...).also("PUT", "/ojs/v1/rate-limits/:key/override", "/ojs/v1/rate-limits/$limited/override"),
		del("/rate-limits/:key/override", "/rate-limits/$limited/override"),
		put("/admin/queues/:name/rate-limit", "/admin/queues/$idle/rate-limit", slices.Concat([]member{need(limitMembers[0])}, limitMembers[1:])...),
		get("/admin/pools", "/admin/pools", pages(100)).seeded("$pool"), get("/admin/pools/:name", "/admin/pools/$pool"), put("/admin/pools/:name", "/admin/pools/$new", poolMembers...), del("/admin/pools/:name", "/admin/pools/$pool"),
		get("/admin/scheduling/stats", "/admin/scheduling/stats").seeded("$queue").settled(),
		post("/schemas", "/schemas", need(str("uri", "urn:golden:$new", 1024)), need(str("type", "$new2", 255)), need(str("version", "1", 128)), need(obj("schema", `{"type":"array"}`)), boolean("enforce")),
		get("/schemas", "/schemas", pages(200)).seeded("$schema", "$uri"), get("/admin/schemas", "/admin/schemas", pages(100)).seeded("$schema", "$uri"),
		get("/schemas/:uri", "/schemas/$uri"), del("/schemas/:uri", "/schemas/$uri"),
		get("/admin/schemas/:type", "/admin/schemas/$schema"), get("/admin/schemas/:type/versions", "/admin/schemas/$schema/versions"), get("/admin/schemas/:type/:version", "/admin/schemas/$schema/1"),
		put("/admin/schemas/:type/:version", "/admin/schemas/$new/1", need(obj("schema", `{"type":"array"}`)), boolean("enforce"), str("uri", "urn:golden:$new2", 1024)), del("/admin/schemas/:type/:version", "/admin/schemas/$schema/1"),
	},
	[]route{
		post("/cron", "/cron", cronMembers...).also("POST", "/ojs/v1/crons", "/ojs/v1/crons"),
		get("/cron", "/cron", ask("enabled=true", "queue=golden"), pages(1000)).seeded("$cron").also("GET", "/ojs/v1/crons", "/ojs/v1/crons"),
		get("/cron/:name", "/cron/$cron").also("GET", "/ojs/v1/crons/:name", "/ojs/v1/crons/$cron"),
		put("/cron/:name", "/cron/$new", slices.Concat(cronMembers[1:])...).also("PUT", "/ojs/v1/crons/:name", "/ojs/v1/crons/$new"),
		send("PATCH", "/cron/:name", "/cron/$cron", optional("description", cronMembers[1:])...).also("PATCH", "/ojs/v1/crons/:name", "/ojs/v1/crons/$cron"),
		del("/cron/:name", "/cron/$cron").also("DELETE", "/ojs/v1/crons/:name", "/ojs/v1/crons/$cron"),
		post("/cron/:name/pause", "/cron/$cron/pause").also("POST", "/ojs/v1/crons/:name/pause", "/ojs/v1/crons/$cron/pause"), post("/cron/:name/resume", "/cron/$cron/resume").also("POST", "/ojs/v1/crons/:name/resume", "/ojs/v1/crons/$cron/resume"),
		post("/cron/:name/trigger", "/cron/$cron/trigger").also("POST", "/ojs/v1/crons/:name/trigger", "/ojs/v1/crons/$cron/trigger"),
		get("/cron/:name/history", "/cron/$cron/history", pages(200)).also("GET", "/ojs/v1/crons/:name/history", "/ojs/v1/crons/$cron/history"),
		post("/workflows", "/workflows", workflowMembers...).large().good(`{"type":"chain","steps":[{"type":"golden","args":[]},{"type":"golden","args":[]}]}`, `{"type":"batch","jobs":[{"type":"golden","args":[]}],"callbacks":{"on_complete":{"type":"golden","args":[]}}}`, `{"steps":[{"id":"a","type":"golden","args":[]},{"id":"b","type":"golden","args":[],"depends_on":["a"]}]}`, `{"type":"saga","steps":[]}`, `{"steps":[{"id":"a","type":"golden","args":[],"depends_on":["a"]}]}`),
		get("/workflows", "/workflows", ask("state=running", "type=group", "name=golden"), pages(200)).seeded("$workflow"), get("/workflows/:id", "/workflows/$workflow"), get("/workflows/:id/progress", "/workflows/$workflow/progress"),
		del("/workflows/:id", "/workflows/$workflow").changed(func(r *route) {
			r.params, r.late = ask("force=true", "cancelled_by=me"), []string{"steps_failed", "jobs_failed", "failed_count"}
		}),
		post("/workflows/:id/cancel", "/workflows/$workflow/cancel").changed(func(r *route) {
			r.params, r.late = ask("force=true", "cancelled_by=me"), []string{"steps_failed", "jobs_failed", "failed_count"}
		}),
	},
	[]route{
		get("/events", "/events", eventFilter, ask("after="+oldEvent), []member{num("limit", 2, 1, 1000), num("page", 2, 1, 1000), num("per_page", 2, 1, 200)}).seeded("$completed").settled().apart(),
		get("/events/:id", "/events/$event", ask("format=cloudevents")), get("/events/:id/history", "/events/$completed/history").settled(),
		get("/events/stream", "/events/stream", eventFilter, ask("channel=job:$completed", "last_event_id="+oldEvent, "after="+oldEvent)).stream(1),
		get("/jobs/:id/events", "/jobs/$completed/events", eventFilter, ask("last_event_id="+oldEvent)).stream(1), get("/queues/:name/events", "/queues/$queue/events", eventFilter, ask("last_event_id="+oldEvent)).stream(1).settled(),
		get("/jobs/:id/progress/stream", "/jobs/$progressing/progress/stream", ask("last_event_id="+oldEvent)).stream(1), get("/admin/stats/stream", "/admin/stats/stream", []member{num("interval", 5, 1, 60)}).stream(1),
		get("/ws", "/ws", ask("last_event_id="+oldEvent)).also("GET", "/ojs/v1/events/ws", "/ojs/v1/events/ws"),
	},
	webhooks(),
)

// webhooks have two base paths.
func webhooks() []route {
	base := []route{
		post("/webhooks", "/webhooks", webhookMembers...), get("/webhooks", "/webhooks", ask("active=true", "url=https://golden.example"), pages(200)).seeded("$webhook"), get("/webhooks/:id", "/webhooks/$webhook"),
		send("PATCH", "/webhooks/:id", "/webhooks/$webhook", optional("metadata", webhookMembers)...).also("PUT", "/ojs/v1/webhooks/:id", "/ojs/v1/webhooks/$webhook"), del("/webhooks/:id", "/webhooks/$webhook"), post("/webhooks/:id/test", "/webhooks/$webhook/test"),
		post("/webhooks/:id/rotate-secret", "/webhooks/$webhook/rotate-secret", str("secret", "whsec_golden-golden-golden-2", 256), num("overlap_seconds", 60, 0, 2_592_000)), del("/webhooks/:id/secrets/previous", "/webhooks/$webhook/secrets/previous"),
		post("/webhooks/:id/replay", "/webhooks/$webhook/replay", need(str("since", "1h", 0)), str("until", "2099-01-01T00:00:00Z", 0), str("only", "failed", 0)),
		get("/webhooks/:id/deliveries", "/webhooks/$webhook/deliveries", ask("status=delivered", "event_type=webhook.test", "event_id="+oldEvent, "since=2001-01-01T00:00:00Z", "until=2099-01-01T00:00:00Z"), pages(200)),
	}
	for i := range base {
		r := &base[i]
		for _, a := range append([]route{*r}, r.aliases...) {
			r.aliases = append(r.aliases, route{method: a.method, template: strings.Replace(a.template, "/webhooks", "/webhooks/subscriptions", 1), path: strings.Replace(a.path, "/webhooks", "/webhooks/subscriptions", 1)})
		}
	}
	return append(base,
		get("/webhooks/deliveries", "/webhooks/deliveries", ask("status=delivered", "event_type=webhook.test", "subscription_id=$webhook", "event_id="+oldEvent, "since=2001-01-01T00:00:00Z", "until=2099-01-01T00:00:00Z"), pages(200)).seeded("$delivery"),
		get("/webhooks/deliveries/:id", "/webhooks/deliveries/$delivery"), post("/webhooks/deliveries/:id/retry", "/webhooks/deliveries/$delivery/retry"))
}

// only has members stand in the place of a needed one.
func only(members []member, of string) (list []member) {
	for _, m := range members {
		list = append(list, instead(of, m))
	}
	return list
}

func but(members []member, path string) []member {
	return slices.DeleteFunc(slices.Clone(members), func(m member) bool { return m.path == path })
}

// optional are the members of a change: only one is in a good body.
func optional(needed string, members []member) (list []member) {
	for _, m := range members {
		m.needed, m.without = m.path == needed, ""
		list = append(list, m)
	}
	return list
}
