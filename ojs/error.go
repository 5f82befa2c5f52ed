package ojs

import (
	"strings"
	"time"
)

// Error is a refusal that a client sees (docs/reference/errors.md, Body). Compare it with errors.Is and
// a kind, such as [ErrNotFound], and not by its message, which may change.
type Error struct {
	Code      string `json:"code"` // lower_snake_case, from the catalogue
	Type      string `json:"type"` // finer class; equals Code unless the catalogue says otherwise
	Message   string `json:"message"`
	Retryable bool   `json:"retryable"`
	Hint      string `json:"hint"`
	DocsURL   string `json:"docs_url"`
	// Details depend on the kind (docs/reference/errors.md, Catalogue); see [ErrorDetail].
	Details   map[string]any `json:"details,omitempty"`
	RequestID string         `json:"request_id,omitempty"` // set by the transport; absent in items of a bulk answer

	// These are set by the [Client], from its request and the answer over HTTP. The server leaves them out.
	Method     string        `json:"-"`
	Path       string        `json:"-"` // below /ojs/v1
	Status     int           `json:"-"`
	RetryAfter time.Duration `json:"-"`
}

// Error gives code and message, and what is known of the request: "not_found: Job x does not exist. (GET /jobs/x, request req_1)".
func (e *Error) Error() string {
	text := e.Code + ": " + e.Message
	var request []string
	if e.Method != "" {
		request = append(request, e.Method+" "+e.Path)
	}
	if e.RequestID != "" {
		request = append(request, "request "+e.RequestID)
	}
	if len(request) > 0 {
		text += " (" + strings.Join(request, ", ") + ")"
	}
	return text
}

// Is makes errors.Is compare code and type, so that a sentinel need not repeat the message. The target may be an [ErrorKind].
func (e *Error) Is(target error) bool {
	if kind, ok := target.(ErrorKind); ok {
		return e.isKind(kind)
	}
	t, ok := target.(*Error)
	return ok && e.Code == t.Code && (t.Type == "" || e.Type == t.Type)
}
