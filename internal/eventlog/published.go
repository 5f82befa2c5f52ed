package eventlog

import "encoding/json"

// Published is what a relay tells all nodes after a pass.
type Published struct {
	Watermark int64
	Ready     []Ready // places where jobs became available
	All       bool    // there were too many to tell, or some may have been missed: look everywhere
}

// Ready says that jobs became available at a place, the first of them with MinSeq.
type Ready struct {
	Queue    string
	Priority int16
	MinSeq   int64
	Node     int32 // who made them available; 0: an application in SQL
}

// decodePublished reads {"w":…,"q":[[queue,priority,min_ready_seq,node],…]}. What cannot be read means All: a wake-up too
// many is harmless, one too few is not.
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
		if len(q) != 4 || json.Unmarshal(q[0], &r.Queue) != nil || json.Unmarshal(q[1], &r.Priority) != nil ||
			json.Unmarshal(q[2], &r.MinSeq) != nil || json.Unmarshal(q[3], &r.Node) != nil {
			return Published{Watermark: message.Watermark, All: true}
		}
		p.Ready = append(p.Ready, r)
	}
	return p
}
