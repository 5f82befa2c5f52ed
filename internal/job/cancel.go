package job

import (
	"bytes"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// CancelRequest is the optional body of POST /admin/jobs/{id}/cancel. By counts only if neither a key nor the header
// X-OJS-Actor names the caller (docs/reference/events.md, Payloads).
type CancelRequest struct {
	By     string // who cancels, as the client says; "": not sent
	Reason string
}

// DecodeCancel reads the body. None is like {}. A wrong type of a member is refused: a reason that is not recorded would be
// missed later.
func DecodeCancel(raw []byte) (CancelRequest, *ojs.Error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return CancelRequest{}, nil
	}
	v, err := rawjson.Check(raw)
	if err != nil {
		return CancelRequest{}, err
	}
	b := payload.Body{}
	b.Fields, _ = payload.Read(v, []string{"cancelled_by", "reason"})
	text := func(name string) string {
		text, ok := rawjson.Text(b.Get(name))
		if b.Get(name) != nil && !ok {
			b.Refuse(name, "a string")
		}
		return text
	}
	r := CancelRequest{By: text("cancelled_by"), Reason: text("reason")}
	return r, b.Problems.Err()
}
