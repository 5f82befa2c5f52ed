package config

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var testKey = base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("k"), 32))

// examples have, for each kind of setting, a good text that is no default, and bad ones.
var examples = map[string]struct {
	good string
	bad  []string
}{
	kindBool:         {"", []string{"maybe", "2"}},
	kindInt:          {"77", []string{"x", "1.5", "", "99999999999999999999"}},
	kindDuration:     {"1d12h", []string{"5", "x", "", "-1s", "P7D", "1d-1h", "99999d"}},
	kindDurations:    {"1s,2m", []string{"1s,,2m", "x", "-1s"}},
	kindSize:         {"64KiB", []string{"64 KiB", "1TB", "", "-1", "1.5MiB"}},
	kindText:         {"billing", []string{"A B", ""}},
	kindList:         {"https://a.example,https://b.example", []string{"a,,b", ","}},
	kindURL:          {"http://h.example:3128", []string{"h:3128", "nonsense", "http://"}},
	kindPostgres:     {"postgres://joe@db:5433/app", []string{"postgres://db:port/app", "nonsense"}},
	kindAddress:      {"127.0.0.1:81", []string{"8080", ":http", ":70000", ""}},
	kindKeys:         {testKey + "," + testKey, []string{"short", testKey + ",short"}},
	kindDestinations: {"10.0.0.0/8,hooks.internal", []string{"10.0.0.0/33", "https://h", "h:80", "::ffff:127.0.0.0/104", "a,,b"}},
	kindFile:         {"/etc/ca.pem", nil},
}

// goodAndBad are texts for a setting. Its default is no good example, because it would hide that a value does not arrive.
func goodAndBad(s Setting) (good string, bad []string) {
	example := examples[s.Kind]
	good, bad = example.good, example.bad
	switch s.Kind {
	case kindBool:
		good = "true"
		if s.Default == "true" {
			good = "false"
		}
	case kindChoice:
		good, bad = s.values[len(s.values)-1], []string{"nonsense", ""}
	case kindURL:
		if s.schemes != nil {
			bad = append(bad, "ftp://h.example")
		}
	}
	if s.low != "" && s.Kind != kindDurations {
		high, _ := s.count(s.high)
		low, _ := s.count(s.low)
		suffix := ""
		if s.Kind == kindDuration {
			suffix = "ns"
		}
		bad = append(bad, fmt.Sprint(high+1)+suffix, fmt.Sprint(low-1)+suffix)
	}
	return good, bad
}

// field is the value of the setting in the configuration.
func field(l *Loaded, s Setting) any {
	return reflect.ValueOf(l.Config).FieldByIndex(s.index).Interface()
}

func load(s Setting, env, flag string) (*Loaded, error) {
	in := Input{Settings: []Setting{s}, Flags: map[string]string{}}
	if env != "" {
		in.Environ = []string{"PATH=/bin", s.Env + "=" + env}
	}
	if flag != "" {
		in.Flags[s.Flag] = flag
	}
	return Load(in)
}

func TestEverySetting(t *testing.T) {
	t.Parallel()
	for _, s := range Table() {
		t.Run(s.Env, func(t *testing.T) {
			t.Parallel()
			require.Regexp(t, `^(OJS|DATABASE)(_[A-Z0-9]+)+$`, s.Env)
			require.Equal(t, strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(s.Env, "OJS_"), "_", "-")), s.Flag)
			require.Regexp(t, `(?s)^\S.*[^.]\.$`, s.Help, "one sentence")
			good, bad := goodAndBad(s)

			byDefault, err := load(s, "", "")
			require.NoError(t, err)
			require.Equal(t, []string{s.Default, FromDefault}, []string{byDefault.Values[0].Text, byDefault.Values[0].Source})
			_, err = Load(Input{Settings: []Setting{s}, Dev: true})
			require.NoError(t, err)

			byEnv, err := load(s, good, "")
			require.NoError(t, err)
			require.Equal(t, FromEnvironment, byEnv.Values[0].Source)
			require.NotEqual(t, field(byDefault, s), field(byEnv, s))

			byFlag, err := load(s, "", good)
			require.NoError(t, err)
			require.Equal(t, FromFlag, byFlag.Values[0].Source)
			require.Equal(t, field(byEnv, s), field(byFlag, s))

			for _, text := range bad {
				if text != "" { // an empty variable counts as unset
					_, err = load(s, text, "")
					require.ErrorContains(t, err, s.Env+" must be ", text)
				}
				_, err = Load(Input{Settings: []Setting{s}, Flags: map[string]string{s.Flag: text}})
				require.ErrorContains(t, err, "--"+s.Flag+" must be ", text)
			}
		})
	}
}

