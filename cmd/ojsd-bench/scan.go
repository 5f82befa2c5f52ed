package main

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// errScan says that a response is not the JSON that was expected.
var errScan = errors.New("unexpected JSON")

// jobID is in binary, which takes a quarter of the memory of its text.
type jobID = uuid.UUID

const idLen = 36

// parseID reads the canonical form, the only one that the server may send.
func parseID(text []byte) (jobID, error) {
	id, err := uuid.ParseBytes(text)
	if err != nil || len(text) != idLen {
		return jobID{}, fmt.Errorf("%w: id %q", errScan, text)
	}
	return id, nil
}

// member returns the raw value of the object's first member called key, or nil. It stops there and does not check what
// follows. Escapes in names are not decoded. Reading the ids of a fetch takes 0.5 µs a job this way, and 2.6 µs with
// encoding/json. A member of that name in a nested object is not found, because values are skipped whole. The result points
// into object.
func member(object []byte, key string) ([]byte, error) {
	i, err := expect(object, 0, '{')
	if err != nil {
		return nil, err
	}
	for {
		if i = skipSpace(object, i); byteAt(object, i) == '}' {
			return nil, nil
		}
		nameEnd, err := skipString(object, i)
		if err != nil {
			return nil, err
		}
		start, err := expect(object, nameEnd, ':')
		if err != nil {
			return nil, err
		}
		start = skipSpace(object, start)
		end, err := skipValue(object, start)
		if err != nil {
			return nil, err
		}
		if string(object[i+1:nameEnd-1]) == key {
			return object[start:end], nil
		}
		if i = skipSpace(object, end); byteAt(object, i) == ',' {
			i++
		}
	}
}

// elements calls fn with the raw text of each element of an array. fn must not keep the slice: it points into the answer, which
// the next call replaces.
func elements(array []byte, fn func(element []byte) error) error {
	i, err := expect(array, 0, '[')
	if err != nil {
		return err
	}
	for {
		if i = skipSpace(array, i); byteAt(array, i) == ']' {
			return nil
		}
		end, err := skipValue(array, i)
		if err != nil {
			return err
		}
		if err := fn(array[i:end]); err != nil {
			return err
		}
		if i = skipSpace(array, end); byteAt(array, i) == ',' {
			i++
		}
	}
}

// stringMember returns a string member without its quotes, "" if it is absent or null. Escapes are not decoded.
func stringMember(object []byte, key string) ([]byte, error) {
	value, err := member(object, key)
	if err != nil || value == nil || string(value) == "null" {
		return nil, err
	}
	if value[0] != '"' {
		return nil, fmt.Errorf("%w: member %q is not a string", errScan, key)
	}
	return value[1 : len(value)-1], nil
}

// idMember returns the member called key as a job id.
func idMember(object []byte, key string) (jobID, error) {
	text, err := stringMember(object, key)
	if err != nil {
		return jobID{}, err
	}
	return parseID(text)
}

// appendIDs appends the member "id" of every object in the array called key.
func appendIDs(ids []jobID, object []byte, key string) ([]jobID, error) {
	array, err := member(object, key)
	if err != nil {
		return ids, err
	}
	err = elements(array, func(element []byte) error {
		id, err := idMember(element, "id")
		ids = append(ids, id)
		return err
	})
	return ids, err
}

// byteAt is b[i], or 0 behind the end.
func byteAt(b []byte, i int) byte {
	if i < len(b) {
		return b[i]
	}
	return 0
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

func expect(b []byte, i int, c byte) (int, error) {
	if i = skipSpace(b, i); byteAt(b, i) != c {
		return i, fmt.Errorf("%w: want %q at byte %d", errScan, c, i)
	}
	return i + 1, nil
}

// skipString returns the index after the string that starts at i. A quote behind an odd number of backslashes is part of the
// string.
func skipString(b []byte, i int) (int, error) {
	if byteAt(b, i) != '"' {
		return i, fmt.Errorf("%w: want a string at byte %d", errScan, i)
	}
	for i++; ; i++ {
		n := bytes.IndexByte(b[min(i, len(b)):], '"')
		if n < 0 {
			return i, fmt.Errorf("%w: string without end", errScan)
		}
		i += n
		backslashes := 0
		for b[i-1-backslashes] == '\\' {
			backslashes++
		}
		if backslashes%2 == 0 {
			return i + 1, nil
		}
	}
}

// skipValue returns the index after the value that starts at i. Numbers and words are not checked; only their end is looked
// for.
func skipValue(b []byte, i int) (int, error) {
	switch byteAt(b, i) {
	case '"':
		return skipString(b, i)
	case '{', '[':
		return skipNested(b, i)
	}
	start := i
	for i < len(b) && !endsValue(b[i]) {
		i++
	}
	if i == start {
		return i, fmt.Errorf("%w: want a value at byte %d", errScan, i)
	}
	return i, nil
}

func endsValue(c byte) bool {
	return c == ',' || c == ']' || c == '}' || c == ' ' || c == '\n' || c == '\t' || c == '\r'
}

// skipNested counts brackets of both kinds together, which is enough for JSON that is valid.
func skipNested(b []byte, i int) (int, error) {
	for depth := 0; i < len(b); i++ {
		switch b[i] {
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1, nil
			}
		case '"':
			end, err := skipString(b, i)
			if err != nil {
				return i, err
			}
			i = end - 1
		}
	}
	return i, fmt.Errorf("%w: object or array without end", errScan)
}
