package embedpg

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
)

// sysProcAttr sets an own process group, another user if runAs is set, and a fast shutdown (SIGINT) when this process ends.
func sysProcAttr(runAs *account) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
	if runAs != nil {
		attr.Credential = &syscall.Credential{Uid: runAs.uid, Gid: runAs.gid}
	}
	return attr
}

// commandLine returns the command line of a process, "" if there is none, or only a zombie.
// A zombie has an empty command line.
func commandLine(pid int) string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return ""
	}
	return string(bytes.ReplaceAll(text, []byte{0}, []byte{' '}))
}
