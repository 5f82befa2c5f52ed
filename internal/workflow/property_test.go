package workflow_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/workflow"
	"github.com/ojsd/ojsd/ojs"
)

// TestRandomWorkflows runs random definitions, with random outcomes of their jobs, on three nodes that fetch and ack at the same
// time, and compares what comes out with the model. Some calls are cut off, and one node is killed again and again in the
// moment between the commit of an ack and the advance of the workflow.
//
//	OJS_TEST_WORKFLOWS       how many definitions; 20
//	OJS_TEST_WORKFLOWS_SEED  seed of the first one, the next have the following seeds; random
//	OJS_TEST_WORKFLOWS_KILLS  each kills connections of all nodes about that often per 1 000 calls; 0
func TestRandomWorkflows(t *testing.T) {
	t.Parallel()
	n, seed, kills := env("OJS_TEST_WORKFLOWS", 20), env("OJS_TEST_WORKFLOWS_SEED", int(rand.Int32())), env("OJS_TEST_WORKFLOWS_KILLS", 0)
	t.Logf("%d definitions from seed %d on", n, seed)
	unchecked := func(c *domaintest.Config) { c.Unchecked = true } // cut-off calls do not emit what they have changed
	b := setup(t, unchecked)
	nodes := []*bundle{b, {b.Node(unchecked)}, {b.Node(unchecked, stopped)}}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var followers sync.WaitGroup
	followers.Go(func() { followLeft(ctx, nodes[:2]) })

	var next, total atomic.Int64
	var runners sync.WaitGroup
	for range 4 {
		runners.Go(func() {
			for i := next.Add(1) - 1; i < int64(n) && !t.Failed(); i = next.Add(1) - 1 {
				r := newRandomRun(b, nodes, seed+int(i), kills)
				if problem := r.run(); problem != "" {
					t.Errorf("OJS_TEST_WORKFLOWS=1 OJS_TEST_WORKFLOWS_SEED=%d: %s\n%s", seed+int(i), problem, r.body)
				}
				total.Add(int64(len(r.model.runs)))
			}
		})
	}
	runners.Wait()
	stop()
	followers.Wait()
	t.Logf("%d jobs of %d workflows", total.Load(), min(next.Load(), int64(n)))
}

// followLeft is the loop that nodes have for changes that were left over.
func followLeft(ctx context.Context, nodes []*bundle) {
	for i := 0; ctx.Err() == nil; i++ {
		_, _ = nodes[i%len(nodes)].Workflows.FollowLeft(ctx, 50*time.Millisecond)
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func env(name string, byDefault int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return byDefault
}

// drawing makes a random definition; every job has a type of its own.
type drawing struct {
	*rapid.T
	jobs  int
	queue string
}

func (d *drawing) flip(label string) bool { return rapid.Bool().Draw(d.T, label) }

func (d *drawing) count(label string, most int) int { return rapid.IntRange(1, most).Draw(d.T, label) }

func (d *drawing) job(more string) string {
	d.jobs++
	return fmt.Sprintf(`{"type":"j%d","args":[]%s}`, d.jobs, more)
}

// member is a job or, while depth allows, a nested workflow.
func (d *drawing) member(depth int, more string) string {
	if depth == 0 || d.count("nest", 4) > 1 {
		return d.job(more)
	}
	return d.typed(depth-1, more)
}

func (d *drawing) typed(depth int, more string) string {
	kind := rapid.SampledFrom([]string{"chain", "group", "batch"}).Draw(d.T, "type")
	members := make([]string, d.count("members", 4))
	for i := range members {
		members[i] = d.member(depth, "")
	}
	list := "jobs"
	if kind == "chain" {
		list = "steps"
	}
	if kind == "batch" {
		more += `,"callbacks":{` + strings.Join(d.callbacks(func(name string) string { return `"` + name + `":` + d.job("") }), ",") + `}`
	}
	return `{"type":"` + kind + `","` + list + `":[` + strings.Join(members, ",") + `]` + more + `}`
}

// callbacks draws at least one of the three.
func (d *drawing) callbacks(one func(name string) string) []string {
	chosen := rapid.IntRange(1, 7).Draw(d.T, "callbacks")
	var list []string
	for i, name := range []string{"on_complete", "on_success", "on_failure"} {
		if chosen&(1<<i) != 0 {
			list = append(list, one(name))
		}
	}
	return list
}

// steps draws dependencies between members in any order, without cycles, and perhaps callbacks.
func (d *drawing) steps(more string) string {
	n := d.count("steps", 6)
	place := rapid.Permutation(slices.Collect(func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	})).Draw(d.T, "order")
	list := make([]string, n)
	for i := range n {
		needs := []string{}
		for on := range i {
			if d.count("edge", 3) == 1 {
				needs = append(needs, fmt.Sprintf(`"s%d"`, on))
			}
		}
		list[place[i]] = d.member(1, fmt.Sprintf(`,"id":"s%d","depends_on":[%s]`, i, strings.Join(needs, ",")))
	}
	if d.flip("with callbacks") {
		list = append(list, d.callbacks(func(name string) string {
			return d.job(fmt.Sprintf(`,"id":"c-%s","options":{"callback_type":"%s"}`, name, name))
		})...)
	}
	return `{"steps":[` + strings.Join(list, ",") + `]` + more + `}`
}

// definition draws a body in either form.
func definition(queue string) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		d := &drawing{T: t, queue: queue}
		more := `,"options":{"queue":"` + queue + `","retry":{"max_attempts":1}}`
		if d.count("form", 3) == 1 {
			return d.steps(more)
		}
		return d.typed(d.count("depth", 4), more)
	})
}

