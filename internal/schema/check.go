package schema

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Check refuses the first job whose args violate the schema that applies to it, with an *ojs.Error; at is its index, -1 without an
// error. q reads what this node does not know yet. A type without schemas costs a look into a map. A nil store has no
// schemas. It may run inside a transaction, and q is then on its connection: a second one could empty the pool. It changes
// nothing and may run anywhere at once. The index may be older than a change by up to a second (docs/reference/schemas.md,
// Which schema applies). An error that is no *ojs.Error is that of the database, and at is 0 then.
func (s *Store) Check(ctx context.Context, q *dbsqlc.Queries, jobs ...*job.Job) (at int, err error) {
	if s == nil {
		return -1, nil
	}
	ix, err := s.index.InTx(ctx, q)
	if err != nil {
		return 0, err
	}
	for i, j := range jobs {
		info := ix.applies(j)
		if info == nil {
			continue
		}
		c := s.compiled.get(info)
		if c == nil {
			if c, err = s.load(ctx, q, info); err != nil {
				return i, err
			}
		}
		// A schema that was deleted since the index was read refuses nothing.
		if c == nil {
			continue
		}
		// A typed nil must not become an error, hence the test.
		if refused := c.check(j.Args); refused != nil {
			return i, refused
		}
	}
	return -1, nil
}

// CheckEach is Check for jobs that are stored independently; nil: all may be stored. A job that is refused leaves the
// others to be checked. The result is nil or has an element for each job.
func (s *Store) CheckEach(ctx context.Context, q *dbsqlc.Queries, jobs []*job.Job) (errs []error) {
	for next := 0; next < len(jobs); {
		at, err := s.Check(ctx, q, jobs[next:]...)
		if err == nil {
			break
		}
		if errs == nil {
			errs = make([]error, len(jobs))
		}
		if _, refused := errors.AsType[*ojs.Error](err); !refused { // the database: the others would meet it, too
			for i := next; i < len(jobs); i++ {
				errs[i] = pg.ClientError(err)
			}
			break
		}
		errs[next+at] = err
		next += at + 1
	}
	return errs
}

// load reads and compiles a schema; nil: it was deleted meanwhile. It runs once per schema and node, and again after the
// schema was dropped for room. The compiled form is kept by its creation time, so that a schema that was registered anew
// under the same name is another one.
func (s *Store) load(ctx context.Context, q *dbsqlc.Queries, info *Info) (*compiled, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	// No lock is held here.
	row, err := q.SchemaGet(ctx, info.Type, info.Version)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s.loading.Lock() // one at a time: that of a large schema takes long. Not while it reads, as in loop.Value.InTx
	defer s.loading.Unlock()
	if c := s.compiled.get(info); c != nil {
		return c, nil
	}
	stored := fromRow(&row)
	// It was compiled when it was registered, perhaps by a newer release. Its jobs are refused rather than stored
	// unchecked.
	c, err := compile(stored.Info, stored.Document)
	if err != nil {
		s.logger.ErrorContext(ctx, "this node cannot compile a registered schema; upgrade it, or delete the schema",
			slog.String("category", "error"),
			slog.String("schema", info.URI), slog.Any("error", err))
		return nil, spec.NewError(ojs.ErrSchemaValidation, "The schema "+info.URI+" cannot be read by this node; register it again.",
			map[string]any{"field": "args", "schema": info.URI})
	}
	s.compiled.put(c)
	return c, nil
}

// check is nil if args, a JSON array, satisfy the schema. It does not change args and may be called by any number of
// goroutines, one of which runs at a time. An error tells up to jsonread.MaxProblems violations.
func (c *compiled) check(args []byte) *ojs.Error {
	value, err := decodeJSON(args)
	if err != nil { // jsonread has accepted it: it is nested deeper than the standard library reads
		return c.refuse(err.Error())
	}
	var at []string // of the value inside args
	// The path of a violation then begins with [0], as args are an array for the client.
	if list, _ := value.([]any); c.object {
		if len(list) != 1 {
			return c.refuse("the schema describes an object, so args must be an array of one object, got " + strconv.Itoa(len(list)) + " elements")
		}
		at, value = []string{"0"}, list[0]
	}
	// Before the library, which would compute with them.
	if !numbersFit(value) {
		return c.refuse("a number has more than 400 digits, or an exponent beyond 400")
	}
	invalid, err := c.run(value)
	switch {
	// A check that was given up refuses the job: to accept it would let clients pass any schema by making args large.
	case err != nil:
		return c.refuse("it takes too long to check args of this size against this schema; send less in one job, or make the schema simpler")
	case invalid != nil:
		return c.refusal(flatten(invalid, "$.args", at, jsonread.MaxProblems))
	}
	return nil
}

