package sqlcall

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/ojsd/ojsd/ojs"
)

// ojs.enqueue takes the key of a unique job and does not compute it, so this file does, by the rules of docs/reference/unique.md, Key: a
// job of the same policy has the same key over HTTP, where the server computes it. The server puts texts in Unicode NFC, for which the
// standard library has no function; a text that might change thereby is refused.

// identified are the parts of a job that a key can be made of, as they are sent.
type identified struct {
	Type, Queue string
	Args, Meta  json.RawMessage
}

// policy is what of a unique policy makes the key, as package ojs sends it.
type policy struct {
	Keys     []string `json:"keys"`
	ArgsKeys []string `json:"args_keys"`
	MetaKeys []string `json:"meta_keys"`
}

// uniqueKey is the key of a job, or a refusal of its policy.
func uniqueKey(j identified, p policy) (string, error) {
	for name, list := range map[string][]string{"keys": p.Keys, "args_keys": p.ArgsKeys, "meta_keys": p.MetaKeys} {
		for i, key := range list {
			if key == "" || strings.ContainsRune(key, 0) || slices.Contains(list[:i], key) {
				return "", refuse("unique."+name, "'unique.%s' must be non-empty strings, each once, got %q", name, list)
			}
		}
	}
	parts := map[string]any{"type": j.Type}
	for _, key := range p.Keys {
		var err error
		switch key {
		case "type":
		case "queue":
			parts["queue"] = cmp.Or(j.Queue, "default")
		case "args":
			parts["args"], err = chosenArgs(j.Args, p.ArgsKeys)
		case "meta":
			parts["meta"], err = chosenMeta(j.Meta, p.MetaKeys)
		default:
			err = refuse("unique.keys", "'unique.keys' must be of type, queue, args and meta, got %q", p.Keys)
		}
		if err != nil {
			return "", err
		}
	}
	text, err := appendCanonical(nil, parts)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// chosenArgs is all of args without names; else an object with the named ones: digits are an index, any other name is a member of the first
// object that has it. A name that addresses nothing is refused, because all jobs of the type would be equal otherwise.
func chosenArgs(data json.RawMessage, names []string) (any, error) {
	var args []any
	if err := decode(data, &args); err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return args, nil
	}
	chosen := map[string]any{}
	for _, name := range names {
		if strings.Trim(name, "0123456789") == "" {
			if i, err := strconv.Atoi(name); err == nil && i < len(args) {
				chosen[name] = args[i]
			}
		} else if i := slices.IndexFunc(args, func(a any) bool { return hasMember(a, name) }); i >= 0 {
			chosen[name] = args[i].(map[string]any)[name]
		}
		if _, found := chosen[name]; !found {
			return nil, refuse("unique.args_keys", "'unique.args_keys' must be names that resolve in 'args', got %q", name)
		}
	}
	return chosen, nil
}

func hasMember(value any, name string) bool {
	members, isObject := value.(map[string]any)
	_, found := members[name]
	return isObject && found
}

// chosenMeta has null for a member that is missing.
func chosenMeta(data json.RawMessage, names []string) (any, error) {
	if len(names) == 0 {
		return nil, refuse("unique.meta_keys", "'unique.meta_keys' must be the names of the meta members that count, because keys has meta")
	}
	var meta map[string]any
	if len(data) > 0 {
		if err := decode(data, &meta); err != nil {
			return nil, err
		}
	}
	chosen := map[string]any{}
	for _, name := range names {
		chosen[name] = meta[name]
	}
	return chosen, nil
}

// decode keeps the literals of numbers.
func decode(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return d.Decode(into)
}

