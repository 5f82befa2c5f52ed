package embedpg

import (
	"os/exec"
	"runtime"
	"syscall"
)

// process is a running postmaster.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when it has ended
	err    error         // how it ended; read after exited
}

// startProcess starts cmd and waits for it in one goroutine that is locked to its OS thread. Linux sends the parent-death
// signal when the thread that forked ends, not the process (golang.org/issue/27505). Without the lock the runtime could end
// that thread at any time, and PostgreSQL with it.
// The goroutine ends with the process.
func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// runProcess starts cmd in the same way and waits for its end.
func runProcess(cmd *exec.Cmd) error {
	p, err := startProcess(cmd)
	if err != nil {
		return err
	}
	<-p.exited
	return p.err
}

// signal ignores the error: the only possible one is that the process has ended already.
func (p *process) signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }
