package ojs

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"
)

const (
	// progressInterval is the least time between two requests with the progress of a job. Servers write no more events for it either.
	progressInterval = time.Second
	// progressTime bounds a request of progress that no call waits for.
	progressTime = 5 * time.Second
)

var errProgressEnded = errors.New("ojs: progress was reported after the handler has returned")

// progressReports sends the reports of a run one at a time, and at most one per interval: the latest that there is by then.
type progressReports struct {
	mu     sync.Mutex
	newest json.RawMessage // to be sent; nil: nothing
	sentAt time.Time       // the latest request
	done   chan struct{}   // closed at the end of the request on its way; nil: there is none
	timer  *time.Timer     // sends newest; nil: it is not set
	err    error           // of a request that no call has waited for
	ended  bool            // the handler has returned
}

// reportProgress sends a report, or keeps it for later.
func (r *run) reportProgress(ctx context.Context, body json.RawMessage) error {
	p := &r.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return errProgressEnded
	}
	p.newest = body
	if p.done == nil && time.Since(p.sentAt) >= progressInterval {
		return r.sendProgress(ctx)
	}
	r.scheduleProgress()
	err := p.err
	p.err = nil
	return err
}

// scheduleProgress sets the timer for a report that is kept. The caller has the lock.
func (r *run) scheduleProgress() {
	p := &r.progress
	if p.newest == nil || p.done != nil || p.timer != nil || p.ended {
		return
	}
	p.timer = time.AfterFunc(time.Until(p.sentAt.Add(progressInterval)), func() {
		ctx, cancel := context.WithTimeout(r.life, progressTime)
		defer cancel()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.timer = nil
		if p.newest != nil && p.done == nil && !p.ended {
			p.err = r.sendProgress(ctx)
		}
	})
}

// sendProgress sends the newest report. The caller has the lock, which is given up during the request. A report that may succeed later is
// kept if there is no newer one. It may be repeated: the worker and the attempt in the body keep it from reaching another run.
func (r *run) sendProgress(ctx context.Context) (err error) {
	p := &r.progress
	body := p.newest
	p.newest, p.sentAt, p.done = nil, time.Now(), make(chan struct{})
	p.mu.Unlock()
	defer func() { // also if the transport of a program panics
		p.mu.Lock()
		close(p.done)
		p.done = nil
		if err != nil && p.newest == nil && Retryable(err) {
			p.newest = body
		}
		r.scheduleProgress()
	}()
	return r.worker.client.Do(ctx, post("/workers/progress", body).again(), nil)
}

// endProgress sends the last report of a handler that has returned. It comes before the outcome: the server takes no progress of a job that
// has ended.
func (r *run) endProgress() {
	p := &r.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	if p.timer != nil {
		p.timer.Stop()
	}
	if p.newest == nil && p.done == nil {
		return
	}
	ctx, cancel := context.WithTimeout(r.life, progressTime)
	defer cancel()
	if done := p.done; done != nil {
		p.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
		}
		p.mu.Lock()
	}
	if p.newest == nil || p.done != nil || r.isLost() {
		return
	}
	if err := r.sendProgress(ctx); err != nil {
		r.worker.logger.DebugContext(ctx, "the last progress of a job was not reported", "job_id", r.ID, "error", err)
	}
}