// appendCanonical appends a value in the form of RFC 8785, which differs in two rules of the reference: integers beyond 2^53 keep their
// digits, and numbers beyond a double keep their literal.
func appendCanonical(b []byte, value any) ([]byte, error) {
	var err error
	switch v := value.(type) {
	case nil:
		return append(b, "null"...), nil
	case bool:
		return strconv.AppendBool(b, v), nil
	case json.Number:
		return append(b, number(string(v))...), nil
	case string:
		return appendText(b, v)
	case []any:
		b = append(b, '[')
		for i, element := range v {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendCanonical(b, element); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	case map[string]any:
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		slices.SortFunc(names, func(x, y string) int { // the order of the RFC is that of UTF-16
			return slices.Compare(utf16.Encode([]rune(x)), utf16.Encode([]rune(y)))
		})
		b = append(b, '{')
		for i, name := range names {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendText(b, name); err != nil {
				return nil, err
			}
			if b, err = appendCanonical(append(b, ':'), v[name]); err != nil {
				return nil, err
			}
		}
		return append(b, '}'), nil
	}
	return nil, fmt.Errorf("ojs: a %T in a unique key", value) // decode gives no other
}

// number has one text for 5, 5.0 and 50e-1, as JavaScript has.
func number(literal string) string {
	if !strings.ContainsAny(literal, ".eE") {
		if literal == "-0" {
			return "0"
		}
		return literal
	}
	f, err := strconv.ParseFloat(literal, 64)
	switch {
	case err != nil:
		return literal
	case f == 0:
		return "0"
	case f >= -(1<<63) && f <= 1<<63: // the double may be an integer where the literal is none, and the other way round
		if exact, ok := new(big.Rat).SetString(literal); ok && exact.IsInt() && exact.Num().IsInt64() {
			return exact.Num().String()
		}
	}
	text, err := json.Marshal(f) // has the form of JavaScript
	if err != nil {
		return literal
	}
	return string(text)
}

func appendText(b []byte, text string) ([]byte, error) {
	b = append(b, '"')
	for _, r := range text {
		switch {
		case !unicode.Is(inNFC, r):
			return nil, refuse("unique",
				"the unique key of %q needs Unicode NFC, of which %U may change the form: compute the key and set UniqueKey", text, r)
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r >= ' ':
			b = append(b, string(r)...)
		case strings.ContainsRune("\b\t\n\f\r", r):
			b = append(b, '\\', "btn_fr"[r-'\b'])
		default:
			b = fmt.Appendf(b, `\u%04x`, r)
		}
	}
	return append(b, '"'), nil
}

// inNFC has characters that stay as they are in NFC, whatever stands beside them. They are not all: it has the letters of European
// languages, Hebrew and Arabic without marks, Chinese, Japanese, Korean, and symbols. U+FFFD, for which decoding takes what is no text,
// is not among them.
var inNFC = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0x0000, 0x02FF, 1}, {0x0370, 0x0373, 1}, {0x0375, 0x037D, 1}, {0x037F, 0x0386, 1}, {0x0388, 0x0482, 1}, {0x048A, 0x0590, 1},
		{0x05D0, 0x05EA, 1}, {0x0620, 0x064A, 1}, {0x0660, 0x066F, 1}, {0x0671, 0x06D5, 1}, {0x1E00, 0x1EFF, 1}, {0x200B, 0x200F, 1},
		{0x2010, 0x205E, 1}, {0x20A0, 0x20C0, 1}, {0x2100, 0x2125, 1}, {0x2127, 0x2129, 1}, {0x212C, 0x2328, 1}, {0x232B, 0x2ADB, 1},
		{0x3000, 0x3029, 1}, {0x3030, 0x3098, 1}, {0x309B, 0x9FFF, 1}, {0xAC00, 0xD7A3, 1}, {0xFE0F, 0xFE0F, 1}, {0xFF01, 0xFFEE, 1},
	},
	R32:         []unicode.Range32{{0x1F000, 0x1FAFF, 1}, {0x20000, 0x2A6DF, 1}},
	LatinOffset: 0,
}

func refuse(field, format string, args ...any) error {
	return &ojs.Error{Code: string(ojs.ErrInvalidPayload), Type: string(ojs.ErrInvalidPayload), Message: fmt.Sprintf(format, args...) +
		"; nothing was sent, and the transaction goes on", Details: map[string]any{"field": field}}
}