func TestFlagWinsOverEnvironment(t *testing.T) {
	t.Parallel()
	for _, s := range Table() {
		good, _ := goodAndBad(s)
		l, err := load(s, "nonsense", good) // what is not used is not checked
		require.NoError(t, err, s.Env)
		require.Equal(t, []string{good, FromFlag}, []string{l.Values[0].Text, l.Values[0].Source})
	}
	l, err := Load(Input{Settings: Table(), Environ: []string{"OJS_CORS_ORIGINS=https://a.example", "OJS_JOBS_TIMEOUT="}, Flags: map[string]string{"cors-origins": ""}})
	require.NoError(t, err)
	require.Empty(t, l.Config.Server.CORSOrigins, "an empty flag is an empty list")
	require.Equal(t, 30*time.Minute, l.Config.Jobs.Timeout, "an empty variable counts as unset")
}

func TestZeroIsNoDefault(t *testing.T) {
	t.Parallel()
	for _, s := range Table() {
		if s.low != "0" {
			continue
		}
		l, err := load(s, "0", "")
		require.NoError(t, err, s.Env)
		if s.Kind == kindDurations {
			require.Equal(t, []time.Duration{0}, field(l, s))
			continue
		}
		require.True(t, reflect.ValueOf(field(l, s)).IsZero(), s.Env)
		require.Contains(t, s.Help, "; 0: ", "%s says what 0 means", s.Env)
	}
}

func TestWrongValues(t *testing.T) {
	t.Parallel()

	t.Run("AreReportedAllAtOnce", func(t *testing.T) {
		t.Parallel()
		_, err := Load(Input{
			Settings: Table(), Database: true, Environ: []string{"OJS_JOBS_TIMEOUT=x", "OJS_LISTEN=y", "OJS_GRPC_CLIENT_CA=/ca.pem"},
			Flags: map[string]string{"events-max-count": "z"},
		})
		require.Len(t, strings.Split(err.Error(), "\n"), 5)
		for _, want := range []string{
			`OJS_JOBS_TIMEOUT must be a duration from 1ms to 36500d, such as 30s, 15m or 7d; it is "x"`, `OJS_LISTEN must be an address`,
			`--events-max-count must be a whole number from 0 to 1000000000000; it is "z"`, "no database", "OJS_GRPC_CLIENT_CA needs OJS_GRPC_TLS_CERT",
		} {
			require.ErrorContains(t, err, want)
		}
	})

	t.Run("NeverShowSecrets", func(t *testing.T) {
		t.Parallel()
		for _, text := range []string{"http://joe:PASSWORD@h:port", "PASSWORD%zz://,,", "postgres://joe:PASSWORD@h:port/x", "PASSWORD,"} {
			in := Input{Settings: Table()}
			for _, s := range Table() {
				if s.Secret || s.Kind == kindURL || s.Kind == kindPostgres {
					in.Environ = append(in.Environ, s.Env+"="+text)
				}
			}
			_, err := Load(in)
			require.Error(t, err)
			require.NotContains(t, err.Error(), "PASSWORD")
		}
	})

	t.Run("Conflicts", func(t *testing.T) {
		t.Parallel()
		for want, flags := range map[string]map[string]string{
			"--cors-origins must list the origins":            {"cors-origins": "*", "api-key": "k"},
			"--tls-cert needs OJS_TLS_KEY":                    {"tls-cert": "c"},
			"--tls-key needs OJS_TLS_CERT":                    {"tls-key": "k"},
			"--tls-client-ca needs OJS_TLS_CERT and OJS_TLS_": {"tls-client-ca": "a"},
			"--grpc-tls-cert needs OJS_GRPC_TLS_KEY":          {"grpc-tls-cert": "c"},
			"--grpc-tls-key needs OJS_GRPC_TLS_CERT":          {"grpc-tls-key": "k"},
			"--grpc-client-ca needs OJS_GRPC_TLS_CERT and OJ": {"grpc-client-ca": "a"},
		} {
			_, err := Load(Input{Settings: Table(), Flags: flags})
			require.ErrorContains(t, err, want)
		}
		_, err := Load(Input{Settings: Table(), Flags: map[string]string{"cors-origins": "*"}})
		require.NoError(t, err, "an open API")
	})
}

