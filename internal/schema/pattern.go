package schema

import (
	"errors"
	"regexp"
	"regexp/syntax"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// maxPattern bounds the instructions of a pattern, maxPatterns those of all patterns of a schema, which are compiled twice.
// Repetitions multiply: (a{100}){10} has a thousand.
const (
	// docs/reference/schemas.md, Documents tells 200 000 steps, the half.
	maxPattern  = 10_000
	maxPatterns = 400_000
)

var errPattern = errors.New("patterns repeat too much")

// pattern is a regular expression that charges a meter for each match: RE2 takes time in proportion to the text and to the
// instructions. It belongs to one compiled schema, whose lock guards the meter.
type pattern struct {
	*regexp.Regexp
	meter        *meter
	instructions int
}

// MatchString implements jsonschema.Regexp.
func (p *pattern) MatchString(s string) bool {
	p.meter.charge(1 + len(s)*p.instructions/bytesPerStep)
	return p.Regexp.MatchString(s)
}

// compilePattern is the engine for one schema. The bound is checked before the program is built, which would take the
// memory already.
func (m *meter) compilePattern(text string) (jsonschema.Regexp, error) {
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, err
	}
	n := instructions(parsed)
	if m.left -= n; n > maxPattern || m.left < 0 {
		return nil, errPattern
	}
	// It is compiled a second time when the schema is used on another node, or again on this one.
	compiled, err := regexp.Compile(text)
	if err != nil {
		return nil, err
	}
	return &pattern{compiled, m, n}, nil
}

// instructions is about the length of the program of a pattern, found without compiling it. The result is capped, as nested
// repetitions would overflow the integer.
func instructions(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)/2
	for _, sub := range re.Sub {
		n += instructions(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(1, re.Min, re.Max)
	}
	return min(n, 100*maxPattern)
}
