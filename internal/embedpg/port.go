package embedpg

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Ports are chosen below the ephemeral ranges of Linux (from 32768) and macOS (from 49152). An outgoing connection could take
// an ephemeral port while PostgreSQL is down in a crash test. Worse, a client that retries a closed ephemeral port of its own
// machine can connect to itself.
const (
	firstPort = 15000
	lastPort  = 31999
)

// freePort prefers the port of the previous run on the same directory, so that connection strings stay valid.
// The port may be taken between this look and the start; see launchOnFreePort.
func (p *place) freePort() (int, error) {
	if text, err := os.ReadFile(p.portFile()); err == nil {
		port, err := strconv.Atoi(strings.TrimSpace(string(text)))
		// A port of an earlier start that another program has now is given up.
		if err == nil && isFree(port) {
			return port, nil
		}
	}
	return FreePort()
}

// FreePort returns a loopback port that was free a moment ago.
func FreePort() (int, error) {
	for range 100 {
		if port := firstPort + rand.IntN(lastPort-firstPort+1); isFree(port) {
			return port, nil
		}
	}
	return 0, errors.New("no free loopback port found")
}

// It is written only after a successful start.
func (p *place) rememberPort(port int) error {
	if err := os.WriteFile(p.portFile(), []byte(strconv.Itoa(port)+"\n"), 0o644); err != nil {
		return fmt.Errorf("remember port: %w", err)
	}
	return nil
}

func (p *place) portFile() string { return filepath.Join(p.base, "port") }

func isFree(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return l.Close() == nil
}
