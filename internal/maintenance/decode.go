package maintenance

import (
	"time"

	"github.com/ojsd/ojsd/internal/duration"
	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// maxReason bounds the bytes of a reason.
// It is shown to everybody who looks at the switch.
const maxReason = 1024

// Request is the body of POST /admin/system/maintenance (docs/reference/admin.md, Maintenance).
// Without Enabled the other members are checked and have no effect.
type Request struct {
	Enabled bool
	Start   Start // only with Enabled; By is what the body claims
}

// Decode reads a request.
// All problems are listed. A reason with U+0000 could not be stored.
func Decode(raw []byte) (Request, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return Request{}, err
	}
	b := payload.Body{}
	b.Fields, _ = payload.Read(v, []string{"enabled", "reason", "duration", "estimated_duration", "started_by"})
	r := Request{Enabled: b.Boolean("enabled")}
	if b.Get("enabled") == nil {
		b.Refuse("enabled", "true or false")
	}
	text, _ := rawjson.Text(b.Get("reason"))
	if b.Get("reason") != nil && (len(text) > maxReason || text != "" && !payload.IsName(text)) {
		b.Refuse("reason", "a string of at most 1024 bytes without U+0000")
	} else if v := b.Get("reason"); v != nil && v[0] != '"' {
		b.Refuse("reason", "a string")
	}
	by, _ := rawjson.Text(b.Get("started_by"))
	r.Start = Start{Reason: text, Lasts: length(&b, "duration"), Estimate: length(&b, "estimated_duration"), By: by}
	return r, b.Problems.Err()
}

// It is 0 if the member was not sent; 0 itself is refused, because it would end maintenance at once.
func length(b *payload.Body, name string) time.Duration {
	v := b.Get(name)
	if v == nil {
		return 0
	}
	text, _ := rawjson.Text(v)
	d, err := duration.Parse(text)
	if err != nil || d <= 0 {
		b.Refuse(name, "a duration above 0, such as 30m or PT30M")
	}
	return d
}
