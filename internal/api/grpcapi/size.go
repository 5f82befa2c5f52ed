package grpcapi

import (
	"google.golang.org/protobuf/proto"

	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
)

// room for the rest of a message.
const room = 64 << 10

// claimBytes bounds what a fetch claims, so that it fits maxMessage with one more job of the default size. Numbers take more
// room in a message than as JSON; what does not fit all the same is handed back (see fitting).
// A job of the default size has at most 1 MiB, so 2 MiB and one more job leave 1 MiB for what protobuf adds.
const claimBytes = 2 << 20

// fitting is how many of the jobs, at least one, a client takes in one message: beyond maxMessage it would refuse all of
// them, fetched as they are.
// A single job is never cut: handed back, it would be fetched again for ever.
func fitting(jobs []*ojsv1.Job) int {
	size := room
	for i, j := range jobs {
		if size += proto.Size(j) + 8; size > maxMessage && i > 0 {
			return i
		}
	}
	return len(jobs)
}

// shrink leaves parts out of an answer, one after the other, until a client takes it in one message.
// If the last part does not suffice either, the answer is sent as it is.
func shrink(answer proto.Message, parts ...func()) {
	for _, leaveOut := range parts {
		if proto.Size(answer) <= maxMessage-room {
			return
		}
		leaveOut()
	}
}
