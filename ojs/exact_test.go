package ojs_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/require"
	"github.com/ojsd/ojsd/ojs/ojsadmin"
)

// withAttributes shows unknown attributes behind the id, the type, the state and others of each job.
type withAttributes struct {
	server
	attributes string
}

func (w withAttributes) RoundTrip(hr *http.Request) (*http.Response, error) {
	answer, err := w.server.RoundTrip(hr)
	if err != nil || strings.Contains(hr.URL.Path, "events") {
		return answer, err
	}
	body, err := io.ReadAll(answer.Body)
	body = bytes.ReplaceAll(body, []byte(`"max_attempts":`), []byte(w.attributes+`,"max_attempts":`))
	answer.Body = io.NopCloser(bytes.NewReader(body))
	return answer, err
}

// memberNames are the names of the members of a job.
func memberNames() (names []string) {
	for f := range reflect.TypeFor[ojs.Job]().Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "-" {
			names = append(names, name)
		}
	}
	return names
}

// otherCases are names that encoding/json takes for that of a member.
func otherCases(name string) []string {
	list := []string{strings.ToUpper(name), strings.ToUpper(name[:1]) + name[1:], name[:len(name)-1] + strings.ToUpper(name[len(name)-1:]),
		fmt.Sprintf(`\u%04x`, strings.ToUpper(name)[0]) + name[1:]}
	for letter, folded := range map[string]string{"s": "ſ", "k": "\u212a"} {
		if strings.Contains(name, letter) {
			list = append(list, strings.Replace(name, letter, folded, 1))
		}
	}
	return list
}

// TestNamesAreExact: clients may give a job any attributes, and the server shows them beside its own.
func TestNamesAreExact(t *testing.T) {
	t.Parallel()

	// Attributes of some types, so that for each member some fit and some do not.
	for _, value := range []string{`"x"`, `5`, `{"to":["}"]}`, `["\"]"]`, `null`, `"2026-05-04T03:02:01Z"`} {
		t.Run("Unknown/"+value, func(t *testing.T) {
			t.Parallel()
			var attributes []string
			for _, name := range memberNames() {
				for _, other := range otherCases(name) {
					attributes = append(attributes, `"`+other+`":`+value)
				}
			}
			bothServers(t, func(t *testing.T, s server, plain *ojs.Client) {
				c, err := ojs.NewClient(ojs.Config{Logger: silent, Transport: withAttributes{s, strings.Join(attributes, ",")}})
				require.NoError(t, err)
				stored, err := c.Enqueue(t.Context(), "email.send", email{"a@b"}, ojs.WithMeta("k", "v"))
				require.NoError(t, err)
				want, err := plain.GetJob(t.Context(), stored.ID)
				require.NoError(t, err)
				require.Equal(t, want, stored)
				got, err := c.GetJob(t.Context(), stored.ID)
				require.NoError(t, err)
				require.Equal(t, want, got)
				page, err := ojsadmin.New(c).ListJobs(t.Context(), ojsadmin.JobFilter{})
				require.NoError(t, err)
				require.Equal(t, []ojs.Job{*want}, page.Items)

				batch, err := c.EnqueueBatch(t.Context(), []ojs.JobRequest{{Type: "email.send", Args: email{"a@b"}}, {Type: "email.send", Args: email{"a@b"}}})
				require.NoError(t, err)
				w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Concurrency: 1}))
				ojs.Register(w, func(_ ojs.JobContext, args email) error {
					require.Equal(t, "a@b", args.To)
					return nil
				})
				s.Drain(t, w)
				for _, id := range []string{stored.ID, batch[0].ID, batch[1].ID} {
					s.RequireState(t, id, ojs.StateCompleted)
				}
			})
		})
	}

	t.Run("EscapedNameOfAMember", func(t *testing.T) {
		t.Parallel()
		j := &ojs.Job{}
		require.NoError(t, json.Unmarshal([]byte(`{"\u0069d":"a","ID":"b","typ\u0065":"t"}`), j))
		require.Equal(t, "a", j.ID)
		require.Equal(t, "t", j.Type)
	})
}

