#!/usr/bin/env bash
# Runs jobs of type text.count, one at a time, until SIGTERM. Needs curl and jq.
set -euo pipefail

server=${OJS_URL:-http://127.0.0.1:8080}/ojs/v1
queue=${OJS_QUEUE:-default}
key="Authorization: Bearer ${OJS_API_KEY:-}"
worker=bash-$(hostname)-$$

# post prints the answer. curl repeats after a refused connection, 429, 503 and 504.
post() {
	jq -nc --arg worker "$worker" --arg queue "$queue" --argjson job "${job:-null}" "$2" |
		curl -sS --fail-with-body --retry 5 --retry-connrefused -H 'Content-Type: application/json' -H "$key" "$server$1" -d @-
}

# heartbeats keep the reservation of the job until they are killed.
heartbeats() {
	while sleep "${HEARTBEAT_SECONDS:-5}"; do
		post /workers/heartbeat '{worker_id: $worker, queues: [$queue], active_jobs: [$job.id]}' || true
	done
}

# work prints the result of the job as JSON. If it fails, it prints the reason.
work() {
	[ "$(jq -r .type <<<"$job")" = text.count ] || { echo 'this worker knows text.count only'; return 1; }
	text=$(jq -er '.args[0] | strings' <<<"$job") || { echo 'args[0] must be a text'; return 1; }
	sleep "$(jq -r '.args[1] // 0' <<<"$job")" # as if it took long
	echo "{\"words\":$(wc -w <<<"$text")}"
}

# bash runs a trap when the command in the foreground has ended, so the job in hand is finished first.
stopping=
trap 'stopping=1' TERM
while [ -z "$stopping" ]; do
	job=
	if ! jobs=$(post /workers/fetch '{queues: [$queue], worker_id: $worker, wait_ms: 2000}'); then
		echo "$jobs" >&2
		sleep 1
		continue
	fi
	job=$(jq -c '.jobs[0] // empty' <<<"$jobs")
	[ -n "$job" ] || continue

	heartbeats >/dev/null & beating=$!
	if output=$(work); then
		post /workers/ack "{job_id: \$job.id, worker_id: \$worker, attempt: \$job.attempt, result: $output}" || true
	else
		post /workers/nack "{job_id: \$job.id, worker_id: \$worker, attempt: \$job.attempt,
			error: {code: \"handler_error\", message: $(jq -Rs . <<<"$output")}}" || true
	fi >/dev/null
	kill "$beating"
done
