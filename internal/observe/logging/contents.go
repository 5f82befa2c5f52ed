package logging

import (
	"regexp"

	"github.com/ojsd/ojsd/internal/rawjson"
)

// JSON is valid JSON of a client that a line shows unquoted.
type JSON []byte

// MarshalJSON is for the format json.
func (j JSON) MarshalJSON() ([]byte, error) { return j, nil }

// MarshalText is for the format text.
func (j JSON) MarshalText() ([]byte, error) { return j, nil }

var secretName = regexp.MustCompile(`(?i)password|token|secret|authorization`)

// WithoutSecrets is meta without the members, at any depth, that are named like secrets (docs/reference/observability.md,
// Logs).
func WithoutSecrets(value []byte) []byte { return appendPublic(make([]byte, 0, len(value)), value) }

func appendPublic(b, value []byte) []byte {
	switch value[0] {
	case '{':
		b = append(b, '{')
		for literal, member := range rawjson.Members(value) {
			if secretName.Match(rawjson.Name(literal)) {
				continue
			}
			if b[len(b)-1] != '{' {
				b = append(b, ',')
			}
			b = appendPublic(append(append(b, literal...), ':'), member)
		}
		return append(b, '}')
	case '[':
		b = append(b, '[')
		for element := range rawjson.Elements(value) {
			if b[len(b)-1] != '[' {
				b = append(b, ',')
			}
			b = appendPublic(b, element)
		}
		return append(b, ']')
	}
	return append(b, value...)
}