func (c *compiled) refuse(message string) *ojs.Error {
	return c.refusal([]jsonread.Violation{{Path: "$.args", Message: message}})
}

// run validates a value within the budget. Its errors are errBudget and what hostile schemas make the library panic with.
// The lock is taken for the meter, which is shared by all formats and patterns of the schema.
func (c *compiled) run(value any) (invalid *jsonschema.ValidationError, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Any panic counts as errBudget: a defect of the library must refuse one job, not end the node.
	defer func() {
		if r := recover(); r != nil {
			err = errBudget
		}
	}()
	// Each check has the whole budget; what the one before has left does not count.
	c.meter.left = budget
	if failed := c.schema.Validate(value); !errors.As(failed, &invalid) {
		return nil, failed
	}
	return invalid, nil
}

// numbersFit recurses as deep as args, which jsonread has bounded.
func numbersFit(value any) bool {
	switch v := value.(type) {
	case json.Number:
		return numberFits(v)
	case []any:
		for _, e := range v {
			if !numbersFit(e) {
				return false
			}
		}
	case map[string]any:
		for _, e := range v {
			if !numbersFit(e) {
				return false
			}
		}
	}
	return true
}

// maxMessage is how long a message about one violation is: that of an enum lists all its values. Fifty of them stay a
// readable answer.
const maxMessage = 300

var english = message.NewPrinter(language.English)

// flatten lists the innermost causes of a validation error, up to a number of them. root is the JSONPath of the value in which the one
// that was checked has the location base. Only innermost causes tell what to change; the others say that a part does not
// fit. anyOf lists those of all its branches.
func flatten(err *jsonschema.ValidationError, root string, base []string, most int) (list []jsonread.Violation) {
	var walk func(e *jsonschema.ValidationError)
	walk = func(e *jsonschema.ValidationError) {
		if len(e.Causes) == 0 && len(list) < most {
			location := slices.Concat(base, e.InstanceLocation)
			list = append(list, jsonread.Violation{
				Path: jsonPath(root, location), Pointer: jsonPointer(location),
				Message: job.Shorten(e.ErrorKind.LocalizedString(english), maxMessage),
			})
		}
		for _, cause := range e.Causes {
			// The walk ends early: args with a million mistakes have a million causes.
			if len(list) == most {
				return
			}
			walk(cause)
		}
	}
	walk(err)
	slices.SortStableFunc(list, func(a, b jsonread.Violation) int {
		return strings.Compare(a.Pointer,
			b.Pointer)
	}) // members come in random order
	return list
}

// jsonPointer shortens a name, which may be as long as args.
func jsonPointer(location []string) string {
	var b strings.Builder
	for _, token := range location {
		b.WriteByte('/')
		b.WriteString(pointerEscapes.Replace(job.Shorten(token, maxMessage)))
	}
	return b.String()
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// jsonPath is for people and pointer for programs (docs/reference/schemas.md, Violations).
func jsonPath(root string, location []string) string {
	b := []byte(root)
	for _, token := range location {
		token = job.Shorten(token, maxMessage)
		switch {
		case jsonread.AllIn(token, digit) && token != "":
			b = append(append(append(b, '['), token...), ']')
		case jsonread.AllIn(token, isWord) && token != "":
			b = append(append(b, '.'), token...)
		default:
			b = append(strconv.AppendQuote(append(b, '['), token), ']')
		}
	}
	return string(b)
}

func isWord(c byte) bool { return alphanumeric(c) || c == '_' }

// refusal is the 422 for args that violate a schema. list has at least one element.
func (c *compiled) refusal(list []jsonread.Violation) *ojs.Error {
	return spec.NewError(ojs.ErrSchemaValidation, "args violate the schema "+c.info.URI+": at "+list[0].Path+": "+list[0].Message+".",
		map[string]any{
			"field": "args", "schema": c.info.URI, "schema_type": c.info.Type, "schema_version": c.info.Version, "validation_errors": list,
		})
}
