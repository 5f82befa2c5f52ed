package httpapi

import (
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/ojs"
)

const maxOffset = 1_000_000

// page is what a list was asked for, in either vocabulary: limit/offset/cursor or page/per_page.
type page struct {
	limit, offset int
	cursor        string
}

func readPage(c echo.Context) (page, error) { return readPageOf(c, api.DefaultPage, api.MaxPage) }

// readPageOf is readPage for lists with other sizes.
func readPageOf(c echo.Context, standard, largest int) (page, error) {
	p := page{cursor: c.QueryParam("cursor")}
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
	if c.QueryParam("offset") == "" && number > 1 {
		p.offset = (min(number, maxOffset) - 1) * p.limit
	}
	if p.cursor != "" {
		p.offset = 0
	}
	if p.offset > maxOffset {
		return p, ojs.ErrInvalidRequest("offset", "at most 1000000", p.offset, "offset must be at most 1000000; use cursor to read further.")
	}
	return p, nil
}

// readNumberedPage is readPageOf for lists that hand out no cursors.
func readNumberedPage(c echo.Context, otherwise, most int) (page, error) {
	p, err := readPageOf(c, otherwise, most)
	if err == nil && p.cursor != "" {
		err = api.ErrCursor(p.cursor)
	}
	return p, err
}

// wholeNumber reads the first of the parameters that is present.
func wholeNumber(c echo.Context, names []string, otherwise, least int) (int, error) {
	for _, name := range names {
		text := c.QueryParam(name)
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < least {
			expected := "an integer of at least " + strconv.Itoa(least)
			return 0, ojs.ErrInvalidRequest(name, expected, text, name+" must be "+expected+".")
		}
		return n, nil
	}
	return otherwise, nil
}

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
func plainList(c echo.Context, names ...string) ([]string, error) {
	values := list(c, names...)
	if err := api.CheckStorable(names[0], values...); err != nil {
		return nil, err
	}
	return values, nil
}

// list reads comma lists; repeated parameters are merged, empty items ignored.
func list(c echo.Context, names ...string) []string {
	var values []string
	for _, name := range names {
		for _, text := range c.QueryParams()[name] {
			for item := range strings.SplitSeq(text, ",") {
				if item = strings.TrimSpace(item); item != "" {
					values = append(values, item)
				}
			}
		}
	}
	return values
}