func TestShown(t *testing.T) {
	t.Parallel()
	for _, row := range [][3]string{
		{"listen", ":81", ":81"}, {"api-key", "a,b", "(set)"}, {"webhooks-encryption-key", testKey, "(set)"},
		{"database-url", "postgres://u:PASSWORD@h:5433/db?password=PASSWORD", "postgres://u@h:5433/db"},
		{"database-url", "host=h port=5433 user=u password=PASSWORD dbname=db", "postgres://u@h:5433/db"},
		{"database-url", "postgres://u:PASSWORD@h1:1,h2:2/db", "postgres://u@h1:1,h2:2/db"},
		{"webhooks-proxy-url", "http://u:PASSWORD@h:3128", "http://h:3128"}, {"public-url", "https://u:PASSWORD@h/x?y=PASSWORD", "https://h/x"},
	} {
		l, err := Load(Input{Settings: Table(), Flags: map[string]string{row[0]: row[1]}})
		require.NoError(t, err)
		v, found := l.Get(row[0])
		require.True(t, found)
		require.Equal(t, row[2], v.Shown())
		var b bytes.Buffer
		require.NoError(t, l.WriteText(&b))
		require.NoError(t, l.WriteJSON(&b))
		require.NotContains(t, b.String(), "PASSWORD")
		require.NotContains(t, b.String(), testKey)
		require.NotContains(t, fmt.Sprintf("%v %+v", l.Config.Webhooks, l.Config.Webhooks), "107") // bytes of the key
	}
}

func TestChanged(t *testing.T) {
	t.Parallel()
	l, err := Load(Input{Settings: Table(), Flags: map[string]string{"jobs-timeout": "1800s", "listen": ":81"}, Environ: []string{"OJS_JOBS_MAX_SIZE=1048576", "OJS_MIGRATE=1"}})
	require.NoError(t, err)
	names := []string{}
	for _, v := range l.Changed() {
		names = append(names, v.Name())
	}
	require.Equal(t, []string{"OJS_MIGRATE", "--listen"}, names, "others are the defaults in other words")
	l, err = Load(Input{Settings: Table(), Dev: true})
	require.NoError(t, err)
	require.Empty(t, l.Changed())
}

func TestUnknownVariables(t *testing.T) {
	t.Parallel()
	require.Equal(t, []Unknown{{"OJS_WEBHOOK_CA_FILE", "OJS_WEBHOOKS_CA_FILE"}, {"OJS_LOG_LEVEL", "OJS_LOGGING_LEVEL"}}, UnknownVariables([]string{
		"OJS_WEBHOOK_CA_FILE=x", "OJS_LISTEN=:1", "OJS_LOG_LEVEL=", "PATH=/bin", "OJSD_TEST_DATABASE_URL=x", "DATABASE_POOL=1", "OJS_URL=http://h",
	}))
}

// The page has a row for each setting, in tables by area; package main checks that the committed page is this one.
func TestWriteMarkdown(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	require.NoError(t, WriteMarkdown(&b))
	for _, s := range Table() {
		require.Regexp(t, "(?m)^"+regexp.QuoteMeta("| `"+s.Env+"` | `--"+s.Flag+"` | "), b.String())
	}
	require.Contains(t, b.String(), "\n## Webhooks\n")
	require.Contains(t, b.String(), "| `:8080`; `ojsd dev`: `127.0.0.1:8080` |")
}

