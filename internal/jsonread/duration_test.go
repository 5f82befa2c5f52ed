package jsonread

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestParseISO(t *testing.T) {
	t.Parallel()
	for text, ms := range map[string]int64{
		"PT0.5S": 500, "PT1S": 1000, "PT5M": 300000, "PT1H30M": 5400000, "PT24H": 86400000, "P1DT12H": 129600000,
		"P1Y": 365 * 86400000, "P1M": 30 * 86400000, "P1W": 7 * 86400000, "P1Y2M3W4DT5H6M7.008S": ((365+60+21+4)*86400+5*3600+6*60+7)*1000 + 8,
		"PT0S": 0, "PT0.0004S": 0, "PT0.0005S": 1, "PT1.0009S": 1001, "P36500D": 36500 * 86400000, "PT007S": 7000,
	} {
		d, err := ParseISODuration(text)
		require.NoError(t, err, text)
		require.Equal(t, time.Duration(ms)*time.Millisecond, d, text)
	}
	for _, text := range []string{
		"", "P", "PT", "P1DT", "-PT1S", "+PT1S", "P-1D", "pt1s", "PT1s", "PT1.5H", "P1.5D", "1s", "300s", "5", "PT1", "P1S", "PT1D", "P1D1Y", "PT1S1M",
		"P1D1D", "PT.5S", "PT1.S", "PT1,5S", " PT1S", "PT1S ", "PTT1S", "PT1HT1M", "PT1S\x00", "P١D",
		"P36501D", "P101Y", "PT99999999999999999999H", "P36500DT1S", "P99999999999999999999999999999999Y",
	} {
		_, err := ParseISODuration(text)
		require.Error(t, err, text)
	}
}

func TestParseShort(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"500ms": 500 * time.Millisecond, "5s": 5 * time.Second, "1.5h": 90 * time.Minute, "30m": 30 * time.Minute,
		"7d": 7 * 24 * time.Hour, "2w": 14 * 24 * time.Hour, "0s": 0, "PT1H": time.Hour, "0.4ms": 0, "36500d": MaxDuration,
	} {
		d, err := ParseDuration(text)
		require.NoError(t, err, text)
		require.Equal(t, want, d, text)
	}
	for _, text := range []string{"", "s", "5", "-5s", "+5s", "5S", "5 s", "5sec", "1h30m", ".5s", "5.s", "1..5s", "36501d", "1e3s", "NaNs"} {
		_, err := ParseDuration(text)
		require.Error(t, err, text)
	}
}

func TestFormat(t *testing.T) {
	t.Parallel()
	for text, d := range map[string]time.Duration{
		"PT1.5S": 1500 * time.Millisecond, "PT36H": 36 * time.Hour, "PT0S": 0, "PT1H30M": 90 * time.Minute, "PT0.001S": time.Millisecond,
		"PT876000H": MaxDuration,
	} {
		require.Equal(t, text, FormatDuration(d))
	}
}

func TestFormatParsesBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, MaxDuration.Milliseconds()).Draw(t, "ms")) * time.Millisecond
		back, err := ParseISODuration(FormatDuration(d))
		if err != nil || back != d {
			t.Fatalf("%v printed as %s reads as %v, %v", d, FormatDuration(d), back, err)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"P1DT12H", "PT0.5S", "300s", "P", "PT1.5.5S"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if d, err := ParseDuration(s); err == nil && (d < 0 || d > MaxDuration) {
			t.Fatalf("%q gives %v", s, d)
		}
	})
}
