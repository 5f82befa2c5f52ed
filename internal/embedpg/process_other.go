//go:build !linux

package embedpg

import (
	"strconv"
	"strings"
	"syscall"
)

// sysProcAttr sets an own process group, and another user if runAs is set. Without a parent-death signal a killed ojsd leaves
// PostgreSQL running; the next start on the same data directory stops it.
func sysProcAttr(runAs *account) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if runAs != nil {
		attr.Credential = &syscall.Credential{Uid: runAs.uid, Gid: runAs.gid}
	}
	return attr
}

// commandLine returns the command line of a process, "" if there is none.
func commandLine(pid int) string {
	out, err := output("ps", "-ww", "-o", "command=", "-p", strconv.Itoa(pid))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(out)
}
