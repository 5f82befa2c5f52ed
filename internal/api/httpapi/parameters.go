package httpapi

import (
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/spec"
)

// maxOffset bounds the rows that a page passes over one by one. A cursor that is an id has no such cost.
const maxOffset = 1_000_000

// page is what a list was asked for, in either vocabulary: limit/offset/cursor or page/per_page.
// limit is at least 1. offset is 0 with a cursor until seek has read it. cursor is the text as sent, which each list reads in
// its own form; "": none.
type page struct {
	limit, offset int
	cursor        string
}

// readPage has the sizes of most lists: 50, at most 200.
func readPage(c echo.Context) (page, error) { return readPageOf(c, api.DefaultPage, api.MaxPage) }

// readPageOf is readPage for lists with other sizes.
// A limit above the maximum is cut and not refused. offset wins over page, and a cursor over both, so that a client may leave
// old parameters in its links.
func readPageOf(c echo.Context, standard, largest int) (page, error) {
	p := page{cursor: c.QueryParam("cursor")}
	// 0 and negative numbers are refused, large ones cut.
	limit, err := wholeNumber(c, []string{"limit", "per_page"}, standard, 1)
	if err != nil {
		return p, err
	}
	p.limit = min(limit, largest)
	if p.offset, err = wholeNumber(c, []string{"offset"}, 0, 0); err != nil {
		return p, err
	}
	number, err := wholeNumber(c, []string{"page"}, 1, 1)
	if err != nil {
		return p, err
	}
	// number is cut first, so that the product cannot overflow. The offset may still be too large, which is refused below.
	if c.QueryParam("offset") == "" && number > 1 {
		p.offset = (min(number, maxOffset) - 1) * p.limit
	}
	// A client that follows cursors may leave the page number of its first request in the URL.
	if p.cursor != "" {
		p.offset = 0
	}
	if p.offset > maxOffset {
		return p, spec.InvalidRequest("offset", "at most 1000000", p.offset, "offset must be at most 1000000; use cursor to read further.")
	}
	return p, nil
}

// behind is the id behind which the page begins, for lists whose cursors are ids; nil: it has no cursor.
func (p page) behind() (*[16]byte, error) {
	if p.cursor == "" {
		return nil, nil
	}
	id, ok := spec.ParseID(p.cursor)
	if !ok {
		return nil, api.ErrCursor(p.cursor)
	}
	return &id, nil
}

// readNumberedPage is readPageOf for lists whose cursors are offsets. Entries that come and go in between shift them.
// Any other cursor is refused rather than ignored: the client would get the first page for ever.
func readNumberedPage(c echo.Context, otherwise, most int) (page, error) {
	p, err := readPageOf(c, otherwise, most)
	if err == nil {
		err = p.seek()
	}
	return p, err
}

// seek takes the offset from the cursor, if there is one.
func (p *page) seek() error {
	if p.cursor == "" {
		return nil
	}
	n, err := strconv.Atoi(p.cursor)
	if err != nil || n < 1 || n > maxOffset {
		return api.ErrCursor(p.cursor)
	}
	p.offset = n
	return nil
}

// wholeNumber reads the first of the parameters that is present.
// The names are aliases in the order of precedence. An empty value counts as absent.
func wholeNumber(c echo.Context, names []string, otherwise, least int) (int, error) {
	for _, name := range names {
		text := c.QueryParam(name)
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < least {
			expected := "an integer of at least " + strconv.Itoa(least)
			return 0, spec.InvalidRequest(name, expected, text, name+" must be "+expected+".")
		}
		return n, nil
	}
	return otherwise, nil
}

// appendNumbered is append for lists whose cursors are offsets; shown is how many entries the page has.
func (p page) appendNumbered(b []byte, total int64, shown int) []byte {
	return p.append(b, total, p.more(total, shown), p.next(shown))
}

// more: total is a count of its own, so it may differ from the list by what has come or gone since.
func (p page) more(total int64, shown int) bool { return int64(p.offset+shown) < total }

// next is the cursor behind a page of a list whose cursors are offsets.
func (p page) next(shown int) string { return strconv.Itoa(p.offset + shown) }

// page and per_page are derived from offset and limit, also if the client sent neither; with an id as cursor, page is 1.
// next_cursor is left out on the last page. The shape is docs/reference/http.md, Pagination.
func (p page) append(b []byte, total int64, more bool, next string) []byte {
	b = append(b, `{"total":`...)
	b = strconv.AppendInt(b, total, 10)
	b = append(b, `,"limit":`...)
	b = strconv.AppendInt(b, int64(p.limit), 10)
	b = append(b, `,"offset":`...)
	b = strconv.AppendInt(b, int64(p.offset), 10)
	b = append(b, `,"page":`...)
	b = strconv.AppendInt(b, int64(p.offset/p.limit+1), 10)
	b = append(b, `,"per_page":`...)
	b = strconv.AppendInt(b, int64(p.limit), 10)
	b = append(b, `,"has_more":`...)
	b = strconv.AppendBool(b, more)
	if more && next != "" {
		b = appendText(b, "next_cursor", next)
	}
	return append(b, '}')
}

// plainList is list for values that are compared with text columns.
// Invalid UTF-8 and U+0000 would make the statement fail, as a 500.
func plainList(c *request, names ...string) ([]string, error) {
	values := list(c, names...)
	if err := api.CheckStorable(names[0], values...); err != nil {
		return nil, err
	}
	return values, nil
}

// list reads comma lists; repeated parameters are merged, empty items ignored.
// names are aliases of one parameter, whose values are joined. The result is nil if nothing was sent, which filters take as
// all.
func list(c *request, names ...string) []string {
	var values []string
	for _, name := range names {
		for _, text := range c.values(name) {
			for item := range strings.SplitSeq(text, ",") {
				if item = strings.TrimSpace(item); item != "" {
					values = append(values, item)
				}
			}
		}
	}
	return values
}
