// Runs jobs of type text.count, one at a time, until SIGTERM or Ctrl-C. Node 18 or later, no packages.
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

const server = (process.env.OJS_URL ?? "http://127.0.0.1:8080") + "/ojs/v1";
const queue = process.env.OJS_QUEUE ?? "default";
const headers = { "Content-Type": "application/json", Authorization: `Bearer ${process.env.OJS_API_KEY ?? ""}` };
const worker_id = `node-${hostname()}-${process.pid}`;
const pause = Number(process.env.HEARTBEAT_SECONDS ?? 5) * 1000;

let stopping = false;
let inHand = null; // the job that runs, and how to abort it

/** Returns the decoded answer. Repeats after a lost connection, 429 and 5xx. */
async function post(path, body, tries = 5) {
  for (;;) {
    const request = { method: "POST", headers, body: JSON.stringify({ worker_id, ...body }) };
    const response = await fetch(server + path, request).catch((error) => error);
    if (response.ok) return response.json();
    const final = response.status < 500 && response.status !== 429;
    if (final || --tries === 0) throw new Error(`${path}: ${response.status ?? response.cause}`);
    await sleep(1000);
  }
}

/** Renews the reservation of the job in hand and learns what the server wants. */
async function heartbeat() {
  const active_jobs = inHand ? [inHand.id] : [];
  try {
    const answer = await post("/workers/heartbeat", { state: stopping ? "terminate" : "running", queues: [queue], active_jobs }, 1);
    if (answer.state === "terminate") stopping = true;
    if (answer.jobs_cancelled.includes(inHand?.id)) inHand.abort();
  } catch (error) {
    console.error(error.message);
  }
}

async function work(job, signal) {
  if (job.type !== "text.count") throw new Error("this worker knows text.count only");
  const [text, seconds = 0] = job.args;
  await sleep(seconds * 1000, null, { signal }); // as if it took long
  return { words: text.split(/\s+/).filter(Boolean).length };
}

async function run(job) {
  const mine = { job_id: job.id, attempt: job.attempt };
  const cancel = new AbortController();
  inHand = { id: job.id, abort: () => cancel.abort() };
  const report = await work(job, cancel.signal).then(
    (result) => ["/workers/ack", { ...mine, result }],
    (error) => ["/workers/nack", { ...mine, error: { code: error.name, message: error.message } }],
  );
  // A refusal means that the job was cancelled, or belongs to another worker now.
  if (!cancel.signal.aborted) await post(...report).catch((error) => console.error(job.id, error.message));
  inHand = null;
}

const beating = setInterval(heartbeat, pause);
for (const signal of ["SIGTERM", "SIGINT"]) {
  process.once(signal, () => {
    stopping = true;
    heartbeat(); // ends a fetch that waits
  });
}
while (!stopping) {
  const { jobs } = await post("/workers/fetch", { queues: [queue], wait_ms: 10_000 }).catch((error) => console.error(error.message) ?? { jobs: [] });
  for (const job of jobs) await run(job);
  await sleep(100); // a worker that was set to quiet gets its empty answers at once
}
clearInterval(beating);
await heartbeat();
