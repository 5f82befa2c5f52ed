package eventlog

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"time"
)

// ErrNotPosition is returned by ParsePosition for a text that is not an event id.
var ErrNotPosition = errors.New("not an event id")

const (
	idPrefix = "evt_"
	idLength = len(idPrefix) + 36
	// maxSub is the last place behind a number. When it is taken, the relay moves to the next number (publication.skipNumber).
	maxSub = 1<<16 - 1
)

// Position is the place of an event in the log, with the event's time, as its id encodes it: a UUIDv7 of the time whose
// low 62 bits are seq (46) and sub (16). The zero value is before everything. Order is that of Seq and Sub alone. Two positions
// of one place may differ in their time: those that are made for the end of a page or of the log have the time of a neighbour
// or of now, and compare as equal through Before, not through ==.
type Position struct {
	Seq int64 // number of the row
	Sub int32 // > 0: committed late and placed behind the row (Seq, 0)

	stamp uint64 // the upper half of the UUID: 48 bits ms, version, 12 bits fraction of a ms
}

// NewPosition is the position of the event with that time, number and sub-number. Its String equals ojs.event_id in SQL.
func NewPosition(t time.Time, seq int64, sub int32) Position {
	us := t.UnixMicro()
	return Position{Seq: seq, Sub: sub, stamp: uint64(us/1000)<<16 | 0x7000 | uint64(us%1000*4096/1000)}
}

// placeOf is the position with a place, as SQL writes one. Its time is not that of an event.
func placeOf(place int64, t time.Time) Position {
	return NewPosition(t, place>>16, int32(place&maxSub))
}

// place is the position as SQL writes one. Seq has 46 bits in an id, so the shift cannot overflow.
func (p Position) place() int64 { return p.Seq<<16 | int64(p.Sub) }

// ParsePosition reads an event id. Any well-formed id is a position, whether an event has it or not
// (docs/reference/events.md, Event errors). It checks the form only; no statement is needed to refuse a malformed cursor.
func ParsePosition(id string) (Position, error) {
	if len(id) != idLength || id[:len(idPrefix)] != idPrefix {
		return Position{}, ErrNotPosition
	}
	var digits [32]byte
	n := 0
	for i := range 36 {
		c := id[len(idPrefix)+i]
		if i == 8 || i == 13 || i == 18 || i == 23 {
			if c != '-' {
				return Position{}, ErrNotPosition
			}
			continue
		}
		if c >= 'A' && c <= 'F' {
			return Position{}, ErrNotPosition // ids are compared as text
		}
		digits[n] = c
		n++
	}
	var uuid [16]byte
	if _, err := hex.Decode(uuid[:], digits[:]); err != nil || uuid[6]>>4 != 7 || uuid[8]>>6 != 2 {
		return Position{}, ErrNotPosition
	}
	low := binary.BigEndian.Uint64(uuid[8:]) & (1<<62 - 1)
	return Position{Seq: int64(low >> 16), Sub: int32(low & maxSub), stamp: binary.BigEndian.Uint64(uuid[:8])}, nil
}

// String is the public id.
func (p Position) String() string {
	return string(p.Append(make([]byte, 0, idLength)))
}

// Append appends the public id to b.
func (p Position) Append(b []byte) []byte {
	var uuid [16]byte
	binary.BigEndian.PutUint64(uuid[:8], p.stamp)
	binary.BigEndian.PutUint64(uuid[8:], 1<<63|uint64(p.Seq)<<16|uint64(p.Sub))
	b = append(b, idPrefix...)
	start := 0
	for _, end := range [...]int{4, 6, 8, 10, 16} {
		if start > 0 {
			b = append(b, '-')
		}
		b = hex.AppendEncode(b, uuid[start:end])
		start = end
	}
	return b
}

// Time is the event's time. It is exact to the microsecond for ids that NewPosition made. EventListAfter compares it with the
// limit of the age, to tell cheaply whether a cursor may have expired.
func (p Position) Time() time.Time {
	fraction := int64(p.stamp & 0xfff)
	return time.UnixMilli(int64(p.stamp >> 16)).Add(time.Duration((fraction*1000+4095)/4096) * time.Microsecond).UTC()
}

// Before reports whether p is published before q.
func (p Position) Before(q Position) bool {
	return p.Seq < q.Seq || p.Seq == q.Seq && p.Sub < q.Sub
}

// IsZero reports whether p is the beginning of the log, before every event.
func (p Position) IsZero() bool { return p == Position{} }
