// Package eventlog owns the event log after an event has been written: the relay that publishes it, the LISTEN connection,
// the readers, the feed of the streams, and the partitions of the log with their retention.
//
// It must never change a job: state changes write their events themselves, in their own transaction. Only the relay moves
// the watermark and moves late rows.
//
// Numbers (ojs.events.seq) are drawn when a row is inserted, so commits become visible out of order, and a reader that
// remembers the highest number it has read would lose rows. Therefore readers stop at one watermark: the rows up to it are
// published, complete, and never change their place. See [Relay] for the numbers that are missing.
package eventlog
