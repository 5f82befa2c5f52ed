package main

import (
	"os"
	"os/signal"
	"reflect"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// Go reads the clock without a system call that anything outside of the process could change. A node of a test therefore replaces
// the function time.now in its own memory, so that nothing in the program, its libraries included, sees the clock of the machine.

// clockVariable has the differences between the clock of a node and that of the machine: the first holds from the start on, each
// SIGUSR1 goes on to the next one.
const clockVariable = "OJSD_TEST_CLOCK"

// clockOffset is in seconds. It is no atomic, which the race detector would make a call that the runtime cannot make in all places
// where it reads the clock.
var clockOffset int64

// A variable is set before the functions init run, one of which is the program.
var _ = startWithClock()

func startWithClock() (set bool) {
	var offsets []time.Duration
	for text := range strings.SplitSeq(os.Getenv(clockVariable), ",") {
		if d, err := time.ParseDuration(text); err == nil {
			offsets = append(offsets, d)
		}
	}
	if len(offsets) == 0 {
		return false
	}
	clockOffset = int64(offsets[0].Seconds())
	replaceTimeNow()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	go func() {
		for _, next := range offsets[1:] {
			<-signals
			clockOffset = int64(next.Seconds())
		}
	}()
	return true
}

//go:linkname timeNow time.now
func timeNow() (sec int64, nsec int32, mono int64)

//go:linkname nanotime runtime.nanotime
func nanotime() int64

// setTimeNow is time.now with a clock that was set. The monotonic clock stays what it is, as on a machine whose clock is set.
//
//go:norace
func setTimeNow() (sec int64, nsec int32, mono int64) {
	var now syscall.Timespec
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, 0, uintptr(unsafe.Pointer(&now)), 0)
	return now.Sec + clockOffset, int32(now.Nsec), nanotime()
}

// timeNowValue is the function value that the jump needs in register DX.
var timeNowValue = setTimeNow

// replaceTimeNow writes a jump to setTimeNow over the beginning of time.now.
func replaceTimeNow() {
	entry := reflect.ValueOf(timeNow).Pointer()
	code := unsafe.Slice(*(**byte)(unsafe.Pointer(&entry)), 12)
	first := entry &^ uintptr(os.Getpagesize()-1)
	pages := unsafe.Slice(*(**byte)(unsafe.Pointer(&first)), 2*os.Getpagesize())
	if err := syscall.Mprotect(pages, syscall.PROT_READ|syscall.PROT_WRITE|syscall.PROT_EXEC); err != nil {
		panic(err)
	}
	copy(code, []byte{0x48, 0xba}) // MOVQ $value, DX
	*(*uintptr)(unsafe.Pointer(&code[2])) = *(*uintptr)(unsafe.Pointer(&timeNowValue))
	copy(code[10:], []byte{0xff, 0x22}) // JMP (DX)
	if err := syscall.Mprotect(pages, syscall.PROT_READ|syscall.PROT_EXEC); err != nil {
		panic(err)
	}
}
