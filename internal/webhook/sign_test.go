package webhook

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Signatures that other implementations compute, too.
func TestSignVectors(t *testing.T) {
	t.Parallel()
	const (
		secret    = "whsec_Zm9yLXRlc3RzLW9ubHktbm90LWEtc2VjcmV0LTAwMDE="
		timestamp = 1767225600
		body      = `{"specversion":"1.0","id":"evt_019a0000-0000-7000-8000-000000000001","type":"webhook.test","source":"ojs://demo/api","time":"2026-01-01T00:00:00.000Z","subject":"sub_019a0000-0000-7000-8000-0000000000aa","data":{"message":"hello"}}`
	)
	require.Len(t, body, 231)
	require.Equal(t, "sha256=625c6b50cc1383e5049b5ada1a452dc81b937efea729cc20e67cd73a8bbcfa36", Sign(secret, timestamp, body))
	require.Equal(t, "v1,ptMpYuCgiT9CTA/JEyMgGkA/au6dFpwhg7FuO+cvjcU=",
		SignStandard(secret, "del_019a0000-0000-7000-8000-0000000000bb", timestamp, body))
}

// A receiver that knows only one of two secrets succeeds at the latest with the second attempt.
func TestSigner(t *testing.T) {
	t.Parallel()
	older, newer := Secret{ID: [16]byte{1}, Value: "older"}, Secret{ID: [16]byte{2}, Value: "newer"}
	both := []Secret{newer, older}
	for _, c := range []struct {
		name    string
		secrets []Secret
		proven  [16]byte
		attempt int
		want    string
	}{
		{"OnlyOne", both[:1], older.ID, 1, "newer"},
		{"OnlyOneEven", both[:1], [16]byte{}, 2, "newer"},
		{"OlderFirst", both, [16]byte{}, 1, "older"},
		{"NewerSecond", both, [16]byte{}, 2, "newer"},
		{"NewerFirstOnceItWorked", both, newer.ID, 1, "newer"},
		{"OlderSecondThen", both, newer.ID, 4, "older"},
		{"OlderWorkedLast", both, older.ID, 3, "older"},
		{"None", nil, older.ID, 1, ""},
	} {
		require.Equal(t, c.want, signer(c.secrets, c.proven, c.attempt).Value, c.name)
	}
}
