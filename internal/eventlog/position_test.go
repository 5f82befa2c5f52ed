package eventlog

import (
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
)

func TestPosition(t *testing.T) {
	t.Parallel()

	t.Run("EqualsSQL", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		pool := dbtest.New(t)
		for _, c := range []struct {
			time string
			seq  int64
			sub  int32
		}{
			{"2026-05-04T03:02:06.500000Z", 1, 0},
			{"2026-05-04T03:02:06.500001Z", 2, 1},
			{"2026-05-04T03:02:06.999999Z", 500_000, 65_535},
			{"1970-01-01T00:00:00.001Z", 1<<46 - 1, 65_535},
			{"2000-01-01T00:00:00Z", 5, 0},
			{"2255-01-01T00:00:00.123457Z", 77, 3},
		} {
			at, err := time.Parse(time.RFC3339Nano, c.time)
			require.NoError(t, err)
			p := NewPosition(at, c.seq, c.sub)
			var id string
			var encoded int64
			require.NoError(t, pool.QueryRow(t.Context(), `
				SELECT i.id, ojs.event_position(i.id) FROM (SELECT ojs.event_id($1, $2, $3) AS id) i`,
				at, c.seq, c.sub).Scan(&id, &encoded))
			require.Equal(t, id, p.String())
			require.Equal(t, c.seq<<16|int64(c.sub), encoded)
			require.Equal(t, at, p.Time())

			parsed, err := ParsePosition(id)
			require.NoError(t, err)
			require.Equal(t, p, parsed)
		}
	})

	t.Run("KeepsEveryMicrosecond", func(t *testing.T) {
		t.Parallel()
		for us := range int64(1000) {
			at := time.UnixMicro(1_777_777_777_000_000 + us).UTC()
			require.Equal(t, at, NewPosition(at, 1, 0).Time())
		}
	})

	t.Run("Orders", func(t *testing.T) {
		t.Parallel()
		require.True(t, Position{}.IsZero())
		require.True(t, Position{Seq: 1}.Before(Position{Seq: 1, Sub: 1}))
		require.True(t, Position{Seq: 1, Sub: 9}.Before(Position{Seq: 2}))
		require.False(t, Position{Seq: 2}.Before(Position{Seq: 2}))
	})

	t.Run("RefusesOtherTexts", func(t *testing.T) {
		t.Parallel()
		for _, id := range []string{
			"", "evt_", "019c0a11-2f40-7003-9a51-7be2c04d1e90",
			"evt_019c0a11-2f40-7003-9a51-7be2c04d1e9", "evt_019c0a11-2f40-7003-9a51-7be2c04d1e900",
			"evt_019c0a11-2f40-4003-9a51-7be2c04d1e90", "evt_019c0a11-2f40-7003-ca51-7be2c04d1e90",
			"evt_019C0A11-2f40-7003-9a51-7be2c04d1e90", "evt_019c0a11-2f40-7003-9A51-7be2c04d1e90", "evt_019c0a11-2F40-7003-9a51-7be2c04d1e90",
			"evt_019c0a11x2f40-7003-9a51-7be2c04d1e90",
			"evt_019c0a11-2f40-7003-9a51-7be2c04d1eg0",
		} {
			_, err := ParsePosition(id)
			require.ErrorIs(t, err, ErrNotPosition, id)
		}
	})
}

// The pattern is the one of ojs.event_position.
func FuzzPosition(f *testing.F) {
	pattern := regexp.MustCompile(`^evt_[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	f.Add("evt_019c0a11-2f40-7003-9a51-7be2c04d1e90")
	f.Add("evt_00000000-0000-7000-8000-000000000000")
	f.Add("evt_ffffffff-ffff-7fff-bfff-ffffffffffff")
	f.Add("evt_019c0a11-2f40-7003-9a51-7be2c04d1e9\n")
	f.Fuzz(func(t *testing.T, id string) {
		p, err := ParsePosition(id)
		require.Equal(t, pattern.MatchString(id), err == nil)
		if err == nil {
			require.Equal(t, id, p.String())
		}
	})
}
