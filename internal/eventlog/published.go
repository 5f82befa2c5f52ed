package eventlog

import "encoding/json"

// Published is the notification that a relay sends to all nodes after a pass. It is sent in the transaction of the pass, so a
// node that gets it can read the events. Notifications may be lost or late; nothing may depend on getting each of them.
type Published struct {
	Watermark int64
	Ready     []Ready // where jobs became available
	All       bool    // the list was too long, or notifications may be lost: jobs may be available everywhere
}

// Ready says that jobs became available in a lane of a queue with a priority, the first of them with MinSeq.
// The relay leaves out places whose jobs of this pass have all been claimed by then. A job may still be gone when the node
// looks for it.
type Ready struct {
	Queue    string
	Lane     string
	Priority int16
	// MinSeq is the lowest ready_seq among them: the cursor of the node must go back to it.
	MinSeq int64
	Node   int32 // the node that made them available; 0: an application in SQL
}

// decodePublished reads {"w":…,"q":[[queue,priority,min_ready_seq,node,lane],…]}; jobs without a lane have no lane. An unreadable payload means All: a wake-up too
// many is harmless, one too few is not. A node of a later release may send more fields, which this one cannot read; All is
// right for it too.
func decodePublished(payload string) Published {
	var message struct {
		Watermark int64               `json:"w"`
		Queues    [][]json.RawMessage `json:"q"`
	}
	if json.Unmarshal([]byte(payload), &message) != nil || message.Queues == nil {
		return Published{Watermark: message.Watermark, All: true}
	}
	p := Published{Watermark: message.Watermark, Ready: make([]Ready, 0, len(message.Queues))}
	for _, q := range message.Queues {
		var r Ready
		if len(q) < 4 || len(q) > 5 || json.Unmarshal(q[0], &r.Queue) != nil || json.Unmarshal(q[1], &r.Priority) != nil ||
			json.Unmarshal(q[2], &r.MinSeq) != nil || json.Unmarshal(q[3], &r.Node) != nil || len(q) == 5 && json.Unmarshal(q[4], &r.Lane) != nil {
			return Published{Watermark: message.Watermark, All: true}
		}
		p.Ready = append(p.Ready, r)
	}
	return p
}
