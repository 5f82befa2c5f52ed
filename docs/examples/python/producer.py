"""Enqueues a job of type text.count for each argument, then prints the result of each. Standard library only."""

import json
import os
import sys
import urllib.error
import urllib.request

SERVER = os.environ.get("OJS_URL", "http://127.0.0.1:8080") + "/ojs/v1"
QUEUE = os.environ.get("OJS_QUEUE", "default")
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ.get("OJS_API_KEY", "")}


def call(path, body=None):
    """Sends a request, a POST if it has a body, and returns the decoded answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(SERVER + path, data, HEADERS)
    with urllib.request.urlopen(request, timeout=90) as answer:
        return json.load(answer)


def enqueue(text):
    """Returns the id of the new job. It runs at most five times, with 2 s, 4 s, 8 s and 16 s in between."""
    job = {
        "type": "text.count",
        "args": [text],
        "queue": QUEUE,
        "timeout_ms": 60_000,
        "retry": {"max_attempts": 5, "initial_interval": "PT2S", "on_exhaustion": "dead_letter"},
    }
    return call("/jobs", job)["job"]["id"]


def main():
    ids = [enqueue(text) for text in sys.argv[1:] or ["to be or not to be"]]
    for job_id in ids:
        # The request waits until the job has ended, up to 60 s; after that it is answered 408.
        outcome = call(f"/jobs/{job_id}/result?wait=true&timeout=60")
        print(json.dumps([outcome["job_id"], outcome["state"], outcome["result"]]))


try:
    main()
except urllib.error.HTTPError as refusal:
    sys.exit(f"{refusal.url}: {refusal.code} {json.load(refusal)['error']['message']}")
except urllib.error.URLError as error:
    sys.exit(f"{SERVER}: {error.reason}")
except KeyboardInterrupt:
    sys.exit(130)  # the jobs run all the same
