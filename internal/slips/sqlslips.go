package slips

import (
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// sqlEdit is a slip of an SQL text: the bytes from start to end are replaced.
type sqlEdit struct {
	kind       Kind
	start, end int
	text       string
}

// sqlFinder looks for slips in one statement or function. The rules know words and brackets, no grammar: a slip that PostgreSQL does
// not take is not drawn.
type sqlFinder struct {
	src        string
	tokens     []sqlToken
	documented numbers
	sparing    map[string]bool // parameters, such as $1, whose LIMIT only spares rows
	edits      []sqlEdit
}

// sqlEdits finds the slips that the rules permit in a statement or function, in the order of the text.
func sqlEdits(src string, documented numbers, sparing map[string]bool) []sqlEdit {
	f := sqlFinder{src: src, tokens: sqlTokens(src), documented: documented, sparing: sparing}
	for i, t := range f.tokens {
		switch t.text {
		case "WHERE", "ON", "IF", "ELSIF", "WHEN", "HAVING":
			f.conjuncts(i)
		case "ORDER":
			f.order(i)
		case "COALESCE":
			f.coalesce(i)
		case "FOR":
			f.lock(i)
		case "SET":
			f.set(i)
		case "INSERT":
			f.insert(i)
		case "LIMIT":
			f.limit(i)
		case "LEAST":
			f.add(SQLBound, t.start, t.end, "GREATEST")
		case "GREATEST":
			f.add(SQLBound, t.start, t.end, "LEAST")
		case "INTERVAL":
			f.interval(i)
		case "PERFORM":
			f.perform(i)
		case "<", "<=", ">", ">=":
			if f.isClock(i-1) || f.isClock(i+1) || f.isClock(i-3) || f.isClock(i+3) {
				continue
			}
			f.add(SQLEdge, t.start, t.end, map[string]string{"<": "<=", "<=": "<", ">": ">=", ">=": ">"}[t.text])
		default:
			f.number(i)
		}
	}
	slices.SortStableFunc(f.edits, func(a, b sqlEdit) int { return a.start - b.start })
	return f.edits
}

// isClock says whether a token is a time of the database. No test can let its clock stop at the edge of a comparison.
func (f *sqlFinder) isClock(i int) bool {
	if i < 0 || i >= len(f.tokens) {
		return false
	}
	text := f.tokens[i].text
	return text == "NOW" || text == "CLOCK_TIMESTAMP" || strings.HasSuffix(text, "_AT") || strings.HasSuffix(text, "_UNTIL")
}

func (f *sqlFinder) add(kind Kind, start, end int, text string) {
	f.edits = append(f.edits, sqlEdit{kind, start, end, text})
}

// is says whether the tokens from i on are these words.
func (f *sqlFinder) is(i int, words ...string) bool {
	for n, word := range words {
		if i+n >= len(f.tokens) || f.tokens[i+n].text != word {
			return false
		}
	}
	return true
}

var clauseEnds = strings.Fields("WHERE JOIN LEFT RIGHT INNER CROSS FULL GROUP ORDER LIMIT OFFSET FOR RETURNING UNION EXCEPT INTERSECT HAVING WINDOW ON THEN LOOP DO SET WHEN ELSE ELSIF FROM SELECT INTO VALUES USING ;")

// clause is the range of tokens from i to the end of the clause that begins there.
func (f *sqlFinder) clause(i int, alsoEnd ...string) (from, to int) {
	if i >= len(f.tokens) {
		return i, i
	}
	depth := f.tokens[i].depth
	for to = i; to < len(f.tokens); to++ {
		t := f.tokens[to]
		isDistinctFrom := t.text == "FROM" && to > 0 && f.tokens[to-1].text == "DISTINCT"
		if t.depth < depth || t.depth == depth && !isDistinctFrom &&
			(slices.Contains(clauseEnds, t.text) || slices.Contains(alsoEnd, t.text)) {
			break
		}
	}
	return i, to
}

// text is the source of a range of tokens that is not empty.
func (f *sqlFinder) text(from, to int) string {
	return f.src[f.tokens[from].start:f.tokens[to-1].end]
}

// split cuts the tokens from from to to at a word of their depth.
func (f *sqlFinder) split(from, to int, word string) (parts [][2]int) {
	if from >= to {
		return nil
	}
	depth, start, between := f.tokens[from].depth, from, false
	for i := from; i < to; i++ {
		switch t := f.tokens[i]; {
		case t.depth != depth:
		case t.text == "BETWEEN":
			between = true
		case t.text == "AND" && between:
			between = false
		case t.text == word && i > start:
			parts = append(parts, [2]int{start, i})
			start = i + 1
		}
	}
	if start < to {
		parts = append(parts, [2]int{start, to})
	}
	return parts
}

// conjuncts lets each operand of AND hold always. It stays in the text, so that the types of its parameters stay known.
func (f *sqlFinder) conjuncts(i int) {
	if f.is(i, "ON", "CONFLICT") || i > 0 && f.is(i-1, "END", "IF") {
		return
	}
	from, to := f.clause(i+1, ",", "AS")
	if from >= to || len(f.split(from, to, "OR")) > 1 {
		return
	}
	parts := f.split(from, to, "AND")
	if len(parts) == 1 && f.tokens[i].text == "WHEN" {
		return // of CASE value WHEN …
	}
	for _, p := range parts {
		text := f.text(p[0], p[1])
		f.add(SQLConjunct, f.tokens[p[0]].start, f.tokens[p[1]-1].end, "(true OR "+text+")")
	}
}

func (f *sqlFinder) order(i int) {
	if !f.is(i, "ORDER", "BY") {
		return
	}
	from, to := f.clause(i + 2)
	terms := f.split(from, to, ",")
	if f.isTurn(to) {
		return
	}
	for n, p := range terms {
		if f.isFixed(p, i) {
			continue
		}
		text := f.text(p[0], p[1])
		last := f.tokens[p[1]-1]
		turned := text + " DESC"
		if last.text == "DESC" {
			turned = strings.TrimSpace(strings.TrimSuffix(text, f.src[last.start:last.end]))
		}
		f.add(SQLOrder, f.tokens[p[0]].start, last.end, turned)
		if len(terms) > 1 {
			f.leaveOut(SQLOrder, terms, n)
		}
	}
}

// leaveOut removes an item of a list, with its comma.
func (f *sqlFinder) leaveOut(kind Kind, items [][2]int, n int) {
	if n == 0 {
		f.add(kind, f.tokens[items[0][0]].start, f.tokens[items[1][0]].start, "")
		return
	}
	f.add(kind, f.tokens[items[n-1][1]-1].end, f.tokens[items[n][1]-1].end, "")
}

// brackets returns the tokens inside of the bracket at i.
func (f *sqlFinder) brackets(i int) (from, to int, ok bool) {
	if i >= len(f.tokens) || f.tokens[i].text != "(" {
		return 0, 0, false
	}
	for to = i + 1; to < len(f.tokens); to++ {
		if f.tokens[to].depth == f.tokens[i].depth {
			return i + 1, to, to > i+1
		}
	}
	return 0, 0, false
}

func (f *sqlFinder) coalesce(i int) {
	from, to, ok := f.brackets(i + 1)
	if !ok {
		return
	}
	args := f.split(from, to, ",")
	if len(args) < 2 {
		return
	}
	last := args[len(args)-1]
	start, end := f.tokens[last[0]].start, f.tokens[last[1]-1].end
	changed := map[string]string{"''": "'x'", "true": "false", "false": "true"}[strings.ToLower(f.src[start:end])]
	if changed == "" {
		changed = "NULL"
	}
	f.add(SQLDefault, start, end, changed)
	f.add(SQLDefault, f.tokens[args[0][0]].start, f.tokens[args[0][1]-1].end,
		"NULLIF("+f.text(args[0][0], args[0][1])+", "+f.text(args[0][0], args[0][1])+")")
}

func (f *sqlFinder) lock(i int) {
	if !f.is(i, "FOR", "UPDATE") && !f.is(i, "FOR", "NO", "KEY", "UPDATE") && !f.is(i, "FOR", "SHARE") && !f.is(i, "FOR", "KEY", "SHARE") {
		return
	}
	to := i + 1
	for to < len(f.tokens) && f.tokens[to].depth == f.tokens[i].depth && f.tokens[to].text != ";" {
		to++
	}
	for n := i; n < to; n++ {
		if f.is(n, "SKIP", "LOCKED") {
			f.add(SQLLock, f.tokens[n].start, f.tokens[n+1].end, "")
			to = n + 2
		}
	}
	f.add(SQLLock, f.tokens[i].start, f.tokens[to-1].end, "")
}

func (f *sqlFinder) set(i int) {
	from, to := f.clause(i + 1)
	items := f.split(from, to, ",")
	for n, item := range items {
		if item[1]-item[0] < 3 || f.tokens[item[0]+1].text != "=" {
			return // SET LOCAL, SET (a, b) = …
		}
		if len(items) > 1 {
			f.leaveOut(SQLColumn, items, n)
		}
		if n == 0 {
			continue
		}
		before := items[n-1]
		f.exchange([2]int{before[0] + 2, before[1]}, [2]int{item[0] + 2, item[1]})
	}
}

func (f *sqlFinder) exchange(a, b [2]int) {
	if a[0] >= a[1] || b[0] >= b[1] {
		return
	}
	between := f.src[f.tokens[a[1]-1].end:f.tokens[b[0]].start]
	if one, other := f.text(a[0], a[1]), f.text(b[0], b[1]); one != other {
		f.add(SQLColumn, f.tokens[a[0]].start, f.tokens[b[1]-1].end, other+between+one)
	}
}

// insert knows INSERT INTO table [AS alias] (columns) SELECT items … and VALUES (items).
func (f *sqlFinder) insert(i int) {
	open := i + 2
	for open < len(f.tokens) && f.tokens[open].text != "(" && open < i+8 {
		open++
	}
	from, to, ok := f.brackets(open)
	if !ok {
		return
	}
	columns := f.split(from, to, ",")
	start := to + 1
	var items [][2]int
	switch {
	case f.is(start, "SELECT"):
		a, b := f.clause(start + 1)
		items = f.split(a, b, ",")
	case f.is(start, "VALUES"):
		a, b, ok := f.brackets(start + 1)
		if !ok {
			return
		}
		items = f.split(a, b, ",")
	}
	if len(items) != len(columns) || len(items) < 2 {
		return
	}
	for n := range items {
		f.leaveOutColumn(columns, items, n)
		if n > 0 {
			f.exchange(items[n-1], items[n])
		}
	}
}

func (f *sqlFinder) leaveOutColumn(columns, items [][2]int, n int) {
	g := sqlFinder{src: f.src, tokens: f.tokens}
	g.leaveOut(SQLColumn, columns, n)
	g.leaveOut(SQLColumn, items, n)
	a, b := g.edits[0], g.edits[1]
	f.add(SQLColumn, a.start, b.end, f.src[a.end:b.start])
}

// limit raises a bound far above what a test has; a parameter keeps its type.
func (f *sqlFinder) limit(i int) {
	from, to := f.clause(i+1, ",")
	if from < to && !f.sparesRows(i) {
		f.add(SQLBound, f.tokens[from].start, f.tokens[to-1].end, "("+f.text(from, to)+") + 1000000")
	}
}

var sqlUnits = strings.NewReplacer("milliseconds", "seconds", "millisecond", "second", "seconds", "minutes", "second", "minute",
	"minutes", "hours", "minute", "hour", "hours", "days", "hour", "day", "days", "hours", "day", "hour")

func (f *sqlFinder) interval(i int) {
	if i+1 >= len(f.tokens) {
		return
	}
	t := f.tokens[i+1]
	if changed := sqlUnits.Replace(t.text); strings.HasPrefix(t.text, "'") && changed != t.text {
		f.add(SQLConstant, t.start, t.end, changed)
	}
}

// number makes a number greater by one, unless it is a position or part of a type.
func (f *sqlFinder) number(i int) {
	t := f.tokens[i]
	n, err := strconv.ParseInt(t.text, 10, 64)
	if err != nil || f.isPosition(i) || i > 1 && f.tokens[i-2].text == "NUMERIC" || f.isUnnoticedNumber(i, n) {
		return
	}
	f.add(SQLConstant, t.start, t.end, strconv.FormatInt(n+1, 10))
}

// isPosition says whether a number names a column of the result, as in ORDER BY 1, 2.
func (f *sqlFinder) isPosition(i int) bool {
	for i--; i > 0; i-- {
		_, err := strconv.Atoi(f.tokens[i].text)
		if f.tokens[i].text != "," && err != nil {
			return f.tokens[i].text == "BY"
		}
	}
	return false
}

func (f *sqlFinder) perform(i int) {
	_, to := f.clause(i + 1)
	for to < len(f.tokens) && f.tokens[to].text != ";" {
		to++
	}
	if to > i+1 && to < len(f.tokens) {
		f.add(SQLCall, f.tokens[i].start, f.tokens[to-1].end, "NULL")
	}
}

// sqlToken is a word, number, string, parameter, operator or bracket of SQL. Comments are none.
type sqlToken struct {
	text       string // words in upper case
	start, end int
	depth      int // of brackets and of CASE … END
}

// sqlTokens reads SQL or PL/pgSQL. The text in dollar quotes is read as well, since it is the body of a function.
func sqlTokens(src string) (tokens []sqlToken) {
	depth := 0
	var cases []int // depths of open CASE
	for i := 0; i < len(src); {
		end := tokenEnd(src, i)
		text := src[i:end]
		switch {
		case strings.HasPrefix(text, "--"), strings.HasPrefix(text, "/*"), strings.HasPrefix(text, "$$"), strings.TrimSpace(text) == "":
			i = end
			continue
		case isWordStart(text[0]):
			text = strings.ToUpper(text)
		}
		closesCase := text == "END" && len(cases) > 0 && cases[len(cases)-1] == depth
		if text == ")" || text == "]" || closesCase {
			depth--
		}
		if closesCase {
			cases = cases[:len(cases)-1]
		}
		tokens = append(tokens, sqlToken{text, i, end, depth})
		if text == "CASE" {
			cases = append(cases, depth+1)
		}
		if text == "(" || text == "[" || text == "CASE" {
			depth++
		}
		i = end
	}
	return tokens
}

func isWordStart(c byte) bool {
	return c == '_' || c == '"' || unicode.IsLetter(rune(c))
}

func isWordPart(c byte) bool { return isWordStart(c) && c != '"' || c >= '0' && c <= '9' }

func tokenEnd(src string, i int) int {
	rest := src[i:]
	switch c := src[i]; {
	case strings.HasPrefix(rest, "--"):
		return i + after(rest, "\n", 2)
	case strings.HasPrefix(rest, "/*"):
		return i + after(rest, "*/", 2)
	case strings.HasPrefix(rest, "$$"):
		return i + 2
	case c == '\'' || c == '"':
		return i + after(rest, string(c), 1)
	case c == '$' || c >= '0' && c <= '9' || isWordStart(c):
		n := 1
		for n < len(rest) && isWordPart(rest[n]) {
			n++
		}
		return i + n
	case unicode.IsSpace(rune(c)) || strings.IndexByte("()[],;", c) >= 0:
		return i + 1
	default:
		n := 1
		for n < len(rest) && strings.IndexByte("<>=!|&-+*/%#~@:?", rest[n]) >= 0 && !strings.HasPrefix(rest[n:], "--") {
			n++
		}
		return i + n
	}
}

// after is the length of the text up to the end of the next mark.
func after(text, mark string, from int) int {
	if n := strings.Index(text[from:], mark); n >= 0 {
		return from + n + len(mark)
	}
	return len(text)
}