// randomRun is the run of one definition.
type randomRun struct {
	b     *bundle
	nodes []*bundle
	seed  int
	kills int
	queue string
	body  string
	model *model
	want  ending

	mu    sync.Mutex
	runs  map[string]any // parent_results of the jobs that were fetched, by type
	twice []string       // types that were fetched as two jobs
	ids   map[string][16]byte
}

func newRandomRun(b *bundle, nodes []*bundle, seed, kills int) *randomRun {
	queue := "q" + strconv.Itoa(seed)
	return &randomRun{b: b, nodes: nodes, seed: seed, kills: kills, queue: queue, body: definition(queue).Example(seed), runs: map[string]any{}, ids: map[string][16]byte{}, model: &model{}}
}

// outcome is decided by seed and type, so that model and workers agree.
func (r *randomRun) outcome(kind string) string {
	h := fnv.New32a()
	_, _ = fmt.Fprintf(h, "%d %s", r.seed, kind)
	good := 7 + r.seed%8 // of 16: some definitions mostly succeed, others rarely
	switch n := int(h.Sum32() >> 8 % 16); {
	case n < good:
		return "completed"
	case n < 15:
		return "failed"
	}
	return "cancelled"
}

func (r *randomRun) run() (problem string) {
	def, wire := workflow.Decode([]byte(r.body), job.Limits{}, 0)
	if wire != nil {
		return wire.Message
	}
	r.model, r.want = runModel(def, r.outcome)
	def.ID, def.ClientID = job.NewID(), true
	if err := r.create(def); err != nil {
		return "create: " + err.Error()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*domaintest.WaitFor)
	defer cancel()
	var workers sync.WaitGroup
	done, stopWorkers := context.WithCancel(ctx)
	for i := range 3 {
		workers.Go(func() { r.work(done, rand.New(rand.NewPCG(uint64(r.seed), uint64(i)))) })
	}
	w, problem := r.await(ctx, def.ID)
	stopWorkers()
	workers.Wait()
	if problem != "" {
		return problem
	}
	return r.compare(w)
}

// create tries again when its connection was killed. The workflow is there if the answer was lost only.
func (r *randomRun) create(def *workflow.Definition) error {
	for try := 0; ; try++ {
		_, err := r.b.Workflows.Create(context.Background(), def)
		var refused *ojs.Error
		switch {
		case err == nil:
			return nil
		case try > 0 && errors.As(err, &refused) && refused.Type == string(ojs.ErrDuplicateJob):
			return nil
		case r.kills == 0 || try == 10:
			return err
		}
	}
}

