package workflow

import (
	"context"
	"math"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/ojs"
)

// values are results as a job gets them: as an array, and as an object by step ids.
type values struct{ list, named []byte }

func noValues() values { return values{[]byte(`[]`), []byte(`{}`)} }

// members are the values of the members with indexes below a bound or, if only is not empty, of these in its order.
func (p *pass) members(ctx context.Context, f *flow, below int32, only []int32) (v values, err error) {
	indexes := only
	if indexes == nil {
		indexes = []int32{}
	}
	rows, err := p.q.WorkflowStepValues(ctx, dbsqlc.WorkflowStepValuesParams{
		RootID: p.root.ID, Flow: f.Flow, Below: below, Indexes: indexes, MaxBytes: maxResults,
	})
	if err != nil {
		return v, err
	}
	if len(only) > 0 {
		slices.SortFunc(rows, func(a, b dbsqlc.WorkflowStepValuesRow) int {
			return slices.Index(only, a.Index) - slices.Index(only, b.Index)
		})
	}
	v.list, v.named = append(v.list, '['), append(v.named, '{')
	for i := range rows {
		if i > 0 {
			v.list, v.named = append(v.list, ','), append(v.named, ',')
		}
		value, named := valueOf(&rows[i])
		v.list = append(v.list, value...)
		v.named, _ = jsontext.AppendQuote(v.named, rows[i].StepID)
		v.named = append(append(v.named, ':'), named...)
	}
	v.list, v.named = append(v.list, ']'), append(v.named, '}')
	return v, nil
}

// valueOf is the value of a member, and the same with step ids for names.
func valueOf(r *dbsqlc.WorkflowStepValuesRow) (value, named []byte) {
	switch {
	case r.Omitted:
		value = omitted(r.Size, r.JobID.Bytes, r.JobID.Valid)
		return value, value
	case r.Kind == kindWorkflow && r.Result != nil:
		if r.ResultMap != nil {
			return r.Result, r.ResultMap
		}
		return r.Result, r.Result
	case r.State == completed && r.Result != nil:
		return r.Result, r.Result
	case r.State == completed:
		return []byte(`null`), []byte(`null`)
	}
	problem := r.Error
	if problem == nil {
		problem = errorObject("cancelled", "The step was not begun.")
	}
	value = append(append([]byte(`{"error":`), problem...), '}')
	return value, value
}

// omitted stands for a result that was left out because all together are too large.
func omitted(size int64, id [16]byte, ofJob bool) []byte {
	b := strconv.AppendInt([]byte(`{"omitted":true,"bytes":`), size, 10)
	if ofJob {
		b = append(ojs.AppendID(append(b, `,"job_id":"`...), id), '"')
	}
	return append(b, '}')
}

// nestedValue is the value of a workflow; named is nil if it is the same.
type nestedValue struct{ value, named []byte }

// valueOf is the value of a nested workflow that ended with its step last.
func (p *pass) valueOf(ctx context.Context, f *flow, last *step) (v nestedValue, err error) {
	if Type(f.Type) != Chain {
		all, err := p.members(ctx, f, math.MaxInt32, nil)
		return nestedValue{all.list, all.named}, err
	}
	rows, err := p.q.WorkflowStepValues(ctx, dbsqlc.WorkflowStepValuesParams{
		RootID: p.root.ID, Flow: f.Flow, Below: math.MaxInt32, Indexes: []int32{last.index}, MaxBytes: math.MaxInt64,
	})
	if err != nil || len(rows) == 0 {
		return v, err
	}
	v.value, v.named = valueOf(&rows[0])
	if rows[0].ResultMap == nil {
		v.named = nil
	}
	return v, nil
}