func TestDefault(t *testing.T) {
	t.Parallel()
	c := Default()
	require.Equal(t, []any{16, ":8080", 168 * time.Hour, int64(1_000_000), Size(1 << 20), ":9090"}, []any{
		c.Database.MaxConns, c.Server.Listen, c.Events.RetentionPeriod, c.Events.MaxCount, c.Jobs.MaxJobBytes, c.GRPC.Listen,
	})
	require.Len(t, c.Webhooks.RetrySchedule, 7)
	require.Empty(t, c.Database.URL)
}

func TestGRPCOff(t *testing.T) {
	t.Parallel()
	l, err := Load(Input{Settings: Table(), Environ: []string{"OJS_GRPC_LISTEN=off"}})
	require.NoError(t, err)
	require.Equal(t, "off", l.Config.GRPC.Listen)
	_, err = Load(Input{Settings: Table(), Environ: []string{"OJS_LISTEN=off"}})
	require.Error(t, err)
}

// Fixed values are no settings, and a command with few settings has them, too.
func TestFixedValues(t *testing.T) {
	t.Parallel()
	l, err := Load(Input{Settings: Pick("database-url"), Environ: []string{"=1", "OJS_STATEMENT_TIMEOUT=1s"}, Flags: map[string]string{"": "1"}})
	require.NoError(t, err)
	require.Len(t, l.Values, 1)
	require.Equal(t, 15*time.Second, l.Config.Database.StatementTimeout)
	require.Equal(t, Size(32<<20), l.Config.Server.MaxBatchBytes)
	require.Equal(t, Default().Webhooks.RetryJitter, l.Config.Webhooks.RetryJitter)
}

// A server without keys is for its own machine, unless a setting says that everybody may do everything.
func TestCheckProtected(t *testing.T) {
	t.Parallel()
	for env, refused := range map[string]string{
		"": "OJS_LISTEN=:8080", "OJS_LISTEN=127.0.0.1:8080": "OJS_GRPC_LISTEN=:9090", "OJS_LISTEN=127.0.0.1:8080 OJS_GRPC_LISTEN=off": "",
		"OJS_LISTEN=localhost:1 OJS_GRPC_LISTEN=[::1]:2": "", "OJS_LISTEN=0.0.0.0:8080 OJS_GRPC_LISTEN=off": "OJS_LISTEN=0.0.0.0:8080",
		"OJS_LISTEN=10.0.0.7:8080 OJS_GRPC_LISTEN=off": "OJS_LISTEN=10.0.0.7:8080", "OJS_LISTEN=jobs.internal:8080": "OJS_LISTEN=jobs.internal:8080",
		"OJS_ALLOW_UNAUTHENTICATED=true": "", "OJS_API_KEY=" + testKey: "",
		"OJS_LISTEN=127.0.0.1:1 OJS_GRPC_TLS_CERT=/a OJS_GRPC_TLS_KEY=/b":                       "OJS_GRPC_LISTEN=:9090",
		"OJS_LISTEN=127.0.0.1:1 OJS_GRPC_TLS_CERT=/a OJS_GRPC_TLS_KEY=/b OJS_GRPC_CLIENT_CA=/c": "",
		"OJS_TLS_CERT=/a OJS_TLS_KEY=/b":                                                        "OJS_LISTEN=:8080", "OJS_TLS_CERT=/a OJS_TLS_KEY=/b OJS_TLS_CLIENT_CA=/c": "",
		"OJS_TLS_CERT=/a OJS_TLS_KEY=/b OJS_TLS_CLIENT_CA=/c OJS_GRPC_TLS_CERT=/a OJS_GRPC_TLS_KEY=/b": "OJS_GRPC_LISTEN=:9090",
	} {
		l, err := Load(Input{Settings: Table(), Environ: strings.Fields(env)})
		require.NoError(t, err, env)
		err = l.CheckProtected()
		if refused == "" {
			require.NoError(t, err, env)
			continue
		}
		require.ErrorContains(t, err, refused+" is open to the network", env)
		require.ErrorContains(t, err, "OJS_ALLOW_UNAUTHENTICATED=true")
	}
	l, err := Load(Input{Settings: Table(), Dev: true})
	require.NoError(t, err)
	require.NoError(t, l.CheckProtected())
}
