package logging

import (
	"io"
	"log/slog"
	"sync"
)

// maxHeld bounds what an output keeps back, in bytes. More is written at once although a hold lasts, so that memory stays
// bounded when a commit has thousands of lines.
const maxHeld = 64 << 10

// output writes lines. While it is held it collects them, for one write instead of one per line: with two lines per job the
// writes alone took a tenth of the server's processor time.
type output struct {
	w io.Writer

	mu sync.Mutex
	// holds counts the callers of Hold that have not released yet, on any goroutine. waiting has the lines of all of them, and
	// its memory is used again.
	holds   int
	waiting []byte
}

// A crash loses the lines that are kept back. They are kept for the time of one hold only.
func (o *output) Write(line []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.holds == 0 {
		return o.w.Write(line)
	}
	o.waiting = append(o.waiting, line...)
	if len(o.waiting) < maxHeld {
		return len(line), nil
	}
	return len(line), o.flush()
}

// flush is for callers that have locked o.mu.
func (o *output) flush() error {
	if len(o.waiting) == 0 {
		return nil
	}
	_, err := o.w.Write(o.waiting)
	o.waiting = o.waiting[:0]
	return err
}

// The last of several holds writes.
func (o *output) release() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.holds--
	if o.holds == 0 {
		_ = o.flush() // slog drops the errors of its writer, too
	}
}

// Hold has a logger of New write the lines until release at once. Lines of others may wait with them, so it is for
// microseconds. Any other logger is not affected.
func Hold(logger *slog.Logger) (release func()) {
	h, ok := logger.Handler().(*handler)
	if !ok {
		return func() {}
	}
	h.out.mu.Lock()
	defer h.out.mu.Unlock()
	h.out.holds++
	return h.out.release
}
