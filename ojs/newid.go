package ojs

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"sync"
	"time"
)

// lastID guards stamp, which only grows: when the clock is set back, ids go on from the last one.
var lastID struct {
	sync.Mutex
	stamp uint64 // milliseconds, and twelve bits that count the ids of a millisecond
}

// NewID makes an id for a job or workflow, a UUIDv7. Ids of one process ascend. With an id of its own a client can repeat an enqueue.
// More than 4 096 ids in a millisecond go on in the next one, ahead of the clock.
func NewID() string {
	var id [16]byte
	_, _ = rand.Read(id[8:]) // never fails
	lastID.Lock()
	// The first 48 bits are the milliseconds; the twelve behind them count, which keeps the order within one.
	stamp := max(uint64(time.Now().UnixMilli())<<12, lastID.stamp+1)
	lastID.stamp = stamp
	lastID.Unlock()
	binary.BigEndian.PutUint64(id[:], stamp>>12<<16|stamp&0xfff|0x7000)
	id[8] = id[8]&0x3f | 0x80
	text := hex.AppendEncode(make([]byte, 0, 36), id[:4])
	for _, part := range [][]byte{id[4:6], id[6:8], id[8:10], id[10:]} {
		text = hex.AppendEncode(append(text, '-'), part)
	}
	return string(text)
}
