package stats

// Durations counts run times by range: the numbers of ojs.duration_bucket, which begin at 1, less 1. Empty: none.
// It has 18 numbers, one more than bounds. Rows that were written before the first completed job of their period have none.
type Durations []int64

// bounds are the ends of the ranges in ms, as in ojs.duration_bucket. The last range has none, and counts as long as its begin.
var bounds = [...]float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 300_000, 1_800_000}

// Percentile estimates, in ms, the run time that a share of the jobs does not exceed. It takes the jobs of a range as spread evenly over
// it, so the error is at most the length of the range. 0 without jobs. share is from 0 to 1. Above 30 minutes the answer is 30
// minutes, because the last range has no end.
func (d Durations) Percentile(share float64) float64 {
	total := int64(0)
	for _, n := range d {
		total += n
	}
	rank := share * float64(total)
	low := 0.0
	for i, n := range d {
		// The last range has no end between which and its begin a value could be estimated.
		if i >= len(bounds) {
			break
		}
		if rank <= float64(n) && n > 0 {
			return low + (bounds[i]-low)*rank/float64(n)
		}
		rank -= float64(n)
		low = bounds[i]
	}
	if total == 0 {
		return 0
	}
	return low
}

// It may change d in place; other is never changed.
func (d Durations) add(other []int64) Durations {
	if len(d) < len(other) {
		d = append(d, make([]int64, len(other)-len(d))...)
	}
	for i, n := range other {
		d[i] += n
	}
	return d
}
