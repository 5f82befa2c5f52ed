#!/usr/bin/env bash
# Enqueues a job of type text.count for each argument, then prints the result of each. Needs curl and jq.
set -euo pipefail

server=${OJS_URL:-http://127.0.0.1:8080}/ojs/v1
queue=${OJS_QUEUE:-default}
key="Authorization: Bearer ${OJS_API_KEY:-}"

# call sends a request and prints the body of the answer. It fails if the answer is an error.
call() {
	curl -sS --fail-with-body -H 'Content-Type: application/json' -H "$key" "$server$@"
}

# enqueue prints the id of the new job. The job runs at most five times, with 2 s, 4 s, 8 s and 16 s in between.
enqueue() {
	jq -n --arg text "$1" --arg queue "$queue" '{
		type: "text.count", args: [$text], queue: $queue, timeout_ms: 60000,
		retry: {max_attempts: 5, initial_interval: "PT2S", on_exhaustion: "dead_letter"}
	}' | call /jobs -d @- | jq -r .job.id
}

ids=()
for text in "${@:-to be or not to be}"; do
	id=$(enqueue "$text") # a failed command in the parentheses ends the script
	ids+=("$id")
done

# The request waits until the job has ended, up to 60 s; after that it is answered 408.
for id in "${ids[@]}"; do
	call "/jobs/$id/result?wait=true&timeout=60" | jq -c '[.job_id, .state, .result]'
done
