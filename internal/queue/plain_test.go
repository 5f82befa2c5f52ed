package queue

import (
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
)

// sentByPlain are the fields of a job that the short inserts store. notStored have no column: they say how to insert the job, or were
// turned into a field that is stored.
var (
	sentByPlain = []string{"ID", "Type", "Queue", "Priority", "MaxAttempts", "Retry", "Args", "Meta", "Extra", "TimeoutMS", "VisibilityMS", "TraceID", "Source"}
	notStored   = []string{"Schema", "SchemaVersion", "Unique", "Limit", "Producer", "Admitted", "BlockFor", "Unbounded", "Outcome"}
	withLimit   = []string{"OnLimit"} // has no effect without LimitKey
)

// A field that is added to job.Job, and forgotten by the short inserts and by plain, would be lost for most jobs.
func TestPlainInsertKnowsEveryField(t *testing.T) {
	t.Parallel()
	of := reflect.TypeFor[job.Job]()
	for i := range of.NumField() {
		name := of.Field(i).Name
		if slices.Contains(slices.Concat(sentByPlain, notStored, withLimit), name) {
			continue
		}
		j := &job.Job{}
		setField(reflect.ValueOf(j).Elem().Field(i))
		require.False(t, newInsertion([]*job.Job{j}, false).plain(), "jobs with %s are stored without it: let plain look at it, or send it in plainParams and alikeParams", name)
	}
}

// setField gives a field a value other than zero.
func setField(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("x")
	case reflect.Int, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint8:
		v.SetUint(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Array:
		setField(v.Index(0))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Struct:
		setField(v.Field(0))
	default:
		panic("no value for " + v.Kind().String())
	}
}
