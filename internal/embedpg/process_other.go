//go:build !linux

package embedpg

import (
	"strconv"
	"strings"
	"syscall"
)

// sysProcAttr: own process group, and another user if runAs is set. Without a parent-death signal a killed ojsd leaves
// Postgres running; the next start on the same data directory stops it.
func sysProcAttr(runAs *account) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if runAs != nil {
		attr.Credential = &syscall.Credential{Uid: runAs.uid, Gid: runAs.gid}
	}
	return attr
}

// commandLine returns how a process was started, "" if there is none.
func commandLine(pid int) string {
	out, err := output("ps", "-ww", "-o", "command=", "-p", strconv.Itoa(pid))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(out)
}
