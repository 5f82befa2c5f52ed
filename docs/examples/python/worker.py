"""Runs jobs of type text.count, one at a time, until SIGTERM or Ctrl-C. Standard library only."""

import json
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request

SERVER = os.environ.get("OJS_URL", "http://127.0.0.1:8080") + "/ojs/v1"
QUEUE = os.environ.get("OJS_QUEUE", "default")
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ.get("OJS_API_KEY", "")}
WORKER = f"python-{socket.gethostname()}-{os.getpid()}"
PAUSE = float(os.environ.get("HEARTBEAT_SECONDS", "5"))

stopping = threading.Event()
cancelled = threading.Event()  # the job in hand
in_hand = []  # its id


def post(path, tries=5, **body):
    """Returns the decoded answer. Repeats after a lost connection, 429 and 5xx."""
    data = json.dumps({"worker_id": WORKER, **body}).encode()
    request = urllib.request.Request(SERVER + path, data, HEADERS)
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except OSError as error:
            tries -= 1
            if tries == 0 or stopping.is_set() and path == "/workers/fetch" or isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429:
                raise
            time.sleep(1)


def heartbeat():
    """Renews the reservation of the job in hand and learns what the server wants."""
    state = "terminate" if stopping.is_set() else "running"
    answer = post("/workers/heartbeat", tries=1, state=state, queues=[QUEUE], active_jobs=in_hand)
    if answer["state"] == "terminate":
        stopping.set()
    if set(in_hand) & set(answer["jobs_cancelled"]):
        cancelled.set()


def heartbeats():
    while True:
        stopping.wait(PAUSE)  # ends at once on SIGTERM; the heartbeat then ends a fetch that waits
        try:
            heartbeat()
        except OSError as error:
            print("heartbeat:", error, flush=True)
        if stopping.is_set():
            time.sleep(PAUSE)


def work(job):
    if job["type"] != "text.count":
        raise ValueError("this worker knows text.count only")
    text, seconds = (job["args"] + [0])[:2]
    cancelled.wait(seconds)  # as if it took long
    return {"words": len(text.split())}


def run(job):
    cancelled.clear()
    in_hand[:] = [job["id"]]
    try:
        path, report = "/workers/ack", {"result": work(job)}
    except Exception as error:
        path, report = "/workers/nack", {"error": {"code": type(error).__name__, "message": str(error)}}
    try:
        if not cancelled.is_set():
            post(path, job_id=job["id"], attempt=job["attempt"], **report)
    except OSError as error:  # e.g. 409: the job belongs to another worker now
        print(job["id"], error, flush=True)
    in_hand.clear()


def stop(number, _):
    stopping.set()
    signal.signal(number, signal.SIG_DFL)  # a second Ctrl-C ends the program at once


for number in signal.SIGTERM, signal.SIGINT:
    signal.signal(number, stop)
threading.Thread(target=heartbeats, daemon=True).start()
while not stopping.is_set():
    try:
        for job in post("/workers/fetch", queues=[QUEUE], wait_ms=10_000)["jobs"]:
            run(job)
    except OSError as error:
        print("server:", error, flush=True)
    stopping.wait(0.1)  # a worker that was set to quiet gets its empty answers at once
try:
    heartbeat()
except OSError as error:  # the server takes the worker for dead after a minute
    print("heartbeat:", error, flush=True)
