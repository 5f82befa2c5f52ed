package httpapi

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/riverqueue/river/rivershared/util/ptrutil"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
)

// A handler reads its parameters one after the other and then asks once for request.err, before it does anything: the first that is
// refused is the error of the call. What is refused reads as if it was not sent. An empty value counts as absent everywhere.

// refuse keeps the first error. nil is none.
func (r *request) refuse(err error) {
	if r.err == nil {
		r.err = err
	}
}

// maxOffset bounds the rows that a page passes over one by one. A cursor that is an id has no such cost.
const maxOffset = 1_000_000

// page is what a list was asked for, in either vocabulary: limit/offset/cursor or page/per_page.
// limit is at least 1. offset is 0 with a cursor until seek has read it. cursor is the text as sent, which each list reads in
// its own form; "": none.
type page struct {
	limit, offset int
	cursor        string
}

// page reads limit or per_page, offset or page, and cursor. standard is the limit of a page that names none.
// A limit above the maximum is cut and not refused. offset wins over page, and a cursor over both, so that a client may leave
// old parameters in its links.
func (r *request) page(standard, largest int) page {
	// 0 and negative numbers are refused, large ones cut.
	p := page{cursor: r.QueryParam("cursor"), limit: min(r.integer(standard, 1, "limit", "per_page"), largest),
		offset: r.integer(0, 0, "offset")}
	// The number is cut first, so that the product cannot overflow. The offset may still be too large, which is refused below.
	if number := r.integer(1, 1, "page"); number > 1 && r.QueryParam("offset") == "" {
		p.offset = (min(number, maxOffset) - 1) * p.limit
	}
	// A client that follows cursors may leave the page number of its first request in the URL.
	if p.cursor != "" {
		p.offset = 0
	}
	if p.offset > maxOffset {
		r.refuse(spec.InvalidRequest("offset", "at most 1000000", p.offset, "offset must be at most 1000000; use cursor to read further."))
	}
	return p
}

// behind is the place behind which the page begins, in the form of the list; nil without a cursor.
func behind[T any](r *request, p page, parse func(text string) (T, bool)) *T {
	if p.cursor == "" {
		return nil
	}
	place, ok := parse(p.cursor)
	if !ok {
		r.refuse(api.ErrCursor(p.cursor))
	}
	return &place
}

// checkCursor is behind for lists whose cursors are names.
func (r *request) checkCursor(p page, valid func(name string) bool) {
	if p.cursor != "" && !valid(p.cursor) {
		r.refuse(api.ErrCursor(p.cursor))
	}
}

// numberedPage is page for lists whose cursors are offsets. Entries that come and go in between shift them.
// Any other cursor is refused rather than ignored: the client would get the first page for ever.
func (r *request) numberedPage(standard, largest int) page {
	p := r.page(standard, largest)
	r.seek(&p)
	return p
}

// seek takes the offset from the cursor, if there is one.
func (r *request) seek(p *page) {
	if p.cursor == "" {
		return
	}
	n, err := strconv.Atoi(p.cursor)
	if err != nil || n < 1 || n > maxOffset {
		r.refuse(api.ErrCursor(p.cursor))
	}
	p.offset = n
}

// integer reads the first of the parameters that is present.
// The names are aliases in the order of precedence.
func (r *request) integer(otherwise, least int, names ...string) int {
	for _, name := range names {
		text := r.QueryParam(name)
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < least {
			expected := "an integer of at least " + strconv.Itoa(least)
			r.refuse(spec.InvalidRequest(name, expected, text, name+" must be "+expected+"."))
			return otherwise
		}
		return n
	}
	return otherwise
}

// shownNumbered is shown for lists whose cursors are offsets; n is how many entries the page has.
func (p page) shownNumbered(total int64, n int) object {
	return p.shown(total, p.more(total, n), p.next(n))
}

// more: total is a count of its own, so it may differ from the list by what has come or gone since.
func (p page) more(total int64, n int) bool { return int64(p.offset+n) < total }

// next is the cursor behind a page of a list whose cursors are offsets.
func (p page) next(n int) string { return strconv.Itoa(p.offset + n) }

// shown is the member pagination (docs/reference/http.md, Pagination).
// page and per_page are derived from offset and limit, also if the client sent neither; with an id as cursor, page is 1.
// next_cursor is left out on the last page.
func (p page) shown(total int64, more bool, next string) object {
	if !more {
		next = ""
	}
	return object{
		{"total", total}, {"limit", p.limit}, {"offset", p.offset}, {"page", p.offset/p.limit + 1}, {"per_page", p.limit},
		{"has_more", more},
		{"next_cursor", given(next)},
	}
}

// text is a parameter that is compared with text columns.
// Invalid UTF-8 and U+0000 would make the statement fail, as a 500.
func (r *request) text(name string) string {
	value := r.QueryParam(name)
	r.refuse(api.CheckStorable(name, value))
	return value
}

// texts is list for values that are compared with text columns.
func (r *request) texts(names ...string) []string {
	values := r.list(names...)
	r.refuse(api.CheckStorable(names[0], values...))
	return values
}

// list reads comma lists; repeated parameters are merged, empty items ignored.
// names are aliases of one parameter, whose values are joined. The result is nil if nothing was sent, which filters take as
// all.
func (r *request) list(names ...string) []string {
	var values []string
	for _, name := range names {
		r.checkDeclared(name)
		for _, text := range r.QueryParams()[name] {
			for item := range strings.SplitSeq(text, ",") {
				if item = strings.TrimSpace(item); item != "" {
					values = append(values, item)
				}
			}
		}
	}
	return values
}

// boolean is nil if it was not sent. It takes 1 and 0 as well.
func (r *request) boolean(name string) *bool {
	text := r.QueryParam(name)
	if text == "" {
		return nil
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		r.refuse(spec.InvalidRequest(name, "true or false", text, name+" must be true or false."))
	}
	return &value
}

// flag is false if it was not sent.
func (r *request) flag(name string) bool { return ptrutil.ValOrDefault(r.boolean(name), false) }

// oneOf reads a parameter that has few values. The first is the default.
func (r *request) oneOf(name string, values ...string) string {
	text := r.QueryParam(name)
	if text == "" {
		return values[0]
	}
	if !slices.Contains(values, text) {
		expected := strings.Join(values[:len(values)-1], ", ") + " or " + values[len(values)-1]
		r.refuse(spec.InvalidRequest(name, expected, text, name+" must be "+expected+"."))
	}
	return text
}

// time is the zero time if it was not sent.
func (r *request) time(name string) time.Time {
	text := r.timeText(name)
	at, ok := job.ParseTime(text)
	if text != "" && !ok {
		r.refuse(spec.InvalidRequest(name, "an RFC 3339 time", text, name+" must be an RFC 3339 time with offset."))
	}
	return at
}

// age reads a point in time, which may be given as an age.
// The age stays relative, and the store resolves it by the clock of the database.
func (r *request) age(name string) job.When {
	text := r.timeText(name)
	if text == "" {
		return job.When{}
	}
	when, ok := job.ParseAge(text)
	if !ok {
		const expected = "an RFC 3339 time with offset, or an age such as 7d or P7D"
		r.refuse(spec.InvalidRequest(name, expected, text, name+" must be "+expected+"."))
	}
	return when
}

// timeText is a parameter that is a time. The + of its offset arrives as a space if the client did not encode it, and no time
// has a space.
// Without the replacement every time with a positive offset would be refused.
func (r *request) timeText(name string) string {
	return strings.ReplaceAll(r.QueryParam(name), " ", "+")
}
