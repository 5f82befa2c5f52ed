package slips

import (
	"strings"
	"unicode"
)

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
