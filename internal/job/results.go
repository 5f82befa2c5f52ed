package job

import (
	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// MaxResults is how many results can be asked for at once.
const MaxResults = 100

// DecodeResults reads the body of POST /jobs/results: ids of jobs, without repetitions. A text that is no id is answered with
// null, like an unknown one.
func DecodeResults(raw []byte) (IDList, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return IDList{}, err
	}
	b := body{}
	b.Fields, _ = payload.Read(v, []string{"ids"})
	list := b.Get("ids")
	var ids []string
	ok := list != nil && list[0] == '['
	if ok {
		ids, ok = payload.Texts(list)
	}
	if !ok {
		b.Refuse("ids", "an array of job ids")
		return IDList{}, b.Problems.Err()
	}
	if len(ids) > MaxResults {
		return IDList{}, spec.BatchSize(MaxResults, len(ids))
	}
	return NewIDList(payload.Distinct(ids)), nil
}
