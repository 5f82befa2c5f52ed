package job

import (
	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

var priorityNames = []string{"priority"}

// DecodePriority reads the body that changes the priority of a job. Any other member is refused: nothing else of a job can be changed, and
// ignoring it would say otherwise. In which states the call is allowed is for the statement to find out
// (docs/reference/jobs.md, Priority).
func DecodePriority(raw []byte) (int16, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return 0, err
	}
	fields, unknown := payload.Read(v, priorityNames)
	b := payload.Body{Fields: fields}
	p, ok := priority(b.Get("priority"))
	if !ok {
		b.Refuse("priority", "an integer from -100 to 100, or HIGH, NORMAL or LOW")
	}
	for _, m := range unknown {
		b.Problems.Add(ojs.ErrInvalidPayload, string(m.Name), "$."+string(m.Name), "absent: only the priority of a job can be changed", m.Value)
	}
	return p, b.Problems.Err()
}
