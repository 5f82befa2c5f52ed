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
	return criteria{since: pg.Beginning, until: until, ids: anyIDs, queues: none, types: none, typePrefixes: none, errorTypes: none,
		errorCodes: none}
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

// conditionNames are those of docs/reference/retries.md, Dead-letter endpoints. Of state only discarded is accepted.
var conditionNames = []string{"queue", "type", "error_type", "error_code", "since", "until", "older_than", "ids", "state"}

// Bulk is the body of a call about many dead letters.
type Bulk struct {
	Filter Filter
	DryRun bool // nothing is changed; the answer says what would be
}

// DecodeRetry reads the body of a retry of many dead letters, which may list at most maxIDs ids.
// A body without confirm is refused: a client that leaves out its filter by mistake would retry everything.
func DecodeRetry(raw []byte, maxIDs int) (Bulk, *ojs.Error) {
	return decode(raw, "retries every dead letter that matches", maxIDs)
}

// DecodePurge reads the body of a purge, which may list at most maxIDs ids.
func DecodePurge(raw []byte, maxIDs int) (Bulk, *ojs.Error) {
	return decode(raw, "deletes every dead letter that matches", maxIDs)
}

// decode reads the body of a bulk call.
func decode(raw []byte, does string, maxIDs int) (b Bulk, err *ojs.Error) {
	o, dryRun, err := jsonread.OpenConfirmed(raw, does, conditionNames...)
	if err != nil {
		return b, err
	}
	ids := readList(&o, "ids")
	b = Bulk{DryRun: dryRun, Filter: Filter{
		Queues: readList(&o, "queue"), Types: readList(&o, "type"), ErrorTypes: readList(&o, "error_type"),
		ErrorCodes: readList(&o, "error_code"), Since: job.ReadAge(&o, "since"),
		Until: job.ReadAge(&o, "until"), OlderThan: job.ReadAge(&o, "older_than"),
	}}
	if ids != nil {
		// The zero id, which no job has, keeps the list from being empty, which would mean any.
		b.Filter.IDs = append([][16]byte{{}}, job.NewIDList(ids).IDs...)
	}
	if len(ids) > maxIDs {
		o.Problems().Later(spec.BatchSize(maxIDs, len(ids)))
	}
	o.Text("state", "discarded", func(s string) bool { return s == string(ojs.StateDiscarded) })
	return b, o.Err()
}

// readList reads a text or an array of them; nil: the member was not sent.
func readList(o *jsonread.Object, name string) []string {
	return jsonread.Optional(o, name, "a non-empty string without U+0000, or an array of them", func(v jsontext.Value) ([]string, bool) {
		list, ok := jsonread.Texts(v)
		if text, isText := jsonread.Text(v); isText {
			list, ok = []string{text}, true
		}
		for _, text := range list {
			ok = ok && jsonread.IsName(text)
		}
		return list, ok && (len(list) > 0 || name == "ids") // an empty list of ids chooses nothing
	})
}
