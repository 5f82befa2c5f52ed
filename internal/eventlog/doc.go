// Package eventlog owns the event log after an event has been written: the relay that publishes the outbox, what other
// nodes and SQL clients are told of it, the reading side, and the partitions and retention of what has accumulated.
//
// State changes write their events themselves, in their own transaction; nothing here changes a job, and nobody but the
// relay moves the watermark or makes a row late.
//
// Numbers (ojs.events.seq) are drawn when a row is inserted, so commits become visible out of order and a reader that
// remembers the highest number it saw would lose rows. Therefore one watermark: what is at or below it is published, is
// complete, and never changes place. A [Relay] moves it; see there for how it treats numbers that are missing.
package eventlog
