package ojs_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/require"
)

// TestDecodeArgs reads back what TestEnqueueBody sends.
func TestDecodeArgs(t *testing.T) {
	t.Parallel()
	type tuple struct {
		ojs.Tuple
		A string
		B int
	}
	decode := func(args string, into any) error {
		return (&ojs.Job{RawArgs: json.RawMessage(args)}).DecodeArgs(into)
	}
	var (
		one      email
		ptr      *email
		whole    tuple
		n        int
		list     []int
		bytes    []byte
		whatever any
	)
	require.NoError(t, decode(`[{"to":"a"},2]`, &one))
	require.Equal(t, email{"a"}, one)
	require.NoError(t, decode(`[{"to":"a"}]`, &ptr))
	require.Equal(t, "a", ptr.To)
	require.NoError(t, decode(`["x"]`, &whole))
	require.Equal(t, tuple{A: "x"}, whole)
	require.NoError(t, decode(`["x",1,true]`, &whole))
	require.Equal(t, 1, whole.B)
	require.NoError(t, decode(`[7]`, &n))
	require.Equal(t, 7, n)
	require.NoError(t, decode(`[1,2]`, &list))
	require.Equal(t, []int{1, 2}, list)
	require.NoError(t, decode(`["YQ=="]`, &bytes))
	require.Equal(t, "a", string(bytes))
	require.NoError(t, decode(`[1]`, &whatever))
	require.NoError(t, decode(`[]`, &one), "no arguments leave the zero value")
	require.ErrorContains(t, decode(`["x","y"]`, &whole), "element 1")
	require.Error(t, decode(`{}`, &one))
	var result int
	require.NoError(t, (&ojs.Job{}).DecodeResult(&result))
	require.NoError(t, (&ojs.Job{Result: json.RawMessage("7")}).DecodeResult(&result))
	require.Equal(t, 7, result)
}

// id is an array that is a text in JSON, as the UUIDs of most libraries are.
type id [4]byte

func (i id) MarshalText() ([]byte, error)     { return hex.AppendEncode(nil, i[:]), nil }
func (i *id) UnmarshalText(text []byte) error { _, err := hex.Decode(i[:], text); return err }

// code is a text in JSON by methods for JSON.
type code [2]byte

func (c code) MarshalJSON() ([]byte, error) { return json.Marshal(string(c[:])) }
func (c *code) UnmarshalJSON(data []byte) error {
	var text string
	err := json.Unmarshal(data, &text)
	copy(c[:], text)
	return err
}

// point is a struct that is an array in JSON.
type point struct{ X, Y int }

func (p point) MarshalJSON() ([]byte, error) { return json.Marshal([]int{p.X, p.Y}) }
func (p *point) UnmarshalJSON(data []byte) error {
	var list [2]int
	err := json.Unmarshal(data, &list)
	p.X, p.Y = list[0], list[1]
	return err
}

// sentAndRead encodes arguments as an enqueue does, and decodes them as a typed handler does.
func sentAndRead[Args any](t *testing.T, args Args) (sent string, read Args) {
	t.Helper()
	body, err := json.Marshal(ojs.JobRequest{Type: "t", Args: args})
	require.NoError(t, err)
	var job ojs.Job
	require.NoError(t, json.Unmarshal(body, &job))
	require.NoError(t, job.DecodeArgs(&read), string(job.RawArgs))
	return string(job.RawArgs), read
}

