// Enqueues a job of type text.count for each argument, then prints the result of each. Node 18 or later, no packages.

const server = (process.env.OJS_URL ?? "http://127.0.0.1:8080") + "/ojs/v1";
const queue = process.env.OJS_QUEUE ?? "default";
const headers = { "Content-Type": "application/json", Authorization: `Bearer ${process.env.OJS_API_KEY ?? ""}` };

/** Sends a request, a POST if it has a body, and returns the decoded answer. */
async function call(path, body) {
  const response = await fetch(server + path, {
    method: body ? "POST" : "GET",
    headers,
    body: body && JSON.stringify(body),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(`${response.status} ${answer.error.message}`);
  return answer;
}

/** Returns the id of the new job. It runs at most five times, with 2 s, 4 s, 8 s and 16 s in between. */
async function enqueue(text) {
  const { job } = await call("/jobs", {
    type: "text.count",
    args: [text],
    queue,
    timeout_ms: 60_000,
    retry: { max_attempts: 5, initial_interval: "PT2S", on_exhaustion: "dead_letter" },
  });
  return job.id;
}

try {
  const texts = process.argv.slice(2);
  const ids = await Promise.all((texts.length ? texts : ["to be or not to be"]).map(enqueue));
  for (const id of ids) {
    // The request waits until the job has ended, up to 60 s; after that it is answered 408.
    const { job_id, state, result } = await call(`/jobs/${id}/result?wait=true&timeout=60`);
    console.log(JSON.stringify([job_id, state, result]));
  }
} catch (error) {
  console.error(error.message, error.cause ?? "");
  process.exitCode = 1;
}
