package job

// attr is an attribute of a new job that the server knows. Anything else is kept as it comes (docs/reference/jobs.md, Unknown attributes).
// The order matters in one place: onlyTop compares with the constants from typeAttr to optionsAttr.
type attr int

const (
	unknownAttr attr = iota
	serverAttr       // set by the server; a client's value is dropped silently
	typeAttr
	argsAttr
	idAttr
	specversionAttr
	optionsAttr
	queueAttr
	priorityAttr
	metaAttr
	metadataAttr
	scheduledAtAttr
	delayUntilAttr
	expiresAtAttr
	timeoutMSAttr
	timeoutAttr
	visibilityMSAttr
	visibilityAttr
	retryAttr
	retryPolicyAttr
	maxAttemptsAttr
	uniqueAttr
	uniqueKeyAttr
	tagsAttr
	schemaAttr
	rateLimitAttr
	pendingAttr
	graceAttr
	totalTimeoutAttr
	enqueueTTLAttr
	heartbeatTimeoutAttr
	resultTTLAttr
	attrCount
)

// attrNames is the name of each attribute in requests, in errors and in Job.Extra. serverAttr and unknownAttr have none.
var attrNames = [attrCount]string{
	typeAttr: "type", argsAttr: "args", idAttr: "id", specversionAttr: "specversion", optionsAttr: "options", queueAttr: "queue",
	priorityAttr: "priority", metaAttr: "meta", metadataAttr: "metadata", scheduledAtAttr: "scheduled_at", delayUntilAttr: "delay_until",
	expiresAtAttr: "expires_at", timeoutMSAttr: "timeout_ms", timeoutAttr: "timeout", visibilityMSAttr: "visibility_timeout_ms",
	visibilityAttr: "visibility_timeout", retryAttr: "retry", retryPolicyAttr: "retry_policy", maxAttemptsAttr: "max_attempts",
	uniqueAttr: "unique", uniqueKeyAttr: "unique_key", tagsAttr: "tags", schemaAttr: "schema", rateLimitAttr: "rate_limit",
	pendingAttr: "pending", graceAttr: "grace_period", totalTimeoutAttr: "total_timeout", enqueueTTLAttr: "enqueue_ttl",
	heartbeatTimeoutAttr: "heartbeat_timeout", resultTTLAttr: "result_ttl",
}

// attrSet has the bit 1<<a for each attribute a in it. 64 attributes fit. A shift by more gives 0, which neither the compiler
// nor a panic would report.
type attrSet uint64

func (a attr) bit() attrSet { return 1 << a }

func setOf(attrs ...attr) (s attrSet) {
	for _, a := range attrs {
		s |= a.bit()
	}
	return s
}

// Most jobs have no attribute of these sets.
var (
	// A test of the set spares the functions that read it (decoder.job, appendExtra).
	timeAttrs     = setOf(scheduledAtAttr, delayUntilAttr, expiresAtAttr)
	durationAttrs = setOf(timeoutMSAttr, timeoutAttr, visibilityMSAttr, visibilityAttr, graceAttr, totalTimeoutAttr, enqueueTTLAttr,
		heartbeatTimeoutAttr, resultTTLAttr)
	labelAttrs = setOf(schemaAttr, tagsAttr, rateLimitAttr, retryAttr, retryPolicyAttr, uniqueAttr, uniqueKeyAttr)
)

// serverNames are the attributes that only the server sets. A client that enqueues a job which it has read sends them back;
// they are dropped, not refused.
var serverNames = []string{
	// docs/reference/jobs.md, Attributes
	"state", "attempt", "created_at", "enqueued_at", "started_at", "completed_at", "cancelled_at", "discarded_at", "next_attempt_at",
	"retry_delay_ms", "error", "errors", "result", "worker_id", "previous_state", "activated_at", "parent_results",
	// docs/reference/retries.md, Dead letters
	"re_enqueued_at", "previous_errors", "replay_count", "dead_lettered_at", "total_attempts",
	"result_stored_at", "result_expires_at", "result_size_bytes", "progress", "progress_data", "last_checkpoint",
	// workflows and unique jobs
	"workflow_id", "root_workflow_id", "workflow_step", "workflow_step_id", "workflow_callback", "parent_results_map", "deduplicated",
}

// It is built once and only read afterwards; any number of decoders share it.
var attrsByName = func() map[string]attr {
	m := make(map[string]attr, int(attrCount)+len(serverNames))
	for a, name := range attrNames {
		if name != "" {
			m[name] = attr(a)
		}
	}
	for _, name := range serverNames {
		m[name] = serverAttr
	}
	return m
}()

// onlyTop reports whether an attribute is read from the top level alone. Inside options its name is taken, not free for
// lifting, because the envelope always has it.
func (a attr) onlyTop() bool {
	return a >= typeAttr && a <= optionsAttr
}

// IsOption reports whether name is an option that may stand at the root of a body that holds a job template; type, args,
// meta and queue are read elsewhere. Package cron moves such members into the options of the template.
func IsOption(name string) bool {
	a, known := attrsByName[name]
	return known && a != serverAttr && !a.onlyTop() && a != metaAttr && a != metadataAttr && a != queueAttr
}
