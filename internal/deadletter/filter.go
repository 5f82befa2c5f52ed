package deadletter

import (
	"context"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Filter chooses dead letters (docs/reference/http.md, Routes). Empty fields match all.
//
// The API layers fill it from queries and bodies. Package retention passes none: Prune has bounds of its own.
type Filter struct {
	Tenant string // "": those of all
	// An empty list that a client has sent chooses nothing; see decode.
	IDs                    [][16]byte // nil: any
	Queues                 []string
	Types                  []string // exact, or a prefix if it ends in *
	ErrorTypes, ErrorCodes []string

	// Inclusive bounds of discarded_at. An age is subtracted from the time of the database. The earlier one of Until and
	// OlderThan applies.
	Since, Until, OlderThan job.When
}

// shownCut is added to upper bounds, because clients see times cut to milliseconds: a bound that a client has copied from
// discarded_at must include that job.
const shownCut = time.Millisecond - time.Microsecond

// criteria is a filter as parameters of the statements.
//
// No field is nil: a comparison with NULL would match no row. Bounds that are not set are infinite.
type criteria struct {
	tenant                 string
	since, until           pgtype.Timestamptz
	ids                    [][16]byte
	queues                 []string
	types, typePrefixes    []string
	errorTypes, errorCodes []string
}

// everything matches all dead letters up to a time.
func everything(until pgtype.Timestamptz) criteria {
	none := pg.Strings(nil)
	return criteria{since: pg.Beginning, until: until, ids: anyIDs, queues: none, types: none, typePrefixes: none, errorTypes: none, errorCodes: none}
}

// criteria converts a filter. It resolves ages by the clock of the database.
// It sends a statement only if the filter has an age.
func (s *Store) criteria(ctx context.Context, f Filter) (criteria, error) {
	w := everything(pg.End)
	w.tenant = f.Tenant
	if err := job.ResolveAges(ctx, s.db.Now, &f.Since, &f.Until, &f.OlderThan); err != nil {
		return w, pg.ClientError(err)
	}
	if f.Since.Set {
		w.since = pg.Timestamp(f.Since.At)
	}
	if until := job.Earliest(f.Until.At, f.OlderThan.At); !until.IsZero() {
		w.until = pg.Timestamp(until.Add(shownCut))
	}
	// Only the last character is special, so a type cannot be matched in its middle.
	for _, t := range f.Types {
		if prefix, cut := strings.CutSuffix(t, "*"); cut {
			w.typePrefixes = append(w.typePrefixes, prefix)
		} else {
			w.types = append(w.types, t)
		}
	}
	if f.IDs != nil {
		w.ids = f.IDs
	}
	w.queues, w.errorTypes, w.errorCodes = pg.Strings(f.Queues), literals(f.ErrorTypes), literals(f.ErrorCodes)
	return w, nil
}

// selective reports whether the list may pass over jobs: those outside of since and until it does not look at.
// A selective list stops after pg.MaxLooked jobs, and its page may be short; see Found.
func (w criteria) selective() bool {
	return w.tenant != "" || len(w.queues)+len(w.types)+len(w.typePrefixes)+len(w.errorTypes)+len(w.errorCodes) > 0
}

// literals encodes texts as JSON strings without the quotes. SQL compares error types and codes in that form (ojs.error_type),
// because it cannot decode strings with \u0000.
func literals(list []string) []string {
	res := make([]string, len(list))
	for i, text := range list {
		quoted, _ := jsontext.AppendQuote(nil, text) // fails only for invalid UTF-8, which decoding refuses
		res[i] = string(quoted[1 : len(quoted)-1])
	}
	return res
}

var (
	// The names of docs/reference/retries.md, Dead-letter endpoints. Of state only discarded is accepted.
	conditionNames = []string{"queue", "type", "error_type", "error_code", "since", "until", "older_than", "ids", "state", "confirm"}
	selectNames    = []string{"filter", "confirm"}
)

// DecodeRetry reads the body of a retry of many dead letters, which may list at most maxIDs ids.
// A body without confirm is refused: a client that leaves out its filter by mistake would retry everything.
func DecodeRetry(raw []byte, maxIDs int) (Filter, *ojs.Error) {
	return decodeConfirmed(raw, "retries", maxIDs)
}

// DecodePurge reads the body of a purge, which may list at most maxIDs ids.
func DecodePurge(raw []byte, maxIDs int) (Filter, *ojs.Error) {
	return decodeConfirmed(raw, "deletes", maxIDs)
}

// decodeConfirmed has problems of the form before a missing confirmation, so a client sees what is wrong with its filter first.
func decodeConfirmed(raw []byte, does string, maxIDs int) (Filter, *ojs.Error) {
	f, r, err := decode(raw)
	if err != nil {
		return f, err
	}
	if err := jsonread.CheckConfirmed(r.confirm, does+" every dead letter that matches"); err != nil {
		return f, err
	}
	if len(r.ids) > maxIDs {
		return f, spec.BatchSize(maxIDs, len(r.ids))
	}
	return f, nil
}

// request is what the body of a bulk call says besides its filter.
type request struct {
	confirm jsontext.Value // nil: not sent
	ids     []string       // as sent
}

// decode reads the body of a bulk call: a filter with confirm beside it, or a flat body, which is the filter. An unknown
// condition is refused, because ignoring it would touch more jobs than meant.
// All problems of the body are collected, so that a client sees them at once. fields of the filter are named with their prefix.
func decode(raw []byte) (f Filter, req request, err *ojs.Error) {
	v, err := jsonread.Check(raw)
	if err != nil {
		return f, req, err
	}
	// confirm is read from the body itself, also if there is a filter beside it.
	b := jsonread.Body{}
	b.Fields, _ = jsonread.Read(v, selectNames)
	b.Boolean("confirm")
	req.confirm = b.Get("confirm")
	// In a flat body confirm stands among the conditions, hence its place in conditionNames.
	prefix, filter := "filter.", b.Get("filter")
	if filter == nil {
		prefix, filter = "", v
	}
	if filter[0] != '{' {
		b.Refuse("filter", "an object")
		return f, req, b.Problems.Err()
	}
	fs, unknown := jsonread.Read(filter, conditionNames)
	r := conditions{fs, prefix, &b.Problems}
	for _, m := range unknown {
		r.Add(ojs.ErrInvalidPayload, prefix+string(m.Name), "$."+prefix+string(m.Name), "absent: there is no such condition", m.Value)
	}
	req.ids = r.list("ids")
	f = Filter{
		Queues: r.list("queue"), Types: r.list("type"), ErrorTypes: r.list("error_type"), ErrorCodes: r.list("error_code"),
		Since: r.when("since"), Until: r.when("until"), OlderThan: r.when("older_than"),
	}
	if req.ids != nil {
		// The zero id, which no job has, keeps the list from being empty, which would mean any.
		f.IDs = append([][16]byte{{}}, job.NewIDList(req.ids).IDs...)
	}
	if text, _ := jsonread.Text(r.Get("state")); r.Get("state") != nil && text != string(ojs.StateDiscarded) {
		r.refuse("state", "discarded")
	}
	return f, req, b.Problems.Err()
}

// conditions reads the members of a filter.
type conditions struct {
	jsonread.Fields
	prefix string
	*jsonread.Problems
}

// refuse names the path in the body as it was sent, with or without filter.
func (r *conditions) refuse(name, expected string) {
	r.Add(ojs.ErrInvalidPayload, r.prefix+name, "$."+r.prefix+name, expected, r.Get(name))
}

// list reads a text or an array of them.
// nil means that the member was not sent; a member that is refused gives what was read of it, which nobody uses.
func (r *conditions) list(name string) []string {
	v := r.Get(name)
	if v == nil {
		return nil
	}
	list, ok := []string{}, false
	if text, isText := jsonread.Text(v); isText {
		list, ok = []string{text}, true
	} else if v[0] == '[' {
		list, ok = jsonread.Texts(v)
		ok = ok && (len(list) > 0 || name == "ids") // an empty list of ids chooses nothing
	}
	for _, text := range list {
		ok = ok && jsonread.IsName(text)
	}
	if !ok {
		r.refuse(name, "a non-empty string without U+0000, or an array of them")
	}
	return list
}

// when leaves an age to be resolved later, by the clock of the database (Store.criteria).
func (r *conditions) when(name string) job.When {
	text, _ := jsonread.Text(r.Get(name))
	w, ok := job.ParseAge(text)
	if r.Get(name) != nil && !ok {
		r.refuse(name, "an RFC 3339 time with offset, or an age such as 7d or P7D")
	}
	return w
}
