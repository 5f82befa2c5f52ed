package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cpuTime is what the processes of a private server have used of the processors. It has the resolution of a clock tick, 10 ms,
// for each process, so short measurements are coarse.
type cpuTime struct {
	server, postgres time.Duration
	known            bool // a short run may have used less than a clock tick
}

func (t cpuTime) minus(before cpuTime) cpuTime {
	return cpuTime{t.server - before.server, t.postgres - before.postgres, t.known && before.known}
}

// perJob makes metrics of it; none if nothing could be read.
func (t cpuTime) perJob(jobs int) []metric {
	if !t.known || jobs == 0 {
		return nil
	}
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) / float64(jobs) }
	return []metric{{"server_cpu_us_per_job", us(t.server)}, {"postgres_cpu_us_per_job", us(t.postgres)}}
}

// processes are the ids of the nodes of a server and of its PostgreSQL's first process.
type processes struct {
	servers    []int
	postmaster int
}

// cpuTime is zero where /proc does not exist or has another form.
func (p *processes) cpuTime() cpuTime {
	if p == nil {
		return cpuTime{}
	}
	var t cpuTime
	for _, pid := range p.servers {
		server, err := readProcess(strconv.Itoa(pid))
		if err != nil {
			return cpuTime{}
		}
		t.server += server.own
	}
	postgres, err := familyTime(p.postmaster)
	if err != nil {
		return cpuTime{}
	}
	t.postgres, t.known = postgres, true
	return t
}

// familyTime is the time of a process and its children, the ended ones included. A child that ends between two readings moves
// from one sum to the other and is counted once.
func familyTime(parent int) (time.Duration, error) {
	first, err := readProcess(strconv.Itoa(parent))
	if err != nil {
		return 0, err
	}
	total := first.own + first.endedChildren
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	for _, path := range stats {
		child, err := readProcess(filepath.Base(filepath.Dir(path)))
		if err == nil && child.parent == parent { // with an error it has ended just now
			total += child.own
		}
	}
	return total, nil
}

type processStat struct {
	parent             int
	own, endedChildren time.Duration
}

// clockTick is the unit of the times in /proc: USER_HZ, which is 100 on every architecture that Go supports.
const clockTick = 10 * time.Millisecond

// readProcess reads /proc/PID/stat. The fields are counted from the end of the second one, the program's name in
// parentheses, which may contain spaces.
func readProcess(pid string) (s processStat, err error) {
	text, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return s, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	const parent, userTime, systemTime, childrenUserTime, childrenSystemTime = 1, 11, 12, 13, 14
	if len(fields) <= childrenSystemTime {
		return s, fmt.Errorf("/proc/%s/stat has %d fields", pid, len(fields))
	}
	var ticks [childrenSystemTime + 1]int64
	for _, i := range []int{parent, userTime, systemTime, childrenUserTime, childrenSystemTime} {
		if ticks[i], err = strconv.ParseInt(fields[i], 10, 64); err != nil {
			return s, fmt.Errorf("/proc/%s/stat: %w", pid, err)
		}
	}
	s.parent = int(ticks[parent])
	s.own = time.Duration(ticks[userTime]+ticks[systemTime]) * clockTick
	s.endedChildren = time.Duration(ticks[childrenUserTime]+ticks[childrenSystemTime]) * clockTick
	return s, nil
}
