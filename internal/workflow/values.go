package workflow

import (
	"context"
	"math"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/spec"
)

// values are results as a job gets them: as an array, and as an object by step ids. Both are valid compact JSON, always an
// array and an object.
type values struct{ list, named []byte }

func noValues() values { return values{[]byte(`[]`), []byte(`{}`)} }

// members are the values of the members with indexes below a bound or, if only is not empty, of these in its order. The
// bound of maxResults is kept by the statement, so results that are left out never reach the node. A dag gives only the
// dependencies (docs/reference/workflows.md, Results), never an empty list of them, which would give all members below the
// bound. Steps that never ran have a value too, an error, so that positions in the array agree with those of the
// definition.
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
	// The statement returns the order of the definition; a job gets the order of its depends_on.
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

// valueOf is the value of a member, and the same with step ids for names. The first case comes first: a result that was
// left out has no Result either, and would look like null.
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
	// A step that was cancelled without a job has no stored error.
	problem := r.Error
	if problem == nil {
		problem = errorObject("cancelled", "The step was not begun.")
	}
	value = append(append([]byte(`{"error":`), problem...), '}')
	return value, value
}

// omitted stands for a result that was left out because all together are too large. A nested workflow has no job from which
// the value could be read, so it has no job_id.
func omitted(size int64, id [16]byte, ofJob bool) []byte {
	b := strconv.AppendInt([]byte(`{"omitted":true,"bytes":`), size, 10)
	if ofJob {
		b = append(spec.AppendID(append(b, `,"job_id":"`...), id), '"')
	}
	return append(b, '}')
}

// nestedValue is the value of a workflow; named is nil if it is the same.
type nestedValue struct{ value, named []byte }

// valueOf is the value of a nested workflow that ended with its step last. It is read before the row of the step above is
// written, and includes the step that ended last, whose row was written before. The value of a chain is one result and
// needs no bound; it was bounded when its job ended.
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