// await waits until the workflow has ended.
func (r *randomRun) await(ctx context.Context, id [16]byte) (*workflow.Workflow, string) {
	for {
		w, err := r.b.Workflows.Get(ctx, id)
		if err == nil && w.State != "running" {
			return w, ""
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Sprintf("it does not end: %v, %v, jobs %v", endingOf(w), err, r.ids)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// work is a worker that goes from node to node.
func (r *randomRun) work(ctx context.Context, rng *rand.Rand) {
	worker := fmt.Sprintf("w%d", rng.Uint32())
	for ctx.Err() == nil {
		node := r.nodes[rng.IntN(len(r.nodes))]
		jobs, err := node.Fetch(ctx, job.Fetch{Queues: []string{r.queue}, Count: 1 + rng.IntN(3), WorkerID: worker})
		if err != nil || len(jobs) == 0 {
			time.Sleep(time.Duration(1+rng.IntN(3)) * time.Millisecond)
		}
		for _, j := range jobs {
			r.note(j)
			r.finish(ctx, rng, j, worker)
		}
	}
}

func (r *randomRun) note(j *job.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if id, fetched := r.ids[j.Type]; fetched && id != j.ID {
		r.twice = append(r.twice, j.Type)
	}
	r.ids[j.Type] = j.ID
	r.runs[j.Type] = codesOnly([]byte(extra(j, "parent_results")))
}

// finish ends a job on any node. The first calls may be cut off; what they have done shows in the refusal of the next.
func (r *randomRun) finish(ctx context.Context, rng *rand.Rand, j *job.Record, worker string) {
	for try := 0; ctx.Err() == nil; try++ {
		node := r.nodes[rng.IntN(len(r.nodes))]
		call, cancel := ctx, context.CancelFunc(func() {})
		if try < 2 && rng.IntN(4) == 0 {
			call, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(4000))*time.Microsecond)
		}
		if rng.IntN(1000) < r.kills {
			r.kill()
		}
		err := r.end(call, node, j, worker)
		cancel()
		var refused *ojs.Error
		if err == nil || errors.As(err, &refused) && refused.Type == string(ojs.ErrInvalidStateTransition) {
			return
		}
	}
}

func (r *randomRun) end(ctx context.Context, node *bundle, j *job.Record, worker string) error {
	var err error
	switch r.outcome(j.Type) {
	case "completed":
		_, err = node.Complete(ctx, job.Ack{JobID: j.ID, WorkerID: worker, Attempt: job.AnyAttempt, Result: []byte(strconv.Quote(j.Type))})
	case "failed":
		_, err = node.Fail(ctx, job.Nack{JobID: j.ID, WorkerID: worker, Attempt: job.AnyAttempt, Error: job.WorkerError{Code: "broken", Type: "broken", Message: "broken"}})
	default:
		_, err = node.Cancel(ctx, j.ID, queue.Cancel{By: "test"})
	}
	return err
}

// kill ends some connections of all nodes, as a restart of Postgres or of a proxy does.
func (r *randomRun) kill() {
	_, _ = r.b.Pool.Exec(context.Background(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < 0.3`)
}

// compare gives the first difference from the model.
func (r *randomRun) compare(w *workflow.Workflow) string {
	if got, want := endingOf(w).String(), r.want.String(); got != want {
		return fmt.Sprintf("it ended as\n%s, not as\n%s", got, want)
	}
	got, _ := json.Marshal(r.runs)
	want, _ := json.Marshal(r.model.runs)
	if string(got) != string(want) {
		return fmt.Sprintf("parent results were\n%s, not\n%s", got, want)
	}
	if len(r.twice) > 0 {
		return fmt.Sprintf("jobs were inserted twice: %v", r.twice)
	}
	completed, failed := r.model.leaves["completed"], r.model.leaves["failed"]+r.model.leaves["cancelled"]
	if w.CompletedCount != completed || w.FailedCount != failed {
		return fmt.Sprintf("counts are %d and %d, not %d and %d", w.CompletedCount, w.FailedCount, completed, failed)
	}
	return r.compareEvents(w, completed)
}

// compareEvents counts the events of the workflow: each happens once.
func (r *randomRun) compareEvents(w *workflow.Workflow, completed int) string {
	var counts string
	err := r.b.Pool.QueryRow(context.Background(), `SELECT concat_ws(' ', count(*) FILTER (WHERE type = 'workflow.started'),
			count(*) FILTER (WHERE type = 'workflow.step_completed'), count(*) FILTER (WHERE type = 'workflow.' || $2),
			count(*) FILTER (WHERE type IN ('workflow.completed', 'workflow.failed')), count(*) FILTER (WHERE type = 'job.enqueued'))
		FROM ojs.events WHERE workflow_id = $1`, w.ID, w.State).Scan(&counts)
	if err != nil {
		return "" // a connection was killed
	}
	if want := fmt.Sprintf("1 %d 1 1 %d", completed, len(r.model.runs)); counts != want {
		return "events (started, step_completed, end, ends, enqueued) are " + counts + ", not " + want
	}
	return ""
}

// TestDefinitionsAreRandom makes sure that the test above meets every form.
func TestDefinitionsAreRandom(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	for seed := range 300 {
		d := decode(t, definition("q").Example(seed))
		seen[string(d.Type)]++
		var depth func(d *workflow.Definition) int
		depth = func(d *workflow.Definition) (most int) {
			for _, m := range d.Members {
				if m.Nested != nil {
					most = max(most, depth(m.Nested))
				}
			}
			return most + 1
		}
		seen["depth "+strconv.Itoa(depth(d))]++
	}
	for _, form := range []string{"chain", "group", "batch", "dag", "depth 1", "depth 2", "depth 3", "depth 4"} {
		require.Greater(t, seen[form], 3, "%s: %v", form, seen)
	}
}

// A failed step of a dag cancels nested workflows that wait for it; what was decided after them got lost once.
func TestCancelledNestedWorkflowOfADAG(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.created(decode(t, `{"options":{"queue":"q","retry":{"max_attempts":1}},"steps":[{"id":"a","type":"t.a","args":[]},
		{"id":"n","type":"group","depends_on":["a"],"jobs":[{"type":"t.b","args":[]}]},{"id":"c","type":"t.c","args":[],"options":{"callback_type":"on_failure"}}]}`))
	b.fail("a")
	b.done("c")
	require.Equal(t, "completed a:failed n:cancelled[cancelled 0:cancelled] c:completed", states(b.read(w)))
}

// TestRandomCancels cancels random workflows while workers run them. Whatever the moment, nothing is left open and the counts are
// those of the steps.
func TestRandomCancels(t *testing.T) {
	t.Parallel()
	n, seed := env("OJS_TEST_WORKFLOWS", 20), env("OJS_TEST_WORKFLOWS_SEED", int(rand.Int32()))
	t.Logf("%d definitions from seed %d on", n, seed)
	b := setup(t)
	nodes := []*bundle{b, {b.Node()}}
	cancels := 0
	for i := range n {
		r := newRandomRun(b, nodes, seed+i, 0)
		cancelled, problem := r.cancelled(time.Duration(rand.IntN(15))*time.Millisecond, i%2 == 0)
		if cancelled {
			cancels++
		}
		require.Empty(t, problem, "seed %d: %s", seed+i, r.body)
	}
	t.Logf("%d were cancelled before their end", cancels)
}

func (r *randomRun) cancelled(after time.Duration, force bool) (cancelled bool, problem string) {
	def, wire := workflow.Decode([]byte(r.body), job.Limits{}, 0)
	if wire != nil {
		return false, wire.Message
	}
	w, err := r.b.Workflows.Create(context.Background(), def)
	if err != nil {
		return false, err.Error()
	}
	ctx, stop := context.WithTimeout(context.Background(), 2*domaintest.WaitFor)
	defer stop()
	var workers sync.WaitGroup
	for i := range 2 {
		workers.Go(func() { r.work(ctx, rand.New(rand.NewPCG(uint64(r.seed), uint64(i)))) })
	}
	time.Sleep(after)
	_, _, err = r.nodes[1].Workflows.Cancel(context.Background(), w.ID, force, "test")
	var refused *ojs.Error
	if err != nil && !(errors.As(err, &refused) && refused.Type == string(ojs.ErrInvalidStateTransition)) {
		return false, err.Error()
	}
	cancelled = err == nil
	for live := 1; live > 0 && ctx.Err() == nil; { // active jobs are acknowledged normally
		time.Sleep(2 * time.Millisecond)
		if err := r.b.Pool.QueryRow(ctx, `SELECT count(*) FROM ojs.jobs WHERE queue = $1 AND state <> 'discarded'`, r.queue).Scan(&live); err != nil {
			return cancelled, err.Error()
		}
	}
	stop()
	workers.Wait()
	if w, err = r.b.Workflows.Get(context.Background(), w.ID); err != nil {
		return cancelled, err.Error()
	}
	if cancelled && w.State != "cancelled" {
		return cancelled, "it is " + w.State
	}
	_, problem = settledCounts(w)
	return cancelled, problem
}

// settledCounts checks that nothing of an ended workflow is open, and compares its counts with its steps.
func settledCounts(w *workflow.Workflow) (leaves [2]int, problem string) {
	completed, failed := 0, 0
	for _, st := range append(slices.Clone(w.Steps), w.Callbacks...) {
		switch {
		case st.State != "completed" && st.State != "failed" && st.State != "cancelled":
			return leaves, fmt.Sprintf("step %s is %s: %v", st.ID, st.State, endingOf(w))
		case st.Callback != "":
			continue
		case st.Workflow != nil:
			inner, problem := settledCounts(st.Workflow)
			if problem != "" {
				return leaves, problem
			}
			leaves[0], leaves[1] = leaves[0]+inner[0], leaves[1]+inner[1]
		case st.State == "completed":
			leaves[0]++
		case st.JobID != nil:
			leaves[1]++
		}
		if st.State == "completed" {
			completed++
		} else if st.State == "failed" || st.JobID != nil {
			failed++
		}
	}
	if w.State == "running" || w.Completed != completed || w.CompletedCount != leaves[0] || w.FailedCount != leaves[1] {
		return leaves, fmt.Sprintf("counts are %d, %d, %d, not %d, %v: %v", w.Completed, w.CompletedCount, w.FailedCount, completed, leaves, endingOf(w))
	}
	if w.Failed < failed {
		return leaves, fmt.Sprintf("failed count is %d, less than %d: %v", w.Failed, failed, endingOf(w))
	}
	return leaves, ""
}
