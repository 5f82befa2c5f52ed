package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"
)

// nullConns are the connection counts of null: those of the other scenarios.
var nullConns = []int{32, 128}

// runNull measures the upper limit for this machine: a server written with net/http cannot answer more requests while
// this load generator runs beside it.
func runNull(ctx context.Context, r *runner) error {
	address, stop, err := startNullServer(r.cfg.executable)
	if err != nil {
		return fmt.Errorf("start the server of scenario null: %w", err)
	}
	defer stop()
	for _, conns := range nullConns {
		err := r.repeat(ctx, func(ctx context.Context, r *runner) (figure, error) { return r.measureNull(ctx, address, conns) })
		if err != nil {
			return err
		}
	}
	return nil
}

// measureNull sends enqueues. All answers carry the same job, so jobs are not checked.
func (r *runner) measureNull(ctx context.Context, address string, conns int) (figure, error) {
	l := r.newLoad("null")
	l.target = target{base: "http://" + address, address: address}
	more := r.limit(10 * maxEnqueues)
	var requests atomic.Int64
	s, err := l.run(group{role: "producer", n: conns, work: func(c *client) {
		for l.mayContinue(ctx) && more() {
			_, err := c.do(opEnqueue)
			l.failures.add(err)
			if err == nil {
				requests.Add(1)
			}
		}
	}})
	if err != nil {
		return figure{}, err
	}
	metrics := append([]metric{{"requests_per_s", float64(requests.Load()) / s.seconds()}},
		latencies("", l.latency[opEnqueue], 50, 95, 99)...)
	return l.figure("null", []param{{"conns", conns}}, metrics, int(requests.Load())), nil
}

// nullAnswer is a server's answer to an enqueue. It is about as long as the answer of the real server, because reading it is a
// part of the client's work.
const nullAnswer = `{"job":{"specversion":"1.0","id":"019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f","type":"bench.noop",` +
	`"queue":"bench-null-00000000","args":[{"id":123456,"text":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}],` +
	`"meta":{},"priority":0,"state":"available","attempt":0,"max_attempts":3,` +
	`"created_at":"2026-05-04T03:02:01.120Z","enqueued_at":"2026-05-04T03:02:01.120Z"}}`

// nullHandler reads the request and answers it, as every handler must, and does nothing else.
func nullHandler(w http.ResponseWriter, req *http.Request) {
	_, _ = io.Copy(io.Discard, req.Body) // net/http closes the connection of a broken request
	header := w.Header()
	header.Set("Content-Type", "application/openjobspec+json")
	header.Set("OJS-Version", "1.0")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, nullAnswer)
}

// serveNull runs the server of scenario null on a free loopback port, writes its address as one line to out, and stops
// when in ends. A child process that reads its stdin so ends with its parent.
func serveNull(in io.Reader, out io.Writer) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("null server: %w", err)
	}
	server := &http.Server{Handler: http.HandlerFunc(nullHandler), ReadHeaderTimeout: time.Minute}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		_ = server.Close()
	}()
	if _, err := fmt.Fprintln(out, listener.Addr()); err != nil {
		return fmt.Errorf("null server: %w", err)
	}
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("null server: %w", err)
	}
	return nil
}

// startNullServer starts the server of null as a child process, because a real server is a process of its own, too.
// stop returns when the process has ended.
func startNullServer(executable string) (address string, stop func(), err error) {
	in, keepAlive, err := os.Pipe()
	if err != nil {
		return "", nil, err
	}
	addresses, out, err := os.Pipe()
	if err != nil {
		return "", nil, errors.Join(err, in.Close(), keepAlive.Close())
	}
	ended := make(chan error, 1)
	go func() {
		ended <- runNullServer(executable, in, out)
	}()
	line, _ := bufio.NewReader(addresses).ReadString('\n') // without a line, the error of the ended server says why
	stop = func() {
		_ = keepAlive.Close()
		_ = addresses.Close()
		<-ended //nolint:errcheck // its error does not matter any more
	}
	if line == "" {
		_, _ = keepAlive.Close(), addresses.Close()
		return "", nil, fmt.Errorf("no address: %w", <-ended)
	}
	return strings.TrimSpace(line), stop, nil
}

func runNullServer(executable string, in, out *os.File) error {
	cmd := exec.Command(executable, "--null-server")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, os.Stderr
	err := cmd.Start()
	// The child has its own copies. With ours open, the reader of out would not notice that the child has ended.
	if err = errors.Join(err, in.Close(), out.Close()); err != nil {
		return err
	}
	return cmd.Wait()
}
