package bench

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

// nullConns are the connection counts of null, those at which the other scenarios run.
var nullConns = []int{32, 128}

// runNull measures the ceiling: no server written with net/http can answer more requests on this machine, next to this
// load generator.
func runNull(ctx context.Context, r *runner) error {
	address, stop, err := startNullServer(r.cfg.Executable)
	if err != nil {
		return fmt.Errorf("start server: %w", err)
	}
	defer stop()
	for _, conns := range nullConns {
		err := r.repeat(ctx, func(ctx context.Context) (Figure, error) { return r.measureNull(ctx, address, conns) })
		if err != nil {
			return err
		}
	}
	return nil
}

// measureNull sends enqueues. All answers show the same job, so there is nothing to check.
func (r *runner) measureNull(ctx context.Context, address string, conns int) (Figure, error) {
	l := r.newLoad("null")
	l.target = target{base: "http://" + address, address: address}
	more := r.limit(10 * maxEnqueues)
	var requests atomic.Int64
	s, err := l.run(group{"producer", conns, func(c *client) {
		for l.goOn(ctx) && more() {
			_, err := c.do(opEnqueue)
			l.trouble.note(err)
			if err == nil {
				requests.Add(1)
			}
		}
	}})
	if err != nil {
		return Figure{}, err
	}
	metrics := append([]Metric{{"requests_per_s", float64(requests.Load()) / s.seconds()}},
		latencies("", l.latency[opEnqueue], 50, 95, 99)...)
	return l.figure("null", []Param{{"conns", conns}}, metrics, int(requests.Load())), nil
}

// nullAnswer is what a real server would say to an enqueue.
const nullAnswer = `{"job":{"specversion":"1.0","id":"019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f","type":"bench.noop",` +
	`"queue":"bench-null-00000000","args":[{"id":123456,"text":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}],` +
	`"meta":{},"priority":0,"state":"available","attempt":0,"max_attempts":3,` +
	`"created_at":"2026-05-04T03:02:01.120Z","enqueued_at":"2026-05-04T03:02:01.120Z"}}`

// nullHandler does nothing but what any handler must: read the request and answer it.
func nullHandler(w http.ResponseWriter, req *http.Request) {
	_, _ = io.Copy(io.Discard, req.Body) // a broken request ends its connection by itself
	header := w.Header()
	header.Set("Content-Type", "application/openjobspec+json")
	header.Set("OJS-Version", "1.0")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, nullAnswer)
}

// ServeNull runs the server of scenario null on a free loopback port, writes its address as one line to out, and stops
// when in ends: as a child process it then dies with its parent.
func ServeNull(in io.Reader, out io.Writer) error {
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

// startNullServer starts it as a child, as a server would run, or in this process if there is no binary.
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
		ended <- serveNull(executable, in, out)
	}()
	line, _ := bufio.NewReader(addresses).ReadString('\n') // without an address, the end of the server says why
	stop = func() {
		_ = keepAlive.Close()
		_ = addresses.Close()
		<-ended //nolint:errcheck // it was told to end
	}
	if line == "" {
		_, _ = keepAlive.Close(), addresses.Close()
		return "", nil, fmt.Errorf("no address: %w", <-ended)
	}
	return strings.TrimSpace(line), stop, nil
}

func serveNull(executable string, in, out *os.File) error {
	if executable == "" {
		err := ServeNull(in, out)
		return errors.Join(err, in.Close(), out.Close())
	}
	cmd := exec.Command(executable, "bench", "--null-server")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, os.Stderr
	err := cmd.Start()
	// The child has its own copies; ours would hide its end from the reader.
	if err = errors.Join(err, in.Close(), out.Close()); err != nil {
		return err
	}
	return cmd.Wait()
}
