package batch

import "hash/maphash"

var keySeed = maphash.MakeSeed()

// TextKey makes a key of a text. A collision has no effect except that two callers do not share a flush.
// Only the first 8 bytes are used. The seed is of this process, so keys must not be stored or sent.
func TextKey(text string) (key [16]byte) {
	h := maphash.String(keySeed, text)
	for i := range 8 {
		key[i] = byte(h >> (8 * i))
	}
	return key
}