// TestJobDecoding compares the reading of jobs with that of encoding/json.
func TestJobDecoding(t *testing.T) {
	t.Parallel()
	type plain ojs.Job
	same := func(t *testing.T, text string) {
		t.Helper()
		want, got := plain{}, ojs.Job{}
		require.NoError(t, json.Unmarshal([]byte(text), &want), text)
		require.NoError(t, json.Unmarshal([]byte(text), &got), text)
		if len(want.RawArgs) > 0 {
			require.NoError(t, json.Unmarshal(want.RawArgs, &want.Args), text)
		}
		require.Equal(t, ojs.Job(want), got, text)
	}

	t.Run("EachMember", func(t *testing.T) {
		t.Parallel()
		read := 0
		for _, name := range memberNames() {
			for _, value := range []string{
				`null`, `""`, `"x"`, `"a\"\\\u00e9é]}"`, "\"\xff\"", `0`, `-5`, `1.5`, `1e2`, `99999999999`, `9999999999999999999`, `true`, `{}`, `[]`,
				`[ 1 , "}" ]`, `{ "a" : [ {"b":"]"} ] , "c":1e5}`, `["a","\u0041"]`, `[{"code":"c","message":"m"},{"code":"d"}]`, `{"code":"c","attempt":2}`,
				`"2026-05-04T03:02:01.120Z"`, `"2026-05-04T03:02:01+02:00"`, `[null]`, `{"a":null}`,
			} {
				text := "\n{ \"a\" : [ ] ,\t\"" + name + "\" : " + value + " , \"z\":{\"" + name + "\":7}\r}"
				wanted := json.Unmarshal([]byte(text), &plain{})
				if wanted == nil && name == "args" {
					wanted = json.Unmarshal([]byte(value), new([]any))
				}
				if wanted == nil {
					same(t, text)
					same(t, `{"`+name+`":`+value+`}`)
					read++
					continue
				}
				require.Error(t, json.Unmarshal([]byte(text), &ojs.Job{}), text)
			}
		}
		require.Greater(t, read, 100)
	})

	t.Run("Forms", func(t *testing.T) {
		t.Parallel()
		for _, text := range []string{`null`, `{}`, ` { } `, `{"id":"a","id":"b","meta":{"a":1},"meta":{"b":2}}`, `{"":1,"id":"a"}`, `{"x":-1.5e+3,"id":"a"}`} {
			same(t, text)
		}
		for _, text := range []string{``, ` `, `{`, `{"id"`, `{"id":`, `{"id":"a`, `{"id":"a"`, `{"id":"a",}`, `{"args":[}`, `[]`, `"x"`, `5`, `{"id":"a"}x`, `{"id" "a"}`, `nul`} {
			require.Error(t, json.Unmarshal([]byte(text), &ojs.Job{}), text)
			require.Error(t, new(ojs.Job).UnmarshalJSON([]byte(text)), text)
		}
	})

	// docs/reference/jobs.md, Times and durations: what a client has sent is shown as it is.
	t.Run("TimesAsSent", func(t *testing.T) {
		t.Parallel()
		want := time.Date(2026, 5, 4, 3, 2, 0, 0, time.UTC)
		for _, text := range []string{
			"2026-05-04T03:02:00Z", "2026-05-04T05:02:00+02:00", "2026-05-04T03:02:00.000000000Z", "2026-05-04T03:02Z", "2026-05-04T05:02+02:00",
			"2026-05-04T05:02+0200", "2026-05-04T05:02:00.0+02", "20260504T0302Z", "20260504T050200+0200", "20260504T050200.000+02", "20260504T0502+02:00",
		} {
			j := &ojs.Job{}
			require.NoError(t, json.Unmarshal([]byte(`{"scheduled_at":"`+text+`","expires_at":"`+text+`"}`), j), text)
			require.True(t, j.ScheduledAt.Equal(want), text)
			require.True(t, j.ExpiresAt.Equal(want), text)
		}
		for _, text := range []string{`"2026-05-04"`, `"tomorrow"`, `5`, `"2026-05-04T05:02"`} {
			require.Error(t, json.Unmarshal([]byte(`{"expires_at":`+text+`}`), &ojs.Job{}), text)
		}
	})
}

// oddFetch answers the first fetch in place of the server.
type oddFetch struct {
	server
	body string
	once sync.Once
}

func (o *oddFetch) RoundTrip(hr *http.Request) (answer *http.Response, err error) {
	if strings.HasSuffix(hr.URL.Path, "/workers/fetch") {
		o.once.Do(func() {
			answer = &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(o.body))}
		})
	}
	if answer == nil {
		answer, err = o.server.RoundTrip(hr)
	}
	return answer, err
}

// TestFetchAnswers: what is no answer to a fetch ends no worker, and no jobs in it are no error.
func TestFetchAnswers(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`null`, `{}`, `{"jobs":null}`, `{"jobs":[]}`, `{ "jobs" : [ null ] , "Jobs":5, "x":[1] }`, `{"jobs":5}`, `[]`, `{"jobs":[5]}`, `{"jobs":[`,
		`{"jobs":[{"priority":"x"}]}`} {
		t.Run(body, func(t *testing.T) {
			t.Parallel()
			s, c := setup(t)
			id := enqueue(t, c)
			c, err := ojs.NewClient(ojs.Config{Logger: silent, Transport: &oddFetch{server: s, body: body}})
			require.NoError(t, err)
			w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
			w.Register("a", func(ojs.JobContext) error { return nil })
			s.Drain(t, w)
			s.RequireState(t, id, ojs.StateCompleted)
		})
	}
}
