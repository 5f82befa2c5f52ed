package job

import (
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
)

// resolve refuses argument names that address nothing: digits are an index into args, any other name
// is a member of one of its objects. One pass over args, however many names there are. A misspelt name would otherwise make all
// jobs of the type equal to each other, and all but the first would be refused or dropped.
func (r *uniqueReader) resolve(args jsontext.Value) {
	// Args that are no array are refused elsewhere.
	if !has(r.Keys, "args") || len(r.ArgsKeys) == 0 || args == nil || args[0] != '[' {
		return
	}
	missing := make(map[string]bool, len(r.ArgsKeys))
	for _, name := range r.ArgsKeys {
		missing[name] = true
	}
	index := 0
	for e := range rawjson.Elements(args) {
		delete(missing, strconv.Itoa(index))
		index++
		if e[0] != '{' {
			continue
		}
		for name := range rawjson.Members(e) {
			if n := rawjson.Name(name); missing[string(n)] && !isIndex(string(n)) {
				delete(missing, string(n))
			}
		}
	}
	for _, name := range r.ArgsKeys { // in order, so that the answer is the same every time
		if missing[name] && !(isIndex(name) && indexBelow(name, index)) {
			r.refuse("args_keys", "names that resolve in 'args'", payload.Quote(name))
			return
		}
	}
}

// An object of args may have a member whose name is digits; it cannot be addressed.
func isIndex(s string) bool { return strings.Trim(s, "0123456789") == "" }

// indexBelow takes leading zeros, unlike the text that strconv.Itoa gives.
func indexBelow(s string, n int) bool {
	i, err := strconv.Atoi(s)
	return err == nil && i < n
}
