package main

import (
	"errors"
	"os"
	"slices"
	"syscall"
	"time"
)

// syncTime is the median time of a write of 8 KiB, a page of PostgreSQL's log, that returns when the data is on the disk:
// the least that a commit takes. It overwrites one page of a new file in dir for the given time. The directory for temporary
// files need not be on the disk of the database; on another one the number says nothing about commits.
func syncTime(dir string, length time.Duration) (median time.Duration, err error) {
	name, err := tempFile(dir)
	if err != nil {
		return 0, err
	}
	file, err := os.OpenFile(name, os.O_WRONLY|syscall.O_DSYNC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close(), os.Remove(name)) }()
	var samples []time.Duration
	page := make([]byte, 8192)
	for end := time.Now().Add(length); len(samples) == 0 || time.Now().Before(end); {
		start := time.Now()
		if _, err := file.WriteAt(page, 0); err != nil {
			return 0, err
		}
		samples = append(samples, time.Since(start))
	}
	slices.Sort(samples)
	return percentile(samples, 50), nil
}

// tempFile makes an empty file.
func tempFile(dir string) (name string, err error) {
	file, err := os.CreateTemp(dir, "ojsd-bench-")
	if err != nil {
		return "", err
	}
	return file.Name(), file.Close()
}
