package retry

import "github.com/ojsd/ojsd/internal/jsonread"

// Merge gives the retry object that shows a policy after a change of some of its fields: what was sent first (nil: nothing),
// without the fields that the change sets under any name, and then the change. It changes only what is shown. The policy in
// force is computed by Parse, from the same two objects.
func Merge(first, change []byte) []byte {
	// A field may be there under an alias: the change of initial_interval also removes an initial_interval_ms that was sent
	// before.
	set := collect(change)
	b := []byte{'{'}
	member := func(literal, value []byte) {
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = jsonread.AppendCompact(append(append(b, literal...), ':'), value)
	}
	if !jsonread.IsNull(first) {
		for literal, value := range jsonread.Members(first) {
			i, known := spellingByName[string(jsonread.Name(literal))]
			if !known || set[spellings[i].field].value == nil {
				member(literal, value)
			}
		}
	}
	for literal, value := range jsonread.Members(change) {
		if !jsonread.IsNull(value) {
			member(literal, value)
		}
	}
	return append(b, '}')
}