// TestArgsWithTheirOwnEncoding: types that encode themselves are arguments like others, whatever kind they are and whatever they look like.
func TestArgsWithTheirOwnEncoding(t *testing.T) {
	t.Parallel()
	one, other := id{1, 2, 3, 4}, id{5}
	sent, read := sentAndRead(t, one)
	require.Equal(t, `["01020304"] [1 2 3 4]`, fmt.Sprint(sent, " ", [4]byte(read)))
	_, pointer := sentAndRead(t, &one)
	require.Equal(t, one, *pointer)
	_, list := sentAndRead(t, []id{one, other})
	require.Equal(t, []id{one, other}, list)
	type fields struct {
		ID  id
		Map map[id]*id
	}
	_, inStruct := sentAndRead(t, fields{one, map[id]*id{other: &one}})
	require.Equal(t, fields{one, map[id]*id{other: &one}}, inStruct)
	type tuple struct {
		ojs.Tuple
		ID id
		N  int
	}
	_, inTuple := sentAndRead(t, tuple{ID: one, N: 7})
	require.Equal(t, tuple{ID: one, N: 7}, inTuple)
	sent, byJSON := sentAndRead(t, code{'d', 'e'})
	require.Equal(t, `["de"] de`, sent+" "+string(byJSON[:]))
	sent, array := sentAndRead(t, point{1, 2})
	require.Equal(t, `[1,2] {1 2}`, fmt.Sprint(sent, " {", array.X, " ", array.Y, "}"))

	var p point
	require.NoError(t, (&ojs.Job{RawArgs: json.RawMessage(`[[3,4]]`)}).DecodeArgs(&p), "another program may send it as the only element")
	require.Equal(t, point{3, 4}, p)
	require.ErrorContains(t, (&ojs.Job{RawArgs: json.RawMessage(`["x"]`)}).DecodeArgs(&p), "cannot unmarshal string")
	require.NoError(t, (&ojs.Job{RawArgs: json.RawMessage(`[]`)}).DecodeArgs(&one), "no arguments")
	require.Error(t, (&ojs.Job{RawArgs: json.RawMessage(`[1]`)}).DecodeArgs(nil))
	require.Error(t, (&ojs.Job{RawArgs: json.RawMessage(`[1]`)}).DecodeArgs(point{}))
}

// level is a number that shows itself as a text and cannot be read back.
type level int

func (level) MarshalText() ([]byte, error) { return []byte("high"), nil }

type (
	levelArgs struct {
		Name   string
		Alerts []struct{ At map[string]*level }
	}
	levelKeyArgs  struct{ ByLevel map[level]int }
	levelOnlyArgs struct{ level }
	soundArgs     struct {
		ID      id
		Next    *soundArgs
		Level   level `json:"-"`
		ByName  map[string]point
		Any     any
		Pointer *shown
	}
)

// shown has its method on the pointer, so that a value in a map or a struct is encoded as it is.
type shown struct{ A int }

func (*shown) MarshalText() ([]byte, error)    { return []byte("x"), nil }
func (*shown) UnmarshalText(text []byte) error { return nil }

func (levelArgs) JobType() string     { return "level" }
func (levelKeyArgs) JobType() string  { return "level" }
func (levelOnlyArgs) JobType() string { return "level" }
func (soundArgs) JobType() string     { return "sound" }

// TestRegisterRefusesWhatCannotBeRead: the mistake shows when the program starts, and not in the dead letters.
func TestRegisterRefusesWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	_, c := setup(t)
	refusal := func(register func(*ojs.Worker)) (text string) {
		defer func() {
			if value := recover(); value != nil {
				text = fmt.Sprint(value)
			}
		}()
		register(ojs.NewWorker(c, ojs.WorkerConfig{}))
		return "none"
	}
	text := refusal(func(w *ojs.Worker) { ojs.Register(w, func(ojs.JobContext, levelArgs) error { return nil }) })
	require.Contains(t, text, "ojs_test.levelArgs.Alerts.At")
	require.Contains(t, text, "ojs_test.level has MarshalText")
	require.Contains(t, text, "UnmarshalText")
	text = refusal(func(w *ojs.Worker) { ojs.Register(w, func(ojs.JobContext, *levelKeyArgs) error { return nil }) })
	require.Contains(t, text, "levelKeyArgs.ByLevel")
	text = refusal(func(w *ojs.Worker) { ojs.Register(w, func(ojs.JobContext, levelOnlyArgs) error { return nil }) })
	require.Contains(t, text, "levelOnlyArgs has MarshalText")
	text = refusal(func(w *ojs.Worker) { ojs.Register(w, func(ojs.JobContext, soundArgs) error { return nil }) })
	require.Equal(t, "none", text)
	text = refusal(func(w *ojs.Worker) { w.Register("a", ojs.Typed(func(ojs.JobContext, levelArgs) error { return nil })) })
	require.Equal(t, "none", text, "other programs may send such jobs in a form that can be read")
}
