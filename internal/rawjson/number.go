package rawjson

import (
	"math"
	"strconv"
)

// AppendNumber appends a finite number as JSON: whole numbers as such as long as that is short, like JavaScript.
// The bounds are those at which JavaScript changes to an exponent.
func AppendNumber(b []byte, f float64) []byte {
	if abs := math.Abs(f); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		return strconv.AppendFloat(b, f, 'e', -1, 64)
	}
	return strconv.AppendFloat(b, f, 'f', -1, 64)
}
